//! Properties of each picker, over random sets.
#![cfg(not(loom))]

use std::net::SocketAddr;
use std::sync::Arc;

use balance::{
    Admission, Algorithm, ConcurrencyCap, Endpoint, EndpointRegistry, EndpointSet, MaglevTable,
    PickRequest, Picker, Queue, Rng, SetMember, Time,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::LeastLoad,
    Algorithm::RoundRobin,
    Algorithm::Random,
    Algorithm::PeakEwma,
    Algorithm::ConsistentHash,
    Algorithm::Maglev,
];

/// Algorithms that respect zones: for the others a key takes precedence over the zone.
const BY_ZONE: [Algorithm; 4] =
    [Algorithm::LeastLoad, Algorithm::RoundRobin, Algorithm::Random, Algorithm::PeakEwma];

type Set = EndpointSet<usize>;

fn address(number: usize) -> SocketAddr {
    let [high, low] = (number as u16).to_be_bytes();
    SocketAddr::from(([10, 0, high, low], 8080))
}

fn set(registry: &mut EndpointRegistry<usize>, weights: &[u32]) -> Set {
    let member = |(number, &weight): (usize, &u32)| {
        SetMember::new(registry.endpoint(address(number), || number), weight)
    };
    EndpointSet::new(weights.iter().enumerate().map(member).collect())
}

/// Returns the endpoint that a key leads to while nothing is in flight.
fn home(picker: &mut Picker, set: &Set, key: u64) -> usize {
    let endpoint = take(picker, set, 0, Some(key)).expect("nothing is full");
    release(&endpoint);
    endpoint.data
}

fn take(
    picker: &mut Picker,
    set: &Set,
    cap: u32,
    key: Option<u64>,
) -> Option<Arc<Endpoint<usize>>> {
    picker.take(set, ConcurrencyCap::of(cap), &PickRequest { key, ..PickRequest::default() })
}

fn release(endpoint: &Endpoint<usize>) {
    let no_queue = || -> &mut Queue<usize, ()> { unreachable!("no request waits") };
    assert!(Admission::new().release(endpoint, || Time::ZERO, no_queue).granted.is_none());
}

fn in_flight(set: &Set) -> Vec<u32> {
    set.members().iter().map(|member| member.endpoint.in_flight()).collect()
}

/// True if this count of `of` fits the probability, within six standard deviations.
fn is_likely(count: u32, of: u32, probability: f64) -> bool {
    let (count, of) = (f64::from(count), f64::from(of));
    let deviation = (of * probability * (1.0 - probability)).sqrt();
    (count - of * probability).abs() <= 6.0 * deviation + 1.0
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 100,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

fn weights(most: usize) -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(0_u32..20, 1..most)
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    proptest::sample::select(&ALGORITHMS[..])
}

/// Returns the reachable endpoints with a weight, or all with a weight if none is reachable.
fn choices(set: &Set) -> Vec<usize> {
    let regular = || set.members().iter().filter(|member| member.weight > 0);
    let reachable = regular().filter(|member| member.endpoint.is_reachable());
    let reachable: Vec<usize> = reachable.map(|member| member.endpoint.data).collect();
    match reachable.is_empty() {
        true => regular().map(|member| member.endpoint.data).collect(),
        false => reachable,
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn reachable_untried_endpoints_are_preferred_to_tried_ones(
        algorithm in any_algorithm(),
        weights in weights(8),
        unreachable in proptest::collection::vec(any::<bool>(), 8),
        mut tried in Just((0..8_usize).collect::<Vec<_>>()).prop_shuffle(),
        tries in 0_usize..8,
        only in proptest::option::of(0_usize..8),
        keys: bool,
        seed: u64,
    ) {
        let mut registry = EndpointRegistry::new();
        let set = set(&mut registry, &weights);
        let endpoints: Vec<_> =
            (0..8).map(|number| registry.endpoint(address(number), || number)).collect();
        for (endpoint, unreachable) in endpoints.iter().zip(unreachable) {
            prop_assert_eq!(unreachable && endpoint.mark_unreachable(Time::ZERO), unreachable);
        }
        tried.truncate(tries);
        let choices = choices(&set);
        let tried_endpoints: Vec<_> = tried.iter().map(|&it| endpoints[it].clone()).collect();
        let mut picker = Picker::new(algorithm, seed);
        let request = PickRequest {
            tried: &tried_endpoints,
            only: only.map(|only| &endpoints[only]),
            key: keys.then_some(seed),
            ..PickRequest::default()
        };
        let picked = picker.take(&set, ConcurrencyCap::None, &request);
        let is_reachable = choices.iter().any(|&choice| endpoints[choice].is_reachable());
        prop_assert_eq!(picked.is_some(), is_reachable);
        if let Some(picked) = picked {
            release(&picked);
            let latest = tried.last().copied();
            let another = choices.iter().any(|&choice| Some(choice) != latest);
            let untried = choices.iter().any(|choice| !tried.contains(choice));
            prop_assert!(choices.contains(&picked.data));
            prop_assert!(!untried || !tried.contains(&picked.data), "a tried endpoint was picked");
            prop_assert!(!another || Some(picked.data) != latest, "the latest endpoint was picked");
            let bound = only.filter(|only| choices.contains(only) && !tried.contains(only));
            prop_assert!(bound.is_none_or(|bound| bound == picked.data), "the request is bound");
        }
    }

    #[test]
    fn every_algorithm_fills_all_slots_up_to_the_cap(
        algorithm in any_algorithm(),
        weights in weights(150),
        cap in 1_u32..4,
        keys: bool,
        seed: u64,
    ) {
        let mut registry = EndpointRegistry::new();
        let set = set(&mut registry, &weights);
        let mut picker = Picker::new(algorithm, seed);
        let mut rng = Rng::new(seed);
        // A key binds a Maglev request to one endpoint; enough keys lead to each.
        let bound = keys && algorithm == Algorithm::Maglev;
        let slots = weights.iter().filter(|&&weight| weight > 0).count() * cap as usize;
        let requests = if bound { 10 * slots } else { slots };
        for _ in 0..requests {
            let taken = take(&mut picker, &set, cap, keys.then(|| rng.next_u64()));
            prop_assert!(bound || taken.is_some(), "{:?}", in_flight(&set));
        }
        for (load, &weight) in in_flight(&set).into_iter().zip(&weights) {
            let most = if weight > 0 { cap } else { 0 };
            prop_assert!(load <= most);
        }
        prop_assert!(bound || take(&mut picker, &set, cap, None).is_none());
    }

    #[test]
    fn round_robin_is_exact_over_a_cycle(weights in weights(12), seed: u64) {
        let mut registry = EndpointRegistry::new();
        let set = set(&mut registry, &weights);
        let mut picker = Picker::new(Algorithm::RoundRobin, seed);
        let mut served = vec![0; weights.len()];
        for _ in 0..weights.iter().sum() {
            served[take(&mut picker, &set, 0, None).unwrap().data] += 1;
        }
        prop_assert_eq!(served, weights);
    }

    #[test]
    fn random_follows_weights(weights in weights(12), seed: u64) {
        let mut registry = EndpointRegistry::new();
        let set = set(&mut registry, &weights);
        let total: u32 = weights.iter().sum();
        prop_assume!(total > 0);
        let mut picker = Picker::new(Algorithm::Random, seed);
        for _ in 0..5_000 {
            take(&mut picker, &set, 0, None).unwrap();
        }
        for (served, &weight) in in_flight(&set).into_iter().zip(&weights) {
            prop_assert!(is_likely(served, 5_000, f64::from(weight) / f64::from(total)));
        }
    }

    #[test]
    fn random_follows_weights_among_endpoints_below_the_cap(seed: u64) {
        let mut registry = EndpointRegistry::new();
        let set = set(&mut registry, &[10, 1, 3]);
        let mut picker = Picker::new(Algorithm::Random, seed);
        let full = &set.members()[0].endpoint;
        prop_assert!(full.take(ConcurrencyCap::None, Time::ZERO));
        let mut served = [0; 3];
        for _ in 0..4_000 {
            let endpoint = take(&mut picker, &set, 1, None).unwrap();
            served[endpoint.data] += 1;
            release(&endpoint);
        }
        prop_assert_eq!(served[0], 0);
        prop_assert!(is_likely(served[1], 4_000, 0.25), "{:?}", served);
    }

    #[test]
    fn least_load_over_many_endpoints_avoids_the_most_loaded_and_balances(seed: u64) {
        let mut registry = EndpointRegistry::new();
        let set = set(&mut registry, &[1; 200]);
        let mut picker = Picker::new(Algorithm::LeastLoad, seed);
        let worst = &set.members()[seed as usize % 200].endpoint;
        for _ in 0..30 {
            prop_assert!(worst.take(ConcurrencyCap::None, Time::ZERO));
        }
        for _ in 0..2_000 {
            take(&mut picker, &set, 0, None).unwrap();
        }
        prop_assert_eq!(worst.in_flight(), 30);
        // Mitzenmacher: log log n above the mean, which is 10; a random choice would exceed 20.
        let most = in_flight(&set).into_iter().filter(|&load| load != 30).max().unwrap();
        prop_assert!(most <= 15, "{most}");
    }

    #[test]
    fn local_endpoints_are_preferred_and_remote_ones_used_before_local_are_full(
        algorithm in proptest::sample::select(&BY_ZONE[..]),
        local in 1_usize..100,
        remote in 1_usize..100,
        cap in 2_u32..20,
        seed: u64,
    ) {
        let mut registry = EndpointRegistry::new();
        let members = (0..local + remote).map(|number| SetMember {
            local: number % (local + remote) < local,
            ..SetMember::new(registry.endpoint(address(number), || number), 1)
        });
        // The order is reversed: only the flag makes a member local.
        let set = EndpointSet::new(members.rev().collect());
        let mut picker = Picker::new(algorithm, seed);
        let is_local = |endpoint: &Endpoint<usize>| endpoint.data < local;
        let first_remote = loop {
            let endpoint = take(&mut picker, &set, cap, None).unwrap();
            if !is_local(&endpoint) {
                break endpoint;
            }
        };
        let room = (cap * 3 / 4).max(1);
        for member in set.members() {
            let in_flight = member.endpoint.in_flight();
            if is_local(&member.endpoint) {
                prop_assert!(room <= in_flight && in_flight < cap, "{in_flight} of {cap}");
            } else {
                prop_assert_eq!(in_flight, u32::from(Arc::ptr_eq(&member.endpoint, &first_remote)));
            }
        }
        // After one request less, the next is local again.
        let leaver = set.members().iter().find(|member| is_local(&member.endpoint)).unwrap();
        release(&leaver.endpoint);
        if leaver.endpoint.in_flight() < room {
            prop_assert!(is_local(&take(&mut picker, &set, cap, None).unwrap()));
        }
    }

    #[test]
    fn consistent_hash_respects_its_load_bound_for_any_keys(
        weights in weights(30),
        keys in 1_u64..50,
        seed: u64,
    ) {
        let mut registry = EndpointRegistry::new();
        let set = set(&mut registry, &weights);
        let total: u32 = weights.iter().sum();
        prop_assume!(total > 0);
        let mut picker = Picker::new(Algorithm::ConsistentHash, seed);
        let mut rng = Rng::new(seed);
        let mut running = Vec::new();
        for _ in 0..500 {
            if !running.is_empty() && rng.below(3) == 0 {
                let ended: Arc<Endpoint<usize>> = running.swap_remove(rng.below(running.len()));
                release(&ended);
            }
            let key = rng.next_u64() % keys;
            let chosen = take(&mut picker, &set, 0, Some(key)).unwrap();
            let all = running.len() as u64 + 1;
            let bound = (5 * all * u64::from(weights[chosen.data])).div_ceil(4 * u64::from(total));
            prop_assert!(u64::from(chosen.in_flight()) <= bound);
            running.push(chosen);
        }
    }

    #[test]
    fn consistent_hash_moves_only_keys_of_changed_endpoints(
        count in 2_usize..100,
        changed: proptest::sample::Index,
        seed: u64,
    ) {
        let changed = changed.index(count);
        let mut registry = EndpointRegistry::new();
        let all = set(&mut registry, &vec![7; count]);
        let mut weights = vec![7; count];
        weights[changed] = 0;
        let ejected = set(&mut registry, &weights);
        let mut picker = Picker::new(Algorithm::ConsistentHash, seed);
        for key in (0..500).map(|step| seed.wrapping_add(step).wrapping_mul(0x9E37_79B9_7F4A_7C15)) {
            let (before, after) = (home(&mut picker, &all, key), home(&mut picker, &ejected, key));
            prop_assert!(before == after || before == changed);
            prop_assert_ne!(after, changed);
        }
    }

    #[test]
    fn maglev_moves_few_keys_besides_those_of_changed_endpoints(
        count in 2_usize..100,
        changed: proptest::sample::Index,
        weighted: bool,
    ) {
        let weight = |number: usize| if weighted { 1 + number as u32 % 3 } else { 1 };
        let mut members: Vec<_> = (0..count).map(|number| (address(number), weight(number))).collect();
        let changed = changed.index(count);
        let all = MaglevTable::new(&members);
        let total: u32 = members.iter().map(|&(_, weight)| weight).sum();
        let share = f64::from(members[changed].1) / f64::from(total);
        members[changed].1 = 0;
        let ejected = MaglevTable::new(&members);
        let moved = all.slots().iter().zip(ejected.slots()).filter(|(one, other)| one != other);
        let moved = moved.count() as f64 / MaglevTable::SIZE as f64;
        prop_assert!(moved <= share + 0.02, "{moved} of {share}");
    }

    #[test]
    fn maglev_spreads_keys_by_weight_in_any_member_order(weights in weights(50), turn: usize) {
        let mut members: Vec<_> =
            weights.iter().enumerate().map(|(number, &weight)| (address(number), weight)).collect();
        let total: u32 = weights.iter().sum();
        prop_assume!(total > 0);
        let table = MaglevTable::new(&members);
        let mut slots = vec![0_u32; members.len()];
        table.slots().iter().for_each(|&member| slots[member as usize] += 1);
        let size = MaglevTable::SIZE as f64;
        for (&slots, &weight) in slots.iter().zip(&weights) {
            let fair = size * f64::from(weight) / f64::from(total);
            prop_assert!((f64::from(slots) - fair).abs() <= fair * 0.01 + 20.0, "{slots} of {fair}");
        }

        let owners: Vec<_> = table.slots().iter().map(|&m| members[m as usize].0).collect();
        let count = members.len();
        members.rotate_left(turn % count);
        let turned = MaglevTable::new(&members);
        prop_assert!(turned.slots().iter().map(|&m| members[m as usize].0).eq(owners));
    }
}

#[test]
fn least_load_over_many_endpoints_follows_weights() {
    let mut registry = EndpointRegistry::new();
    let weights: Vec<u32> = (0..120).map(|number| 1 + number % 3).collect();
    let set = set(&mut registry, &weights);
    let mut picker = Picker::new(Algorithm::LeastLoad, 3);
    let mut rng = Rng::new(3);
    let mut running: Vec<_> = Vec::new();
    let mut served = [0_u32; 3];
    for _ in 0..200_000 {
        if running.len() == 1_000 {
            let ended: Arc<Endpoint<usize>> = running.swap_remove(rng.below(1_000));
            release(&ended);
        }
        let endpoint = take(&mut picker, &set, 0, None).unwrap();
        served[endpoint.data % 3] += 1;
        running.push(endpoint);
    }
    for (class, served) in served.into_iter().enumerate() {
        let fair = 200_000.0 * (class + 1) as f64 / 6.0;
        let share = f64::from(served) / fair;
        assert!((0.97..1.03).contains(&share), "{share} of its share at weight {}", class + 1);
    }
}

#[test]
fn an_ejected_endpoint_gets_its_keys_back() {
    for algorithm in [Algorithm::ConsistentHash, Algorithm::Maglev] {
        let mut registry = EndpointRegistry::new();
        let whole = set(&mut registry, &[1; 10]);
        let mut picker = Picker::new(algorithm, 1);
        let before: Vec<_> = (0..1_000).map(|key| home(&mut picker, &whole, key << 40)).collect();
        let ejected = set(&mut registry, &[1, 1, 1, 0, 1, 1, 1, 1, 1, 1]);
        assert!((0..1_000).all(|key| home(&mut picker, &ejected, key << 40) != 3));
        let again = set(&mut registry, &[1; 10]);
        let after: Vec<_> = (0..1_000).map(|key| home(&mut picker, &again, key << 40)).collect();
        assert_eq!(before, after, "{algorithm:?}");
    }
}

#[test]
fn keys_are_spread_over_all_endpoints() {
    let mut registry = EndpointRegistry::new();
    let set = set(&mut registry, &[1; 20]);
    let mut picker = Picker::new(Algorithm::ConsistentHash, 1);
    let mut rng = Rng::new(1);
    let mut served = [0_u32; 20];
    for _ in 0..20_000 {
        served[home(&mut picker, &set, rng.next_u64())] += 1;
    }
    assert!(served.iter().all(|times| (700..1_350).contains(times)), "{served:?}");
}
