// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Ingress of the node's side of a pod's veth: replies get the virtual address back, and leave past
// the node's stack.
#include "balance.h"
#include "reply.h"

SEC("classifier")
int pod_out(struct __sk_buff *skb)
{
    struct scratch *scratch = open_scratch();
    int parsed;

    if (skb->vlan_present || !is_ip(skb) || !scratch)
        return TC_ACT_UNSPEC;
    parsed = parse(skb, &scratch->packet);
    if (parsed == PARSED_NOTHING)
        return TC_ACT_UNSPEC;
    if (bpf_map_lookup_elem(&vips, &scratch->packet.flow.target))
        return handle_vip(skb, scratch, parsed);
    if (parsed != PARSED)
        return TC_ACT_UNSPEC;
    switch (translate_reply(skb, scratch)) {
    case REPLY_NONE:
        return TC_ACT_UNSPEC;
    case REPLY_TRANSLATED:
        return route_reply(skb, &scratch->packet, &scratch->packet.flow.source);
    default:
        return drop(DROP_REWRITE_FAILED);
    }
}
