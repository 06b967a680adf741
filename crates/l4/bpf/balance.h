// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// One packet to a virtual address.
#pragma once

#include "fragment.h"
#include "icmp.h"

INLINE int balance(struct __sk_buff *skb, struct scratch *scratch)
{
    struct packet *packet = &scratch->packet;
    struct service *service = find_service(packet);
    struct choice choice = {};
    struct endpoint *endpoint;

    if (!service)
        return drop(DROP_NO_SERVICE);
    if (!choose(skb, packet, service, &choice))
        return drop(DROP_NO_ENDPOINT);
    if (choice.is_new && !serves_client(packet, service))
        return drop(DROP_SOURCE_RANGE);
    if (choice.endpoint->mode != MODE_LOCAL && is_from_peer(skb, packet) &&
        !choose_local(packet, service, &choice))
        return drop(DROP_NOT_LOCAL);
    endpoint = choice.endpoint;
    if (!packet->may_fragment && is_too_big(skb, packet, endpoint))
        return report_too_big(skb, scratch, endpoint->mtu);
    if (choice.is_new)
        remember(packet, &choice);
    if (packet->is_first_fragment)
        remember_fragment(packet, service->id, &choice);
    count(skb, service->id, choice.id, choice.is_new);
    return deliver(skb, scratch, service, &choice);
}

// Decides on a packet whose target is a virtual address.
INLINE int handle_vip(struct __sk_buff *skb, struct scratch *scratch, int parsed)
{
    struct packet *packet = &scratch->packet;

    if (parsed == PARSED_MALFORMED)
        return drop(DROP_MALFORMED);
    if (packet->is_later_fragment)
        return forward_fragment(skb, packet);
    if (parsed != PARSED)
        return drop(DROP_PROTOCOL);
    if (is_icmp(packet))
        return handle_icmp(skb, scratch);
    return balance(skb, scratch);
}
