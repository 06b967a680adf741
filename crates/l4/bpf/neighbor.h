// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Answers ARP and neighbor solicitations for the virtual addresses that this node announces.
#pragma once

#include "rewrite.h"

#define NEIGHBOR_SOLICITATION 135
#define NEIGHBOR_ADVERTISEMENT 136
#define ADVERTISEMENT_SOLICITED 0x40000000
#define ADVERTISEMENT_OVERRIDE 0x20000000
#define ADVERTISEMENT_LENGTH 32

struct arp {
    __be16 hardware;
    __be16 protocol;
    __u8 hardware_length;
    __u8 protocol_length;
    __be16 operation;
    __u8 sender_mac[ETH_ALEN];
    __be32 sender;
    __u8 target_mac[ETH_ALEN];
    __be32 target;
} __attribute__((packed));

struct advertisement {
    __u8 type;
    __u8 code;
    __be16 checksum;
    __be32 flags;
    struct address target;
    __u8 option;
    __u8 option_length;
    __u8 mac[ETH_ALEN];
};

INLINE bool is_solicitation(struct __sk_buff *skb, const struct packet *packet)
{
    __u8 type = 0;

    return packet->is_ipv6 && !packet->is_first_fragment && !packet->is_later_fragment &&
           !bpf_skb_load_bytes(skb, packet->transport, &type, 1) && type == NEIGHBOR_SOLICITATION;
}

INLINE struct vip *announced_vip(const struct address *address)
{
    struct vip *vip = bpf_map_lookup_elem(&vips, address);

    return vip && vip->is_announced ? vip : NULL;
}

INLINE int answer_arp(struct __sk_buff *skb)
{
    struct address address;
    struct arp arp;
    struct vip *vip;
    __be32 client;

    if (bpf_skb_load_bytes(skb, ETHERNET_LENGTH, &arp, sizeof(arp)))
        return TC_ACT_UNSPEC;
    if (arp.hardware != bpf_htons(1) || arp.protocol != bpf_htons(ETH_P_IP) ||
        arp.hardware_length != ETH_ALEN || arp.protocol_length != 4 ||
        arp.operation != bpf_htons(1))
        return TC_ACT_UNSPEC;
    address = mapped_address(arp.target);
    vip = announced_vip(&address);
    if (!vip)
        return TC_ACT_UNSPEC;
    client = arp.sender;
    arp.operation = bpf_htons(2);
    __builtin_memcpy(arp.target_mac, arp.sender_mac, ETH_ALEN);
    __builtin_memcpy(arp.sender_mac, vip->mac, ETH_ALEN);
    arp.sender = arp.target;
    arp.target = client;
    if (bpf_skb_store_bytes(skb, ETHERNET_LENGTH, &arp, sizeof(arp), 0) ||
        rewrite_macs(skb, arp.target_mac, arp.sender_mac))
        return drop(DROP_REWRITE_FAILED);
    return bpf_redirect(skb->ifindex, 0);
}

INLINE __u16 fold_checksum(__u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return ~(sum & 0xffff);
}

// Sum of the addresses, the length and the protocol that ICMPv6 includes.
INLINE __s64 pseudo_header_sum(const struct address *source, const struct address *target,
                               __u32 length)
{
    __be32 rest[2] = {bpf_htonl(length), bpf_htonl(IPPROTO_ICMPV6)};
    __s64 sum = bpf_csum_diff(NULL, 0, (__be32 *)source, sizeof(*source), 0);

    sum = bpf_csum_diff(NULL, 0, (__be32 *)target, sizeof(*target), sum);
    return bpf_csum_diff(NULL, 0, rest, sizeof(rest), sum);
}

INLINE void build_advertisement(struct advertisement *answer, const struct vip *vip,
                                bool is_solicited)
{
    answer->type = NEIGHBOR_ADVERTISEMENT;
    answer->code = 0;
    answer->checksum = 0;
    answer->flags =
        bpf_htonl(ADVERTISEMENT_OVERRIDE | (is_solicited ? ADVERTISEMENT_SOLICITED : 0));
    answer->option = 2;
    answer->option_length = 1;
    __builtin_memcpy(answer->mac, vip->mac, ETH_ALEN);
}

// Answers a neighbor solicitation for one of our addresses; TC_ACT_UNSPEC if it is for another.
INLINE int answer_solicitation(struct __sk_buff *skb, struct scratch *scratch)
{
    struct packet *packet = &scratch->packet;
    struct advertisement answer;
    struct address client, all_nodes = {{bpf_htonl(0xff020000), 0, 0, bpf_htonl(1)}};
    __be16 length = bpf_htons(ADVERTISEMENT_LENGTH);
    __u8 solicitor[ETH_ALEN], group[ETH_ALEN] = {0x33, 0x33, 0, 0, 0, 1};
    struct vip *vip;
    bool is_solicited = !is_zero_address(&packet->flow.source);

    // Extension headers are not part of neighbor discovery.
    if (packet->transport != ETHERNET_LENGTH + sizeof(struct ipv6hdr) || packet->length < 64)
        return TC_ACT_UNSPEC;
    if (bpf_skb_load_bytes(skb, packet->transport + 8, &answer.target, sizeof(answer.target)))
        return TC_ACT_UNSPEC;
    vip = announced_vip(&answer.target);
    if (!vip || bpf_skb_load_bytes(skb, ETH_ALEN, solicitor, ETH_ALEN))
        return TC_ACT_UNSPEC;
    client = is_solicited ? packet->flow.source : all_nodes;
    build_advertisement(&answer, vip, is_solicited);
    answer.checksum =
        fold_checksum(bpf_csum_diff(NULL, 0, (__be32 *)&answer, sizeof(answer),
                                    pseudo_header_sum(&answer.target, &client, sizeof(answer))));
    if (bpf_skb_change_tail(skb, ETHERNET_LENGTH + sizeof(struct ipv6hdr) + sizeof(answer), 0) ||
        bpf_skb_store_bytes(skb, ETHERNET_LENGTH + 4, &length, 2, 0) ||
        bpf_skb_store_bytes(skb, ETHERNET_LENGTH + 8, &answer.target, 16, 0) ||
        bpf_skb_store_bytes(skb, ETHERNET_LENGTH + 24, &client, 16, 0) ||
        bpf_skb_store_bytes(skb, packet->transport, &answer, sizeof(answer), 0) ||
        rewrite_macs(skb, is_solicited ? solicitor : group, vip->mac))
        return drop(DROP_REWRITE_FAILED);
    return bpf_redirect(skb->ifindex, 0);
}
