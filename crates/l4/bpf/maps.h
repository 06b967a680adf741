// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Maps that user space fills or reads, and the types in them. `src/layout.rs` has the same types.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define INLINE static __always_inline

// Number of slots of a Maglev table: a prime.
#define TABLE_SIZE 16381
#define NO_TABLE 0xffffffffu
// skb->pkt_type of a frame for this node (linux/if_packet.h).
#define PACKET_HOST 0

// An IPv6 address, or an IPv4 address as an IPv4-mapped one. In network order.
struct address {
    __be32 word[4];
};

// One direction of a connection.
struct flow_key {
    struct address source;
    struct address target;
    __be16 source_port;
    __be16 target_port;
    __u8 protocol;
    __u8 unused[3];
};

struct vip {
    __u8 mac[ETH_ALEN];
    // True if this node answers ARP and neighbor solicitations.
    __u8 is_announced;
    __u8 unused;
};

struct service_key {
    struct address vip;
    __be16 port;
    __u8 protocol;
    __u8 unused;
};

enum service_flag {
    // The choice depends on the client's address alone.
    SERVICE_CLIENT_AFFINITY = 1,
    // Connection IDs of QUIC have a server ID.
    SERVICE_QUIC = 2,
    // Only clients in `source_ranges` are served.
    SERVICE_SOURCE_RANGES = 4,
};

struct service {
    __u32 id;
    // Index in `tables`; NO_TABLE if there is at most one endpoint.
    __u32 table;
    // The only endpoint if there is no table; 0 is none.
    __u32 endpoint;
    __u8 flags;
    // Bytes of the server ID in a connection ID of QUIC: 1 to 4.
    __u8 server_id_length;
    __u8 unused[2];
};

struct maglev_table {
    __u16 slots[TABLE_SIZE];
};

enum delivery_mode {
    MODE_NONE = 0,
    MODE_LOCAL = 1,
    MODE_LAYER2 = 2,
    MODE_VXLAN = 3,
    MODE_FULL_NAT = 4,
};

enum endpoint_flag {
    // New TCP connections go elsewhere.
    ENDPOINT_DRAINING = 1,
    // A local endpoint in the namespace of the node.
    ENDPOINT_HOST_NETWORK = 2,
};

struct endpoint {
    struct address address;
    // Address of the endpoint's node, for VXLAN.
    struct address node;
    // Differs from that of an earlier endpoint with the same index: old connections do not match.
    __u32 generation;
    // Host side of the pod's veth, uplink, VXLAN device, or the way to the pod.
    __u32 ifindex;
    __be16 port;
    __u8 mode;
    __u8 flags;
    __u8 mac[ETH_ALEN];
    __u8 source_mac[ETH_ALEN];
    // Largest IP packet that fits; 0 is no limit.
    __u16 mtu;
    __u8 unused[2];
};

struct connection {
    __u32 endpoint;
    __u32 generation;
    // Source port towards the pod, with full NAT.
    __be16 nat_port;
    __u8 unused[2];
};

// Stages of a connection with full NAT, as both sides have shown them.
enum nat_stage {
    NAT_ANSWERED = 1,
    // The client has sent after the answer.
    NAT_CONFIRMED = 2,
    NAT_CLIENT_CLOSED = 4,
    NAT_POD_CLOSED = 8,
    NAT_CLOSED = NAT_CLIENT_CLOSED | NAT_POD_CLOSED,
    NAT_RESET = 16,
};

// Translation of what a pod sends.
struct reply {
    struct address vip;
    // New target, with full NAT; all zero otherwise.
    struct address client;
    __u32 service;
    __u32 endpoint;
    __be16 port;
    __be16 client_port;
    // Largest segment that the client may send; 0 is no limit.
    __u16 mss;
    // With full NAT: what the connection has come to, and when its last packet came, in seconds
    // since the start of the machine.
    __u8 stage;
    __u8 unused;
    __u32 seen_seconds;
};

struct server_id_key {
    __u32 service;
    __u32 server_id;
};

// Clients that a service serves. The prefix covers the service's number too.
struct source_range_key {
    __u32 prefix_length;
    __u32 service;
    struct address source;
};

struct fragment_key {
    struct address source;
    struct address target;
    __be32 id;
    __u32 protocol;
};

struct fragment {
    // New source of what a pod sends; all zero for what a client sends.
    struct address vip;
    // New target of what a pod sends, with full NAT; all zero otherwise.
    struct address client;
    __u32 service;
    __u32 endpoint;
    __u32 generation;
};

struct peer_key {
    __u8 mac[ETH_ALEN];
    __u8 unused[2];
};

// Addresses of a node that forwards packets to this one.
struct peer {
    struct address ipv4;
    struct address ipv6;
};

struct settings {
    // Source of packets with full NAT: IPv4, IPv6.
    struct address nat_source[2];
    // Device at which packets of the tunnel arrive; 0 is none.
    __u32 tunnel_ifindex;
    // VXLAN network identifier.
    __u32 vni;
    __u16 nat_first_port;
    __u16 nat_last_port;
    // Largest IP packet in the tunnel.
    __u16 tunnel_mtu;
    __u8 unused[2];
};

struct traffic {
    __u64 packets;
    __u64 bytes;
    __u64 connections;
};

// Reasons why a packet is dropped. `src/counters.rs` has their names.
enum drop_reason {
    DROP_MALFORMED,
    DROP_NO_SERVICE,
    DROP_NO_ENDPOINT,
    DROP_NOT_LOCAL,
    DROP_PROTOCOL,
    DROP_NO_FIRST_FRAGMENT,
    DROP_ICMP_UNMATCHED,
    DROP_TOO_BIG,
    DROP_NO_NAT_PORT,
    DROP_HAIRPIN,
    DROP_REWRITE_FAILED,
    DROP_NOT_FOR_TUNNEL,
    DROP_SOURCE_RANGE,
    DROP_REASONS,
};

// Maps that user space fills hold twice as many entries as it may have: all may be replaced at
// once.
#define MAP_PINNED __uint(pinning, LIBBPF_PIN_BY_NAME)

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct settings);
    MAP_PINNED;
} settings SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 32768);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct address);
    __type(value, struct vip);
    MAP_PINNED;
} vips SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 32768);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct service_key);
    __type(value, struct service);
    MAP_PINNED;
} services SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, 32768);
    __type(key, __u32);
    MAP_PINNED;
    __array(
        values, struct {
            __uint(type, BPF_MAP_TYPE_ARRAY);
            __uint(max_entries, 1);
            __uint(key_size, sizeof(__u32));
            __uint(value_size, sizeof(struct maglev_table));
        });
} tables SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 65536);
    __type(key, __u32);
    __type(value, struct endpoint);
    MAP_PINNED;
} endpoints SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct server_id_key);
    __type(value, __u32);
    MAP_PINNED;
} server_ids SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 131072);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct source_range_key);
    __type(value, __u32);
    MAP_PINNED;
} source_ranges SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 8192);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct peer_key);
    __type(value, struct peer);
    MAP_PINNED;
} peers SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 262144);
    __type(key, struct flow_key);
    __type(value, struct connection);
    MAP_PINNED;
} connections SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 262144);
    __type(key, struct flow_key);
    __type(value, struct reply);
    MAP_PINNED;
} replies SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 8192);
    __type(key, struct fragment_key);
    __type(value, struct fragment);
    MAP_PINNED;
} fragments SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
    __uint(max_entries, 32768);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u32);
    __type(value, struct traffic);
    MAP_PINNED;
} svc_traffic SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
    __uint(max_entries, 65536);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, __u32);
    __type(value, struct traffic);
    MAP_PINNED;
} pod_traffic SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, DROP_REASONS);
    __type(key, __u32);
    __type(value, __u64);
    MAP_PINNED;
} drops SEC(".maps");

INLINE int drop(__u32 reason)
{
    __u64 *count = bpf_map_lookup_elem(&drops, &reason);

    if (count)
        *count += 1;
    return TC_ACT_SHOT;
}

INLINE struct settings *read_settings(void)
{
    __u32 zero = 0;

    return bpf_map_lookup_elem(&settings, &zero);
}
