// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Translates what a pod sends in reply, so that it comes from the virtual address.
#pragma once

#include "fragment.h"
#include "icmp.h"

#define AF_INET_FAMILY 2
#define AF_INET6_FAMILY 10

enum reply_result {
    REPLY_NONE,
    REPLY_TRANSLATED,
    REPLY_FAILED,
};

INLINE void remember_reply_fragment(const struct packet *packet, const struct reply *reply)
{
    struct fragment fragment = {
        .vip = reply->vip,
        .client = reply->client,
        .service = reply->service,
        .endpoint = reply->endpoint,
    };
    struct fragment_key key;

    key_of_fragment(&key, packet);
    bpf_map_update_elem(&fragments, &key, &fragment, BPF_ANY);
}

// Returns the fragment that a later one of a pod follows. One of another connection, or before its
// first, has none.
INLINE struct fragment *first_fragment_of_reply(const struct packet *packet)
{
    struct fragment_key key;
    struct fragment *fragment;

    key_of_fragment(&key, packet);
    fragment = bpf_map_lookup_elem(&fragments, &key);
    return fragment && !is_zero_address(&fragment->vip) ? fragment : NULL;
}

INLINE int translate_later_fragment(struct __sk_buff *skb, const struct packet *packet)
{
    struct fragment *fragment = first_fragment_of_reply(packet);

    if (!fragment || !is_zero_address(&fragment->client))
        return REPLY_NONE;
    return rewrite_source(skb, packet, &fragment->vip, 0) ? REPLY_FAILED : REPLY_TRANSLATED;
}

// Translates an error that a pod sends about a packet of a client.
INLINE int translate_error(struct __sk_buff *skb, struct scratch *scratch)
{
    const struct packet *outer = &scratch->packet;
    struct packet *inner = &scratch->inner;
    struct reply *reply;
    __u8 type;

    if (bpf_skb_load_bytes(skb, outer->transport, &type, 1) || !is_icmp_error(outer, type))
        return REPLY_NONE;
    if (!parse_quoted(skb, scratch))
        return REPLY_NONE;
    reverse_flow(&inner->flow);
    reply = bpf_map_lookup_elem(&replies, &inner->flow);
    if (!reply || !is_zero_address(&reply->client))
        return REPLY_NONE;
    if (rewrite_quoted(skb, outer, inner, TARGET_OFFSET(inner), &inner->flow.source, &reply->vip, 2,
                       inner->flow.source_port, reply->port) ||
        rewrite_address(skb, outer, SOURCE_OFFSET(outer), &outer->flow.source, &reply->vip))
        return REPLY_FAILED;
    return REPLY_TRANSLATED;
}

INLINE int translate_reply(struct __sk_buff *skb, struct scratch *scratch)
{
    const struct packet *packet = &scratch->packet;
    struct reply *reply;

    if (packet->is_later_fragment)
        return translate_later_fragment(skb, packet);
    if (is_icmp(packet))
        return translate_error(skb, scratch);
    reply = bpf_map_lookup_elem(&replies, &packet->flow);
    if (!reply || !is_zero_address(&reply->client))
        return REPLY_NONE;
    if (packet->is_first_fragment)
        remember_reply_fragment(packet, reply);
    if (reply->mss && packet->tcp_flags & TCP_SYN)
        clamp_mss(skb, packet, reply->mss);
    count(skb, reply->service, reply->endpoint, false);
    return rewrite_source(skb, packet, &reply->vip, reply->port) ? REPLY_FAILED : REPLY_TRANSLATED;
}

// Sends a packet with its new source on by the routes of the node, or leaves it to the node's
// stack.
INLINE int route_reply(struct __sk_buff *skb, const struct packet *packet,
                       const struct address *source)
{
    struct bpf_fib_lookup route = {.ifindex = skb->ifindex};
    int result;

    if (packet->is_ipv6) {
        route.family = AF_INET6_FAMILY;
        __builtin_memcpy(route.ipv6_src, source, sizeof(route.ipv6_src));
        __builtin_memcpy(route.ipv6_dst, &packet->flow.target, sizeof(route.ipv6_dst));
    } else {
        route.family = AF_INET_FAMILY;
        route.ipv4_src = source->word[3];
        route.ipv4_dst = packet->flow.target.word[3];
    }
    result = bpf_fib_lookup(skb, &route, sizeof(route), 0);
    if (result == BPF_FIB_LKUP_RET_SUCCESS) {
        if (rewrite_macs(skb, route.dmac, route.smac))
            return drop(DROP_REWRITE_FAILED);
        return bpf_redirect(route.ifindex, 0);
    }
    if (result == BPF_FIB_LKUP_RET_NO_NEIGH)
        return bpf_redirect_neigh(route.ifindex, NULL, 0, 0);
    return TC_ACT_OK;
}

// Gives a reply that came back to this node because of full NAT its source and its target.
INLINE int translate_back(struct __sk_buff *skb, struct packet *packet, const struct address *vip,
                          __be16 port, const struct address *client, __be16 client_port)
{
    struct address source = *vip, target = *client;

    if (rewrite_source(skb, packet, &source, port) ||
        rewrite_target(skb, packet, &target, client_port))
        return drop(DROP_REWRITE_FAILED);
    packet->flow.target = target;
    return route_reply(skb, packet, &source);
}

// Translates a reply that comes back to this node because of full NAT; TC_ACT_UNSPEC if it is none.
INLINE int return_full_nat(struct __sk_buff *skb, struct scratch *scratch)
{
    struct packet *packet = &scratch->packet;
    struct fragment *fragment;
    struct reply *reply;

    if (packet->is_later_fragment) {
        fragment = first_fragment_of_reply(packet);
        if (!fragment || is_zero_address(&fragment->client))
            return TC_ACT_UNSPEC;
        return translate_back(skb, packet, &fragment->vip, 0, &fragment->client, 0);
    }
    if (is_icmp(packet))
        return TC_ACT_UNSPEC;
    reply = bpf_map_lookup_elem(&replies, &packet->flow);
    if (!reply || is_zero_address(&reply->client))
        return TC_ACT_UNSPEC;
    if (packet->is_first_fragment)
        remember_reply_fragment(packet, reply);
    count(skb, reply->service, reply->endpoint, false);
    follow_nat(reply, packet, true);
    return translate_back(skb, packet, &reply->vip, reply->port, &reply->client,
                          reply->client_port);
}
