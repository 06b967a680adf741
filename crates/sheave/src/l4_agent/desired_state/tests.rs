//! Plans and places in, desired states out.

use std::net::SocketAddr;

use l4::{PodLink, TransportProtocol};

use super::*;

const LINK: PodLink = PodLink { ifindex: 7, pod_mac: [2; 6], node_mac: [3; 6] };
const WAY: NodeWay = NodeWay::Layer2 { ifindex: 2, source_mac: [4; 6], mac: [5; 6] };

fn port(number: u16, endpoints: &[(&str, Option<&str>, EndpointState)]) -> PlannedPort {
    let endpoint = |(address, node, state): &(&str, Option<&str>, EndpointState)| PlannedEndpoint {
        address: address.parse().unwrap(),
        node: node.map(str::to_owned),
        state: *state,
    };
    PlannedPort {
        service: "shop/web".to_owned(),
        address: SocketAddr::new("192.0.2.65".parse().unwrap(), number),
        protocol: TransportProtocol::Tcp,
        has_client_affinity: false,
        quic_server_id_length: None,
        source_ranges: None,
        endpoints: endpoints.iter().map(endpoint).collect(),
    }
}

fn plan(ports: Vec<PlannedPort>) -> ServicePlan {
    let nodes = [("n1", "192.0.2.1"), ("n2", "192.0.2.2")];
    let nodes = nodes.map(|(name, ip)| (name.to_owned(), vec![ip.parse().unwrap()]));
    ServicePlan { ports, nodes: nodes.into(), findings: BTreeSet::new() }
}

fn places() -> KnownPlaces {
    KnownPlaces {
        local: [("10.1.1.2".parse().unwrap(), Ok(EndpointPlace::Local(LINK)))].into(),
        ways: [("n2".to_owned(), Ok(WAY))].into(),
        ..KnownPlaces::default()
    }
}

fn messages(findings: &BTreeSet<PlanFinding>) -> Vec<&str> {
    findings.iter().map(|it| &*it.message).collect()
}

#[test]
fn endpoints_have_their_places_and_shares() {
    let plan = plan(vec![port(
        80,
        &[
            ("10.1.1.2:8080", Some("n1"), EndpointState::Ready),
            ("10.1.2.2:8080", Some("n2"), EndpointState::Terminating),
            ("10.1.2.3:8080", Some("n2"), EndpointState::Unready),
        ],
    )]);
    let (state, findings) = desired_state(&plan, "n1", &places());
    assert_eq!(messages(&findings), Vec::<&str>::new());
    let endpoints = state.services[0].endpoints.iter();
    let endpoints: Vec<_> =
        endpoints.map(|it| (it.place.clone(), it.weight, it.is_draining)).collect();
    let remote = EndpointPlace::Node("n2".to_owned());
    assert_eq!(
        endpoints,
        [(EndpointPlace::Local(LINK), 1, false), (remote.clone(), 1, true), (remote, 0, true),]
    );
    assert_eq!(state.nodes["n2"].way, WAY);
    assert_eq!(state.vips.len(), 1);
}

#[test]
fn endpoint_without_a_place_is_left_out() {
    let plan = plan(vec![port(
        80,
        &[
            ("10.1.1.2:8080", Some("n1"), EndpointState::Ready),
            ("10.1.1.3:8080", Some("n1"), EndpointState::Ready),
            ("10.1.3.2:8080", Some("n3"), EndpointState::Ready),
            ("10.1.3.3:8080", None, EndpointState::Ready),
        ],
    )]);
    let (state, findings) = desired_state(&plan, "n1", &places());
    assert_eq!(state.services[0].endpoints.len(), 1);
    assert_eq!(
        messages(&findings),
        [
            "the endpoint 10.1.1.3:8080 is left out: its interface is not known",
            "the endpoint 10.1.3.2:8080 is left out: there is no Node n3 with an InternalIP",
            "the endpoint 10.1.3.3:8080 is left out: the EndpointSlice does not name its node",
        ]
    );
}

#[test]
fn address_with_a_port_that_has_no_place_is_left_to_the_proxy() {
    let served = || port(80, &[("10.1.1.2:8080", Some("n1"), EndpointState::Ready)]);
    let nowhere = port(81, &[("10.1.3.3:8080", None, EndpointState::Ready)]);
    let (state, findings) = desired_state(&plan(vec![served(), nowhere]), "n1", &places());
    assert_eq!((state.services.len(), state.vips.len()), (0, 0));
    assert_eq!(findings.len(), 2);
    // A port without endpoints is served by nothing else either.
    let (state, _) = desired_state(&plan(vec![served(), port(81, &[])]), "n1", &places());
    assert_eq!((state.services.len(), state.vips.len()), (2, 1));
    let (state, _) = desired_state(&plan(vec![port(81, &[])]), "n1", &places());
    assert_eq!((state.services.len(), state.vips.len()), (0, 0));
}

#[test]
fn endpoints_that_are_not_ready_keep_their_connections() {
    let plan = plan(vec![port(80, &[("10.1.1.2:8080", Some("n1"), EndpointState::Unready)])]);
    let (state, findings) = desired_state(&plan, "n1", &places());
    assert_eq!((state.services[0].endpoints[0].weight, state.vips.len()), (0, 1));
    assert_eq!(messages(&findings), Vec::<&str>::new());
}

#[test]
fn own_address_of_the_node_is_never_taken() {
    let plan = plan(vec![port(80, &[("10.1.1.2:8080", Some("n1"), EndpointState::Ready)])]);
    let own = [plan.ports[0].address.ip()].into();
    let (state, findings) = desired_state(&plan, "n1", &KnownPlaces { own, ..places() });
    assert_eq!(state.vips.len(), 0);
    assert_eq!(messages(&findings), ["192.0.2.65 is this node's address"]);
}
