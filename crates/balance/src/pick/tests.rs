//! Tests of pickers: shares, order, exclusion.

use std::net::SocketAddr;
use std::time::Duration;

use super::*;
use crate::endpoint::{EndpointRegistry, SetMember};
use crate::outcome::{AttemptResult, Outcome};
use crate::rng::Rng;

struct World {
    registry: EndpointRegistry<()>,
    set: EndpointSet<()>,
}

impl World {
    /// Creates endpoints 0, 1, 2, … of these weights.
    fn new(weights: &[u32]) -> Self {
        let mut world = Self { registry: EndpointRegistry::new(), set: EndpointSet::empty() };
        world.become_of(&weights.iter().copied().enumerate().collect::<Vec<_>>());
        world
    }

    /// Replaces the set by another, of (endpoint, weight).
    fn become_of(&mut self, members: &[(usize, u32)]) {
        let mut member = |&(number, weight): &(usize, u32)| {
            let address = SocketAddr::from(([10, 0, 0, 1], number as u16));
            SetMember::new(self.registry.endpoint(address, || ()), weight)
        };
        self.set = EndpointSet::new(members.iter().map(&mut member).collect());
    }

    /// Takes a slot and returns its endpoint.
    fn take(&self, picker: &mut Picker, cap: u32) -> Option<usize> {
        self.take_for(picker, cap, None)
    }

    fn take_for(&self, picker: &mut Picker, cap: u32, key: Option<u64>) -> Option<usize> {
        let request = PickRequest { key, ..PickRequest::default() };
        let endpoint = picker.take(&self.set, ConcurrencyCap::of(cap), &request)?;
        Some(usize::from(endpoint.address.port()))
    }

    fn give_back(&self, endpoint: usize) {
        self.set.members()[endpoint].endpoint.give_back();
    }

    /// Returns the endpoints of this many requests, each of which ends before the next begins.
    fn turns(&self, picker: &mut Picker, times: usize) -> Vec<usize> {
        let turn = |_| {
            let endpoint = picker
                .take(&self.set, ConcurrencyCap::None, &PickRequest::default())
                .expect("nothing is full");
            endpoint.give_back();
            usize::from(endpoint.address.port())
        };
        (0..times).map(turn).collect()
    }
}

const UNCAPPED: u32 = 0;

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::LeastLoad,
    Algorithm::RoundRobin,
    Algorithm::Random,
    Algorithm::PeakEwma,
    Algorithm::ConsistentHash,
    Algorithm::Maglev,
];

#[test]
fn set_without_weight_yields_no_endpoint() {
    for algorithm in ALGORITHMS {
        for weights in [&[][..], &[0, 0]] {
            for key in [None, Some(1)] {
                let mut picker = Picker::new(algorithm, 1);
                let picked = World::new(weights).take_for(&mut picker, UNCAPPED, key);
                assert_eq!(picked, None, "{algorithm:?} of {weights:?}");
            }
        }
    }
}

#[test]
fn every_algorithm_fills_all_slots_up_to_the_cap() {
    for algorithm in ALGORITHMS {
        let world = World::new(&[1, 5, 0, 2]);
        let mut picker = Picker::new(algorithm, 7);
        let mut taken = [0; 4];
        while let Some(endpoint) = world.take(&mut picker, 3) {
            taken[endpoint] += 1;
        }
        assert_eq!(taken, [3, 3, 0, 3], "{algorithm:?}");
    }
}

#[test]
fn tried_endpoint_is_picked_again_only_if_no_other_exists() {
    for algorithm in ALGORITHMS {
        let cap = ConcurrencyCap::of(1);
        let two = World::new(&[1, 1]);
        let tried = [two.set.members()[0].endpoint.clone()];
        let avoid = PickRequest { tried: &tried, ..PickRequest::default() };
        let mut picker = Picker::new(algorithm, 3);
        let other = picker.take(&two.set, cap, &avoid).unwrap();
        assert_eq!(other.address.port(), 1, "{algorithm:?}");
        assert!(picker.take(&two.set, cap, &avoid).is_none(), "{algorithm:?}");

        let one = World::new(&[1, 0]);
        let tried = [one.set.members()[0].endpoint.clone()];
        let avoid = PickRequest { tried: &tried, ..PickRequest::default() };
        assert!(picker.take(&one.set, cap, &avoid).is_some(), "{algorithm:?}");
    }
}

#[test]
fn retries_visit_each_endpoint_once_before_repeating() {
    for algorithm in ALGORITHMS {
        let world = World::new(&[1; 5]);
        let mut picker = Picker::new(algorithm, 3);
        let mut tried = Vec::new();
        for _ in 0..5 {
            let request = PickRequest { tried: &tried, key: Some(7), ..PickRequest::default() };
            let next = picker.take(&world.set, ConcurrencyCap::None, &request).unwrap();
            next.give_back();
            assert!(tried.iter().all(|it| !Arc::ptr_eq(it, &next)), "{algorithm:?}");
            tried.push(next);
        }
        let request = PickRequest { tried: &tried, key: Some(7), ..PickRequest::default() };
        let again = picker.take(&world.set, ConcurrencyCap::None, &request).unwrap();
        assert!(!Arc::ptr_eq(&again, tried.last().unwrap()), "{algorithm:?}: not the latest");
    }
}

#[test]
fn retry_prefers_a_tried_reachable_endpoint_to_an_unreachable_one() {
    for algorithm in ALGORITHMS {
        let mut world = World::new(&[1; 3]);
        let gone = world.set.members()[2].endpoint.clone();
        world.become_of(&[(0, 1), (1, 1)]);
        let mut picker = Picker::new(algorithm, 3);
        let [first, other] = [0, 1].map(|member| world.set.members()[member].endpoint.clone());
        other.mark_unreachable(Time::ZERO);
        for tried in [vec![first.clone()], vec![first.clone(), gone]] {
            let request = PickRequest { tried: &tried, key: Some(7), ..PickRequest::default() };
            let again = picker.take(&world.set, ConcurrencyCap::None, &request).unwrap();
            assert!(Arc::ptr_eq(&again, &first), "{algorithm:?} after {tried:?}");
            assert!(picker.take_unreachable(&world.set, ConcurrencyCap::None, &request).is_none());
        }
    }
}

#[test]
fn unreachable_endpoint_is_skipped_while_another_is_reachable() {
    for algorithm in ALGORITHMS {
        let world = World::new(&[1; 3]);
        let mut picker = Picker::new(algorithm, 3);
        let endpoint = |member: usize| &world.set.members()[member].endpoint;
        let now = Time::ZERO;
        assert!(endpoint(0).mark_unreachable(now) && !endpoint(0).mark_unreachable(now));
        let bound = PickRequest { only: Some(endpoint(0)), ..PickRequest::default() };
        for key in 0..30 {
            let request = PickRequest { key: Some(crate::rng::mix(key)), ..PickRequest::default() };
            for request in [request, bound] {
                let taken = picker.take(&world.set, ConcurrencyCap::None, &request).unwrap();
                assert!(!Arc::ptr_eq(&taken, endpoint(0)), "{algorithm:?}");
            }
        }
        endpoint(1).mark_unreachable(now);
        endpoint(2).mark_unreachable(now);
        let request = PickRequest { key: Some(7), ..PickRequest::default() };
        assert!(picker.take(&world.set, ConcurrencyCap::None, &request).is_none(), "{algorithm:?}");
        let last = picker.take_unreachable(&world.set, ConcurrencyCap::None, &request);
        assert!(last.is_some(), "{algorithm:?}: the last resort");
        assert!(endpoint(1).mark_reachable(now) && !endpoint(1).mark_reachable(now));
        assert!(
            picker.take_unreachable(&world.set, ConcurrencyCap::None, &request).is_none(),
            "{algorithm:?}"
        );
        let taken = picker.take(&world.set, ConcurrencyCap::None, &request).unwrap();
        assert!(Arc::ptr_eq(&taken, endpoint(1)), "{algorithm:?}");
    }
}

/// Sends requests and returns how many each endpoint got. A request to a failing endpoint is
/// answered at once. Each other one is answered after `clients` further ones.
fn shares(algorithm: Algorithm, clients: usize, fails: &[AttemptResult]) -> Vec<usize> {
    let world = World::new(&vec![1; fails.len()]);
    let mut picker = Picker::new(algorithm, 3);
    let mut running = std::collections::VecDeque::new();
    let mut shares = vec![0; fails.len()];
    for request in 0..20_000_u64 {
        let now = Time::ZERO + Duration::from_micros(500 * request);
        let pick =
            PickRequest { key: Some(crate::rng::mix(request)), now, ..PickRequest::default() };
        let endpoint =
            picker.take(&world.set, ConcurrencyCap::None, &pick).expect("there is no cap");
        let member = usize::from(endpoint.address.port());
        let outcome = |end| Outcome {
            started: now,
            head_after: Some(Duration::from_millis(10)),
            result: end,
        };
        endpoint.learn(&outcome(fails[member]), now);
        shares[member] += 1;
        if fails[member] == AttemptResult::Success {
            running.push_back(endpoint);
        } else {
            endpoint.give_back();
        }
        if running.len() > clients {
            running.pop_front().expect("it is not empty").give_back();
        }
    }
    running.into_iter().for_each(|endpoint| endpoint.give_back());
    shares
}

#[test]
fn fast_failures_do_not_attract_requests() {
    let refused = AttemptResult::Refused { retry_after: None };
    for algorithm in
        [Algorithm::LeastLoad, Algorithm::RoundRobin, Algorithm::Random, Algorithm::PeakEwma]
    {
        let failing = shares(
            algorithm,
            40,
            &[AttemptResult::ServerError, AttemptResult::Success, AttemptResult::Success],
        );
        assert!(failing[0] < 20_000 / 3 / 5, "{algorithm:?}: {failing:?}");
        let refusing =
            shares(algorithm, 40, &[refused, AttemptResult::Success, AttemptResult::Success]);
        assert!(refusing[0] <= 20_000 / 3 + 100, "{algorithm:?}: {refusing:?}");
    }
}

#[test]
fn equally_failing_endpoints_share_requests_evenly() {
    let even = shares(Algorithm::LeastLoad, 40, &[AttemptResult::ServerError; 3]);
    assert!(even.iter().all(|&share| share > 6_000), "{even:?}");
}

#[test]
fn retried_key_goes_to_one_stable_fallback_endpoint() {
    for algorithm in [Algorithm::ConsistentHash, Algorithm::Maglev] {
        let world = World::new(&[1; 5]);
        let mut picker = Picker::new(algorithm, 3);
        for key in 0..100 {
            let mut take = |tried: &[Arc<Endpoint<()>>]| {
                let request = PickRequest {
                    key: Some(crate::rng::mix(key)),
                    tried,
                    ..PickRequest::default()
                };
                let endpoint = picker.take(&world.set, ConcurrencyCap::None, &request).unwrap();
                endpoint.give_back();
                endpoint
            };
            let home = take(&[]);
            let other = take(std::slice::from_ref(&home));
            assert!(!Arc::ptr_eq(&home, &other));
            assert!(Arc::ptr_eq(&take(std::slice::from_ref(&home)), &other));
            assert!(Arc::ptr_eq(&take(&[]), &home));
        }
    }
}

#[test]
fn request_pinned_to_an_endpoint_gets_that_endpoint_or_none() {
    for algorithm in ALGORITHMS {
        let mut world = World::new(&[1, 1, 1]);
        let mut picker = Picker::new(algorithm, 3);
        let mine = world.set.members()[1].endpoint.clone();
        let request = PickRequest { only: Some(&mine), ..PickRequest::default() };
        let mut take = |world: &World| picker.take(&world.set, ConcurrencyCap::of(1), &request);
        assert!(Arc::ptr_eq(&take(&world).unwrap(), &mine), "{algorithm:?}");
        assert!(take(&world).is_none(), "{algorithm:?}");
        world.become_of(&[(0, 1), (1, 0), (2, 1)]);
        assert!(take(&world).is_some(), "an ejected endpoint binds no request: {algorithm:?}");
    }
}

#[test]
fn large_sets_pick_the_better_of_two_distinct_endpoints() {
    let world = World::new(&(0..100).map(|number| 1 + number % 3).collect::<Vec<_>>());
    let mut rng = Rng::new(5);
    for number in 0..300 {
        let endpoint = &world.set.members()[number % 100].endpoint;
        (0..rng.below(9)).for_each(|_| assert!(endpoint.take(ConcurrencyCap::None, Time::ZERO)));
        let candidates = PickCandidates::new(
            &world.set.loads,
            CapacityLimits::within(ConcurrencyCap::of(20), Time::ZERO),
            PickExclusion::Matching(&|member| member == 7),
        );
        let mut seen = Vec::new();
        let chosen = better_of_two(&candidates, &mut rng, |(other, _), (one, _)| {
            seen.extend([one, other]);
            candidates.load(other).in_flight < candidates.load(one).in_flight
        });
        let load = |member: usize| candidates.load(member).in_flight;
        if let [one, other] = seen[..] {
            assert_ne!(one, other);
            assert_eq!(load(chosen.unwrap()), load(one).min(load(other)));
        }
        assert!(chosen.is_none_or(|chosen| chosen != 7 && load(chosen) < 20));
    }
}

#[test]
fn random_draw_follows_weights_and_draws_two_distinct_endpoints() {
    let world = World::new(&[3, 0, 1]);
    let candidates = PickCandidates::new(
        &world.set.loads,
        CapacityLimits::within(ConcurrencyCap::None, Time::ZERO),
        PickExclusion::None,
    );
    let mut rng = Rng::new(9);
    let mut drawn = [0; 3];
    for _ in 0..40_000 {
        drawn[candidates.draw(&mut rng).unwrap()] += 1;
        let (one, other) = candidates.draw_two(&mut rng).unwrap();
        assert_eq!(one.min(other), 0);
        assert_eq!(one.max(other), 2);
    }
    assert_eq!(drawn[1], 0);
    assert!((29_500..30_500).contains(&drawn[0]), "{drawn:?}");
    assert!(
        PickCandidates::new(
            &World::new(&[0, 4]).set.loads,
            CapacityLimits::within(ConcurrencyCap::None, Time::ZERO),
            PickExclusion::None
        )
        .draw_two(&mut rng)
        .is_none()
    );
}

#[test]
fn least_load_rotates_among_equally_loaded_endpoints() {
    let world = World::new(&[1, 1, 1]);
    let mut picker = Picker::new(Algorithm::LeastLoad, 5);
    let turns = world.turns(&mut picker, 9);
    assert_eq!(turns[..3], turns[3..6]);
    let first = turns[0];
    assert_eq!(turns[..3], [first, (first + 1) % 3, (first + 2) % 3]);
}

#[test]
fn least_load_fills_in_proportion_to_weights() {
    let world = World::new(&[1, 2, 3]);
    let mut picker = Picker::new(Algorithm::LeastLoad, 5);
    for _ in 0..60 {
        world.take(&mut picker, UNCAPPED);
    }
    let in_flight = world.set.members().iter().map(|member| member.endpoint.in_flight());
    assert_eq!(in_flight.collect::<Vec<_>>(), [10, 20, 30]);
}

#[test]
fn least_load_follows_weights_under_closed_loop_load() {
    let weights = [1, 2, 5];
    let world = World::new(&weights);
    let mut picker = Picker::new(Algorithm::LeastLoad, 11);
    let mut rng = Rng::new(11);
    let mut running: Vec<_> = (0..80).map(|_| world.take(&mut picker, UNCAPPED).unwrap()).collect();
    let mut served = [0_u32; 3];
    for _ in 0..100_000 {
        let ended = rng.below(running.len());
        world.give_back(running[ended]);
        running[ended] = world.take(&mut picker, UNCAPPED).unwrap();
        served[running[ended]] += 1;
    }
    for (endpoint, weight) in weights.into_iter().enumerate() {
        let fair = 100_000.0 * f64::from(weight) / 8.0;
        let share = f64::from(served[endpoint]) / fair;
        assert!((0.97..1.03).contains(&share), "{served:?}");
    }
}

#[test]
fn round_robin_spreads_a_heavy_endpoint_evenly() {
    // The example of nginx's commit 52327e0627f4.
    let world = World::new(&[5, 1, 1]);
    let mut picker = Picker::new(Algorithm::RoundRobin, 2);
    let turns = world.turns(&mut picker, 7);
    let heavy: Vec<_> = turns.iter().map(|&endpoint| endpoint == 0).collect();
    assert_eq!(heavy, [true, true, false, true, false, true, true], "{turns:?}");
    assert_eq!(world.turns(&mut picker, 7), turns);
}

#[test]
fn round_robin_gives_a_new_endpoint_its_share_without_a_burst() {
    let mut world = World::new(&[1, 1, 1]);
    let mut picker = Picker::new(Algorithm::RoundRobin, 2);
    world.turns(&mut picker, 100);
    world.become_of(&[(3, 1), (2, 1), (1, 1), (0, 1)]);
    let mut served = [0; 4];
    for endpoint in world.turns(&mut picker, 8) {
        served[endpoint] += 1;
    }
    assert_eq!(served[3], 2, "{served:?}");
}

#[test]
fn round_robin_discards_credits_larger_than_the_new_weights() {
    let mut world = World::new(&[1_000_000, 999_999]);
    let mut picker = Picker::new(Algorithm::RoundRobin, 2);
    world.turns(&mut picker, 1);
    world.become_of(&[(0, 1), (1, 1)]);
    let turns = world.turns(&mut picker, 8);
    assert!((0..2).all(|one| turns.iter().filter(|&&turn| turn == one).count() >= 2));
}

#[test]
fn round_robin_does_not_compensate_a_formerly_full_endpoint() {
    let world = World::new(&[1, 1]);
    let mut picker = Picker::new(Algorithm::RoundRobin, 2);
    let full = world.set.members()[0].endpoint.clone();
    assert!(full.take(ConcurrencyCap::None, Time::ZERO));
    for _ in 0..50 {
        assert_eq!(world.take(&mut picker, 1), Some(1));
        world.give_back(1);
    }
    full.give_back();
    let turns = world.turns(&mut picker, 10);
    assert_eq!(turns.iter().filter(|&&endpoint| endpoint == 0).count(), 5, "{turns:?}");
}
