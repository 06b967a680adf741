//! Tests of learned limits.

use super::*;

/// Second by which a limit has to be known.
const KNOWN: usize = LEARNING.as_secs() as usize;

/// Returns a description of the failure of a scenario, if it fails.
fn fault(scenario: &LimitScenario) -> Option<String> {
    let (learned, fixed) = (scenario.run(), scenario.fixed().run());
    let part = learned.served[1] as f64 / fixed.served[1] as f64;
    let is_off = |&(limit, workers): &(u32, usize)| (limit as usize).abs_diff(workers) > 1;
    let limits = &learned.limits[KNOWN];
    let off = learned.share_off_by_more_than_one(KNOWN);
    if part > 0.95 && off <= 0.02 && !limits.iter().any(is_off) {
        return None;
    }
    let LimitScenario { workers, clients, variance, .. } = scenario;
    Some(format!(
        "{} workers, {clients:?}, {variance:?}: {part:.3} of the throughput, {limits:?} after learning, \
         off {off:.3} of the time",
        workers[0]
    ))
}

#[test]
fn limit_learns_the_worker_count_in_two_minutes_without_losing_throughput() {
    let mut all = Vec::new();
    for variance in [ServiceVariance::Exponential, ServiceVariance::Low, ServiceVariance::None] {
        for workers in [2, 4, 8] {
            for clients in [16, 24, 48] {
                all.extend(fault(&LimitScenario {
                    variance,
                    ..LimitScenario::article(workers, clients)
                }));
            }
        }
    }
    assert!(all.is_empty(), "{all:#?}");
}

#[test]
fn learned_limit_does_not_drift_in_six_hours_of_changing_service_times() {
    let incidents = incidents();
    let scenario = incidents.iter().find(|scenario| scenario.drift > 0.0).unwrap();
    let result = scenario.run();
    assert!(
        result.share_off_by_more_than_one(KNOWN) < 0.001,
        "{:?}",
        result.limit_range(KNOWN..result.limits.len())
    );
}

#[test]
fn learned_limit_survives_a_uniform_slowdown() {
    let slower = incidents().into_iter().filter(|scenario| scenario.name.contains("slower"));
    for scenario in slower {
        let result = scenario.run();
        assert!(
            result.share_off_by_more_than_one(KNOWN) < 0.02,
            "{:?}: {scenario:?}",
            result.limit_range(KNOWN..1200)
        );
    }
}

#[test]
fn endpoints_of_different_size_get_different_limits() {
    let scenario =
        incidents().into_iter().find(|scenario| scenario.name.contains("different")).unwrap();
    let result = scenario.run();
    assert!(result.share_off_by_more_than_one(600) < 0.15, "{:?}", result.limits[1100]);
}

#[test]
fn shrunken_endpoints_get_lower_limits_in_ten_minutes() {
    let scenario =
        incidents().into_iter().find(|scenario| scenario.name == "all shrink to 4").unwrap();
    let result = scenario.run();
    assert!(result.share_off_by_more_than_one(900) < 0.2, "{:?}", result.limits[1100]);
}

/// The growth need not be detected: beside five unchanged endpoints, the additional capacity is
/// hardly used.
#[test]
fn grown_endpoint_costs_no_throughput() {
    let scenario =
        incidents().into_iter().find(|scenario| scenario.name == "one grows to 8").unwrap();
    let (learned, fixed) = (scenario.run(), scenario.fixed().run());
    let part = learned.served[1] as f64 / fixed.served[1] as f64;
    assert!(part > 0.98, "{part:.3} of the throughput");
}
