// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Sends a packet to the endpoint that was chosen, in the mode of the endpoint.
#pragma once

#include "nat.h"

// Direct server return on the same segment: only the frame changes, and the pod's node decides
// again.
INLINE int send_layer2(struct __sk_buff *skb, const struct endpoint *endpoint)
{
    if (rewrite_macs(skb, endpoint->mac, endpoint->source_mac))
        return drop(DROP_REWRITE_FAILED);
    return bpf_redirect(endpoint->ifindex, 0);
}

INLINE int send_vxlan(struct __sk_buff *skb, const struct endpoint *endpoint)
{
    struct settings *settings = read_settings();
    struct bpf_tunnel_key key = {.tunnel_ttl = 64};
    __u64 flags = BPF_F_ZERO_CSUM_TX;

    if (!settings)
        return drop(DROP_REWRITE_FAILED);
    key.tunnel_id = settings->vni;
    if (endpoint->node.word[2] == bpf_htonl(0xffff)) {
        key.remote_ipv4 = bpf_ntohl(endpoint->node.word[3]);
    } else {
        __builtin_memcpy(key.remote_ipv6, &endpoint->node, sizeof(key.remote_ipv6));
        flags = BPF_F_TUNINFO_IPV6;
    }
    if (bpf_skb_set_tunnel_key(skb, &key, sizeof(key), flags))
        return drop(DROP_REWRITE_FAILED);
    return send_layer2(skb, endpoint);
}

// Hands a packet for the pod to the pod, past the node's own stack.
INLINE int enter_pod(struct __sk_buff *skb, const struct endpoint *endpoint)
{
    if (endpoint->flags & ENDPOINT_HOST_NETWORK)
        return TC_ACT_OK;
    if (rewrite_macs(skb, endpoint->mac, endpoint->source_mac))
        return drop(DROP_REWRITE_FAILED);
    return bpf_redirect_peer(endpoint->ifindex, 0);
}

// Keeps the translation of replies. It is looked at for each packet, so that it is not the first to
// be evicted.
INLINE void keep_reply(struct scratch *scratch, const struct packet *packet,
                       const struct service *service, const struct choice *choice, __u16 mss)
{
    struct reply *reply = &scratch->reply;
    struct reply *kept;

    key_of_reply(&scratch->key, packet, choice->endpoint);
    kept = bpf_map_lookup_elem(&replies, &scratch->key);
    if (kept && kept->port == packet->flow.target_port && kept->endpoint == choice->id &&
        kept->mss == mss && is_same_address(&kept->vip, &packet->flow.target))
        return;
    __builtin_memset(reply, 0, sizeof(*reply));
    reply->vip = packet->flow.target;
    reply->port = packet->flow.target_port;
    reply->service = service->id;
    reply->endpoint = choice->id;
    reply->mss = mss;
    bpf_map_update_elem(&replies, &scratch->key, reply, BPF_ANY);
}

// Segment size that leaves room for the tunnel, if the packet came through it.
INLINE __u16 tunnel_mss(struct __sk_buff *skb, const struct packet *packet)
{
    struct settings *settings = read_settings();

    if (!settings || !settings->tunnel_ifindex || skb->ifindex != settings->tunnel_ifindex)
        return 0;
    return settings->tunnel_mtu - (packet->is_ipv6 ? 60 : 40);
}

INLINE int send_local(struct __sk_buff *skb, struct scratch *scratch, const struct service *service,
                      const struct choice *choice)
{
    const struct packet *packet = &scratch->packet;
    const struct endpoint *endpoint = choice->endpoint;

    if (is_same_address(&packet->flow.source, &endpoint->address))
        return drop(DROP_HAIRPIN);
    keep_reply(scratch, packet, service, choice, tunnel_mss(skb, packet));
    if (rewrite_target(skb, packet, &endpoint->address, endpoint->port))
        return drop(DROP_REWRITE_FAILED);
    return enter_pod(skb, endpoint);
}

INLINE int deliver(struct __sk_buff *skb, struct scratch *scratch, const struct service *service,
                   struct choice *choice)
{
    switch (choice->endpoint->mode) {
    case MODE_LOCAL:
        return send_local(skb, scratch, service, choice);
    case MODE_LAYER2:
        return send_layer2(skb, choice->endpoint);
    case MODE_VXLAN:
        return send_vxlan(skb, choice->endpoint);
    case MODE_FULL_NAT:
        return send_full_nat(skb, scratch, service, choice);
    default:
        return drop(DROP_NO_ENDPOINT);
    }
}

// True if another node has chosen this one for the packet: then it is never forwarded again.
// Packets of the peer's own address are its own, for nodes do not balance what they send
// themselves.
INLINE bool is_from_peer(struct __sk_buff *skb, const struct packet *packet)
{
    struct settings *settings = read_settings();
    struct peer_key key = {};
    struct peer *peer;

    if (settings && settings->tunnel_ifindex && skb->ifindex == settings->tunnel_ifindex)
        return true;
    if (bpf_skb_load_bytes(skb, ETH_ALEN, key.mac, ETH_ALEN))
        return false;
    peer = bpf_map_lookup_elem(&peers, &key);
    return peer && !is_same_address(&packet->flow.source, &peer->ipv4) &&
           !is_same_address(&packet->flow.source, &peer->ipv6);
}

// True if a packet, or each segment of it, is larger than the way to the endpoint allows.
INLINE bool is_too_big(struct __sk_buff *skb, const struct packet *packet,
                       const struct endpoint *endpoint)
{
    __u32 length = packet->length;

    if (skb->gso_size)
        length = skb->gso_size + packet->transport - packet->network +
                 (packet->flow.protocol == IPPROTO_TCP ? 20 : 8);
    return endpoint->mtu && length > endpoint->mtu;
}
