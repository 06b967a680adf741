//! Tests of limits that replicas learn together.

use super::*;

/// Returns the figures of each time between incidents.
fn figures(scenario: &SharingScenario) -> Vec<SharingFigures> {
    let result = scenario.run();
    let times = scenario.times().into_iter();
    times.map(|seconds| result.figures(seconds, scenario.service)).collect()
}

/// Today's behaviour without messages, which the others are compared with: each replica takes the
/// load of the others for slowness of the endpoint, and the sum of limits exceeds its capacity.
#[test]
fn replicas_that_learn_alone_exceed_the_capacity_together() {
    let scenario =
        SharingScenario::new(MessageExchange::None, SPLITS[0], RequestLoad::ClientsPerSlot(3));
    let alone = figures(&scenario);
    assert!(alone.iter().all(|figures| figures.limits > 1.3), "{alone:?}");
}

#[test]
fn shared_limits_follow_a_capacity_that_changes() {
    for load in [RequestLoad::ClientsPerSlot(3), RequestLoad::Percent(90)] {
        for split in SPLITS {
            let scenario = SharingScenario::new(MessageExchange::WithLoss(0), split, load);
            // The load of the third time is what endpoints served at first: they need not get more.
            for (at, figures) in figures(&scenario).into_iter().enumerate().take(2) {
                assert!(
                    (0.75..1.4).contains(&figures.limits) && figures.slowness < 1.4,
                    "{split:?}, {load:?}, {at}: {figures:?}"
                );
            }
        }
    }
}

#[test]
fn shared_limits_cost_little_throughput() {
    for split in SPLITS {
        let load = RequestLoad::ClientsPerSlot(3);
        let scenario = SharingScenario::new(MessageExchange::WithLoss(0), split, load);
        for figures in figures(&scenario) {
            assert!(figures.throughput > 0.8, "{split:?}: {figures:?}");
        }
    }
}

#[test]
fn sum_of_limits_stays_near_the_capacity_while_messages_are_lost_and_replicas_change() {
    for scenario in incidents() {
        for (at, figures) in figures(&scenario).into_iter().enumerate() {
            assert!(
                (0.7..1.5).contains(&figures.limits) && figures.throughput > 0.7,
                "{}, {at}: {figures:?}",
                scenario.name
            );
        }
    }
}
