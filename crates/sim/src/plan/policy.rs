//! Draws policies as an operator might write them, on the time scale of a simulation.

use std::num::NonZeroU32;
use std::time::Duration;

use balance::health::{ActiveSettings, HealthSettings, PassiveSettings, SlowStartSettings};
use balance::retry::RetrySettings;
use balance::{AdmissionLimits, Algorithm, ConcurrencyCap, ControlledDelay};

use crate::random::RandomSource;

pub(super) fn draw_algorithm(dice: &mut RandomSource) -> Algorithm {
    let all = [
        Algorithm::LeastLoad,
        Algorithm::RoundRobin,
        Algorithm::Random,
        Algorithm::PeakEwma,
        Algorithm::ConsistentHash,
        Algorithm::Maglev,
    ];
    all[dice.below(all.len())]
}

pub(crate) fn draw_limits(dice: &mut RandomSource, slowest: Duration) -> AdmissionLimits {
    let cap = match dice.between(1, 100) {
        ..=15 => ConcurrencyCap::None,
        16..=35 => ConcurrencyCap::Learned,
        _ => ConcurrencyCap::of(dice.between(1, 4)),
    };
    let max_waiting = if dice.percent(85) { dice.between(1, 64) } else { 0 };
    let fair = dice.percent(70);
    let delay = dice.percent(40).then(|| ControlledDelay {
        target: slowest * dice.between(1, 50) / 10,
        interval: slowest * dice.between(0, 20),
    });
    AdmissionLimits { cap, max_waiting, fair, delay }
}

pub(super) fn draw_health(dice: &mut RandomSource, service: Duration) -> HealthSettings {
    let passive = dice.percent(80).then(|| draw_passive(dice, service));
    let active = dice.percent(50).then(|| ActiveSettings {
        interval: service * dice.between(5, 30),
        timeout: service * dice.between(1, 5),
        rise: one_to(3, dice),
        fall: one_to(3, dice),
    });
    let slow_start = dice.percent(40).then(|| SlowStartSettings {
        window: service * dice.between(1, 100),
        floor_percent: dice.between(0, 100),
    });
    let panic_percent = if dice.percent(50) { 50 } else { dice.between(0, 100) };
    HealthSettings { passive, active, slow_start, panic_percent }
}

fn draw_passive(dice: &mut RandomSource, service: Duration) -> PassiveSettings {
    let base_ejection_time = service * dice.between(5, 50);
    PassiveSettings {
        consecutive_failures: one_to(6, dice),
        server_errors: true,
        interval: service * dice.between(10, 50),
        outlier_deviation_percent: dice.between(100, 250),
        outlier_failure_percent: dice.between(0, 30),
        outlier_minimum_requests: u64::from(dice.between(3, 20)),
        outlier_minimum_endpoints: dice.between(2, 6) as usize,
        base_ejection_time,
        max_ejection_time: base_ejection_time * dice.between(1, 8),
        max_ejection_percent: dice.between(0, 100),
    }
}

pub(super) fn draw_retry(dice: &mut RandomSource, service: Duration) -> RetrySettings {
    RetrySettings {
        attempts: one_to(5, dice),
        budget_percent: dice.between(0, 100),
        budget_floor: 10 * dice.between(0, 10),
        backoff_base: service / 10 * dice.between(0, 10),
        backoff_max: service * dice.between(0, 10),
        ..RetrySettings::default()
    }
}

/// Returns the maximum time until a healthy endpoint has its full weight, without the wait for a
/// half-open request.
pub(super) fn longest_return(health: &HealthSettings) -> Duration {
    let passive = health.passive.map_or(Duration::ZERO, |passive| {
        passive.interval + passive.max_ejection_time.max(passive.base_ejection_time)
    });
    let active = health.active.map_or(Duration::ZERO, |active| {
        (active.interval * 2 + active.timeout) * (active.rise.get() + 1)
    });
    let slow_start = health.slow_start.map_or(Duration::ZERO, |slow_start| slow_start.window);
    passive + active + slow_start
}

fn one_to(most: u32, dice: &mut RandomSource) -> NonZeroU32 {
    NonZeroU32::new(dice.between(1, most)).expect("from 1")
}
