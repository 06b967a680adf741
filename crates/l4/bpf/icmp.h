// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// ICMP to a virtual address: answers echo requests, relays errors to the pod that they are about,
// reports packets that do not fit the tunnel.
#pragma once

#include "deliver.h"
#include "neighbor.h"

#define ICMP4_ECHO_REPLY 0
#define ICMP4_UNREACHABLE 3
#define ICMP4_ECHO 8
#define ICMP4_TIME_EXCEEDED 11
#define ICMP4_PARAMETER_PROBLEM 12
#define ICMP4_FRAGMENTATION_NEEDED 4
#define ICMP6_TOO_BIG 2
#define ICMP6_LAST_ERROR 4
#define ICMP6_ECHO 128
#define ICMP6_ECHO_REPLY 129
#define ICMP_LENGTH 8
#define HOP_LIMIT 64
// Bytes of the packet that an error quotes: any IPv4 header and eight bytes are less.
#define QUOTED_LENGTH 128

INLINE bool is_icmp_error(const struct packet *packet, __u8 type)
{
    if (packet->is_ipv6)
        return type >= 1 && type <= ICMP6_LAST_ERROR;
    return type == ICMP4_UNREACHABLE || type == ICMP4_TIME_EXCEEDED ||
           type == ICMP4_PARAMETER_PROBLEM;
}

INLINE int set_hop_limit(struct __sk_buff *skb, const struct packet *packet)
{
    __u32 offset = packet->network + (packet->is_ipv6 ? 7 : offsetof(struct iphdr, ttl));
    __u8 old[2], new[2];
    __be16 before, after;

    if (bpf_skb_load_bytes(skb, offset, old, packet->is_ipv6 ? 1 : 2))
        return -1;
    new[0] = HOP_LIMIT;
    if (packet->is_ipv6)
        return bpf_skb_store_bytes(skb, offset, new, 1, BPF_F_RECOMPUTE_CSUM);
    new[1] = old[1];
    __builtin_memcpy(&before, old, 2);
    __builtin_memcpy(&after, new, 2);
    return bpf_l3_csum_replace(skb, IPV4_CHECKSUM(packet), before, after, 2) |
           bpf_skb_store_bytes(skb, offset, new, 2, 0);
}

INLINE int answer_echo(struct __sk_buff *skb, const struct packet *packet)
{
    __be16 old = bpf_htons((packet->is_ipv6 ? ICMP6_ECHO : ICMP4_ECHO) << 8);
    __be16 new = bpf_htons((packet->is_ipv6 ? ICMP6_ECHO_REPLY : ICMP4_ECHO_REPLY) << 8);
    __u32 size = packet->is_ipv6 ? 16 : 4;
    struct address source = packet->flow.source, target = packet->flow.target;
    int error = set_hop_limit(skb, packet);

    error |= bpf_l4_csum_replace(skb, packet->transport + 2, old, new, 2);
    error |= bpf_skb_store_bytes(skb, packet->transport, &new, 2, 0);
    // The order of the addresses does not matter to a checksum.
    if (packet->is_ipv6) {
        error |= bpf_skb_store_bytes(skb, SOURCE_OFFSET(packet), &target, size, 0);
        error |= bpf_skb_store_bytes(skb, TARGET_OFFSET(packet), &source, size, 0);
    } else {
        error |= bpf_skb_store_bytes(skb, SOURCE_OFFSET(packet), &target.word[3], 4, 0);
        error |= bpf_skb_store_bytes(skb, TARGET_OFFSET(packet), &source.word[3], 4, 0);
    }
    return error ? drop(DROP_REWRITE_FAILED) : send_back(skb);
}

// Changes an address and a port of the packet that an error quotes. `address_offset` is that of the
// address.
INLINE int rewrite_quoted(struct __sk_buff *skb, const struct packet *outer,
                          const struct packet *inner, __u32 address_offset,
                          const struct address *old, const struct address *new, __u32 port_offset,
                          __be16 old_port, __be16 new_port)
{
    __u32 checksum = outer->transport + 2;
    struct address before = *old, after = *new;
    int error;

    if (inner->is_ipv6) {
        __s64 difference = bpf_csum_diff(before.word, sizeof(before), after.word, sizeof(after), 0);

        error = bpf_l4_csum_replace(skb, checksum, 0, difference, 0);
        error |= bpf_skb_store_bytes(skb, address_offset, &after, sizeof(after), 0);
    } else {
        // The sum of the quoted header stays the same, and that of the message with it.
        error = bpf_l3_csum_replace(skb, IPV4_CHECKSUM(inner), before.word[3], after.word[3], 4);
        error |= bpf_skb_store_bytes(skb, address_offset, &after.word[3], 4, 0);
    }
    error |= bpf_l4_csum_replace(skb, checksum, old_port, new_port, 2);
    return error | bpf_skb_store_bytes(skb, inner->transport + port_offset, &new_port, 2, 0);
}

// Parses the packet that an error quotes.
INLINE bool parse_quoted(struct __sk_buff *skb, struct scratch *scratch)
{
    const struct packet *outer = &scratch->packet;
    struct packet *inner = &scratch->inner;

    if (parse_at(skb, inner, outer->transport + ICMP_LENGTH, outer->is_ipv6, true) != PARSED)
        return false;
    return !inner->is_later_fragment && !is_icmp(inner);
}

// Turns the flow round: the error quotes what the service sent.
INLINE void reverse_flow(struct flow_key *flow)
{
    struct address source = flow->source;
    __be16 port = flow->source_port;

    flow->source = flow->target;
    flow->target = source;
    flow->source_port = flow->target_port;
    flow->target_port = port;
}

INLINE int relay_to_pod(struct __sk_buff *skb, struct scratch *scratch,
                        const struct endpoint *endpoint)
{
    const struct packet *outer = &scratch->packet, *inner = &scratch->inner;

    if (rewrite_quoted(skb, outer, inner, SOURCE_OFFSET(inner), &inner->flow.target,
                       &endpoint->address, 0, inner->flow.target_port, endpoint->port) ||
        rewrite_address(skb, outer, TARGET_OFFSET(outer), &outer->flow.target, &endpoint->address))
        return drop(DROP_REWRITE_FAILED);
    return enter_pod(skb, endpoint);
}

// Relays an error to the endpoint of the connection that it is about.
INLINE int relay_error(struct __sk_buff *skb, struct scratch *scratch)
{
    struct packet *inner = &scratch->inner;
    struct choice choice = {};
    struct service *service;

    if (!parse_quoted(skb, scratch))
        return drop(DROP_ICMP_UNMATCHED);
    reverse_flow(&inner->flow);
    service = find_service(inner);
    if (!service)
        return drop(DROP_ICMP_UNMATCHED);
    if (!known_choice(inner, &choice)) {
        choice.id = maglev_choice(&inner->flow, service);
        choice.endpoint = find_endpoint(choice.id);
    }
    if (!choice.endpoint)
        return drop(DROP_NO_ENDPOINT);
    if (choice.endpoint->mode != MODE_LOCAL && is_from_peer(skb, &scratch->packet))
        return drop(DROP_NOT_LOCAL);
    count(skb, service->id, choice.id, false);
    switch (choice.endpoint->mode) {
    case MODE_LOCAL:
        return relay_to_pod(skb, scratch, choice.endpoint);
    case MODE_LAYER2:
        return send_layer2(skb, choice.endpoint);
    case MODE_VXLAN:
        return send_vxlan(skb, choice.endpoint);
    default:
        return drop(DROP_ICMP_UNMATCHED);
    }
}

INLINE int handle_icmp(struct __sk_buff *skb, struct scratch *scratch)
{
    const struct packet *packet = &scratch->packet;
    __u8 type;

    if (packet->is_first_fragment || bpf_skb_load_bytes(skb, packet->transport, &type, 1))
        return drop(DROP_PROTOCOL);
    if (type == (packet->is_ipv6 ? ICMP6_ECHO : ICMP4_ECHO))
        return answer_echo(skb, packet);
    if (is_icmp_error(packet, type))
        return relay_error(skb, scratch);
    return drop(DROP_PROTOCOL);
}

// Writes the IPv4 header and the ICMP message of "fragmentation needed" before the quoted packet.
INLINE int build_too_big_ipv4(struct __sk_buff *skb, struct scratch *scratch, __u16 mtu)
{
    const struct packet *packet = &scratch->packet;
    __be32 *words = scratch->words;
    struct iphdr ip = {
        .version = 4,
        .ihl = 5,
        .ttl = HOP_LIMIT,
        .protocol = IPPROTO_ICMP,
        .tot_len = bpf_htons(sizeof(ip) + ICMP_LENGTH + QUOTED_LENGTH),
        .saddr = packet->flow.target.word[3],
        .daddr = packet->flow.source.word[3],
    };

    words[0] = bpf_htonl(ICMP4_UNREACHABLE << 24 | ICMP4_FRAGMENTATION_NEEDED << 16);
    words[1] = bpf_htonl(mtu);
    words[0] |= bpf_htonl(
        bpf_ntohs(fold_checksum(bpf_csum_diff(NULL, 0, words, ICMP_LENGTH + QUOTED_LENGTH, 0))));
    ip.check = fold_checksum(bpf_csum_diff(NULL, 0, (__be32 *)&ip, sizeof(ip), 0));
    return bpf_skb_store_bytes(skb, ETHERNET_LENGTH, &ip, sizeof(ip), 0) |
           bpf_skb_store_bytes(skb, ETHERNET_LENGTH + sizeof(ip), words, ICMP_LENGTH, 0);
}

INLINE int build_too_big_ipv6(struct __sk_buff *skb, struct scratch *scratch, __u16 mtu)
{
    const struct packet *packet = &scratch->packet;
    __be32 *words = scratch->words;
    struct ipv6hdr ip = {
        .version = 6,
        .hop_limit = HOP_LIMIT,
        .nexthdr = IPPROTO_ICMPV6,
        .payload_len = bpf_htons(ICMP_LENGTH + QUOTED_LENGTH),
    };
    struct address source = packet->flow.target, target = packet->flow.source;
    __s64 sum = pseudo_header_sum(&source, &target, ICMP_LENGTH + QUOTED_LENGTH);

    __builtin_memcpy(&ip.saddr, &source, sizeof(source));
    __builtin_memcpy(&ip.daddr, &target, sizeof(target));
    words[0] = bpf_htonl(ICMP6_TOO_BIG << 24);
    words[1] = bpf_htonl(mtu);
    words[0] |= bpf_htonl(
        bpf_ntohs(fold_checksum(bpf_csum_diff(NULL, 0, words, ICMP_LENGTH + QUOTED_LENGTH, sum))));
    return bpf_skb_store_bytes(skb, ETHERNET_LENGTH, &ip, sizeof(ip), 0) |
           bpf_skb_store_bytes(skb, ETHERNET_LENGTH + sizeof(ip), words, ICMP_LENGTH, 0);
}

// Tells the client the largest packet that fits the way to the endpoint.
INLINE int report_too_big(struct __sk_buff *skb, struct scratch *scratch, __u16 mtu)
{
    bool is_ipv6 = scratch->packet.is_ipv6;
    __u32 headers = (is_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) + ICMP_LENGTH;
    __be16 protocol = skb->protocol;
    __u8 macs[2 * ETH_ALEN];
    int error;

    drop(DROP_TOO_BIG);
    if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)) ||
        bpf_skb_load_bytes(skb, ETHERNET_LENGTH, &scratch->words[2], QUOTED_LENGTH) ||
        bpf_skb_change_tail(skb, ETHERNET_LENGTH + QUOTED_LENGTH, 0) ||
        bpf_skb_change_head(skb, headers, 0))
        return TC_ACT_SHOT;
    error = is_ipv6 ? build_too_big_ipv6(skb, scratch, mtu) : build_too_big_ipv4(skb, scratch, mtu);
    error |= rewrite_macs(skb, macs + ETH_ALEN, macs);
    error |= bpf_skb_store_bytes(skb, 2 * ETH_ALEN, &protocol, sizeof(protocol), 0);
    return error ? TC_ACT_SHOT : bpf_redirect(skb->ifindex, 0);
}
