// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Source ports of full NAT: found, followed, and used again when their connections have ended.
#pragma once

#include "choose.h"

// Ports that are looked at for a new connection.
#define NAT_PORT_PROBES 16
// Seconds without a packet after which a port is free: TIME_WAIT of Linux, and the minima of
// RFC 4787 REQ-5 and RFC 5382 REQ-5.
#define NAT_CLOSED_SECONDS 60
#define NAT_UDP_SECONDS 120
#define NAT_TRANSITORY_SECONDS 240
#define NAT_ESTABLISHED_SECONDS 7440
// The same for a connection that its client has not confirmed, while no port is free: a flood of
// first packets must not keep them all.
#define NAT_UNCONFIRMED_SECONDS 10
// The same for one that both sides have closed: the pod may still repeat its last segments. It
// accepts a new connection in TIME_WAIT (RFC 6191).
#define NAT_LINGER_SECONDS 2

INLINE __u32 now_seconds(void)
{
    return bpf_ktime_get_ns() / 1000000000;
}

// Returns the seconds since the last packet. Another processor may have seen one after `now`.
INLINE __u32 nat_age(const struct reply *reply, __u32 now)
{
    __s32 age = now - reply->seen_seconds;

    return age > 0 ? age : 0;
}

INLINE bool is_nat_closed(const struct reply *reply)
{
    return (reply->stage & NAT_CLOSED) == NAT_CLOSED;
}

// Returns the seconds without a packet after which the port is free.
INLINE __u32 nat_lifetime(const struct reply *reply, __u8 protocol)
{
    if (protocol != IPPROTO_TCP)
        return NAT_UDP_SECONDS;
    if (is_nat_closed(reply))
        return NAT_CLOSED_SECONDS;
    if (reply->stage & (NAT_CLOSED | NAT_RESET) || !(reply->stage & NAT_CONFIRMED))
        return NAT_TRANSITORY_SECONDS;
    return NAT_ESTABLISHED_SECONDS;
}

// Returns the seconds after which the port is taken if none is free.
INLINE __u32 least_nat_lifetime(const struct reply *reply, __u8 protocol)
{
    if (protocol == IPPROTO_TCP && (is_nat_closed(reply) || reply->stage & NAT_RESET))
        return NAT_LINGER_SECONDS;
    if (!(reply->stage & NAT_CONFIRMED))
        return NAT_UNCONFIRMED_SECONDS;
    return nat_lifetime(reply, protocol);
}

// Returns the stage of a TCP connection after a packet. A reset is believed only until the pod sends
// data again: the pod may have ignored it (RFC 5961).
INLINE __u8 stage_after(__u8 stage, const struct packet *packet, bool is_from_pod)
{
    if (!is_from_pod && opens_connection(packet))
        return 0;
    if (packet->tcp_flags & TCP_RST)
        return stage | NAT_RESET;
    if (is_from_pod)
        stage &= ~NAT_RESET;
    if (packet->tcp_flags & TCP_FIN)
        stage |= is_from_pod ? NAT_POD_CLOSED : NAT_CLIENT_CLOSED;
    return stage;
}

// Follows a connection with full NAT by one of its packets.
INLINE void follow_nat(struct reply *reply, const struct packet *packet, bool is_from_pod)
{
    bool is_tcp = packet->flow.protocol == IPPROTO_TCP;
    __u8 before = reply->stage, stage = before;
    __u32 now = now_seconds();

    if (is_from_pod)
        stage |= NAT_ANSWERED;
    else if (stage & NAT_ANSWERED)
        stage |= NAT_CONFIRMED;
    if (is_tcp)
        stage = stage_after(stage, packet, is_from_pod);
    if (before != stage)
        reply->stage = stage;
    // A pod repeats its answer to a client that is not there.
    if (is_tcp && is_from_pod && before & NAT_ANSWERED && !(before & NAT_CONFIRMED))
        return;
    if (reply->seen_seconds != now)
        reply->seen_seconds = now;
}

// Takes the port of the key, in place of an ended connection if there is one. Of two processors that
// find the same one, one gets it: its time is the claim.
INLINE bool take_nat_port(struct scratch *scratch, struct reply *ended, __u32 now)
{
    if (ended) {
        __u32 seen = ended->seen_seconds;

        if (seen == now || __sync_val_compare_and_swap(&ended->seen_seconds, seen, now) != seen)
            return false;
        bpf_map_delete_elem(&replies, &scratch->key);
    }
    return !bpf_map_update_elem(&replies, &scratch->key, &scratch->reply, BPF_NOEXIST);
}

// Takes a free port for the reply in `scratch`, else the one of those looked at whose connection
// ended first. Returns 0 if there is none.
INLINE __be16 find_nat_port(struct scratch *scratch, __u32 start, __u32 first, __u32 count)
{
    __u32 now = scratch->reply.seen_seconds, oldest = 0, age;
    __u8 protocol = scratch->key.protocol;
    __be16 ended = 0;
    struct reply *other;

    for (__u32 i = 0; i < NAT_PORT_PROBES; i++) {
        scratch->key.target_port = bpf_htons(first + (start + i) % count);
        other = bpf_map_lookup_elem(&replies, &scratch->key);
        age = other ? nat_age(other, now) : 0;
        if (!other || age >= nat_lifetime(other, protocol)) {
            if (take_nat_port(scratch, other, now))
                return scratch->key.target_port;
        } else if (age >= least_nat_lifetime(other, protocol) && age > oldest) {
            ended = scratch->key.target_port;
            oldest = age;
        }
    }
    if (!ended)
        return 0;
    scratch->key.target_port = ended;
    other = bpf_map_lookup_elem(&replies, &scratch->key);
    return take_nat_port(scratch, other, now) ? ended : 0;
}

// Finds a source port towards the pod, and keeps the translation of replies under it. Returns 0 if
// there is none.
INLINE __be16 reserve_nat_port(struct scratch *scratch, const struct service *service,
                               const struct choice *choice, const struct settings *settings,
                               const struct address *source)
{
    const struct packet *packet = &scratch->packet;
    __u32 first = settings->nat_first_port, count = settings->nat_last_port - first + 1;
    __u32 start = mix_words(1, (const __be32 *)&packet->flow, sizeof(packet->flow) / 4);
    struct reply *reply = &scratch->reply;

    if (count == 0 || count > 65536)
        return 0;
    __builtin_memset(reply, 0, sizeof(*reply));
    reply->vip = packet->flow.target;
    reply->client = packet->flow.source;
    reply->port = packet->flow.target_port;
    reply->client_port = packet->flow.source_port;
    reply->service = service->id;
    reply->endpoint = choice->id;
    reply->seen_seconds = now_seconds();
    key_of_reply(&scratch->key, packet, choice->endpoint);
    scratch->key.target = *source;
    return find_nat_port(scratch, start, first, count);
}

// Returns the translation of replies of a known connection, if it is still its own.
INLINE struct reply *find_nat_reply(struct scratch *scratch, const struct choice *choice,
                                    const struct address *source)
{
    const struct packet *packet = &scratch->packet;
    struct reply *reply;

    if (!choice->nat_port)
        return NULL;
    key_of_reply(&scratch->key, packet, choice->endpoint);
    scratch->key.target = *source;
    scratch->key.target_port = choice->nat_port;
    reply = bpf_map_lookup_elem(&replies, &scratch->key);
    if (!reply || reply->client_port != packet->flow.source_port ||
        reply->port != packet->flow.target_port ||
        !is_same_address(&reply->client, &packet->flow.source) ||
        !is_same_address(&reply->vip, &packet->flow.target))
        return NULL;
    return reply;
}

// Replies return through this node: the packet comes from the node for the pod.
INLINE int send_full_nat(struct __sk_buff *skb, struct scratch *scratch,
                         const struct service *service, struct choice *choice)
{
    const struct packet *packet = &scratch->packet;
    const struct endpoint *endpoint = choice->endpoint;
    struct settings *settings = read_settings();
    const struct address *source;
    struct reply *reply;

    if (!settings)
        return drop(DROP_NO_NAT_PORT);
    source = &settings->nat_source[packet->is_ipv6 & 1];
    reply = find_nat_reply(scratch, choice, source);
    if (reply) {
        follow_nat(reply, packet, false);
    } else {
        choice->nat_port = reserve_nat_port(scratch, service, choice, settings, source);
        if (!choice->nat_port)
            return drop(DROP_NO_NAT_PORT);
        remember(packet, choice);
    }
    if (rewrite_target(skb, packet, &endpoint->address, endpoint->port) ||
        rewrite_source(skb, packet, source, choice->nat_port))
        return drop(DROP_REWRITE_FAILED);
    return bpf_redirect_neigh(endpoint->ifindex, NULL, 0, 0);
}
