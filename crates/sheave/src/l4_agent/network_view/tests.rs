//! Views of a node in, places out.

use super::*;

const POD_MAC: MacAddress = [2, 0, 0, 0, 0, 4];
const NODE_MAC: MacAddress = [2, 0, 0, 0, 0, 3];

fn link(name: &str, kind: NodeLinkKind, controller: Option<u32>) -> NodeLink {
    NodeLink {
        name: name.to_owned(),
        mac: Some(NODE_MAC),
        mtu: 1500,
        kind,
        controller,
        is_up: true,
        is_ethernet: true,
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns a node with an uplink (2), a veth (3), a bridge (4) and a port of it (5).
fn view() -> NetworkView {
    let links = [
        (2, link("up0", NodeLinkKind::Other, None)),
        (3, link("pod0", NodeLinkKind::Veth, None)),
        (4, link("cni0", NodeLinkKind::Bridge, None)),
        (5, link("port0", NodeLinkKind::Veth, Some(4))),
    ];
    let address = NodeInterfaceAddress { address: ip("192.0.2.1"), prefix_length: 24, ifindex: 2 };
    NetworkView { links: links.into(), addresses: vec![address], ..NetworkView::default() }
}

fn route(ifindex: u32) -> Option<RouteToAddress> {
    Some(RouteToAddress { ifindex, has_gateway: false })
}

fn local(ifindex: u32) -> PodLink {
    PodLink { ifindex, pod_mac: POD_MAC, node_mac: NODE_MAC }
}

#[test]
fn pod_is_behind_its_veth() {
    let (mut view, pod) = (view(), ip("10.1.1.2"));
    let unresolved = PlaceLookup::Unresolved { ifindex: 3, known: None };
    assert_eq!(view.pod_place(pod, route(3), None), unresolved);
    view.neighbours.insert((3, pod), POD_MAC);
    let found = PlaceLookup::Found(EndpointPlace::Local(local(3)));
    assert_eq!(view.pod_place(pod, route(3), None), found);
}

#[test]
fn pod_is_behind_a_port_of_its_bridge() {
    let (mut view, pod) = (view(), ip("10.1.1.2"));
    view.neighbours.insert((4, pod), POD_MAC);
    let unresolved = PlaceLookup::Unresolved { ifindex: 4, known: None };
    assert_eq!(view.pod_place(pod, route(4), None), unresolved);
    view.ports.insert((4, POD_MAC), 5);
    let found = PlaceLookup::Found(EndpointPlace::Local(local(5)));
    assert_eq!(view.pod_place(pod, route(4), None), found);
}

#[test]
fn known_link_stays_until_the_node_says_otherwise() {
    let (mut view, pod, known) = (view(), ip("10.1.1.2"), Some(local(5)));
    let kept = PlaceLookup::Unresolved { ifindex: 4, known: Some(EndpointPlace::Local(local(5))) };
    // The kernel has forgotten the neighbour, and then the bridge its port.
    assert_eq!(view.pod_place(pod, route(4), known), kept);
    view.neighbours.insert((4, pod), POD_MAC);
    assert_eq!(view.pod_place(pod, route(4), known), kept);
    // Another pod has the address.
    view.neighbours.insert((4, pod), [9; 6]);
    let unresolved = PlaceLookup::Unresolved { ifindex: 4, known: None };
    assert_eq!(view.pod_place(pod, route(4), known), unresolved);
    view.neighbours.insert((4, pod), POD_MAC);
    view.links.remove(&5);
    assert_eq!(view.pod_place(pod, route(4), known), unresolved);
}

#[test]
fn address_that_is_no_pod_of_this_node_has_no_place() {
    let mut view = view();
    let host = PlaceLookup::Found(EndpointPlace::HostNetwork);
    assert_eq!(view.pod_place(ip("192.0.2.1"), None, None), host);
    let pod = ip("10.1.1.2");
    let absent = |route| matches!(view.pod_place(pod, route, None), PlaceLookup::Absent(_));
    assert!(absent(None));
    assert!(absent(Some(RouteToAddress { ifindex: 3, has_gateway: true })));
    assert!(absent(route(9)));
    view.neighbours.insert((2, pod), POD_MAC);
    assert!(matches!(view.pod_place(pod, route(2), None), PlaceLookup::Absent(_)), "no veth");
    view.links.get_mut(&3).unwrap().is_up = false;
    assert!(matches!(view.pod_place(pod, route(3), None), PlaceLookup::Absent(_)), "down");
}

#[test]
fn uplinks_are_named_or_found() {
    let mut view = view();
    let names = |view: &NetworkView, named: &[&str], own: &[IpAddr]| -> Vec<String> {
        let named: Vec<_> = named.iter().map(|it| (*it).to_owned()).collect();
        view.uplinks(&named, own).into_iter().map(|(_, link)| link.name.clone()).collect()
    };
    assert_eq!(names(&view, &[], &[]), Vec::<String>::new());
    assert_eq!(names(&view, &[], &[ip("192.0.2.1")]), ["up0"]);
    view.default_interfaces = vec!["cni0".to_owned()];
    assert_eq!(names(&view, &[], &[]), ["cni0"]);
    assert_eq!(names(&view, &["pod0"], &[ip("192.0.2.1")]), ["pod0"]);
}

#[test]
fn addresses_alone_are_not_the_node_s_own() {
    let mut view = view();
    let carried = NodeInterfaceAddress { address: ip("192.0.2.65"), prefix_length: 32, ifindex: 2 };
    view.addresses.push(carried);
    assert_eq!(view.own_addresses().collect::<Vec<_>>(), [ip("192.0.2.1")]);
    assert!(view.is_on_network(2, ip("192.0.2.200")));
    assert!(!view.is_on_network(2, ip("192.0.3.1")));
    assert!(!view.is_on_network(2, ip("2001:db8::1")));
}
