//! Laws of address assignment from a pool.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use gateway::address_pool::assign;
use gateway::managed_services::PublishedAddress;
use gateway::objects::{GatewayName, read};
use gateway::status::{ObjectIdentity, ResourceStatus, StatusDetail};
use gateway::{
    AddressAssignment, ApiObject, ControllerNames, ObjectOrigin, TranslationSettings, parse,
    translate,
};
use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::json;

type KnownAddresses = BTreeMap<GatewayName, Vec<IpAddr>>;

/// A Gateway and the addresses that it requests: none, any, or one in or near 10.0.0.0/28.
#[derive(Clone, Debug)]
struct AddressCase {
    age: u8,
    requested: Vec<Option<u8>>,
    /// True if it is not accepted for another reason.
    is_bad: bool,
}

fn address_case() -> impl Strategy<Value = AddressCase> {
    let requested = prop::collection::btree_set(prop::option::of(0..20_u8), 0..3);
    (0..5_u8, requested, any::<bool>()).prop_map(|(age, requested, is_bad)| AddressCase {
        age,
        requested: requested.into_iter().collect(),
        is_bad,
    })
}

fn pool() -> impl Strategy<Value = Vec<IpNet>> {
    let networks = ["10.0.0.0/28", "10.0.0.8/29", "10.0.0.4/30", "10.0.0.17/32", "fd00::/126"];
    prop::sample::subsequence(networks.to_vec(), 0..=networks.len())
        .prop_map(|networks| networks.iter().map(|it| it.parse().unwrap()).collect())
}

fn near(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number).into()
}

fn objects(cases: &[AddressCase]) -> Vec<ApiObject> {
    let mut text = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\n\
                    metadata: {name: ours}\nspec: {controllerName: sheave.dev/gateway}\n"
        .to_owned();
    for (n, address_case) in cases.iter().enumerate() {
        let address = |requested: &Option<u8>| match requested {
            Some(number) => format!("{{value: {}}}", near(*number)),
            None => "{type: IPAddress}".to_owned(),
        };
        let requested: Vec<_> = address_case.requested.iter().map(address).collect();
        text += &format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n\
             metadata: {{name: g{n}, creationTimestamp: 2026-01-0{}T00:00:00Z}}\n\
             spec: {{gatewayClassName: ours, addresses: [{}], listeners: [{{name: a, port: 1, protocol: TCP}}]{}}}\n",
            address_case.age + 1,
            requested.join(", "),
            if address_case.is_bad { ", infrastructure: {parametersRef: {name: a}}" } else { "" },
        );
    }
    let (objects, problems) = parse(&text, "gateways");
    assert_eq!(problems, []);
    objects
}

fn name(number: usize) -> GatewayName {
    ("default".to_owned(), format!("g{number}"))
}

fn assigned(pool: &[IpNet], objects: &[ApiObject], known: &KnownAddresses) -> KnownAddresses {
    match assign(pool, objects, known, &ControllerNames::default()) {
        AddressAssignment::Pool { assigned } => assigned,
        AddressAssignment::Host
        | AddressAssignment::SharedService(_)
        | AddressAssignment::ManagedServices(_) => {
            panic!("no addresses of a pool")
        }
    }
}

proptest! {
    #[test]
    fn addresses_are_assigned_once_and_only_from_the_pool(
        pool in pool(),
        cases in prop::collection::vec(address_case(), 0..12),
        known in prop::collection::btree_map(0..12_usize, prop::collection::vec((0..20_u8).prop_map(near), 0..3), 0..6),
    ) {
        let known = known.into_iter().map(|(number, addresses)| (name(number), addresses)).collect();
        let objects = objects(&cases);
        let given = assigned(&pool, &objects, &known);
        let all: Vec<_> = given.values().flatten().copied().collect();
        prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{:?}", given);
        prop_assert!(all.iter().all(|it| pool.iter().any(|network| network.contains(it))));
        prop_assert_eq!(given.len(), cases.len());
        for (n, address_case) in cases.iter().enumerate() {
            let own = &given[&name(n)];
            let wanted: BTreeSet<_> = address_case.requested.iter().flatten().copied().map(near).collect();
            let is_free = address_case.requested.is_empty() || address_case.requested.contains(&None);
            prop_assert!(is_free || own.iter().all(|it| wanted.contains(it)), "{:?}", own);
            // Without a request, at most one address of each family.
            let most = if address_case.requested.is_empty() { 2 } else { address_case.requested.len() };
            prop_assert!(own.len() <= most);
        }
    }

    #[test]
    fn address_assignment_is_idempotent_and_order_independent(pool in pool(), cases in prop::collection::vec(address_case(), 0..12)) {
        let objects = objects(&cases);
        let first = assigned(&pool, &objects, &KnownAddresses::new());
        prop_assert_eq!(&assigned(&pool, &objects, &first), &first);
        let mut reversed = objects;
        reversed.reverse();
        prop_assert_eq!(&assigned(&pool, &reversed, &KnownAddresses::new()), &first, "the order of objects counts");
    }

    #[test]
    fn gateway_statuses_report_assigned_addresses(pool in pool(), cases in prop::collection::vec(address_case(), 0..12)) {
        let objects = objects(&cases);
        let first = assign(&pool, &objects, &KnownAddresses::new(), &ControllerNames::default());
        let reported = translate(&objects, &TranslationSettings::at(first.clone())).statuses.into_iter().filter_map(|status| {
            let StatusDetail::Gateway(detail) = status.detail else { return None };
            let addresses = detail.addresses.into_iter().map(|place| match place {
                PublishedAddress::Ip(address) => address,
                PublishedAddress::Hostname(name) => panic!("{name} is of no pool"),
            });
            let ObjectIdentity { namespace, name, .. } = status.object;
            Some(((namespace.to_string(), name.to_string()), addresses.collect()))
        });
        let reported: KnownAddresses = reported.collect();
        prop_assert_eq!(AddressAssignment::Pool { assigned: reported.clone() }, first);
        prop_assert_eq!(&assigned(&pool, &objects, &reported), &reported);
    }

    #[test]
    fn new_gateway_takes_no_assigned_address(
        pool in pool(),
        cases in prop::collection::vec(address_case(), 1..12),
    ) {
        let before = assigned(&pool, &objects(&cases[..cases.len() - 1]), &KnownAddresses::new());
        let after = assigned(&pool, &objects(&cases), &before);
        for (gateway, addresses) in &before {
            let kept: BTreeSet<_> = after[gateway].iter().collect();
            prop_assert!(addresses.iter().all(|it| kept.contains(it)), "{:?} {:?}", before, after);
        }
    }

    #[test]
    fn no_gateway_waits_while_an_address_is_free(
        pool in pool(),
        cases in prop::collection::vec(address_case(), 0..12),
    ) {
        let given = assigned(&pool, &objects(&cases), &KnownAddresses::new());
        let taken: BTreeSet<_> = given.values().flatten().copied().collect();
        let waits = |(n, address_case): (usize, &AddressCase)| {
            address_case.requested.contains(&None) && given[&name(n)].len() < address_case.requested.iter().filter(|it| it.is_none()).count()
        };
        if cases.iter().enumerate().any(waits) {
            // A Gateway that requests specific addresses may be too late for them. A free address of the pool goes to a
            // Gateway that requests any.
            let fresh = objects(&[cases, vec![AddressCase { age: 4, requested: vec![None], is_bad: false }]].concat());
            let again = assigned(&pool, &fresh, &given);
            let late: BTreeSet<_> = again.values().flatten().copied().collect();
            prop_assert_eq!(late, taken);
        }
    }
}

#[test]
fn invalid_gateway_keeps_its_address() {
    let class = parse(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\n\
         metadata: {name: ours}\nspec: {controllerName: sheave.dev/gateway}\n",
        "class",
    );
    let broken = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": { "name": "g0" },
        "spec": {
            "gatewayClassName": "ours",
            "listeners": [{ "name": "a", "port": 1, "protocol": "TCP", "tls": { "depth": 3 } }],
        },
    });
    let (mut objects, problems) = read(broken, ObjectOrigin::default());
    assert_eq!(problems.len(), 1);
    objects.extend(class.0);
    let pool = ["10.0.0.0/24".parse().unwrap()];
    let known = KnownAddresses::from([(name(0), vec![near(7)])]);
    assert_eq!(assigned(&pool, &objects, &known), known);
    assert_eq!(
        assigned(&pool, &objects, &KnownAddresses::new()),
        KnownAddresses::from([(name(0), vec![])])
    );
    let addresses = assign(&pool, &objects, &known, &ControllerNames::default());
    let statuses = translate(&objects, &TranslationSettings::at(addresses)).statuses;
    let has_address = |status: &&ResourceStatus| matches!(&status.detail, StatusDetail::Gateway(it) if it.addresses == [PublishedAddress::Ip(near(7))]);
    assert_eq!(statuses.iter().filter(has_address).count(), 1, "{statuses:?}");
}

#[test]
fn a_gateway_of_another_class_gets_nothing() {
    let (objects, _) = parse(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g}\n\
         spec: {gatewayClassName: theirs, listeners: [{name: a, port: 1, protocol: TCP}]}",
        "gateways",
    );
    let pool = ["10.0.0.0/24".parse().unwrap()];
    assert_eq!(assigned(&pool, &objects, &KnownAddresses::new()), KnownAddresses::new());
}
