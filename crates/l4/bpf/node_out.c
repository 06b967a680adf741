// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Egress of the uplink: replies of pods in the node's own namespace get the virtual address back.
#include "balance.h"
#include "reply.h"

SEC("classifier")
int node_out(struct __sk_buff *skb)
{
    struct scratch *scratch = open_scratch();

    if (!is_ip(skb) || !scratch || parse(skb, &scratch->packet) != PARSED)
        return TC_ACT_UNSPEC;
    if (translate_reply(skb, scratch) == REPLY_FAILED)
        return drop(DROP_REWRITE_FAILED);
    return TC_ACT_UNSPEC;
}
