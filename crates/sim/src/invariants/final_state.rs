//! Checks at the end of a simulation, when faults and their effects have ended.

use std::net::SocketAddr;

use balance::{
    AdmissionLimits, Algorithm, ConcurrencyCap, EndpointRegistry, EndpointSet, PickRequest, Picker,
    SetMember, Time,
};

use crate::plan::BackendPlan;
use crate::random::RandomSource;

/// Standard deviations that chance may cause: exceeded once in 500 million.
pub(super) const DEVIATIONS: f64 = 6.0;

/// Checks that each server got its share of the requests by round robin or at random; other
/// algorithms do not keep to weights.
pub(crate) fn shares_match_weights(plan: &BackendPlan, workers: usize, served: &[u64]) {
    let weights = &plan.weights;
    // Each worker begins elsewhere and may be one request ahead or behind at each server.
    let rounding = 2.0 * workers as f64;
    let deviations = match plan.algorithm {
        Algorithm::RoundRobin => 0.0,
        Algorithm::Random => DEVIATIONS,
        Algorithm::LeastLoad
        | Algorithm::PeakEwma
        | Algorithm::ConsistentHash
        | Algorithm::Maglev => return,
    };
    if plan.limits.cap.is_some() {
        return;
    }
    let requests = served.iter().sum::<u64>() as f64;
    let total: u32 = weights.iter().sum();
    for (&weight, &served) in weights.iter().zip(served) {
        let share = f64::from(weight) / f64::from(total);
        let expected = requests * share;
        let deviation = (expected * (1.0 - share)).sqrt();
        let bound = rounding + deviations * deviation;
        let difference = (served as f64 - expected).abs();
        assert!(
            difference <= bound,
            "{served} of {requests} requests at weight {weight} of {total}"
        );
    }
}

/// Checks that when one endpoint joins others, keys stay where they are or move to it, and that it
/// gets about its share.
pub(crate) fn keys_stay(algorithm: Algorithm, servers: usize, dice: &mut RandomSource) {
    // Apart from its own keys, Maglev moves up to 2 % of the others.
    let may_move = match algorithm {
        Algorithm::ConsistentHash => 0.0,
        Algorithm::Maglev => 0.02,
        Algorithm::LeastLoad | Algorithm::RoundRobin | Algorithm::Random | Algorithm::PeakEwma => {
            return;
        }
    };
    let mut registry = EndpointRegistry::new();
    let address = |server: usize| SocketAddr::from(([10, 0, 0, 2], server as u16));
    let member = |server| SetMember::new(registry.endpoint(address(server), || server), 1);
    let members: Vec<_> = (0..servers).map(member).collect();
    let newcomer = dice.below(members.len());
    let others = members.iter().enumerate().filter(|(server, _)| *server != newcomer);
    let before = EndpointSet::new(others.map(|(_, member)| member.clone()).collect());
    let after = EndpointSet::new(members);
    let keys: Vec<u64> = (0..KEYS).map(|_| dice.seed()).collect();
    let owners = [&before, &after].map(|set| owners(algorithm, set, &keys));
    let [before, after] = &owners;
    let moved = |to_newcomer: bool| {
        let pairs = before.iter().zip(after).filter(|(before, after)| before != after);
        pairs.filter(|(_, after)| (**after == Some(newcomer)) == to_newcomer).count() as f64
            / KEYS as f64
    };
    let share = 1.0 / servers as f64;
    assert!(moved(false) <= may_move, "{} of the keys moved without need", moved(false));
    let chance = DEVIATIONS * (share * (1.0 - share) / KEYS as f64).sqrt();
    let (least, most) = (share * 0.5 - chance, share * 1.5 + chance);
    assert!(
        (least..=most).contains(&moved(true)),
        "{} of the keys go to a share {share}",
        moved(true)
    );
}

const KEYS: usize = 2_000;

/// Returns the owner of each key while nothing is in flight.
fn owners(algorithm: Algorithm, set: &EndpointSet<usize>, keys: &[u64]) -> Vec<Option<usize>> {
    let admission = balance::Admission::new();
    let mut picker = Picker::new(algorithm, 1);
    let mut owner = |key: &u64| {
        let request = PickRequest { key: Some(*key), ..PickRequest::default() };
        let endpoint = picker.take(set, ConcurrencyCap::None, &request)?;
        let empty = balance::Queue::<usize, ()>::new(
            EndpointSet::empty().into(),
            AdmissionLimits::default(),
        );
        admission.release(&endpoint, || Time::ZERO, || Box::new(empty));
        Some(endpoint.data)
    };
    keys.iter().map(&mut owner).collect()
}
