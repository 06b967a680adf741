//! Laws over random input: nothing panics, every Snapshot is valid, and the fast path agrees with a full translation.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use gateway::address_pool::assign;
use gateway::load_balancer::{self, ReservedAddresses};
use gateway::matching::PlainRequest;
use gateway::objects::{
    AddressType, ApiObject, Duration, EndpointConditions, EndpointSliceSpec, GatewayName,
    ListenFlag, ListenFlagProtocol, MaxInFlight, ShorthandFlags, SliceEndpoint, SlicePort,
    shorthand,
};
use gateway::snapshot::{Listener, ListenerProtocol, RuleTarget, Snapshot, TlsPayload};
use gateway::status::{ResourceStatus, StatusUpdate, status_update};
use gateway::{
    ControllerNames, EndpointIndex, LoadBalancerSettings, TranslationSettings, TransparentSettings,
    parse, translate,
};
use proptest::prelude::*;

/// Our name in statuses.
const CONTROLLER: &str = "sheave.dev/gateway";

type AssignedAddresses = BTreeMap<GatewayName, Vec<IpAddr>>;

/// Returns every input of the golden tests.
fn inputs() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|it| it.to_str().unwrap().ends_with(".in.yaml")).collect();
    paths.sort();
    paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// Asserts the invariants that `proxy` relies on without checks.
fn assert_valid(snapshot: &Snapshot) {
    let of = |listener: &Listener| (listener.protocol.transport(), listener.address);
    let mut addresses: Vec<_> = snapshot.listeners.iter().map(of).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), snapshot.listeners.len(), "an address occurs twice");
    assert!(snapshot.backends.is_sorted_by(|a, b| a.key < b.key), "backends are not sorted");
    for (listener, tls) in snapshot.listeners.iter().filter_map(|it| Some((it, it.tls.as_ref()?))) {
        assert!(!tls.sni_rules.is_empty());
        for sni_rule in &tls.sni_rules {
            assert!(sni_rule.terminate.as_ref().is_none_or(|it| !it.certificates.is_empty()));
            match (&sni_rule.payload, &listener.protocol) {
                (TlsPayload::Requests, ListenerProtocol::Http(_)) => {
                    assert!(sni_rule.terminate.is_some())
                }
                (
                    TlsPayload::Connections(_),
                    ListenerProtocol::Http(_) | ListenerProtocol::Tcp(None),
                ) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    for (index, rule) in snapshot.rules.iter().enumerate() {
        assert_eq!(rule.index, index);
        assert!(rule.targets.iter().all(|share| share.weight > 0));
        let redirects = rule.filters.as_ref().is_some_and(|filters| filters.redirect.is_some());
        assert_eq!(rule.targets.is_empty(), redirects);
        let is_known = |target| match target {
            RuleTarget::Backend(index) => index < snapshot.backends.len(),
            RuleTarget::Unresolved => true,
        };
        assert!(rule.targets.iter().all(|share| is_known(share.target)));
    }
    for backend in &snapshot.backends {
        assert!(backend.endpoints.is_sorted_by(|a, b| a.address < b.address));
        assert_eq!(backend.settings.probe.is_some(), backend.settings.health.active.is_some());
        assert!([429, 503].contains(&backend.settings.overload_status));
    }
}

/// Asserts that a written status is not written again.
fn assert_written_once(status: &ResourceStatus) {
    let (Some(StatusUpdate::Apply(first)) | Some(StatusUpdate::Replace(first))) =
        status_update(status, CONTROLLER, None, "2026-01-01T00:00:00Z")
    else {
        return;
    };
    assert_eq!(status_update(status, CONTROLLER, Some(&first), "2026-02-02T00:00:00Z"), None);
}

/// Damages an input: removes a line, duplicates it, or cuts it short.
fn damaged(input: &str, line: usize, damage: usize) -> String {
    let mut lines: Vec<_> = input.lines().collect();
    let line = line % lines.len();
    match damage {
        0 => drop(lines.remove(line)),
        1 => lines.insert(line, lines[line]),
        cut => lines[line] = lines[line].get(..cut).unwrap_or_default(),
    }
    lines.join("\n")
}

/// Generates EndpointSlices of the Service that the flags create, in any state.
fn slices() -> impl Strategy<Value = Vec<EndpointSliceSpec>> {
    let condition = || prop::option::of(any::<bool>());
    let conditions =
        (condition(), condition(), condition()).prop_map(|(ready, serving, terminating)| {
            EndpointConditions { ready, serving, terminating }
        });
    let endpoint = (0..6_u8, conditions).prop_map(|(host, conditions)| SliceEndpoint {
        addresses: vec![format!("10.0.0.{host}")],
        conditions,
        ..Default::default()
    });
    let port = (prop::sample::select(vec!["tcp", "other", ""]), prop::option::of(8080..8082_u16))
        .prop_map(|(name, port)| SlicePort { name: name.to_owned(), port, ..Default::default() });
    let kind = prop::sample::select(vec![AddressType::IPv4, AddressType::IPv6, AddressType::Fqdn]);
    let slice =
        (kind, prop::collection::vec(endpoint, 0..5), prop::collection::vec(port, 0..3)).prop_map(
            |(address_type, endpoints, ports)| EndpointSliceSpec { address_type, endpoints, ports },
        );
    prop::collection::vec(slice, 0..4)
}

fn http(address: SocketAddr) -> ListenFlag {
    ListenFlag { protocol: ListenFlagProtocol::Http, address }
}

/// Returns the objects of the flags, with these slices in place of their own.
fn with_slices(slices: Vec<EndpointSliceSpec>) -> Vec<ApiObject> {
    let address = "127.0.0.1:80".parse().unwrap();
    let flags =
        ShorthandFlags { listen: vec![http(address)], to: vec![address], ..Default::default() };
    let mut objects = shorthand(&flags);
    let position = objects.iter().position(|it| matches!(it, ApiObject::EndpointSlice(_))).unwrap();
    let ApiObject::EndpointSlice(template) = objects.remove(position) else { unreachable!() };
    objects.extend(slices.into_iter().enumerate().map(|(n, spec)| {
        let mut slice = (*template).clone();
        slice.metadata.name = format!("slice-{n}");
        slice.spec = spec;
        ApiObject::EndpointSlice(slice.into())
    }));
    objects
}

proptest! {
    #[test]
    fn arbitrary_text_never_gives_an_invalid_snapshot(text in "\\PC*") {
        let (objects, _) = parse(&text, "any");
        assert_valid(&translate(&objects, &TranslationSettings::default()).snapshot);
    }

    #[test]
    fn a_snapshot_is_valid_whatever_the_input(
        case in 0..100_usize, line in 0..1000_usize, damage in 0..40_usize,
    ) {
        let inputs = inputs();
        let text = damaged(&inputs[case % inputs.len()], line, damage);
        let (objects, _) = parse(&text, "damaged");
        assert_valid(&translate(&objects, &TranslationSettings::default()).snapshot);
        let pool = ["10.0.0.0/30".parse().unwrap(), "fd00::/126".parse().unwrap()];
        let addresses = assign(&pool, &objects, &AssignedAddresses::new(), &ControllerNames::default());
        let translation = translate(&objects, &TranslationSettings::at(addresses));
        assert_valid(&translation.snapshot);
        assert!(translation.snapshot.listeners.iter().all(|listener| listener.free_bind));
        let reserved = ReservedAddresses { gateways: &pool, ..Default::default() };
        let assignment =
            load_balancer::assign(&objects, true, &reserved, &AssignedAddresses::new());
        let load_balancer = LoadBalancerSettings { is_default: true, assignment, ..Default::default() };
        let settings =
            TranslationSettings { load_balancer: Some(load_balancer), ..Default::default() };
        assert_valid(&translate(&objects, &settings).snapshot);
        for status in &translation.statuses {
            assert_written_once(status);
        }
        let transparent = TransparentSettings { ipv4: true, ipv6: true, ..Default::default() };
        let settings =
            TranslationSettings { transparent: Some(transparent), ..Default::default() };
        let translation = translate(&objects, &settings);
        assert_valid(&translation.snapshot);
        for status in &translation.statuses {
            assert_written_once(status);
        }
    }

    #[test]
    fn endpoint_fast_path_agrees_with_full_translation(before in slices(), after in slices()) {
        let translation = translate(&with_slices(before), &TranslationSettings::default());
        let objects = with_slices(after);
        let endpoints = EndpointIndex::new(&objects, &TranslationSettings::default());
        for (old, new) in translation.snapshot.backends.iter().zip(translate(&objects, &TranslationSettings::default()).snapshot.backends) {
            prop_assert_eq!(&old.key, &new.key);
            prop_assert_eq!(endpoints.of(&old.key), new.endpoints);
        }
    }

    #[test]
    fn flags_translate_to_a_listener_and_an_endpoint_per_address(
        listen in prop::collection::btree_set(any::<SocketAddr>(), 1..5),
        to in prop::collection::btree_set(any::<SocketAddr>(), 1..20),
        max_in_flight in prop::option::of(1..1000_u32),
        queue in prop::option::of(0..1000_u32),
    ) {
        // IPv6 scopes and flow labels are not part of an address in Kubernetes, and an endpoint cannot have port 0.
        let plain = |address: &SocketAddr| SocketAddr::new(address.ip(), address.port().max(1));
        let listen: std::collections::BTreeSet<_> = listen.iter().map(plain).collect();
        let to: std::collections::BTreeSet<_> = to.iter().map(plain).collect();
        let flags = ShorthandFlags {
            listen: listen.iter().copied().map(http).collect(),
            certificates: 0,
            http3: true,
            to: to.iter().copied().collect(),
            max_in_flight: max_in_flight.map(MaxInFlight::Number),
            queue,
            queue_timeout: Some(Duration::from_secs(7)),
        };
        let translation = translate(&shorthand(&flags), &TranslationSettings::default());
        prop_assert_eq!(translation.problems, []);
        let snapshot = translation.snapshot;
        let addresses = snapshot.listeners.iter().map(|listener| listener.address);
        prop_assert_eq!(addresses.collect::<std::collections::BTreeSet<_>>(), listen);
        let [backend] = &snapshot.backends[..] else { panic!("{:?}", snapshot.backends) };
        prop_assert_eq!(backend.endpoints.iter().map(|it| it.address).collect::<Vec<_>>(), flags.to);
        prop_assert_eq!(backend.settings.max_in_flight_per_endpoint.map(u32::from), max_in_flight);
        let default = if max_in_flight.is_some() { 1024 } else { 0 };
        prop_assert_eq!(backend.settings.queue_max_requests, queue.unwrap_or(default));
        prop_assert_eq!(backend.settings.queue_timeout.as_secs(), 7);
        for listener in &snapshot.listeners {
            let ListenerProtocol::Http(routes) = &listener.protocol else { panic!("{listener:?}") };
            let (host, path) = ("any".to_owned(), "/path".to_owned());
            let request = PlainRequest { host, path, ..Default::default() };
            prop_assert!(routes.find(&request).is_some());
        }
    }
}
