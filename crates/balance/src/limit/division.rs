//! Division of one endpoint's limit among replicas, in proportion to their demand.
//!
//! If all replicas know the same demands, their parts add up to the limit exactly.

use std::net::SocketAddr;

use crate::hash::{hash, hash_address};

/// Demand below which a replica has no part that is its own in any case.
const IDLE: f64 = 0.5;

/// Demand of one replica for an endpoint: mean requests in flight and queued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ReplicaDemand {
    pub(super) member: SocketAddr,
    pub(super) demand: f64,
}

/// Returns the part of `total` of each replica, in their order. The parts add up to `total`.
///
/// If the demands exceed the total, parts are in proportion to them. Otherwise each replica has its
/// demand, and what is left goes by the square root of the demands, as requests in flight vary by
/// that much. A replica with demand has at least `least`, if the total is enough for that.
pub(super) fn divide(
    endpoint: SocketAddr,
    total: u32,
    least: u32,
    demands: &[ReplicaDemand],
) -> Vec<u32> {
    let all: f64 = demands.iter().map(|each| each.demand).sum();
    let spread: f64 = demands.iter().map(spread_of).sum();
    let left = f64::from(total) - all;
    let ideal = |each: &ReplicaDemand| {
        if left >= 0.0 {
            each.demand + left * spread_of(each) / spread
        } else {
            f64::from(total) * each.demand / all
        }
    };
    let mut parts: Vec<u32> = demands.iter().map(|each| guaranteed(each, least)).collect();
    let mut taken: u64 = parts.iter().copied().map(u64::from).sum();
    if taken > u64::from(total) {
        parts.iter_mut().for_each(|part| *part = 0);
        taken = 0;
    }
    let left = total - taken as u32;
    let wanted: Vec<f64> = demands
        .iter()
        .zip(&parts)
        .map(|(each, &part)| (ideal(each) - f64::from(part)).max(0.0))
        .collect();
    let sum: f64 = wanted.iter().sum();
    if left == 0 || sum <= 0.0 {
        return parts;
    }
    let mut remainders = Vec::with_capacity(parts.len());
    let mut rest = left;
    for (at, wanted) in wanted.iter().enumerate() {
        let exact = f64::from(left) * wanted / sum;
        let whole = (exact.floor() as u32).min(rest);
        parts[at] += whole;
        rest -= whole;
        remainders.push((exact - f64::from(whole), rank(endpoint, demands[at].member), at));
    }
    remainders.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
    for &(_, _, at) in remainders.iter().cycle().take(rest as usize) {
        parts[at] += 1;
    }
    parts
}

fn spread_of(each: &ReplicaDemand) -> f64 {
    (each.demand + 0.25).sqrt()
}

fn guaranteed(each: &ReplicaDemand, least: u32) -> u32 {
    if each.demand < IDLE { 0 } else { least.min(each.demand.ceil() as u32) }
}

/// Returns the order in which replicas get what is left after rounding: another one for each
/// endpoint.
fn rank(endpoint: SocketAddr, member: SocketAddr) -> (u64, SocketAddr) {
    (hash_address(hash_address(hash(b"limits"), member), endpoint), member)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn demands(demands: &[f64]) -> Vec<ReplicaDemand> {
        let member = |at: usize| SocketAddr::from(([10, 0, 1, at as u8], 0));
        let demand = |(at, &demand): (usize, &f64)| ReplicaDemand { member: member(at), demand };
        demands.iter().enumerate().map(demand).collect()
    }

    fn endpoint(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 80))
    }

    fn check(total: u32, least: u32, of: &[f64], parts: &[u32]) {
        assert_eq!(divide(endpoint(1), total, least, &demands(of)), parts, "{total} by {of:?}");
    }

    #[test]
    fn parts_are_in_proportion_to_demand() {
        check(10, 1, &[70.0, 20.0, 10.0], &[7, 2, 1]);
        check(8, 1, &[100.0, 0.0, 0.0], &[8, 0, 0]);
        // Each replica with demand has at least one.
        check(4, 1, &[98.0, 1.0, 1.0], &[2, 1, 1]);
        check(12, 3, &[98.0, 1.0, 1.0], &[10, 1, 1]);
        check(12, 3, &[94.0, 3.0, 3.0], &[6, 3, 3]);
        // What is not in demand goes to all, and more of it to those with more demand.
        check(12, 1, &[3.0, 3.0, 0.0], &[6, 5, 1]);
    }

    #[test]
    fn left_over_slots_go_to_other_replicas_at_other_endpoints() {
        let mut slots = [0; 3];
        for number in 0..100 {
            let parts = divide(endpoint(number), 4, 1, &demands(&[9.0; 3]));
            parts.iter().zip(&mut slots).for_each(|(part, slots)| *slots += part);
        }
        assert!(slots.iter().all(|&slots| (110..160).contains(&slots)), "{slots:?}");
    }

    proptest! {
        #[test]
        fn parts_add_up_to_the_total(
            total in 0_u32..1024,
            least in 1_u32..50,
            of in vec(prop_oneof![0.0..2.0, 0.0..1000.0, Just(1e6)], 1..20),
        ) {
            let parts = divide(endpoint(1), total, least, &demands(&of));
            prop_assert_eq!(parts.iter().sum::<u32>(), total);
            let needed: f64 = of.iter().map(|demand| demand.ceil().min(f64::from(least))).sum();
            if f64::from(total) >= needed {
                let has_part = |(part, &demand): (&u32, &f64)| *part > 0 || demand < IDLE;
                prop_assert!(parts.iter().zip(&of).all(has_part), "{parts:?}");
            }
        }
    }
}
