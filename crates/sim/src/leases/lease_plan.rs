//! Draws the plan of a seed with faults.

use std::time::Duration;

use balance::leases::{CutOffPolicy, MAX_CLOCK_DRIFT_PPM};

use super::network::NetworkQuality;
use crate::random::RandomSource;

/// Maximum delay until a replica learns of a change of members or endpoints. It must be shorter
/// than the handover time less the term of a lease.
pub(super) const MAX_LAG: Duration = Duration::from_millis(900);

#[derive(Debug)]
pub(super) struct LeasePlan {
    pub(super) replicas: usize,
    /// Pool of each endpoint.
    pub(super) pools: Vec<usize>,
    pub(super) caps: Vec<u32>,
    /// Percentage of requests that replica 0 gets beside its equal part.
    pub(super) skew_percent: u32,
    /// Request rate, relative to the capacity of all slots.
    pub(super) load: f64,
    pub(super) service: Duration,
    pub(super) policy: CutOffPolicy,
    /// Maximum deviation of a clock's rate, in parts per million.
    pub(super) drift_ppm: u32,
    pub(super) network: NetworkQuality,
    /// Mean time between faults; `None` if only messages suffer.
    pub(super) fault_interval: Option<Duration>,
    pub(super) fault_duration: Duration,
}

impl LeasePlan {
    /// Percentage of seeds in which only messages suffer.
    const QUIET_PERCENT: u32 = 20;

    pub(super) fn draw(dice: &mut RandomSource) -> Self {
        let endpoints = dice.between(1, 5) as usize;
        let pools = dice.between(1, 2).min(endpoints as u32) as usize;
        let is_quiet = dice.percent(Self::QUIET_PERCENT);
        let caps: Vec<u32> = (0..endpoints).map(|_| dice.between(1, 5)).collect();
        // About as many requests in each seed, so service times are longer with more slots.
        let slots: u32 = caps.iter().sum();
        let service = Duration::from_millis(u64::from(slots) * u64::from(dice.between(3, 25)));
        Self {
            replicas: dice.between(2, 4) as usize,
            pools: (0..endpoints).map(|endpoint| endpoint % pools).collect(),
            caps,
            skew_percent: [0, 0, 40, 100][dice.below(4)],
            load: f64::from(dice.between(30, 130)) / 100.0,
            service,
            policy: if dice.percent(50) { CutOffPolicy::Strict } else { CutOffPolicy::Available },
            drift_ppm: if dice.percent(50) { MAX_CLOCK_DRIFT_PPM } else { 500 },
            network: if is_quiet {
                NetworkQuality::draw_mild(dice)
            } else {
                NetworkQuality::draw(dice)
            },
            fault_interval: (!is_quiet)
                .then(|| Duration::from_millis(u64::from(dice.between(100, 1_500)))),
            fault_duration: Duration::from_millis(u64::from(dice.between(2_000, 6_000))),
        }
    }
}
