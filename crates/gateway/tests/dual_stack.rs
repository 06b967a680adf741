//! A Pod of a dual-stack Service is one endpoint with two addresses.

use std::net::SocketAddr;

use gateway::snapshot::{BackendKey, TransportProtocol};
use gateway::{EndpointIndex, TranslationSettings, parse};
use serde_json::{Value, json};

const READY: (bool, bool) = (true, false);
const STARTING: (bool, bool) = (false, false);
const TERMINATING: (bool, bool) = (false, true);

/// Returns an entry of a slice: address, Pod if it is one, and conditions.
fn entry(address: &str, pod: Option<&str>, (ready, terminating): (bool, bool)) -> Value {
    let conditions =
        json!({ "ready": ready, "serving": ready || terminating, "terminating": terminating });
    let target = pod.map(|uid| {
        json!({ "kind": "Pod", "namespace": "shop", "name": "web-0", "uid": uid, "resourceVersion": "7" })
    });
    json!({ "addresses": [address], "conditions": conditions, "targetRef": target })
}

fn slice(family: &str, entries: &[Value]) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": format!("web-{}", family.to_lowercase()), "namespace": "shop",
            "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": family, "endpoints": entries, "ports": [{ "port": 3000 }],
    })
}

/// Returns the addresses of each endpoint of a Service with these IP versions and slices.
fn endpoints(families: &[&str], ipv4: &[Value], ipv6: &[Value]) -> Vec<(String, Option<String>)> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": "shop" },
        "spec": { "ipFamilies": families, "ports": [{ "port": 80 }] },
    });
    let documents = [service, slice("IPv4", ipv4), slice("IPv6", ipv6)];
    let text: Vec<_> = documents.iter().map(ToString::to_string).collect();
    let (objects, problems) = parse(&text.join("\n---\n"), "dual.yaml");
    assert_eq!(problems, []);
    let settings = TranslationSettings::default();
    let key = BackendKey {
        namespace: "shop".into(),
        service: "web".into(),
        port: 80,
        transport: TransportProtocol::Tcp,
        node: None,
    };
    let found = EndpointIndex::new(&objects, &settings).of(&key);
    let ip = |address: SocketAddr| address.ip().to_string();
    found.iter().map(|it| (ip(it.address), it.other_address.map(ip))).collect()
}

fn both(first: &str, other: &str) -> Vec<(String, Option<String>)> {
    vec![(first.to_owned(), Some(other.to_owned()))]
}

fn one(address: &str) -> (String, Option<String>) {
    (address.to_owned(), None)
}

#[test]
fn pod_is_known_by_its_address_of_the_first_ip_version() {
    let ipv4 = [entry("10.0.0.1", Some("a"), READY)];
    let ipv6 = [entry("fd00::1", Some("a"), READY)];
    assert_eq!(endpoints(&["IPv4", "IPv6"], &ipv4, &ipv6), both("10.0.0.1", "fd00::1"));
    assert_eq!(endpoints(&["IPv6", "IPv4"], &ipv4, &ipv6), both("fd00::1", "10.0.0.1"));
    // Without `ipFamilies`, as in files.
    assert_eq!(endpoints(&[], &ipv4, &ipv6), both("10.0.0.1", "fd00::1"));
}

#[test]
fn entry_of_the_first_ip_version_says_if_the_pod_is_ready() {
    let families = ["IPv4", "IPv6"];
    let [ready, starting] = [READY, STARTING].map(|state| [entry("fd00::1", Some("a"), state)]);
    let at = |state| [entry("10.0.0.1", Some("a"), state)];
    assert_eq!(endpoints(&families, &at(STARTING), &ready), []);
    assert_eq!(endpoints(&families, &at(READY), &starting), both("10.0.0.1", "fd00::1"));
    assert_eq!(endpoints(&families, &at(TERMINATING), &ready), both("10.0.0.1", "fd00::1"));
}

#[test]
fn pod_with_one_address_is_an_endpoint() {
    let ipv4 = [entry("10.0.0.1", Some("a"), READY)];
    let ipv6 = [entry("fd00::2", Some("b"), READY)];
    assert_eq!(endpoints(&["IPv4", "IPv6"], &ipv4, &ipv6), [one("10.0.0.1"), one("fd00::2")]);
}

#[test]
fn addresses_without_a_pod_are_endpoints_of_their_own() {
    let ipv4 = [entry("10.0.0.1", None, READY)];
    let ipv6 = [entry("fd00::1", None, READY)];
    assert_eq!(endpoints(&["IPv4", "IPv6"], &ipv4, &ipv6), [one("10.0.0.1"), one("fd00::1")]);
}

#[test]
fn pod_in_two_slices_of_one_ip_version_is_one_endpoint() {
    let ipv4 = [entry("10.0.0.1", Some("a"), READY), entry("10.0.0.1", Some("a"), READY)];
    let ipv6 = [entry("fd00::1", Some("a"), READY)];
    assert_eq!(endpoints(&["IPv4", "IPv6"], &ipv4, &ipv6), both("10.0.0.1", "fd00::1"));
}
