//! Shares of slow, cold and quick endpoints in a small simulation in which endpoints take time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use super::*;
use crate::endpoint::{EndpointRegistry, EndpointSet, SetMember};
use crate::load::{CapacityLimits, ConcurrencyCap, PickExclusion};
use crate::outcome::{AttemptResult, Outcome};
use crate::pick::{Algorithm, PickRequest, Picker};
use crate::rng::Rng;

/// Simulation: requests come at random times, to each picker with the same probability. Each is
/// answered after the endpoint's service time.
struct World {
    set: EndpointSet<usize>,
    pickers: Vec<Picker>,
    rng: Rng,
    now: Time,
    /// End of each attempt, its member, and its begin.
    running: BinaryHeap<Reverse<(Time, usize, Time)>>,
    /// Responses of each member.
    answered: Vec<u32>,
    /// Peak of each member's requests in flight.
    peaks: Vec<u32>,
}

impl World {
    fn new(endpoints: usize, pickers: u64) -> Self {
        let mut registry = EndpointRegistry::new();
        let mut member = |number: usize| {
            let address = SocketAddr::from(([10, 0, 0, 1], number as u16));
            SetMember::new(registry.endpoint(address, || number), 1)
        };
        Self {
            set: EndpointSet::new((0..endpoints).map(&mut member).collect()),
            pickers: (0..pickers).map(|seed| Picker::new(Algorithm::LeastLoad, seed)).collect(),
            rng: Rng::new(1),
            now: Time::ZERO + Duration::from_secs(1_000),
            running: BinaryHeap::new(),
            answered: vec![0; endpoints],
            peaks: vec![0; endpoints],
        }
    }

    /// Returns the number of requests that each endpoint gets in this time. `takes` returns the
    /// duration of a member's next response, given the number of its responses so far.
    fn run(
        &mut self,
        duration: Duration,
        per_second: u64,
        takes: impl Fn(usize, u32) -> Duration,
    ) -> Vec<u32> {
        let end = self.now + duration;
        let mut picks = vec![0; self.answered.len()];
        self.peaks.fill(0);
        while self.now < end {
            let gap = self.rng.next_u64() % (2_000_000_000 / per_second);
            self.now = self.now + Duration::from_nanos(gap);
            self.answer();
            let picker = self.rng.below(self.pickers.len());
            let request = PickRequest { now: self.now, ..PickRequest::default() };
            let picked = self.pickers[picker].take(&self.set, ConcurrencyCap::None, &request);
            let endpoint = picked.expect("there is no cap");
            let member = endpoint.data;
            picks[member] += 1;
            self.peaks[member] = self.peaks[member].max(endpoint.in_flight());
            let until = self.now + takes(member, self.answered[member]);
            self.running.push(Reverse((until, member, self.now)));
        }
        picks
    }

    fn answer(&mut self) {
        while let Some(&Reverse((until, member, started))) = self.running.peek()
            && until <= self.now
        {
            self.running.pop();
            self.answered[member] += 1;
            let head_after = Some(until.saturating_since(started));
            let endpoint = &self.set.members()[member].endpoint;
            endpoint.learn(&Outcome { started, head_after, result: AttemptResult::Success }, until);
            endpoint.give_back();
        }
    }

    fn penalties(&self) -> MemberPenalties {
        let mut penalties = MemberPenalties::default();
        let candidates = PickCandidates::new(
            &self.set.loads,
            CapacityLimits::within(ConcurrencyCap::None, Time::ZERO),
            PickExclusion::None,
        );
        penalties.update(&candidates, self.now);
        penalties
    }
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn share(picks: &[u32], member: usize) -> f64 {
    f64::from(picks[member]) / f64::from(picks.iter().sum::<u32>())
}

fn assert_near(actual: f64, expected: f64) {
    assert!((actual / expected - 1.0).abs() < 0.1, "{actual} instead of {expected}");
}

/// In a simulation without any history all endpoints are equally new, so the first responses of
/// only one are slow.
#[test]
fn new_endpoint_with_slow_first_responses_gets_its_share_afterwards() {
    for cold in [4, 8, 12, 16] {
        for per_second in [300, 3_000] {
            let mut world = World::new(5, 4);
            let takes = |member, answered| {
                if member == 0 && answered < cold { millis(100) } else { millis(10) }
            };
            while world.answered[0] < 16 {
                world.run(millis(1), per_second, takes);
            }
            let picks = world.run(millis(2_000), per_second, takes);
            assert_near(share(&picks, 0), 0.2);
        }
    }
}

#[test]
fn slow_endpoint_gets_few_picks_after_700_ms_and_is_retried_after_idle() {
    for (endpoints, per_second) in [(2, 1_000), (3, 1_000), (5, 4_000)] {
        let mut world = World::new(endpoints, 4);
        let takes = |member, _| if member == 0 { millis(100) } else { millis(10) };
        world.run(millis(700), per_second, takes);
        let picks = world.run(millis(1_000), per_second, takes);
        // By load alone it would have a tenth of the requests of another endpoint.
        let most = 0.1 / endpoints as f64 / 2.0;
        assert!(share(&picks, 0) < most, "{picks:?}");
    }
    let mut world = World::new(5, 4);
    let takes = |member, _| if member == 0 { millis(100) } else { millis(10) };
    world.run(millis(2_000), 1_000, takes);
    assert_eq!(world.run(millis(500), 100, takes)[0], 0, "the slow endpoint is avoided");
    let picks = world.run(millis(15_000), 100, takes);
    assert!((1..100).contains(&picks[0]), "{picks:?}");
}

#[test]
fn faster_endpoint_is_not_overloaded_by_many_pickers() {
    for endpoints in [3, 5, 9] {
        for per_second in [1_000, 4_000] {
            let mut world = World::new(endpoints, 8);
            let takes = |member, _| if member == 0 { millis(5) } else { millis(20) };
            world.run(millis(1_000), per_second, takes);
            let picks = world.run(millis(2_000), per_second, takes);
            let (quick, others) = (world.peaks[0], &world.peaks[1..]);
            // The endpoint is four times as quick.
            assert!(others.iter().all(|&peak| quick <= 3 * peak), "{:?}", world.peaks);
            // Of three endpoints it is the reference, compared with which the others are slow.
            let most = if endpoints == 3 { 0.85 } else { 4.0 / (endpoints as f64 + 3.0) * 1.1 };
            assert!(share(&picks, 0) < most, "{picks:?}");
        }
    }
}

#[test]
fn latency_differences_below_the_threshold_are_ignored() {
    let mut world = World::new(4, 4);
    // From 20 microseconds to 1.28 ms.
    let takes = |member, _| Duration::from_micros(20 * 4_u64.pow(member as u32));
    for _ in 0..50 {
        let picks = world.run(millis(100), 2_000, takes);
        assert!(world.penalties().is_empty(), "{picks:?}");
    }
    let mut world = World::new(4, 4);
    world.run(millis(4_000), 2_000, |member, _| millis(if member == 0 { 20 } else { 1 }));
    assert!(!world.penalties().is_empty(), "a slow endpoint has a penalty");
}
