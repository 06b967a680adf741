//! Objects in, planned services out.

use std::fmt::Write;

use super::*;

const NODES: &str = "
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {a: b}}
spec: {podCIDR: 10.1.1.0/24}
status: {addresses: [{type: Hostname, address: n1}, {type: InternalIP, address: 192.0.2.1}], images: [{}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}, {type: InternalIP, address: 2001:db8::2}]}
";

/// Returns a Service with these fields of the spec, and an EndpointSlice of IPv4 with these endpoints.
fn service(name: &str, metadata: &str, spec: &str, ips: &str, endpoints: &str) -> String {
    format!(
        "
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop{metadata}}}
spec: {{type: LoadBalancer, loadBalancerClass: sheave.dev/l4, ports: [{{port: 80, name: web}}]{spec}}}
status: {{loadBalancer: {{ingress: [{ips}]}}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: web, port: 8080}}]
endpoints: [{endpoints}]
"
    )
}

const POD_A: &str = "{addresses: [10.1.1.2], nodeName: n1}";
const POD_B: &str = "{addresses: [10.1.2.2], nodeName: n2}";
const VIP: &str = "{ip: 192.0.2.65}";

/// Returns the plan of the node `n1`, one line for each port, endpoint and finding.
fn planned(text: &str) -> String {
    let (objects, problems) = gateway::parse(&format!("{NODES}{text}"), "test.yaml");
    assert_eq!(problems, []);
    let addresses = objects.iter().filter_map(|object| match object {
        ApiObject::Service(it) => Some((
            (it.metadata.namespace.clone(), it.metadata.name.clone()),
            it.spec.status_addresses.clone(),
        )),
        _ => None,
    });
    let plan = plan(&objects, &addresses.collect(), "n1");
    let mut lines = String::new();
    for port in plan.ports {
        let quic = port.quic_server_id_length.map(|it| format!(" quic={it}")).unwrap_or_default();
        let affinity = if port.has_client_affinity { " affinity" } else { "" };
        let sources = port.source_ranges.iter().flatten().map(|it| format!(" sources={it}"));
        let sources: String = sources.collect();
        let PlannedPort { service, address, protocol, .. } = &port;
        writeln!(lines, "{service} {address} {protocol:?}{affinity}{quic}{sources}").unwrap();
        for PlannedEndpoint { address, node, state } in &port.endpoints {
            writeln!(lines, "  {address} {} {state:?}", node.as_deref().unwrap_or("-")).unwrap();
        }
    }
    for PlanFinding { object, message } in plan.findings {
        writeln!(lines, "! {object}: {message}").unwrap();
    }
    lines
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    assert_eq!(planned(text).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn endpoints_of_all_nodes_are_planned() {
    let both = format!("{POD_A}, {POD_B}");
    check(
        &service("a", "", "", VIP, &both),
        &["shop/a 192.0.2.65:80 Tcp", "  10.1.1.2:8080 n1 Ready", "  10.1.2.2:8080 n2 Ready"],
    );
}

#[test]
fn conditions_say_which_connections_an_endpoint_gets() {
    let endpoints = "
        {addresses: [10.1.1.1], nodeName: n1, conditions: {ready: true, serving: true, terminating: false}},
        {addresses: [10.1.1.2], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}},
        {addresses: [10.1.1.3], nodeName: n1, conditions: {ready: false, serving: false, terminating: true}},
        {addresses: [10.1.1.4], nodeName: n1, conditions: {ready: false}},
        {addresses: [10.1.1.5], conditions: {}}";
    check(
        &service("a", "", "", VIP, endpoints),
        &[
            "shop/a 192.0.2.65:80 Tcp",
            "  10.1.1.1:8080 n1 Ready",
            "  10.1.1.2:8080 n1 Terminating",
            "  10.1.1.3:8080 n1 Unready",
            "  10.1.1.4:8080 n1 Unready",
            "  10.1.1.5:8080 - Ready",
        ],
    );
}

#[test]
fn local_policy_and_affinity_are_kept() {
    let both = format!("{POD_A}, {POD_B}");
    let spec = ", externalTrafficPolicy: Local, sessionAffinity: ClientIP";
    check(
        &service("a", "", spec, VIP, &both),
        &["shop/a 192.0.2.65:80 Tcp affinity", "  10.1.1.2:8080 n1 Ready"],
    );
}

#[test]
fn each_ip_version_has_its_own_endpoints() {
    let slice = "
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a-6, namespace: shop, labels: {kubernetes.io/service-name: a}}
addressType: IPv6
ports: [{name: web, port: 8080}]
endpoints: [{addresses: ['2001:db8:1::2'], nodeName: n1}]
";
    let ips = "{ip: 192.0.2.65}, {ip: '2001:db8::65'}, {hostname: lb.example}";
    check(
        &(service("a", "", "", ips, POD_A) + slice),
        &[
            "shop/a 192.0.2.65:80 Tcp",
            "  10.1.1.2:8080 n1 Ready",
            "shop/a [2001:db8::65]:80 Tcp",
            "  [2001:db8:1::2]:8080 n1 Ready",
        ],
    );
}

#[test]
fn ports_are_joined_by_name_and_protocol() {
    let text = "
---
apiVersion: v1
kind: Service
metadata: {name: dns, annotations: {sheave.dev/quic-server-id-length: '2'}}
spec:
  type: LoadBalancer
  loadBalancerClass: sheave.dev/l4
  ports: [{port: 53, name: u, protocol: UDP}, {port: 53, name: t}, {port: 132, name: s, protocol: SCTP}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.66}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns-1, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports: [{name: u, port: 5353, protocol: UDP}, {name: t, port: 5354}, {name: s, port: 1, protocol: SCTP}]
endpoints: [{addresses: [10.1.2.3], nodeName: n2}]
";
    check(
        text,
        &[
            "default/dns 192.0.2.66:53 Tcp",
            "  10.1.2.3:5354 n2 Ready",
            "default/dns 192.0.2.66:53 Udp quic=2",
            "  10.1.2.3:5353 n2 Ready",
            "! default/dns: port 132: its protocol is not served",
        ],
    );
}

#[test]
fn services_that_ask_for_more_stay_with_the_proxy() {
    let requests = ", annotations: {sheave.dev/balance: requests}";
    check(&service("a", requests, "", VIP, POD_A), &["! shop/a: the proxy balances its requests"]);
    check(
        &service("a", "", ", loadBalancerSourceRanges: [198.51.100.0/24]", VIP, POD_A),
        &["shop/a 192.0.2.65:80 Tcp sources=198.51.100.0/24", "  10.1.1.2:8080 n1 Ready"],
    );
    check(
        &service("a", "", ", loadBalancerSourceRanges: [198.51.100.0/33]", VIP, POD_A),
        &["! shop/a: \"198.51.100.0/33\" in loadBalancerSourceRanges is no CIDR block"],
    );
}

#[test]
fn services_of_other_classes_are_not_ours() {
    let of_class = |class: &str| service("a", "", "", VIP, POD_A).replace("sheave.dev/l4", class);
    check(&of_class("example.com/other"), &[]);
    check(&service("a", "", "", VIP, POD_A).replace("loadBalancerClass: sheave.dev/l4, ", ""), &[]);
}

#[test]
fn shared_address_is_taken_as_a_whole_or_not_at_all() {
    let requests = ", annotations: {sheave.dev/balance: requests}";
    let other = service("b", requests, "", VIP, POD_A).replace("port: 80,", "port: 81,");
    check(
        &(service("a", "", "", VIP, POD_A) + &other),
        &[
            "! shop/a: it shares its address with a Service that the proxy serves",
            "! shop/b: the proxy balances its requests",
        ],
    );
}

#[test]
fn older_service_has_a_port_of_an_address() {
    let age = |year: u16| format!(", creationTimestamp: '{year}-01-01T00:00:00Z'");
    let text = service("a", &age(2026), "", VIP, POD_A) + &service("b", &age(2025), "", VIP, POD_B);
    check(
        &text,
        &[
            "shop/b 192.0.2.65:80 Tcp",
            "  10.1.2.2:8080 n2 Ready",
            "! shop/a: another Service has 192.0.2.65:80 already",
        ],
    );
}

#[test]
fn addresses_that_must_not_be_taken_are_refused() {
    check(
        &service("a", "", "", "{ip: 192.0.2.2}", POD_A),
        &["! shop/a: its address 192.0.2.2 is that of the node n2"],
    );
    check(
        &service("a", "", "", "{ip: 127.0.0.1}", POD_A),
        &["! shop/a: its address 127.0.0.1 is a loopback address"],
    );
    let metadata_service = "{addresses: [169.254.169.254], nodeName: n1}";
    check(&service("a", "", "", VIP, metadata_service), &["shop/a 192.0.2.65:80 Tcp"]);
}

#[test]
fn wrong_annotation_is_reported() {
    let annotation = ", annotations: {sheave.dev/quic-server-id-length: '9'}";
    check(
        &service("a", annotation, "", VIP, POD_A),
        &[
            "shop/a 192.0.2.65:80 Tcp",
            "  10.1.1.2:8080 n1 Ready",
            "! shop/a: sheave.dev/quic-server-id-length must be 1 to 4, is \"9\"",
        ],
    );
}

#[test]
fn services_that_exceed_the_maps_are_left_to_the_proxy() {
    let ranges: Vec<String> =
        (0..1_000).map(|it| format!("10.{}.{}.0/24", it / 250, it % 250)).collect();
    let spec = format!(", loadBalancerSourceRanges: [{}]", ranges.join(", "));
    let mut text = String::new();
    for number in 0..67 {
        let metadata =
            format!(", creationTimestamp: '2026-01-01T00:{:02}:{:02}Z'", number / 60, number % 60);
        let ips = format!("{{ip: 192.0.3.{number}}}");
        text += &service(&format!("s{number:02}"), &metadata, &spec, &ips, POD_A);
    }
    // It is the newest and has no ranges.
    text += &service("z", ", creationTimestamp: '2026-02-01T00:00:00Z'", "", VIP, POD_A);
    let lines = planned(&text);
    let served = |name: &str| lines.lines().any(|it| it.starts_with(&format!("shop/{name} ")));
    assert!((0..65).all(|number| served(&format!("s{number:02}"))));
    assert!(!served("s65") && !served("s66") && served("z"));
    let findings: Vec<_> = lines.lines().filter(|it| it.starts_with('!')).collect();
    let reason = "all Services together have more than 65536 source ranges";
    assert_eq!(findings, [format!("! shop/s65: {reason}"), format!("! shop/s66: {reason}")]);
}
