// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Parses a packet up to its ports: IPv4 with options, IPv6 with extension headers, fragments.
#pragma once

#include "maps.h"

#define ETHERNET_LENGTH 14
#define MAX_EXTENSIONS 6
#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV4_DONT_FRAGMENT 0x4000
#define IPV4_FRAGMENT_OFFSET 0x1fff
#define IPV6_MORE_FRAGMENTS 1
#define IPV6_FRAGMENT_OFFSET 0xfff8
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

enum parse_result {
    // The packet has ports, or is a later fragment, or ICMP.
    PARSED,
    PARSED_MALFORMED,
    // Neither TCP, UDP nor ICMP.
    PARSED_OTHER_PROTOCOL,
    // The addresses are unknown.
    PARSED_NOTHING,
};

struct packet {
    // In the form of a key: from here to the protocol.
    struct flow_key flow;
    // Offsets of headers.
    __u32 network;
    __u32 transport;
    __be32 fragment_id;
    // Length of the IP packet.
    __u32 length;
    __u8 tcp_flags;
    // 0 or 1. Not a bool, so that the compiler keeps the mask that the verifier needs when it is an
    // index.
    __u8 is_ipv6;
    bool is_first_fragment;
    bool is_later_fragment;
    bool may_fragment;
};

struct scratch {
    struct packet packet;
    // The packet that an ICMP error is about.
    struct packet inner;
    struct flow_key key;
    struct reply reply;
    // Room to build headers.
    __be32 words[48];
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct scratch);
} scratch_space SEC(".maps");

INLINE struct scratch *open_scratch(void)
{
    __u32 zero = 0;

    return bpf_map_lookup_elem(&scratch_space, &zero);
}

INLINE struct address mapped_address(__be32 ipv4)
{
    struct address address = {{0, 0, bpf_htonl(0xffff), ipv4}};

    return address;
}

INLINE bool is_mapped(const struct address *a)
{
    return !(a->word[0] | a->word[1]) && a->word[2] == bpf_htonl(0xffff);
}

INLINE bool is_same_address(const struct address *a, const struct address *b)
{
    return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
           a->word[3] == b->word[3];
}

INLINE bool is_zero_address(const struct address *a)
{
    return !(a->word[0] | a->word[1] | a->word[2] | a->word[3]);
}

INLINE bool is_icmp(const struct packet *packet)
{
    return packet->flow.protocol == (packet->is_ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP);
}

INLINE int parse_ipv4(struct __sk_buff *skb, struct packet *packet)
{
    struct iphdr ip;
    __u32 header;
    __u16 fragment;

    if (bpf_skb_load_bytes(skb, packet->network, &ip, sizeof(ip)))
        return PARSED_NOTHING;
    packet->flow.source = mapped_address(ip.saddr);
    packet->flow.target = mapped_address(ip.daddr);
    packet->flow.protocol = ip.protocol;
    packet->length = bpf_ntohs(ip.tot_len);
    header = ip.ihl * 4;
    if (ip.version != 4 || header < sizeof(ip) || packet->length < header)
        return PARSED_MALFORMED;
    packet->transport = packet->network + header;
    packet->fragment_id = ip.id;
    fragment = bpf_ntohs(ip.frag_off);
    packet->may_fragment = !(fragment & IPV4_DONT_FRAGMENT);
    packet->is_later_fragment = fragment & IPV4_FRAGMENT_OFFSET;
    packet->is_first_fragment = !packet->is_later_fragment && fragment & IPV4_MORE_FRAGMENTS;
    return PARSED;
}

// Steps over one extension header; returns false if it is the last.
INLINE bool step_over_extension(struct __sk_buff *skb, struct packet *packet, int *result)
{
    struct {
        __u8 next;
        __u8 length;
        __be16 offset;
        __be32 id;
    } extension;
    __u8 protocol = packet->flow.protocol;
    __u16 offset;

    if (protocol != IPPROTO_HOPOPTS && protocol != IPPROTO_ROUTING && protocol != IPPROTO_DSTOPTS &&
        protocol != IPPROTO_FRAGMENT)
        return false;
    if (packet->is_later_fragment)
        return false;
    if (bpf_skb_load_bytes(skb, packet->transport, &extension, sizeof(extension))) {
        *result = PARSED_MALFORMED;
        return false;
    }
    packet->flow.protocol = extension.next;
    packet->transport += 8;
    if (protocol != IPPROTO_FRAGMENT) {
        packet->transport += extension.length * 8;
        return true;
    }
    offset = bpf_ntohs(extension.offset);
    packet->fragment_id = extension.id;
    packet->is_later_fragment = offset & IPV6_FRAGMENT_OFFSET;
    packet->is_first_fragment = !packet->is_later_fragment && offset & IPV6_MORE_FRAGMENTS;
    return true;
}

INLINE int parse_ipv6(struct __sk_buff *skb, struct packet *packet)
{
    struct ipv6hdr ip;
    int result = PARSED;
    bool is_last = false;

    if (bpf_skb_load_bytes(skb, packet->network, &ip, sizeof(ip)))
        return PARSED_NOTHING;
    __builtin_memcpy(&packet->flow.source, &ip.saddr, sizeof(struct address));
    __builtin_memcpy(&packet->flow.target, &ip.daddr, sizeof(struct address));
    packet->flow.protocol = ip.nexthdr;
    packet->length = bpf_ntohs(ip.payload_len) + sizeof(ip);
    packet->transport = packet->network + sizeof(ip);
    packet->is_ipv6 = 1;
    // An IPv4-mapped address is that of another packet to the maps, and may not be on a wire.
    if (is_mapped(&packet->flow.source) || is_mapped(&packet->flow.target))
        return PARSED_NOTHING;
    if (ip.version != 6)
        return PARSED_MALFORMED;
    for (int i = 0; i < MAX_EXTENSIONS; i++) {
        if (!step_over_extension(skb, packet, &result)) {
            is_last = true;
            break;
        }
    }
    // More headers than are looked at: `is_last` stays false.
    return is_last ? result : PARSED_MALFORMED;
}

INLINE int parse_ports(struct __sk_buff *skb, struct packet *packet, bool is_quoted)
{
    __u32 least = packet->flow.protocol == IPPROTO_TCP ? 20 : 8;
    __be16 ports[2];

    if (packet->is_later_fragment)
        return PARSED;
    if (is_icmp(packet))
        return packet->transport + 8 > skb->len ? PARSED_MALFORMED : PARSED;
    if (packet->flow.protocol != IPPROTO_TCP && packet->flow.protocol != IPPROTO_UDP)
        return PARSED_OTHER_PROTOCOL;
    // An ICMP error quotes at least eight bytes.
    if (is_quoted)
        least = 8;
    if (packet->transport + least > skb->len ||
        packet->transport + least > packet->network + packet->length)
        return PARSED_MALFORMED;
    if (bpf_skb_load_bytes(skb, packet->transport, ports, sizeof(ports)))
        return PARSED_MALFORMED;
    packet->flow.source_port = ports[0];
    packet->flow.target_port = ports[1];
    if (packet->flow.protocol == IPPROTO_TCP && !is_quoted &&
        bpf_skb_load_bytes(skb, packet->transport + 13, &packet->tcp_flags, 1))
        return PARSED_MALFORMED;
    return PARSED;
}

INLINE int parse_at(struct __sk_buff *skb, struct packet *packet, __u32 offset, bool is_ipv6,
                    bool is_quoted)
{
    int result;

    __builtin_memset(packet, 0, sizeof(*packet));
    packet->network = offset;
    result = is_ipv6 ? parse_ipv6(skb, packet) : parse_ipv4(skb, packet);
    if (result != PARSED)
        return result;
    // A quoted packet is cut off.
    if (!is_quoted && packet->network + packet->length > skb->len && !skb->gso_size)
        return PARSED_MALFORMED;
    return parse_ports(skb, packet, is_quoted);
}

// Parses an IP packet in an Ethernet frame.
INLINE int parse(struct __sk_buff *skb, struct packet *packet)
{
    return parse_at(skb, packet, ETHERNET_LENGTH, skb->protocol == bpf_htons(ETH_P_IPV6), false);
}

INLINE bool is_ip(struct __sk_buff *skb)
{
    return skb->protocol == bpf_htons(ETH_P_IP) || skb->protocol == bpf_htons(ETH_P_IPV6);
}
