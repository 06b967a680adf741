//! The choice of an endpoint: Maglev table, connection table, draining, affinity, QUIC connection IDs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use balance::MaglevTable;
use l4::{
    DropReason, EndpointSpec, FlowKey, ServiceSpec, TABLE_SIZE, TransportProtocol, flow_slot,
    server_id,
};

use crate::frame::{TestFrame, address};
use crate::node::{TestNode, endpoint, on_node, service};

const VIP: &str = "203.0.113.1:443";

fn pods(node: &TestNode, count: u8) -> Vec<EndpointSpec> {
    (1..=count).map(|it| endpoint(&format!("10.0.1.{it}:8443"), node.local())).collect()
}

fn client(number: u16) -> String {
    format!("198.51.100.{}:{}", number % 250 + 1, 20_000 + number)
}

/// Returns the endpoint that a client's packet goes to.
fn choice(node: &mut TestNode, number: u16) -> SocketAddr {
    node.redirect(&TestFrame::tcp(&client(number), VIP)).target
}

#[test]
fn kernel_chooses_as_the_table_says() {
    on_node(|node| {
        let pods = pods(node, 5);
        node.serve(VIP, TransportProtocol::Tcp, pods.clone());
        let members: Vec<_> = pods.iter().map(|it| (it.address, 1)).collect();
        let table = MaglevTable::with_size(&members, TABLE_SIZE);
        let mut counts = BTreeMap::<_, u32>::new();
        for number in 0..500 {
            let flow = FlowKey::new(address(&client(number)), address(VIP), TransportProtocol::Tcp);
            let expected = members[table.slots()[flow_slot(&flow, false)] as usize].0;
            assert_eq!(choice(node, number), expected);
            *counts.entry(expected).or_default() += 1;
        }
        assert!(
            counts.len() == 5 && counts.values().all(|&it| (60..150).contains(&it)),
            "{counts:?}"
        );
    });
}

#[test]
fn service_with_ranges_serves_new_connections_of_its_clients_alone() {
    on_node(|node| {
        let pods = pods(node, 3);
        let restricted = |ranges: &[&str]| ServiceSpec {
            source_ranges: Some(ranges.iter().map(|it| it.parse().unwrap()).collect()),
            ..service(VIP, TransportProtocol::Tcp, pods.clone())
        };
        let frame = |client: &str| TestFrame::syn(client, VIP).bytes();
        node.serve_as(restricted(&["198.51.100.0/30", "192.0.2.0/24", "2001:db8::/32"]));
        node.redirect(&TestFrame::syn("198.51.100.3:1", VIP));
        node.redirect(&TestFrame::syn("192.0.2.200:1", VIP));
        node.assert_dropped(&frame("198.51.100.4:1"), DropReason::SourceRange);
        // No IPv4 address is in a range of IPv6, not even one of all addresses.
        node.serve_as(restricted(&["::/0"]));
        node.assert_dropped(&frame("198.51.100.2:1"), DropReason::SourceRange);
        // Connections that are open stay, as with the proxy.
        node.redirect(&TestFrame::tcp("198.51.100.3:1", VIP));
        node.assert_dropped(&frame("198.51.100.3:2"), DropReason::SourceRange);

        node.serve_as(restricted(&["0.0.0.0/0"]));
        node.redirect(&TestFrame::syn("198.51.100.2:1", VIP));
        node.serve_as(service(VIP, TransportProtocol::Tcp, pods.clone()));
        node.redirect(&TestFrame::syn("198.51.100.4:1", VIP));
        assert!(node.data_path.contents().unwrap().source_ranges.is_empty());
    });
}

#[test]
fn ranges_of_one_service_are_not_those_of_another() {
    on_node(|node| {
        const OTHER: &str = "203.0.113.1:444";
        let pods = pods(node, 1);
        for (vip, range) in [(VIP, "198.51.100.0/24"), (OTHER, "192.0.2.0/24")] {
            node.serve_as(ServiceSpec {
                source_ranges: Some(vec![range.parse().unwrap()]),
                ..service(vip, TransportProtocol::Tcp, pods.clone())
            });
        }
        node.redirect(&TestFrame::syn("198.51.100.1:1", VIP));
        node.redirect(&TestFrame::syn("192.0.2.1:1", OTHER));
        let crossed = TestFrame::syn("192.0.2.1:1", VIP).bytes();
        node.assert_dropped(&crossed, DropReason::SourceRange);
        assert_eq!(node.data_path.contents().unwrap(), *node.table.contents());
    });
}

#[test]
fn connections_stay_when_endpoints_come_and_drain() {
    on_node(|node| {
        let mut pods = pods(node, 4);
        node.serve(VIP, TransportProtocol::Tcp, pods[..2].to_vec());
        let before: Vec<_> = (0..100).map(|it| choice(node, it)).collect();
        node.serve(VIP, TransportProtocol::Tcp, pods.clone());
        assert_eq!((0..100).map(|it| choice(node, it)).collect::<Vec<_>>(), before);
        let new: BTreeSet<_> = (100..200).map(|it| choice(node, it)).collect();
        assert_eq!(new.len(), 4);

        pods[0].is_draining = true;
        node.serve(VIP, TransportProtocol::Tcp, pods.clone());
        assert_eq!((0..100).map(|it| choice(node, it)).collect::<Vec<_>>(), before);
        let of_first = (0..100).find(|&it| before[usize::from(it)] == pods[0].address).unwrap();
        let syn = TestFrame::syn(&client(of_first), VIP);
        assert_ne!(
            node.redirect(&syn).target,
            pods[0].address,
            "a new connection from the same port"
        );
        assert!((200..300).all(|it| choice(node, it) != pods[0].address));

        // Removed: its connections are chosen anew, all others stay.
        node.serve(VIP, TransportProtocol::Tcp, pods[1..].to_vec());
        for (number, before) in (0..100).zip(before) {
            let now = choice(node, number);
            assert!(if before == pods[0].address { now != before } else { now == before });
        }
    });
}

#[test]
fn number_of_a_removed_endpoint_does_not_bring_its_connections_to_another() {
    on_node(|node| {
        let pods = pods(node, 2);
        node.serve(VIP, TransportProtocol::Udp, pods[..1].to_vec());
        let frame = TestFrame::udp(&client(1), VIP);
        assert_eq!(node.redirect(&frame).target, pods[0].address);
        node.serve(VIP, TransportProtocol::Udp, vec![]);
        node.serve(VIP, TransportProtocol::Udp, pods[1..].to_vec());
        let service = node.table.service(address(VIP), TransportProtocol::Udp).unwrap().id;
        let connections = node.data_path.service_traffic(service).unwrap().connections;
        assert_eq!(node.redirect(&frame).target, pods[1].address);
        assert_eq!(node.data_path.service_traffic(service).unwrap().connections, connections + 1);
    });
}

#[test]
fn full_connection_table_evicts_and_keeps_serving() {
    on_node(|node| {
        let pods = pods(node, 3);
        node.serve(VIP, TransportProtocol::Tcp, pods);
        // The table of the tests has 1,024 entries.
        let before: Vec<_> = (0..5000).map(|it| choice(node, it)).collect();
        let after: Vec<_> = (0..5000).map(|it| choice(node, it)).collect();
        assert_eq!(before, after, "the Maglev table has not changed");
        let known = (0..5000).filter(|&it| {
            let flow = FlowKey::new(address(&client(it)), address(VIP), TransportProtocol::Tcp);
            node.data_path.connection(&flow).unwrap().is_some()
        });
        assert!(known.count() <= 1024);
        assert_eq!(node.drops(), []);
    });
}

#[test]
fn clients_with_affinity_have_one_endpoint_each() {
    on_node(|node| {
        let pods = pods(node, 5);
        let mut spec = service(VIP, TransportProtocol::Tcp, pods);
        spec.has_client_affinity = true;
        node.serve_as(spec);
        let mut all = BTreeSet::new();
        for host in 1..60 {
            let chosen: BTreeSet<_> = (1..5)
                .map(|port| {
                    node.redirect(&TestFrame::tcp(&format!("198.51.100.{host}:{port}"), VIP)).target
                })
                .collect();
            assert_eq!(chosen.len(), 1);
            all.extend(chosen);
        }
        assert_eq!(all.len(), 5);
    });
}

/// Returns a QUIC packet with this first byte and connection ID.
fn quic(number: u16, first: u8, connection_id: &[u8]) -> TestFrame {
    let mut payload = vec![first];
    if first & 0x80 != 0 {
        payload.extend([0, 0, 0, 1, connection_id.len() as u8]);
    }
    payload.extend(connection_id);
    payload.extend([0; 20]);
    TestFrame::udp(&client(number), VIP).with_payload(payload)
}

fn connection_id(pod: SocketAddr, length: u8, config: u8) -> Vec<u8> {
    let id = server_id(pod.ip(), length).to_be_bytes();
    let mut bytes = vec![config << 5 | 7];
    bytes.extend(&id[4 - usize::from(length)..]);
    bytes.extend([0xab; 5]);
    bytes
}

const SHORT: u8 = 0x40;
const INITIAL: u8 = 0xc0;
const ZERO_RTT: u8 = 0xd0;
const HANDSHAKE: u8 = 0xe0;

#[test]
fn quic_connection_follows_its_connection_id() {
    on_node(|node| {
        for length in 1..=4 {
            let pods = pods(node, 4);
            let mut spec = service(VIP, TransportProtocol::Udp, pods.clone());
            spec.quic_server_id_length = Some(length);
            node.serve_as(spec.clone());
            for (number, pod) in (0_u16..).zip(&pods) {
                let id = connection_id(pod.address, length, 0);
                let number = u16::from(length) * 1000 + number * 10;
                for first in [SHORT, HANDSHAKE] {
                    // From four ports: the client's address changes, the endpoint does not.
                    for port in 0..4 {
                        let seen = node.redirect(&quic(number + port, first, &id));
                        assert_eq!(seen.target, pod.address, "server ID of {length} bytes");
                    }
                }
            }
        }
    });
}

#[test]
fn other_quic_packets_are_chosen_by_their_addresses() {
    on_node(|node| {
        let pods = pods(node, 4);
        let mut spec = service(VIP, TransportProtocol::Udp, pods.clone());
        spec.quic_server_id_length = Some(3);
        node.serve_as(spec);
        for number in 0..50 {
            let by_address = node.redirect(&quic(number, INITIAL, &[0x33; 8])).target;
            for pod in &pods {
                let id = connection_id(pod.address, 3, 0);
                // The client chose these; 7 is "unroutable"; too short; an unknown server.
                for packet in [
                    quic(number, INITIAL, &id),
                    quic(number, ZERO_RTT, &id),
                    quic(number, SHORT, &connection_id(pod.address, 3, 7)),
                    quic(number, HANDSHAKE, &id[..3]),
                    quic(number, SHORT, &[0, 9, 9, 9, 1, 2, 3]),
                    TestFrame::udp(&client(number), VIP).with_payload([SHORT, 1]),
                    TestFrame::udp(&client(number), VIP).with_payload([]),
                ] {
                    assert_eq!(node.redirect(&packet).target, by_address);
                }
            }
        }
    });
}

#[test]
fn connection_id_wins_over_an_older_connection_of_the_same_addresses() {
    on_node(|node| {
        let pods = pods(node, 4);
        let mut spec = service(VIP, TransportProtocol::Udp, pods.clone());
        spec.quic_server_id_length = Some(3);
        node.serve_as(spec);
        for number in 0..20 {
            let old = node.redirect(&quic(number, INITIAL, &[0x33; 8])).target;
            let other = pods.iter().find(|it| it.address != old).unwrap().address;
            assert_eq!(
                node.redirect(&quic(number, SHORT, &connection_id(other, 3, 0))).target,
                other
            );
            // And is remembered: errors about it and packets without a known ID follow.
            assert_eq!(node.redirect(&quic(number, INITIAL, &[0x33; 8])).target, other);
        }
    });
}
