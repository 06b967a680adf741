// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Fragments: the first one has the ports, the others follow it.
#pragma once

#include "deliver.h"

INLINE void key_of_fragment(struct fragment_key *key, const struct packet *packet)
{
    key->source = packet->flow.source;
    key->target = packet->flow.target;
    key->id = packet->fragment_id;
    // In IPv6 the first fragment alone may say what follows the headers.
    key->protocol = packet->is_ipv6 ? 0 : packet->flow.protocol;
}

INLINE void remember_fragment(const struct packet *packet, __u32 service,
                              const struct choice *choice)
{
    struct fragment fragment = {
        .service = service,
        .endpoint = choice->id,
        .generation = choice->endpoint->generation,
    };
    struct fragment_key key;

    key_of_fragment(&key, packet);
    bpf_map_update_elem(&fragments, &key, &fragment, BPF_ANY);
}

// Sends a later fragment where the first one went.
INLINE int forward_fragment(struct __sk_buff *skb, struct packet *packet)
{
    struct fragment_key key;
    struct fragment *fragment;
    struct endpoint *endpoint;
    struct settings *settings;

    key_of_fragment(&key, packet);
    fragment = bpf_map_lookup_elem(&fragments, &key);
    if (!fragment)
        return drop(DROP_NO_FIRST_FRAGMENT);
    endpoint = find_endpoint(fragment->endpoint);
    if (!endpoint || endpoint->generation != fragment->generation)
        return drop(DROP_NO_FIRST_FRAGMENT);
    if (endpoint->mode != MODE_LOCAL && is_from_peer(skb, packet))
        return drop(DROP_NOT_LOCAL);
    count(skb, fragment->service, fragment->endpoint, false);
    if (endpoint->mode == MODE_LAYER2)
        return send_layer2(skb, endpoint);
    if (endpoint->mode == MODE_VXLAN)
        return send_vxlan(skb, endpoint);
    if (rewrite_target(skb, packet, &endpoint->address, 0))
        return drop(DROP_REWRITE_FAILED);
    if (endpoint->mode == MODE_LOCAL)
        return enter_pod(skb, endpoint);
    settings = read_settings();
    if (!settings || rewrite_source(skb, packet, &settings->nat_source[packet->is_ipv6 & 1], 0))
        return drop(DROP_REWRITE_FAILED);
    return bpf_redirect_neigh(endpoint->ifindex, NULL, 0, 0);
}
