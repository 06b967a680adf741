//! Laws of transparent mode over random Services: nothing panics, only TCP ports of ClusterIPs are taken, the fast path
//! agrees with a translation, and no status depends on the node.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use gateway::snapshot::{Listener, ListenerProtocol};
use gateway::transparent::{
    ADOPT_ANNOTATION, BALANCE_ANNOTATION, CLIENT_ADDRESS_ANNOTATION, PREFER_LOCAL_ANNOTATION,
};
use gateway::{
    ApiObject, EndpointIndex, TranslationSettings, TransparentSettings, parse, translate,
};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

/// Returns the settings of a node.
fn node(name: &str, ipv4: bool, ipv6: bool) -> TranslationSettings {
    let zone = (name == "n1").then(|| "a".into());
    let settings = TransparentSettings { node: name.into(), zone, ipv4, ipv6 };
    TranslationSettings { transparent: Some(settings), ..TranslationSettings::default() }
}

fn objects(documents: &[Value]) -> Vec<ApiObject> {
    let documents: Vec<_> = documents.iter().map(ToString::to_string).collect();
    let (objects, problems) = parse(&documents.join("\n---\n"), "random.yaml");
    assert_eq!(problems, [], "{documents:?}");
    objects
}

fn annotations() -> impl Strategy<Value = BTreeMap<&'static str, &'static str>> {
    let name = select(vec![
        BALANCE_ANNOTATION,
        ADOPT_ANNOTATION,
        CLIENT_ADDRESS_ANNOTATION,
        PREFER_LOCAL_ANNOTATION,
    ]);
    let value =
        select(vec!["requests", "requests", "none", "new", "reset", "keep", "node", "true", ""]);
    let others = prop::collection::btree_map(name, value, 0..4);
    (others, prop::bool::weighted(0.8)).prop_map(|(mut annotations, is_taken)| {
        if is_taken {
            annotations.insert(BALANCE_ANNOTATION, "requests");
        }
        annotations
    })
}

fn port() -> impl Strategy<Value = Value> {
    let number = select(vec![25_u16, 53, 80, 443, 8080]);
    let protocol = select(vec![None, Some("TCP"), Some("UDP"), Some("SCTP")]);
    let app = select(vec![None, Some("http"), Some("grpc"), Some("https"), Some("x")]);
    (number, protocol, app).prop_map(|(port, protocol, app)| {
        let mut value =
            json!({ "port": port, "name": format!("p{port}{}", protocol.unwrap_or("")) });
        value.as_object_mut().unwrap().extend(
            protocol
                .map(|it| ("protocol".to_owned(), json!(it)))
                .into_iter()
                .chain(app.map(|it| ("appProtocol".to_owned(), json!(it)))),
        );
        value.as_object_mut().unwrap().retain(|_, it| !it.is_null());
        value
    })
}

fn service(name: &'static str) -> impl Strategy<Value = Value> {
    let kind = select(vec!["ClusterIP", "ClusterIP", "NodePort", "ExternalName"]);
    let addresses = select(vec![
        vec!["10.96.0.1"],
        vec!["10.96.0.2", "fd00::2"],
        vec!["None"],
        vec![""],
        vec!["0.0.0.0"],
        vec!["text"],
        vec!["::ffff:10.96.0.1"],
        vec![],
    ]);
    let policy = select(vec!["Cluster", "Local", "Other"]);
    let affinity = select(vec!["None", "ClientIP"]);
    let distribution = select(vec!["PreferSameZone", "PreferSameNode", "Other"]);
    let ports = prop::collection::vec(port(), 0..4);
    let of_clients = (policy, affinity, prop::option::of(distribution));
    (kind, addresses, annotations(), ports, of_clients).prop_map(
        move |(kind, addresses, annotations, ports, (policy, affinity, distribution))| {
            let mut spec = json!({
                "type": kind, "clusterIPs": addresses, "ports": ports, "selector": { "app": name },
                "internalTrafficPolicy": policy, "sessionAffinity": affinity,
                "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 7 } },
            });
            if let Some(distribution) = distribution {
                spec["trafficDistribution"] = json!(distribution);
            }
            json!({
                "apiVersion": "v1", "kind": "Service", "spec": spec,
                "metadata": { "name": name, "namespace": "shop", "annotations": annotations },
            })
        },
    )
}

fn slice(service: &'static str) -> impl Strategy<Value = Value> {
    let place = || prop::collection::vec(select(vec!["a", "b", "n1", "n2"]), 0..3);
    let endpoint = (0..5_u8, any::<bool>(), select(vec!["n1", "n2"]), place(), place()).prop_map(
        |(host, ready, node, zones, nodes)| {
            let names =
                |of: Vec<&str>| of.iter().map(|it| json!({ "name": it })).collect::<Vec<_>>();
            json!({
                "addresses": [format!("10.0.0.{host}")], "nodeName": node, "zone": "a",
                "conditions": { "ready": ready, "serving": true, "terminating": !ready },
                "hints": { "forZones": names(zones), "forNodes": names(nodes) },
            })
        },
    );
    prop::collection::vec(endpoint, 0..6).prop_map(move |endpoints| {
        let ports: Vec<_> = [25, 53, 80, 443, 8080]
            .iter()
            .flat_map(|port| {
                ["", "TCP"].map(|of| json!({ "name": format!("p{port}{of}"), "port": port + 1 }))
            })
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": service, "namespace": "shop",
                "labels": { "kubernetes.io/service-name": service } },
            "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
        })
    })
}

/// Generates a route of a Service, in the Service's namespace or another.
fn route() -> impl Strategy<Value = Value> {
    let parent =
        (select(vec!["web", "db", "absent"]), prop::option::of(select(vec![80_u16, 443, 7])));
    let namespace = select(vec!["shop", "client"]);
    (parent, namespace, any::<bool>()).prop_map(|((service, port), namespace, is_grpc)| {
        let mut parent =
            json!({ "group": "", "kind": "Service", "name": service, "namespace": "shop" });
        if let Some(port) = port {
            parent["port"] = json!(port);
        }
        let kind = if is_grpc { "GRPCRoute" } else { "HTTPRoute" };
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
            "metadata": { "name": "route", "namespace": namespace },
            "spec": { "parentRefs": [parent], "rules": [{ "backendRefs": [
                { "name": "web", "namespace": "shop", "port": 80 },
            ] }] },
        })
    })
}

fn network_policy() -> impl Strategy<Value = Value> {
    let app = select(vec!["web", "db", "other"]);
    (app, prop::option::of(select(vec!["Ingress", "Egress"]))).prop_map(|(app, kind)| {
        let mut spec = json!({ "podSelector": { "matchLabels": { "app": app } } });
        if let Some(kind) = kind {
            spec["policyTypes"] = json!([kind]);
        }
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": spec,
            "metadata": { "name": "policy", "namespace": "shop" },
        })
    })
}

/// Returns the TCP ports of the ClusterIPs of all annotated Services.
fn permitted(objects: &[ApiObject]) -> BTreeSet<SocketAddr> {
    let mut found = BTreeSet::new();
    for object in objects {
        let ApiObject::Service(service) = object else { continue };
        let balance = service.metadata.annotations.get(BALANCE_ANNOTATION);
        if balance.is_none_or(|value| value != "requests") {
            continue;
        }
        for address in service.spec.cluster_ips.iter().flatten() {
            let Ok(address) = address.parse::<std::net::IpAddr>() else { continue };
            let ports = service.spec.ports.iter();
            let tcp = ports.filter(|port| port.protocol.as_deref().unwrap_or("TCP") == "TCP");
            found.extend(tcp.map(|port| SocketAddr::new(address.to_canonical(), port.port)));
        }
    }
    found
}

proptest! {
    #[test]
    fn only_tcp_ports_of_cluster_ips_are_taken(
        services in (service("web"), service("db")), slices in (slice("web"), slice("db")),
        after in slice("web"), route in route(), policy in network_policy(),
        ipv4 in any::<bool>(), ipv6 in any::<bool>(), name in select(vec!["n1", "n2", ""]),
    ) {
        let (web, db) = services;
        let all = [web.clone(), db.clone(), slices.0, slices.1.clone(), route.clone(), policy.clone()];
        let before = objects(&all);
        let settings = node(name, ipv4, ipv6);
        let result = translate(&before, &settings);
        let listeners = &result.snapshot.listeners;
        let taken: BTreeSet<_> = listeners.iter().map(|it| it.address).collect();
        prop_assert_eq!(taken.len(), listeners.len(), "an address occurs twice");
        prop_assert!(taken.is_subset(&permitted(&before)), "{:?}", taken);
        let is_available = |it: &SocketAddr| if it.is_ipv4() { ipv4 } else { ipv6 };
        prop_assert!(taken.iter().all(is_available), "{:?}", taken);
        let reported = result.transparent_services.iter().flat_map(|it| &it.addresses);
        prop_assert_eq!(reported.copied().collect::<BTreeSet<_>>(), taken);
        let is_served = |it: &Listener| it.interception.is_some() && match &it.protocol {
            ListenerProtocol::Http(_) => true,
            ListenerProtocol::Tcp(rule) => rule.is_some(),
            ListenerProtocol::Detected { connections, .. } => connections.is_some(),
            ListenerProtocol::Udp(_) => false,
        };
        prop_assert!(listeners.iter().all(is_served), "{:?}", listeners);

        let elsewhere = translate(&before, &node("n3", true, true));
        prop_assert_eq!(elsewhere.statuses, result.statuses);

        let after = objects(&[web, db, after, slices.1, route, policy]);
        let fast = EndpointIndex::new(&after, &settings);
        for backend in translate(&after, &settings).snapshot.backends {
            prop_assert_eq!(fast.of(&backend.key), backend.endpoints);
        }
        let off = translate(&after, &TranslationSettings::default());
        prop_assert!(off.snapshot.listeners.is_empty() && off.transparent_services.is_empty());
    }
}
