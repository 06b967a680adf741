// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Ingress of the uplink and of the tunnel: delivers packets of virtual addresses.
#include "balance.h"
#include "reply.h"

// The tunnel carries packets of virtual addresses and nothing else: other machines that reach its
// port could send packets to the node's stack.
INLINE int leave_to_stack(struct __sk_buff *skb)
{
    struct settings *settings = read_settings();

    if (settings && settings->tunnel_ifindex && skb->ifindex == settings->tunnel_ifindex)
        return drop(DROP_NOT_FOR_TUNNEL);
    return TC_ACT_UNSPEC;
}

INLINE int answer_neighbor(struct __sk_buff *skb, struct scratch *scratch)
{
    if (leave_to_stack(skb) == TC_ACT_SHOT)
        return TC_ACT_SHOT;
    return scratch ? answer_solicitation(skb, scratch) : answer_arp(skb);
}

SEC("classifier")
int lb_in(struct __sk_buff *skb)
{
    struct scratch *scratch = open_scratch();
    struct packet *packet;
    int parsed;

    // A packet of a VLAN is for the device of the VLAN, which has a program of its own.
    if (skb->vlan_present || !scratch)
        return leave_to_stack(skb);
    if (skb->protocol == bpf_htons(ETH_P_ARP))
        return answer_neighbor(skb, NULL);
    if (!is_ip(skb))
        return leave_to_stack(skb);
    packet = &scratch->packet;
    parsed = parse(skb, packet);
    if (parsed == PARSED_NOTHING)
        return leave_to_stack(skb);
    if (parsed == PARSED && packet->flow.protocol == IPPROTO_ICMPV6 && is_solicitation(skb, packet))
        return answer_neighbor(skb, scratch);
    if (skb->pkt_type != PACKET_HOST)
        return leave_to_stack(skb);
    if (bpf_map_lookup_elem(&vips, &packet->flow.target))
        return handle_vip(skb, scratch, parsed);
    if (leave_to_stack(skb) == TC_ACT_SHOT)
        return TC_ACT_SHOT;
    return parsed == PARSED ? return_full_nat(skb, scratch) : TC_ACT_UNSPEC;
}
