// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Changes addresses, ports and options, and the checksums with them.
#pragma once

#include "packet.h"

#define SOURCE_OFFSET(packet)                                                                      \
    ((packet)->network +                                                                           \
     ((packet)->is_ipv6 ? offsetof(struct ipv6hdr, saddr) : offsetof(struct iphdr, saddr)))
#define TARGET_OFFSET(packet)                                                                      \
    ((packet)->network +                                                                           \
     ((packet)->is_ipv6 ? offsetof(struct ipv6hdr, daddr) : offsetof(struct iphdr, daddr)))
#define IPV4_CHECKSUM(packet) ((packet)->network + offsetof(struct iphdr, check))

// Flags of the transport's checksum. That of UDP may be absent.
INLINE __u64 checksum_flags(const struct packet *packet)
{
    return packet->flow.protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
}

INLINE __u32 checksum_offset(const struct packet *packet)
{
    switch (packet->flow.protocol) {
    case IPPROTO_TCP:
        return packet->transport + 16;
    case IPPROTO_UDP:
        return packet->transport + 6;
    default:
        return packet->transport + 2;
    }
}

INLINE int rewrite_ipv4_address(struct __sk_buff *skb, const struct packet *packet, __u32 offset,
                                __be32 old, __be32 new)
{
    int error = bpf_l3_csum_replace(skb, IPV4_CHECKSUM(packet), old, new, 4);

    error |= bpf_skb_store_bytes(skb, offset, &new, 4, 0);
    // ICMPv4 does not sum the addresses.
    if (!packet->is_later_fragment && !is_icmp(packet))
        error |= bpf_l4_csum_replace(skb, checksum_offset(packet), old, new,
                                     BPF_F_PSEUDO_HDR | checksum_flags(packet) | 4);
    return error;
}

INLINE int rewrite_ipv6_address(struct __sk_buff *skb, const struct packet *packet, __u32 offset,
                                struct address *old, const struct address *address)
{
    struct address new = *address;
    __s64 difference = bpf_csum_diff((__be32 *)old, sizeof(*old), (__be32 *)&new, sizeof(new), 0);
    // Counted in skb->csum here, for bpf_l4_csum_replace counts the change of the checksum there.
    int error = bpf_skb_store_bytes(skb, offset, &new, sizeof(new), BPF_F_RECOMPUTE_CSUM);

    if (!packet->is_later_fragment)
        error |= bpf_l4_csum_replace(skb, checksum_offset(packet), 0, difference,
                                     BPF_F_PSEUDO_HDR | checksum_flags(packet));
    return error;
}

INLINE int rewrite_address(struct __sk_buff *skb, const struct packet *packet, __u32 offset,
                           const struct address *old, const struct address *new)
{
    struct address before = *old;

    if (packet->is_ipv6)
        return rewrite_ipv6_address(skb, packet, offset, &before, new);
    return rewrite_ipv4_address(skb, packet, offset, before.word[3], new->word[3]);
}

INLINE int rewrite_port(struct __sk_buff *skb, const struct packet *packet, __u32 offset,
                        __be16 old, __be16 new)
{
    int error;

    if (packet->is_later_fragment || old == new)
        return 0;
    error = bpf_l4_csum_replace(skb, checksum_offset(packet), old, new, checksum_flags(packet) | 2);
    return error | bpf_skb_store_bytes(skb, packet->transport + offset, &new, 2, 0);
}

INLINE int rewrite_source(struct __sk_buff *skb, const struct packet *packet,
                          const struct address *address, __be16 port)
{
    int error = rewrite_address(skb, packet, SOURCE_OFFSET(packet), &packet->flow.source, address);

    return error | rewrite_port(skb, packet, 0, packet->flow.source_port, port);
}

INLINE int rewrite_target(struct __sk_buff *skb, const struct packet *packet,
                          const struct address *address, __be16 port)
{
    int error = rewrite_address(skb, packet, TARGET_OFFSET(packet), &packet->flow.target, address);

    return error | rewrite_port(skb, packet, 2, packet->flow.target_port, port);
}

INLINE int rewrite_macs(struct __sk_buff *skb, const __u8 *target, const __u8 *source)
{
    __u8 macs[2 * ETH_ALEN];

    __builtin_memcpy(macs, target, ETH_ALEN);
    __builtin_memcpy(macs + ETH_ALEN, source, ETH_ALEN);
    return bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0);
}

// Answers a frame where it came from.
INLINE int send_back(struct __sk_buff *skb)
{
    __u8 macs[2 * ETH_ALEN];

    if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)) || rewrite_macs(skb, macs + ETH_ALEN, macs))
        return drop(DROP_REWRITE_FAILED);
    return bpf_redirect(skb->ifindex, 0);
}

#define TCP_OPTION_MSS 2
#define MAX_TCP_OPTIONS 10

// Limits the segment size that a SYN offers.
INLINE void clamp_mss(struct __sk_buff *skb, const struct packet *packet, __u16 limit)
{
    __u32 offset = packet->transport + 20;
    __u8 header_words = 0;
    __be16 value, new = bpf_htons(limit);
    __u8 option[2];

    if (bpf_skb_load_bytes(skb, packet->transport + 12, &header_words, 1))
        return;
    for (int i = 0; i < MAX_TCP_OPTIONS; i++) {
        if (offset + 4 > packet->transport + (header_words >> 4) * 4)
            return;
        if (bpf_skb_load_bytes(skb, offset, option, 2) || option[0] == 0)
            return;
        if (option[0] == 1) {
            offset += 1;
            continue;
        }
        if (option[0] == TCP_OPTION_MSS) {
            if (option[1] != 4 || bpf_skb_load_bytes(skb, offset + 2, &value, 2))
                return;
            if (bpf_ntohs(value) <= limit)
                return;
            // At an odd offset the checksum sees the bytes of the words the other way round.
            if ((offset - packet->transport) & 1)
                bpf_l4_csum_replace(skb, checksum_offset(packet), __builtin_bswap16(value),
                                    __builtin_bswap16(new), 2);
            else
                bpf_l4_csum_replace(skb, checksum_offset(packet), value, new, 2);
            bpf_skb_store_bytes(skb, offset + 2, &new, 2, 0);
            return;
        }
        if (option[1] < 2)
            return;
        offset += option[1];
    }
}
