//! Laws of the assignment of addresses to Services of type LoadBalancer, over random pools, Services and histories.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use gateway::load_balancer::{ReservedAddresses, ServiceAddresses, ServiceName, assign};
use gateway::{ApiObject, parse};
use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A random Service.
#[derive(Clone, Debug)]
struct AnyService {
    namespace: &'static str,
    families: Vec<&'static str>,
    requested: Option<u8>,
    share_key: Option<&'static str>,
    port: u16,
    is_local: bool,
    age: u8,
}

/// A random pool.
#[derive(Clone, Debug)]
struct AnyPool {
    networks: Vec<String>,
    namespace: Option<&'static str>,
    assigns_unrequested: bool,
    age: u8,
}

fn services() -> impl Strategy<Value = Vec<AnyService>> {
    let families = prop::sample::select(vec![
        vec!["IPv4"],
        vec!["IPv6"],
        vec!["IPv4", "IPv6"],
        vec!["IPv6", "IPv4"],
    ]);
    let service = (
        prop::sample::select(vec!["a", "b"]),
        families,
        prop::option::weighted(0.3, 0..16_u8),
        prop::option::weighted(0.4, prop::sample::select(vec!["k", "l"])),
        1..3_u16,
        prop::bool::weighted(0.2),
        0..9_u8,
    );
    let service =
        service.prop_map(|(namespace, families, requested, share_key, port, is_local, age)| {
            AnyService { namespace, families, requested, share_key, port, is_local, age }
        });
    prop::collection::vec(service, 0..12)
}

fn pools() -> impl Strategy<Value = Vec<AnyPool>> {
    let network = prop_oneof![
        (0..16_u8, 28..=32_u8).prop_map(|(host, bits)| format!("192.0.2.{host}/{bits}")),
        (0..16_u8, 124..=128_u8).prop_map(|(host, bits)| format!("fd00::{host:x}/{bits}")),
    ];
    let pool = (
        prop::collection::vec(network, 1..4),
        prop::option::of(prop::sample::select(vec!["a", "b"])),
        prop::bool::weighted(0.8),
        0..9_u8,
    );
    let pool = pool.prop_map(|(networks, namespace, assigns_unrequested, age)| AnyPool {
        networks,
        namespace,
        assigns_unrequested,
        age,
    });
    prop::collection::vec(pool, 0..4)
}

fn time(age: u8) -> String {
    format!("2026-01-0{}T00:00:00Z", age + 1)
}

fn service_object((n, it): (usize, &AnyService)) -> Value {
    let mut annotations = json!({});
    if let Some(host) = it.requested {
        annotations["sheave.dev/addresses"] = json!(format!("192.0.2.{host}"));
    }
    if let Some(key) = it.share_key {
        annotations["sheave.dev/share-address"] = json!(key);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": format!("s{n}"),
            "namespace": it.namespace,
            "annotations": annotations,
            "creationTimestamp": time(it.age),
        },
        "spec": {
            "type": "LoadBalancer",
            "loadBalancerClass": "sheave.dev/l4",
            "ipFamilies": it.families,
            "ipFamilyPolicy": if it.families.len() == 2 { "RequireDualStack" } else { "SingleStack" },
            "externalTrafficPolicy": if it.is_local { "Local" } else { "Cluster" },
            "ports": [{ "port": it.port }],
        },
    })
}

fn pool_object((n, it): (usize, &AnyPool)) -> Value {
    let mut spec = json!({ "addresses": it.networks, "autoAssign": it.assigns_unrequested });
    if let Some(namespace) = it.namespace {
        let labels = json!({ "kubernetes.io/metadata.name": namespace });
        spec["namespaceSelector"] = json!({ "matchLabels": labels });
    }
    json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "AddressPool",
        "metadata": { "name": format!("p{n}"), "creationTimestamp": time(it.age) },
        "spec": spec,
    })
}

fn objects(services: &[AnyService], pools: &[AnyPool]) -> Vec<ApiObject> {
    let services = services.iter().enumerate().map(service_object);
    let all = services.chain(pools.iter().enumerate().map(pool_object));
    let text: Vec<_> = all.map(|it| it.to_string()).collect();
    let (objects, problems) = parse(&text.join("\n---\n"), "random.yaml");
    assert_eq!(problems, []);
    objects
}

fn assigned(
    services: &[AnyService],
    pools: &[AnyPool],
    known: &BTreeMap<ServiceName, Vec<IpAddr>>,
) -> ServiceAddresses {
    assign(&objects(services, pools), false, &ReservedAddresses::default(), known)
}

fn name_of(services: &[AnyService], n: usize) -> ServiceName {
    (services[n].namespace.to_owned(), format!("s{n}"))
}

/// True if a pool gives a Service this address. Pools that overlap count as one, as the older has the address.
fn owner(pools: &[AnyPool], address: IpAddr) -> Option<&AnyPool> {
    let contains = |it: &&AnyPool| {
        it.networks.iter().any(|network| network.parse::<IpNet>().unwrap().contains(&address))
    };
    let mut by_age: Vec<_> = pools.iter().enumerate().collect();
    by_age.sort_by_key(|(n, pool)| (pool.age, *n));
    by_age.into_iter().map(|(_, pool)| pool).find(contains)
}

fn allows(pool: &AnyPool, service: &AnyService) -> bool {
    pool.namespace.is_none_or(|it| it == service.namespace)
}

/// True if two Services have agreed to share an address.
fn agree(a: &AnyService, b: &AnyService) -> bool {
    a.namespace == b.namespace
        && a.share_key.is_some()
        && a.share_key == b.share_key
        && a.port != b.port
        && a.is_local == b.is_local
}

/// Returns addresses and reasons. Which of several Services a message names depends on the history.
fn outline(of: &ServiceAddresses) -> Vec<(&ServiceName, &[IpAddr], Vec<&str>)> {
    let services = of.services.iter();
    services
        .map(|(name, it)| (name, &*it.addresses, it.findings.iter().map(|it| it.reason).collect()))
        .collect()
}

proptest! {
    #[test]
    fn no_two_services_have_an_address_except_by_agreement(
        services in services(), pools in pools(), before in pools(),
    ) {
        // The history is that of other pools, so that some of it must be given up.
        let known = assigned(&services, &before, &BTreeMap::new()).addresses();
        let found = assigned(&services, &pools, &known);
        let of = |n: usize| &found.services[&name_of(&services, n)].addresses;
        for a in 0..services.len() {
            for b in 0..a {
                let is_shared = of(a).iter().any(|it| of(b).contains(it));
                prop_assert!(!is_shared || agree(&services[a], &services[b]), "{found:?}");
            }
        }
    }

    #[test]
    fn every_address_is_of_a_pool_for_the_service_and_of_its_families(
        services in services(), pools in pools(),
    ) {
        let found = assigned(&services, &pools, &BTreeMap::new());
        for (n, service) in services.iter().enumerate() {
            let assignment = &found.services[&name_of(&services, n)];
            let families: BTreeSet<_> =
                assignment.addresses.iter().map(|it| if it.is_ipv4() { "IPv4" } else { "IPv6" }).collect();
            prop_assert_eq!(families.len(), assignment.addresses.len(), "one of each family");
            prop_assert!(families.iter().all(|it| service.families.contains(it)));
            for address in &assignment.addresses {
                let pool = owner(&pools, *address).unwrap();
                prop_assert!(allows(pool, service));
                let is_requested = service.requested.map(|host| format!("192.0.2.{host}"));
                let is_requested = is_requested.as_deref() == Some(&*address.to_string());
                prop_assert!(is_requested || pool.assigns_unrequested || service.share_key.is_some());
            }
            let lacks = assignment.addresses.len() < service.families.len();
            prop_assert!(!lacks || !assignment.findings.is_empty(), "a lack is reported");
            prop_assert!(lacks || service.requested.is_some() || assignment.findings.is_empty());
        }
    }

    #[test]
    fn an_assignment_is_stable_over_restarts_and_unrelated_changes(
        services in services(), pools in pools(), extra in services(),
    ) {
        let first = assigned(&services, &pools, &BTreeMap::new());
        let known = first.addresses();
        let again = assigned(&services, &pools, &known);
        prop_assert_eq!(outline(&again), outline(&first));
        // Services that come later, of any age, take nothing away.
        let mut more = services.clone();
        more.extend(extra);
        let later = assigned(&more, &pools, &known);
        for n in 0..services.len() {
            let name = name_of(&services, n);
            let (before, after) = (&first.services[&name].addresses, &later.services[&name].addresses);
            prop_assert!(before.iter().all(|it| after.contains(it)), "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_service_without_a_request_gets_the_lowest_free_address(
        services in services(), pools in pools(),
    ) {
        let mut services = services;
        services.iter_mut().for_each(|it| it.share_key = None);
        services.push(AnyService {
            namespace: "a",
            families: vec!["IPv4"],
            requested: None,
            share_key: None,
            port: 9,
            is_local: false,
            age: 8,
        });
        let last = services.len() - 1;
        let mut others = services.clone();
        others.pop();
        let known = assigned(&others, &pools, &BTreeMap::new()).addresses();
        let taken: BTreeSet<_> = known.values().flatten().copied().collect();
        let found = assigned(&services, &pools, &known);
        let free = |is_selective: bool| {
            let all = (0..=32_u8).map(|host| IpAddr::from([192, 0, 2, host]));
            all.filter(|it| !taken.contains(it)).find(|address| {
                owner(&pools, *address).is_some_and(|pool| {
                    let is_host = pool.networks.iter().any(|network| {
                        let network: IpNet = network.parse().unwrap();
                        let is_special = network.prefix_len() < 31
                            && (network.network() == *address || network.broadcast() == *address);
                        network.contains(address) && !is_special
                    });
                    is_host
                        && pool.assigns_unrequested
                        && allows(pool, &services[last])
                        && pool.namespace.is_some() == is_selective
                })
            })
        };
        let expected: Vec<_> = free(true).or_else(|| free(false)).into_iter().collect();
        prop_assert_eq!(&found.services[&name_of(&services, last)].addresses, &expected);
    }
}

#[test]
fn reserved_addresses_and_those_of_the_cluster_are_never_assigned() {
    let service = |name: &str, extra: Value| {
        let mut spec = json!({
            "type": "LoadBalancer",
            "loadBalancerClass": "sheave.dev/l4",
            "ports": [{ "port": 80 }],
        });
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": spec })
    };
    let pool = AnyPool {
        networks: vec!["192.0.2.0/28".to_owned()],
        namespace: None,
        assigns_unrequested: true,
        age: 0,
    };
    let all = [
        pool_object((0, &pool)),
        service("first", json!({ "clusterIP": "192.0.2.9" })),
        service("asks", json!({ "loadBalancerIP": "192.0.2.9" })),
        service("wants-gateway", json!({ "loadBalancerIP": "192.0.2.1" })),
    ];
    let text: Vec<_> = all.iter().map(Value::to_string).collect();
    let (objects, problems) = parse(&text.join("\n---\n"), "reserved.yaml");
    assert_eq!(problems, []);
    let gateways = ["192.0.2.0/29".parse().unwrap()];
    let replicas = BTreeSet::from(["192.0.2.8".parse().unwrap()]);
    let reserved = ReservedAddresses { gateways: &gateways, replicas };
    let found = assign(&objects, false, &reserved, &BTreeMap::new());
    let of = |name: &str| {
        let it = &found.services[&("default".to_owned(), name.to_owned())];
        let addresses: Vec<_> = it.addresses.iter().map(ToString::to_string).collect();
        (addresses, it.findings.iter().map(|it| it.reason).collect::<Vec<_>>())
    };
    assert_eq!(of("first"), (vec!["192.0.2.10".to_owned()], vec![]));
    assert_eq!(of("asks"), (vec![], vec!["AddressOfCluster"]));
    assert_eq!(of("wants-gateway"), (vec![], vec!["AddressOutsidePools"]));
    let reasons: Vec<_> = found.pools["p0"].iter().map(|it| it.reason).collect();
    assert_eq!(reasons, ["OverlappingAddresses", "AddressOfCluster", "AddressOfCluster"]);
}

#[test]
fn a_huge_pool_below_a_reserved_network_is_exhausted_at_once() {
    let pool = AnyPool {
        networks: vec!["fd00::/8".to_owned(), "10.0.0.0/8".to_owned()],
        namespace: None,
        assigns_unrequested: true,
        age: 0,
    };
    let service = AnyService {
        namespace: "a",
        families: vec!["IPv6", "IPv4"],
        requested: None,
        share_key: None,
        port: 80,
        is_local: false,
        age: 0,
    };
    let gateways = ["fd00::/9".parse().unwrap(), "10.0.0.0/8".parse().unwrap()];
    let reserved = ReservedAddresses { gateways: &gateways, ..Default::default() };
    let found = assign(&objects(&[service], &[pool]), false, &reserved, &BTreeMap::new());
    let it = &found.services[&("a".to_owned(), "s0".to_owned())];
    let addresses: Vec<_> = it.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["fd80::"]);
    assert_eq!(it.findings[0].reason, "NoAddressPool");
}
