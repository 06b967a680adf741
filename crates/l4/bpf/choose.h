// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Chooses the endpoint of a packet: QUIC connection ID, connection table, Maglev table.
#pragma once

#include "rewrite.h"

#define QUIC_LONG_HEADER 0x80
#define QUIC_LONG_TYPE 0x30
#define QUIC_HANDSHAKE 0x20
#define QUIC_UNROUTABLE 7
#define MAX_SERVER_ID 4
// Slots in which an endpoint on this node is looked for, and the distance between them.
#define LOCAL_PROBES 64
#define LOCAL_STEP 977

struct choice {
    __u32 id;
    struct endpoint *endpoint;
    // True if the connection table does not have this choice.
    bool is_new;
    __be16 nat_port;
};

INLINE __u32 mix_words(__u64 hash, const __be32 *words, int count)
{
    for (int i = 0; i < count; i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 32;
    }
    hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9ull;
    return hash >> 32;
}

// Returns the hash of a connection; `src/flow_hash.rs` has the same.
INLINE __u32 hash_flow(const struct flow_key *flow, const struct service *service)
{
    if (service->flags & SERVICE_CLIENT_AFFINITY)
        return mix_words(SERVICE_CLIENT_AFFINITY, flow->source.word, 4);
    return mix_words(0, (const __be32 *)flow, sizeof(*flow) / 4);
}

INLINE struct endpoint *find_endpoint(__u32 id)
{
    struct endpoint *endpoint = id ? bpf_map_lookup_elem(&endpoints, &id) : NULL;

    return endpoint && endpoint->mode != MODE_NONE ? endpoint : NULL;
}

INLINE struct maglev_table *find_table(const struct service *service)
{
    __u32 index = service->table, zero = 0;
    void *inner = bpf_map_lookup_elem(&tables, &index);

    return inner ? bpf_map_lookup_elem(inner, &zero) : NULL;
}

INLINE __u32 endpoint_of_slot(const struct maglev_table *table, __u32 hash)
{
    __u32 slot = hash % TABLE_SIZE;

    // The verifier does not know what a remainder is, and the compiler must not know that the check
    // is for it.
    asm volatile("" : "+r"(slot));
    return slot < TABLE_SIZE ? table->slots[slot] : 0;
}

INLINE __u32 maglev_choice(const struct flow_key *flow, const struct service *service)
{
    struct maglev_table *table;

    if (service->table == NO_TABLE)
        return service->endpoint;
    table = find_table(service);
    return table ? endpoint_of_slot(table, hash_flow(flow, service)) : 0;
}

// Returns the offset of a connection ID that the server has chosen, or 0.
INLINE __u32 server_chosen_id(struct __sk_buff *skb, const struct packet *packet, __u32 length)
{
    __u32 payload = packet->transport + 8;
    __u8 first, id_length;

    if (bpf_skb_load_bytes(skb, payload, &first, 1))
        return 0;
    if (!(first & QUIC_LONG_HEADER))
        return payload + 1;
    // The connection ID of the first packets and of 0-RTT is the client's.
    if ((first & QUIC_LONG_TYPE) != QUIC_HANDSHAKE ||
        bpf_skb_load_bytes(skb, payload + 5, &id_length, 1))
        return 0;
    return id_length >= 1 + length ? payload + 6 : 0;
}

// Returns the endpoint that the connection ID of a QUIC packet names
// (draft-ietf-quic-load-balancers, plaintext).
INLINE __u32 quic_choice(struct __sk_buff *skb, const struct packet *packet,
                         const struct service *service)
{
    struct server_id_key key = {service->id, 0};
    __u32 length = service->server_id_length, offset, *id;
    __u8 bytes[1 + MAX_SERVER_ID] = {};

    if (!(service->flags & SERVICE_QUIC) || packet->flow.protocol != IPPROTO_UDP ||
        packet->is_first_fragment)
        return 0;
    if (length < 1 || length > MAX_SERVER_ID)
        return 0;
    offset = server_chosen_id(skb, packet, length);
    // As many bytes as the longest needs: those of any QUIC packet go on past its connection ID.
    if (!offset || bpf_skb_load_bytes(skb, offset, bytes, sizeof(bytes)))
        return 0;
    if (bytes[0] >> 5 == QUIC_UNROUTABLE)
        return 0;
    for (__u32 i = 0; i < MAX_SERVER_ID; i++) {
        if (i < length)
            key.server_id = key.server_id << 8 | bytes[1 + i];
    }
    id = bpf_map_lookup_elem(&server_ids, &key);
    return id ? *id : 0;
}

INLINE bool opens_connection(const struct packet *packet)
{
    return packet->flow.protocol == IPPROTO_TCP &&
           (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

// Looks into the connection table; an entry of an endpoint that has been replaced is none.
INLINE bool known_choice(const struct packet *packet, struct choice *choice)
{
    struct connection *connection = bpf_map_lookup_elem(&connections, &packet->flow);

    if (!connection)
        return false;
    choice->endpoint = find_endpoint(connection->endpoint);
    if (!choice->endpoint || choice->endpoint->generation != connection->generation)
        return false;
    if (choice->endpoint->flags & ENDPOINT_DRAINING && opens_connection(packet))
        return false;
    choice->id = connection->endpoint;
    choice->nat_port = connection->nat_port;
    return true;
}

// Returns false if there is no endpoint. A known server ID comes before the connection table, since
// another client may have had the address before.
INLINE bool choose(struct __sk_buff *skb, const struct packet *packet,
                   const struct service *service, struct choice *choice)
{
    __u32 id = quic_choice(skb, packet, service);
    bool is_known = known_choice(packet, choice);
    struct endpoint *endpoint = find_endpoint(id);

    choice->is_new = true;
    if (is_known && (!endpoint || id == choice->id)) {
        choice->is_new = false;
        return true;
    }
    if (!endpoint) {
        id = maglev_choice(&packet->flow, service);
        endpoint = find_endpoint(id);
    }
    choice->id = id;
    choice->endpoint = endpoint;
    choice->nat_port = 0;
    return endpoint;
}

// Chooses an endpoint on this node for a new connection, if the table has one. Another node has
// sent the packet here for a pod that this node does not know yet, or no longer.
INLINE bool choose_local(const struct packet *packet, const struct service *service,
                         struct choice *choice)
{
    struct maglev_table *table;
    struct endpoint *endpoint;
    __u32 hash, id;

    if (service->table == NO_TABLE || !choice->is_new)
        return false;
    if (packet->flow.protocol == IPPROTO_TCP && !opens_connection(packet))
        return false;
    table = find_table(service);
    if (!table)
        return false;
    hash = hash_flow(&packet->flow, service);
    for (int i = 1; i <= LOCAL_PROBES; i++) {
        id = endpoint_of_slot(table, hash + i * LOCAL_STEP);
        endpoint = find_endpoint(id);
        if (endpoint && endpoint->mode == MODE_LOCAL) {
            choice->id = id;
            choice->endpoint = endpoint;
            return true;
        }
    }
    return false;
}

INLINE void remember(const struct packet *packet, const struct choice *choice)
{
    struct connection connection = {
        .endpoint = choice->id,
        .generation = choice->endpoint->generation,
        .nat_port = choice->nat_port,
    };

    bpf_map_update_elem(&connections, &packet->flow, &connection, BPF_ANY);
}

INLINE void key_of_reply(struct flow_key *key, const struct packet *packet,
                         const struct endpoint *endpoint)
{
    key->source = endpoint->address;
    key->target = packet->flow.source;
    key->source_port = endpoint->port;
    key->target_port = packet->flow.source_port;
    key->protocol = packet->flow.protocol;
    __builtin_memset(key->unused, 0, sizeof(key->unused));
}

INLINE struct service *find_service(const struct packet *packet)
{
    struct service_key key = {
        .vip = packet->flow.target,
        .port = packet->flow.target_port,
        .protocol = packet->flow.protocol,
    };

    return bpf_map_lookup_elem(&services, &key);
}

// Returns false if the service does not serve the packet's client.
INLINE bool serves_client(const struct packet *packet, const struct service *service)
{
    struct source_range_key key = {
        .prefix_length = 8 * (sizeof(key.service) + sizeof(key.source)),
        .service = service->id,
        .source = packet->flow.source,
    };

    return !(service->flags & SERVICE_SOURCE_RANGES) || bpf_map_lookup_elem(&source_ranges, &key);
}

INLINE void count_one(struct traffic *traffic, __u32 bytes, __u32 packets, bool is_new)
{
    if (!traffic)
        return;
    traffic->packets += packets;
    traffic->bytes += bytes;
    traffic->connections += is_new;
}

INLINE void count(struct __sk_buff *skb, __u32 service, __u32 endpoint, bool is_new)
{
    __u32 packets = skb->gso_segs ? skb->gso_segs : 1;

    count_one(bpf_map_lookup_elem(&svc_traffic, &service), skb->len, packets, is_new);
    count_one(bpf_map_lookup_elem(&pod_traffic, &endpoint), skb->len, packets, is_new);
}
