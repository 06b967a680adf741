//! Script of article 001: reads the rate of rejections and starts as many pods as these requests
//! would need.
//!
//! The article does not describe scale-down. Rejections indicate only too few pods. So the script
//! removes some pods at a time while nothing is rejected, until something is.

use std::time::Duration;

use balance::Time;

use super::ScalerInput;
use crate::autoscale::settings::{DaySettings, ScalerKind};

/// Time between two steps down.
const STEP: Duration = Duration::from_secs(60);

pub(crate) struct RefusalScaler {
    /// Pods for one rejection per second: the operator has measured the time of a request.
    pods_per_refusal: f64,
    descent_percent: u32,
    knows_starting: bool,
    quiet_time: Duration,
    max_pods: u32,
    /// Time from which on pods may be removed.
    next_descent: Time,
}

impl RefusalScaler {
    pub(super) fn new(settings: &DaySettings) -> Self {
        Self {
            pods_per_refusal: settings.service.as_secs_f64() / f64::from(settings.slots()),
            descent_percent: settings.scaler.descent_percent,
            knows_starting: settings.scaler.kind == ScalerKind::Refusals,
            quiet_time: settings.scaler.stabilization,
            max_pods: settings.scaler.max_pods,
            next_descent: Time::ZERO + settings.scaler.stabilization,
        }
    }

    pub(super) fn sync(&mut self, input: &ScalerInput, now: Time) -> u32 {
        if input.refusals > 0.0 {
            self.next_descent = now + self.quiet_time;
            let missing = (input.refusals * self.pods_per_refusal).ceil() as u32;
            let starting = if self.knows_starting { input.pods - input.ready } else { 0 };
            return (input.pods + missing.saturating_sub(starting)).min(self.max_pods);
        }
        if now < self.next_descent {
            return input.pods;
        }
        self.next_descent = now + STEP;
        let fewer = (input.pods * self.descent_percent / 100).max(1);
        (input.pods - fewer).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autoscale::metrics::MetricReading;

    #[test]
    fn script_scales_up_by_rejections_and_down_in_steps() {
        let mut script = RefusalScaler::new(&DaySettings::parse(&["scaler=refusals"]).unwrap());
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let input = |pods, ready, refusals| {
            let metrics = MetricReading::default();
            ScalerInput { pods, ready, refusals, metrics, needed_slots: 0.0 }
        };
        // 100 a second for 0.34 s each are 34 slots, or 9 pods.
        assert_eq!(script.sync(&input(1, 1, 100.0), at(15)), 10);
        assert_eq!(script.sync(&input(10, 1, 100.0), at(30)), 10, "9 are starting");
        assert_eq!(script.sync(&input(10, 4, 100.0), at(45)), 13);
        assert_eq!(script.sync(&input(40, 40, 0.0), at(344)), 40);
        assert_eq!(script.sync(&input(40, 40, 0.0), at(345)), 38);
        assert_eq!(script.sync(&input(38, 38, 0.0), at(390)), 38);
        assert_eq!(script.sync(&input(2, 2, 0.0), at(405)), 1);
        assert_eq!(script.sync(&input(1, 1, 0.0), at(465)), 1);
    }
}
