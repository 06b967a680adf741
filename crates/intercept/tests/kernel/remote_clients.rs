//! Clients that are on the node, and those that are not: replies to the latter do not come back.

use std::net::IpAddr;
use std::sync::Mutex;

use intercept::{MarkRange, RuleTable, is_routed_to_node, mark_socket};

use crate::network::{
    CLIENT, NODE, POD_PORT, PodNetwork, REMOTE, SERVER, TestNode, address, services,
};
use crate::{PROXY_PORT, on_every_node, open_with_lease};

/// Serves taken connections as the proxy: with what a pod answers to a connection that has the client's address, if it
/// keeps it, and that of the node otherwise.
fn serve_by_pod(node: &TestNode, table: RuleTable, keeps_address: fn(IpAddr) -> bool) {
    let machine = node.node.clone();
    let table = Mutex::new(table);
    node.node.serve(PROXY_PORT, move |connection| {
        let client = connection.peer_addr().unwrap().ip().to_canonical();
        let marks = MarkRange::default();
        let mark = if keeps_address(client) {
            let mark = marks.client(3).unwrap();
            table.lock().unwrap().add_client(mark, client).unwrap();
            mark
        } else {
            marks.own()
        };
        let pod = address(SERVER[usize::from(client.is_ipv6())], POD_PORT);
        let mark = move |socket: &socket2::Socket| mark_socket(socket, mark).unwrap();
        machine.ask_by(pod, mark).unwrap_or_else(|error| error.to_string())
    });
}

#[test]
fn route_tells_pods_and_the_node_from_others() {
    on_every_node(|node| {
        let _remote = node.add_remote_client();
        // Like a tunnel: it has no neighbours.
        node.node.ip("link add tunnel type veth peer name tunnel-end");
        node.node.ip("link set tunnel up arp off");
        node.node.ip("route add 10.78.9.9/32 dev tunnel");
        node.node.ip("route add 10.78.8.8/32 via 10.79.0.2");
        let is_local = |ip: &str| {
            let ip = ip.parse().unwrap();
            node.node.run(move || is_routed_to_node(ip)).unwrap()
        };
        for ip in NODE.into_iter().chain(["127.0.0.1"]) {
            assert!(is_local(ip), "{ip}");
        }
        // Of a bridge, the kernel knows its network alone.
        for ip in CLIENT {
            assert_eq!(is_local(ip), node.network == PodNetwork::Routed, "{ip}");
        }
        for ip in REMOTE.into_iter().chain(["10.78.9.9", "10.78.8.8", "192.0.2.1"]) {
            assert!(!is_local(ip), "{ip}");
        }
    });
}

#[test]
fn client_that_is_not_on_the_node_is_answered() {
    on_every_node(|node| {
        let remote = node.add_remote_client();
        let (mut table, mut lease) = open_with_lease(node);
        table.set_addresses(services()).unwrap();
        // The pods of a bridge are known from the API server.
        serve_by_pod(node, table, |client| {
            is_routed_to_node(client).unwrap() || CLIENT.iter().any(|it| it.parse() == Ok(client))
        });
        lease.renew().unwrap();
        for (service, client) in services().into_iter().zip(CLIENT) {
            assert_eq!(node.client.ask(service).unwrap(), format!("pod {client}"));
        }
        for (service, ip) in services().into_iter().zip(REMOTE) {
            lease.renew().unwrap();
            let answer = remote.ask(service).unwrap();
            assert!(answer.starts_with("pod "), "{answer}");
            assert_ne!(answer, format!("pod {ip}"), "replies would not come back");
        }
    });
}
