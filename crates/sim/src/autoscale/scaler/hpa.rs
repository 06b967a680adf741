//! Kubernetes' HorizontalPodAutoscaler.
//!
//! Source: Kubernetes documentation, "Horizontal Pod Autoscaling", the section on algorithm details;
//! for details that it leaves open, `replica_calculator.go`. Limits of the change are in
//! `behavior.rs`.

use balance::Time;

use super::ScalerInput;
use crate::autoscale::behavior::{ScalingBehavior, ScalingHistory};
use crate::autoscale::settings::{DaySettings, ScalerKind};

pub(crate) struct HpaScaler {
    kind: ScalerKind,
    slots: f64,
    /// Desired share of a pod's slots in use.
    target: f64,
    max_pods: u32,
    behavior: Option<ScalingBehavior>,
    history: ScalingHistory,
}

impl HpaScaler {
    pub(super) fn new(settings: &DaySettings) -> Self {
        Self {
            kind: settings.scaler.kind,
            slots: settings.slots().into(),
            target: f64::from(settings.scaler.target_percent) / 100.0,
            max_pods: settings.scaler.max_pods,
            behavior: settings.scaler.behavior.clone(),
            history: ScalingHistory::default(),
        }
    }

    pub(super) fn sync(&mut self, input: &ScalerInput, now: Time) -> u32 {
        let recommended = self.recommend(input);
        let limited = self.history.apply(self.behavior.as_ref(), input.pods, recommended, now);
        let wanted = limited.clamp(1, self.max_pods);
        self.history.record_change(input.pods, wanted, now);
        wanted
    }

    fn recommend(&self, input: &ScalerInput) -> u32 {
        match self.kind {
            ScalerKind::InFlight => self.pods_by_average_value(input, input.metrics.in_flight),
            ScalerKind::Busy => self.pods_by_utilization(input),
            ScalerKind::Need => self.pods_by_average_value(input, input.needed_slots),
            ScalerKind::Demand | ScalerKind::Refusals | ScalerKind::RefusalsAlone => {
                self.pods_by_average_value(input, input.metrics.demand)
            }
        }
    }

    /// Recommends pods by an external metric with a target of type `AverageValue`, as KEDA creates
    /// one: divided by all pods, starting ones included.
    fn pods_by_average_value(&self, input: &ScalerInput, value: f64) -> u32 {
        let needed = value / (self.target * self.slots);
        if self.is_close(needed / f64::from(input.pods)) {
            input.pods
        } else {
            needed.ceil() as u32
        }
    }

    /// Recommends pods by a resource metric with a target of type `Utilization`: the mean of ready
    /// pods. On scale-up, starting pods count as idle.
    fn pods_by_utilization(&self, input: &ScalerInput) -> u32 {
        if input.ready == 0 {
            // Without a ready pod there is no metric.
            return input.pods;
        }
        let (pods, ready) = (f64::from(input.pods), f64::from(input.ready));
        let ratio = input.metrics.utilization / self.target;
        if ratio <= 1.0 || input.pods == input.ready {
            return if self.is_close(ratio) { input.pods } else { (ratio * ready).ceil() as u32 };
        }
        let damped = ratio * ready / pods;
        let stays = self.is_close(damped) || damped < 1.0;
        if stays { input.pods } else { (damped * pods).ceil() as u32 }
    }

    fn is_close(&self, ratio: f64) -> bool {
        let is_within = |behavior: &ScalingBehavior| behavior.is_within(ratio);
        self.behavior.as_ref().map_or_else(|| is_within(&ScalingBehavior::default()), is_within)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::autoscale::metrics::MetricReading;

    fn hpa(kind: &str) -> HpaScaler {
        HpaScaler::new(&DaySettings::parse(&[kind, "target_percent=80"]).unwrap())
    }

    fn input(pods: u32, ready: u32, demand: f64, busy: f64) -> ScalerInput {
        let metrics = MetricReading { demand, in_flight: demand, utilization: busy };
        ScalerInput { pods, ready, metrics, refusals: 0.0, needed_slots: 0.0 }
    }

    #[test]
    fn hpa_divides_demand_by_all_pods() {
        for (pods, demand, recommended) in [
            (10, 32.0, 10),
            // Within a tenth of the target nothing is done.
            (10, 35.0, 10),
            (10, 35.5, 12),
            (10, 29.0, 10),
            (10, 28.0, 9),
            (1, 40.0, 13),
        ] {
            let found = hpa("scaler=demand").recommend(&input(pods, pods / 2, demand, 0.0));
            assert_eq!(found, recommended, "{pods} pods, demand {demand}");
        }
    }

    #[test]
    fn hpa_counts_starting_pods_as_idle_only_on_scale_up() {
        for (pods, ready, busy, recommended) in [
            (10, 10, 0.8, 10),
            (10, 10, 1.0, 13),
            (10, 10, 0.4, 5),
            // The ratio is 1.25 by ready pods, 1 by all.
            (10, 8, 1.0, 10),
            // The ratio is 1.25 by ready pods, 0.625 by all: the direction must not change.
            (10, 5, 1.0, 10),
            (20, 19, 1.0, 24),
            (10, 8, 0.4, 4),
        ] {
            let found = hpa("scaler=busy").recommend(&input(pods, ready, 0.0, busy));
            assert_eq!(found, recommended, "{ready} of {pods} pods ready, busy {busy}");
        }
    }

    #[test]
    fn hpa_at_most_doubles_and_scales_down_to_the_five_minute_maximum() {
        let mut hpa = hpa("scaler=demand");
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        assert_eq!(hpa.sync(&input(1, 1, 400.0, 0.0), at(0)), 5);
        assert_eq!(hpa.sync(&input(5, 5, 400.0, 0.0), at(15)), 10);
        assert_eq!(hpa.sync(&input(100, 5, 32.0, 0.0), at(30)), 100, "125 were recommended");
        assert_eq!(hpa.sync(&input(100, 100, 160.0, 0.0), at(45)), 100);
        assert_eq!(hpa.sync(&input(100, 100, 32.0, 0.0), at(330)), 50, "45 s is 285 s ago");
        assert_eq!(hpa.sync(&input(50, 50, 32.0, 0.0), at(346)), 10);
        assert_eq!(hpa.sync(&input(50, 50, 1e9, 0.0), at(361)), 100);
    }
}
