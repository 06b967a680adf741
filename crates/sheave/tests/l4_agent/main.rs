//! `sheave l4` with files, real sockets and real interfaces: a client, two nodes and their pods, in network namespaces.
//! Needs root, and is skipped without.

#![expect(clippy::unwrap_used, reason = "all of it is a test")]

/// The network, which the tests of the data path have too.
#[expect(dead_code, reason = "the tests of the data path use more of it")]
#[path = "../../../l4/tests/kernel/network.rs"]
mod network;
/// The agent.
mod agent;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use agent::{ADMIN, AgentFiles, AgentProcess, NAMES, READY, TERMINATING, has_pins};
use network::{CLIENT, EchoClient, NODES, PODS, TestNetwork, converse, services};

/// Connections of new ports until one reaches a pod: with two endpoints, less than one in 2^40 does not.
const ATTEMPTS: usize = 40;

/// Checks that a pod answers each conversation and sees the client's address.
#[track_caller]
fn check_all(conversations: &mut [(EchoClient, usize)], pod: &str) {
    for (conversation, version) in conversations {
        assert_eq!(conversation.ask().unwrap(), format!("{pod} {}", CLIENT[*version]));
        conversation.exchange_megabyte();
    }
}

/// Returns the name of the pod that answers a conversation.
fn pod_of(conversation: &mut EchoClient) -> String {
    let greeting = conversation.ask().unwrap();
    greeting.split(' ').next().unwrap().to_owned()
}

/// Opens TCP connections until one reaches a pod.
fn connection_to(network: &TestNetwork, pod: &str) -> EchoClient {
    let mut connections = (0..ATTEMPTS).map(|_| network.client.connect(services()[0]).unwrap());
    connections.find_map(|mut it| (pod_of(&mut it) == pod).then_some(it)).expect(pod)
}

fn wait_for_endpoints(agents: &[AgentProcess], count: usize) {
    agents.iter().for_each(|it| it.wait_for_endpoints(count));
}

#[test]
fn pod_of_this_node_is_reached() {
    let Some(network) = TestNetwork::new() else { return };
    let files = AgentFiles::new(&[(0, READY)]);
    let agents = files.start_both(&network, &[]);
    wait_for_endpoints(&agents, 4);
    check_all(&mut converse(&network), "a");
}

#[test]
fn pod_of_another_node_is_reached_on_the_same_segment() {
    let Some(network) = TestNetwork::new() else { return };
    let files = AgentFiles::new(&[(1, READY)]);
    let agents = files.start_both(&network, &[]);
    wait_for_endpoints(&agents, 4);
    check_all(&mut converse(&network), "b");
}

#[test]
fn agent_tells_what_it_serves_and_why() {
    let Some(network) = TestNetwork::new() else { return };
    let files = AgentFiles::new(&[(1, READY)]);
    // Each node has ports of its own.
    let agents = files.start_both(&network, &["--admin", ADMIN]);
    wait_for_endpoints(&agents, 4);
    check_all(&mut converse(&network), "b");
    for (version, service) in services().into_iter().enumerate() {
        let client = SocketAddr::new(CLIENT[version].parse().unwrap(), 40_000);
        let flow = format!("tcp,{client},{service}");
        let mut command = AgentFiles::explain(&flow);
        let output = network.nodes[0].run(move || command.output().unwrap());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for part in ["default/web", PODS[1][version], NAMES[1], "layer2", "only endpoint"] {
            assert!(text.contains(part), "{part} in {text:?}, {output:?}");
        }
    }
    let mut top = AgentFiles::top();
    let output = network.nodes[0].run(move || top.output().unwrap());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["default/web", PODS[1][0], NAMES[1], "serving"] {
        assert!(text.contains(part), "{part} in {text:?}, {output:?}");
    }
    for (path, parts) in [
        ("/readyz", ["200 OK", "ready"].as_slice()),
        (
            "/metrics",
            &[
                "sheave_l4_service_packets_total{service=\"default/web\",",
                "sheave_l4_endpoint_connections_total{endpoint=\"10.91.2.2:8080\"}",
                "sheave_l4_packets_dropped_total{reason=\"no_service\"}",
            ],
        ),
        (
            "/api/v1/l4",
            &["\"l4-test-2\":\"layer2\"", "\"10.90.0.100\":\"announced\"", "\"not_served\":[]"],
        ),
    ] {
        let answer = network.nodes[0].run(move || get(path));
        for part in parts {
            assert!(answer.contains(part), "{part} in {answer}");
        }
    }
}

/// Returns the answer of the agent of this network namespace.
fn get(path: &str) -> String {
    let mut connection = TcpStream::connect(ADMIN).unwrap();
    write!(connection, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn pod_of_another_node_is_reached_through_the_tunnel() {
    let Some(network) = TestNetwork::new() else { return };
    let files = AgentFiles::new(&[(1, READY)]);
    let agents = files.start_both(&network, &["--mode", "vxlan"]);
    wait_for_endpoints(&agents, 4);
    check_all(&mut converse(&network), "b");
}

#[test]
fn pod_of_another_node_is_reached_with_full_nat() {
    let Some(network) = TestNetwork::new() else { return };
    let files = AgentFiles::new(&[(1, READY)]);
    let agents = files.start_both(&network, &["--mode", "full-nat"]);
    wait_for_endpoints(&agents, 4);
    for (mut conversation, version) in converse(&network) {
        assert_eq!(conversation.ask().unwrap(), format!("b {}", NODES[0][version]));
        conversation.exchange_megabyte();
    }
}

#[test]
fn pod_behind_a_bridge_is_reached() {
    let Some(network) = TestNetwork::new() else { return };
    // As CNI plugins with a bridge have it: the veth is a port, and the bridge has the gateway's address.
    for (number, node) in network.nodes.iter().enumerate() {
        let (ipv4, ipv6) =
            (format!("10.91.{}.1/24", number + 1), format!("fd91:{}::1/64", number + 1));
        node.ip("address flush dev pod0");
        node.ip("link add cni0 type bridge");
        node.ip("link set pod0 master cni0");
        node.ip("link set cni0 up");
        node.ip(&format!("address add {ipv4} dev cni0"));
        node.ip(&format!("address add {ipv6} dev cni0 nodad"));
    }
    let files = AgentFiles::new(&[(0, READY), (1, READY)]);
    let agents = files.start_both(&network, &[]);
    wait_for_endpoints(&agents, 8);
    for pod in ["a", "b"] {
        connection_to(&network, pod).exchange_megabyte();
    }
}

#[test]
fn endpoints_come_drain_and_go() {
    let Some(network) = TestNetwork::new() else { return };
    let files = AgentFiles::new(&[(0, READY)]);
    let agents = files.start_both(&network, &[]);
    wait_for_endpoints(&agents, 4);
    let mut old = converse(&network);
    check_all(&mut old, "a");

    files.set_endpoints(&[(0, READY), (1, READY)]);
    wait_for_endpoints(&agents, 8);
    check_all(&mut old, "a");
    let mut new = connection_to(&network, "b");

    files.set_endpoints(&[(0, TERMINATING), (1, READY)]);
    wait_for_endpoints(&agents, 8);
    check_all(&mut old, "a");
    for _ in 0..ATTEMPTS {
        assert_eq!(pod_of(&mut network.client.connect(services()[0]).unwrap()), "b");
    }

    files.set_endpoints(&[(1, READY)]);
    wait_for_endpoints(&agents, 4);
    new.exchange_megabyte();
    check_all(&mut converse(&network), "b");
}

#[test]
fn killed_agents_and_errors_lose_nothing() {
    let Some(network) = TestNetwork::new() else { return };
    let files = AgentFiles::new(&[(1, READY)]);
    let agents = files.start_both(&network, &[]);
    wait_for_endpoints(&agents, 4);
    let mut old = converse(&network);
    check_all(&mut old, "b");

    agents.into_iter().for_each(AgentProcess::kill);
    check_all(&mut old, "b");
    check_all(&mut converse(&network), "b");

    let agents = files.start_both(&network, &[]);
    wait_for_endpoints(&agents, 4);
    check_all(&mut old, "b");
    check_all(&mut converse(&network), "b");

    files.write(
        "wrong.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: 7}\n",
    );
    agents.iter().for_each(|it| it.wait_for("the one before stays in force"));
    check_all(&mut old, "b");
    files.remove("wrong.yaml");

    agents.into_iter().for_each(AgentProcess::terminate);
    check_all(&mut old, "b");
    check_all(&mut converse(&network), "b");

    for (number, node) in network.nodes.iter().enumerate() {
        assert!(has_pins(node, &files.pins(number)));
        let mut command = files.command(number, &["--remove"]);
        let output = node.run(move || command.output().unwrap());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(!has_pins(node, &files.pins(number)));
    }
}

#[test]
fn second_agent_of_a_node_waits() {
    let Some(network) = TestNetwork::new() else { return };
    let files = AgentFiles::new(&[(0, READY)]);
    let first = files.start(&network, 0, &[]);
    first.wait_for_endpoints(4);
    let second = files.start(&network, 0, &[]);
    second.wait_for("waiting for another agent");
    let mut command = files.command(0, &["--remove"]);
    let output = network.nodes[0].run(move || command.output().unwrap());
    assert_eq!(output.status.code(), Some(1));
    first.kill();
    second.wait_for_endpoints(4);
}

#[test]
fn pod_that_goes_is_left_out() {
    let Some(network) = TestNetwork::new() else { return };
    let files = AgentFiles::new(&[(0, READY), (1, READY)]);
    let agents = files.start_both(&network, &[]);
    wait_for_endpoints(&agents, 8);
    network.nodes[0].ip("link del pod0");
    // This node has no route to it any more; the other one learns it from the EndpointSlice.
    agents[0].wait_for_endpoints(4);
    for _ in 0..ATTEMPTS {
        assert_eq!(pod_of(&mut network.client.connect(services()[0]).unwrap()), "b");
    }
}
