//! Laws of the table: numbers stay, changes are safe at each step, and few connections move.

#![expect(clippy::unwrap_used, reason = "all of it is a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ipnet::IpNet;
use l4::{
    DeliveryMode, DesiredState, EndpointPlace, EndpointSpec, L4Error, L4Table, MapChange,
    MapContents, NO_TABLE, NodeSpec, NodeWay, PodLink, ServiceSpec, TABLE_SIZE, TransportProtocol,
    VipAnnouncement, server_id,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

fn pod(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, number / 10, number], 8080))
}

fn vip(number: u8) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, number], 80))
}

fn endpoint(number: u8) -> EndpointSpec {
    let link = PodLink { ifindex: u32::from(number) + 1, pod_mac: [number; 6], node_mac: [1; 6] };
    EndpointSpec {
        address: pod(number),
        weight: 1,
        is_draining: false,
        place: EndpointPlace::Local(link),
    }
}

fn service(number: u8, endpoints: Vec<EndpointSpec>) -> ServiceSpec {
    ServiceSpec {
        address: vip(number),
        protocol: TransportProtocol::Udp,
        has_client_affinity: false,
        quic_server_id_length: Some(3),
        source_ranges: number.is_multiple_of(2).then(|| ranges(number)),
        endpoints,
    }
}

/// Returns the clients of a service with an even number.
fn ranges(number: u8) -> Vec<IpNet> {
    vec![format!("198.51.{number}.0/24").parse().unwrap(), "2001:db8::/32".parse().unwrap()]
}

fn state(services: Vec<ServiceSpec>) -> DesiredState {
    let vips =
        services.iter().map(|it| (it.address.ip(), VipAnnouncement::Announced([2; 6]))).collect();
    DesiredState { vips, services, nodes: nodes() }
}

fn nodes() -> BTreeMap<String, NodeSpec> {
    let addresses = vec!["192.0.2.2".parse().unwrap()];
    let way = NodeWay::Layer2 { ifindex: 7, source_mac: [2; 6], mac: [4; 6] };
    BTreeMap::from([("b".to_owned(), NodeSpec { addresses, way })])
}

/// Makes one change, as the kernel's maps do.
fn make(contents: &mut MapContents, change: &MapChange) {
    match change.clone() {
        MapChange::PutEndpoint(id, value) | MapChange::RemoveEndpoint(id, value) => {
            contents.endpoints.insert(id, value);
        }
        MapChange::PutServerId(key, id) => drop(contents.server_ids.insert(key, id)),
        MapChange::AddSourceRange(range) => drop(contents.source_ranges.insert(range)),
        MapChange::RemoveSourceRange(range) => drop(contents.source_ranges.remove(&range)),
        MapChange::PutPeer(key, peer) => drop(contents.peers.insert(key, peer)),
        MapChange::SetTable(index, slots) => drop(contents.tables.insert(index, slots)),
        MapChange::PutService(key, value) => drop(contents.services.insert(key, value)),
        MapChange::PutVip(address, value) => drop(contents.vips.insert(address, value)),
        MapChange::RemoveVip(address) => drop(contents.vips.remove(&address)),
        MapChange::RemoveService(key, _) => drop(contents.services.remove(&key)),
        MapChange::ClearTable(index) => drop(contents.tables.remove(&index)),
        MapChange::RemovePeer(key) => drop(contents.peers.remove(&key)),
        MapChange::RemoveServerId(key) => drop(contents.server_ids.remove(&key)),
    }
}

/// Returns the address of an endpoint that is in use.
fn address_of(contents: &MapContents, id: u32) -> Option<SocketAddr> {
    let value = contents.endpoints.get(&id)?;
    let is_in_use = value.mode != DeliveryMode::None as u8;
    is_in_use.then(|| SocketAddr::new(value.address.into(), value.port.into()))
}

/// Returns the endpoints that a service of the maps can choose. All it refers to must be there.
fn choices(contents: &MapContents, number: u8, allowed: &BTreeSet<SocketAddr>) {
    for (key, value) in &contents.services {
        if key.vip != vip(number).ip().into() {
            continue;
        }
        let ranges = contents.source_ranges.iter().filter(|it| it.source.service == value.id);
        assert_eq!(ranges.count(), usize::from(number.is_multiple_of(2)), "ranges of {number}");
        let ids = match value.table {
            NO_TABLE => BTreeSet::from([value.endpoint]),
            table => contents.tables[&table].iter().map(|&id| u32::from(id)).collect(),
        };
        for id in ids.into_iter().filter(|&id| id != 0) {
            let address = address_of(contents, id).expect("the endpoint is there");
            assert!(allowed.contains(&address), "{address} is an endpoint of another service");
        }
    }
    for (key, &id) in &contents.server_ids {
        let address = address_of(contents, id).expect("the endpoint of a server ID is there");
        assert_eq!(server_id(address.ip(), 3), key.server_id);
    }
}

fn any_state() -> impl Strategy<Value = BTreeMap<u8, Vec<EndpointSpec>>> {
    let endpoint = (0..30_u8, 0..4_u32, any::<bool>(), any::<bool>()).prop_map(
        |(number, weight, drains, is_remote)| {
            let mut endpoint = endpoint(number);
            (endpoint.weight, endpoint.is_draining) = (weight, drains);
            if is_remote {
                endpoint.place = EndpointPlace::Node("b".to_owned());
            }
            endpoint
        },
    );
    btree_map(0..6_u8, vec(endpoint, 0..8), 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_step_is_safe_and_the_last_is_the_desired_state(states in vec(any_state(), 1..5)) {
        let mut table = L4Table::default();
        let mut contents = MapContents::default();
        let mut before: BTreeMap<u8, BTreeSet<SocketAddr>> = BTreeMap::new();
        for services in states {
            let addresses = |all: &Vec<EndpointSpec>| all.iter().map(|it| it.address).collect::<BTreeSet<_>>();
            let now: BTreeMap<_, _> = services.iter().map(|(&number, all)| (number, addresses(all))).collect();
            let desired = state(services.into_iter().map(|(number, all)| service(number, all)).collect());
            for change in table.update(&desired).unwrap() {
                make(&mut contents, &change);
                for number in 0..6 {
                    let sets = [&before, &now].map(|it| it.get(&number).cloned().unwrap_or_default());
                    choices(&contents, number, &(&sets[0] | &sets[1]));
                }
            }
            prop_assert_eq!(&contents, table.contents());
            prop_assert_eq!(table.update(&desired).unwrap(), vec![]);
            // A process that starts now finds nothing to do.
            prop_assert_eq!(L4Table::new(contents.clone()).update(&desired).unwrap(), vec![]);
            before = now;
        }
    }

    #[test]
    fn few_connections_move_when_an_endpoint_comes_or_goes(count in 2..60_u8, removed in 0..60_u8) {
        let all: Vec<_> = (0..count).map(endpoint).collect();
        let mut fewer = all.clone();
        fewer.remove(usize::from(removed % count));
        let mut table = L4Table::default();
        let [before, after, again] = [&all, &fewer, &all].map(|endpoints| {
            table.update(&state(vec![service(1, endpoints.clone())])).unwrap();
            let contents = table.contents();
            let value = table.service(vip(1), TransportProtocol::Udp).unwrap();
            (0..TABLE_SIZE).map(|slot| {
                let id = contents.tables.get(&value.table).map_or(value.endpoint, |it| u32::from(it[slot]));
                address_of(contents, id).unwrap()
            }).collect::<Vec<_>>()
        });
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        let share = moved as f64 / TABLE_SIZE as f64;
        prop_assert!(share <= 1.0 / f64::from(count) + 0.02, "{share} of {count}");
        prop_assert_eq!(before, again, "the table depends on the endpoints alone");
    }
}

#[test]
fn weights_are_shares() {
    let mut endpoints: Vec<_> = (0..3).map(endpoint).collect();
    (endpoints[0].weight, endpoints[1].weight, endpoints[2].weight) = (1, 3, 0);
    let mut table = L4Table::default();
    table.update(&state(vec![service(1, endpoints)])).unwrap();
    let value = table.service(vip(1), TransportProtocol::Udp).unwrap();
    let slots = &table.contents().tables[&value.table];
    let of_first =
        slots.iter().filter(|&&id| Some(u32::from(id)) == table.endpoint(pod(0))).count();
    let share = of_first as f64 / TABLE_SIZE as f64;
    assert!((0.24..0.26).contains(&share), "{share}");
}

#[test]
fn draining_endpoints_serve_if_there_are_no_others() {
    let mut endpoints: Vec<_> = (0..2).map(endpoint).collect();
    endpoints[0].is_draining = true;
    let mut table = L4Table::default();
    table.update(&state(vec![service(1, endpoints.clone())])).unwrap();
    assert_eq!(
        Some(table.service(vip(1), TransportProtocol::Udp).unwrap().endpoint),
        table.endpoint(pod(1))
    );
    endpoints.pop();
    table.update(&state(vec![service(1, endpoints)])).unwrap();
    assert_eq!(
        Some(table.service(vip(1), TransportProtocol::Udp).unwrap().endpoint),
        table.endpoint(pod(0))
    );
}

#[test]
fn pods_that_share_a_server_id_have_none() {
    let endpoints = [[10, 1, 2, 3], [11, 1, 2, 3], [10, 1, 2, 4]].map(|ip| {
        let mut endpoint = endpoint(0);
        endpoint.address = SocketAddr::from((ip, 443));
        endpoint
    });
    let mut table = L4Table::default();
    table.update(&state(vec![service(1, endpoints.to_vec())])).unwrap();
    let keys: Vec<_> = table.contents().server_ids.keys().map(|it| it.server_id).collect();
    assert_eq!(keys, [0x01_02_04]);
}

#[test]
fn endpoints_of_unknown_nodes_are_left_out() {
    let mut spec = endpoint(1);
    spec.place = EndpointPlace::Node("unknown".to_owned());
    let mut table = L4Table::default();
    table.update(&state(vec![service(1, vec![spec])])).unwrap();
    assert_eq!(table.service(vip(1), TransportProtocol::Udp).unwrap().endpoint, 0);
}

#[test]
fn impossible_states_are_refused_and_change_nothing() {
    let mut table = L4Table::default();
    table.update(&state(vec![service(1, vec![endpoint(1)])])).unwrap();
    let before = table.contents().clone();

    let twice = state(vec![service(1, vec![]), service(1, vec![])]);
    assert!(matches!(table.update(&twice).unwrap_err(), L4Error::DuplicateService { .. }));
    let mut mixed = endpoint(1);
    mixed.address = "[fd00::1]:80".parse().unwrap();
    let error = table.update(&state(vec![service(1, vec![mixed])])).unwrap_err();
    assert!(matches!(error, L4Error::MixedVersions { .. }));
    let many = (0..17_000_u16).map(|port| {
        let mut service = service(1, vec![]);
        service.address.set_port(port);
        service
    });
    let error = table.update(&state(many.collect())).unwrap_err();
    assert!(
        matches!(error, L4Error::TooMany { what: "services", count: 17_000, limit: 16_384 }),
        "{error}"
    );
    let mut wide = service(1, vec![]);
    wide.source_ranges = Some(vec!["192.0.2.0/24".parse().unwrap(); 70_000]);
    let error = table.update(&state(vec![wide])).unwrap_err();
    assert!(matches!(error, L4Error::TooMany { what: "ranges of clients", .. }), "{error}");
    assert_eq!(*table.contents(), before);
}
