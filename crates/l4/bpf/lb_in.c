// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Ingress of the uplink and of the tunnel: delivers packets of virtual addresses.
#include "balance.h"
#include "reply.h"

SEC("classifier")
int lb_in(struct __sk_buff *skb)
{
	struct scratch *scratch;
	int parsed;

	// A packet of a VLAN is for the device of the VLAN, which has a program of its own.
	if (skb->vlan_present)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return answer_arp(skb);
	scratch = open_scratch();
	if (!is_ip(skb) || !scratch)
		return TC_ACT_UNSPEC;
	parsed = parse(skb, &scratch->packet);
	if (parsed == PARSED_NOTHING)
		return TC_ACT_UNSPEC;
	if (parsed == PARSED && scratch->packet.flow.protocol == IPPROTO_ICMPV6 && is_solicitation(skb, &scratch->packet))
		return answer_solicitation(skb, scratch);
	if (skb->pkt_type != PACKET_HOST)
		return TC_ACT_UNSPEC;
	if (bpf_map_lookup_elem(&vips, &scratch->packet.flow.target))
		return handle_vip(skb, scratch, parsed);
	return parsed == PARSED ? return_full_nat(skb, scratch) : TC_ACT_UNSPEC;
}
