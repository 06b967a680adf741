// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// All programs as one object, so that they share their maps.
#include "lb_in.c"
#include "node_out.c"
#include "pod_out.c"

// bpf_fib_lookup is only for programs under the GPL.
char LICENSE[] SEC("license") = "GPL";
