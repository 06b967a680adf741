//! Activation by KEDA: the first pod as soon as there is demand, no pod after a time without any.
//!
//! Between the two its HorizontalPodAutoscaler scales. Source: KEDA's documentation, "Scaling
//! Deployments", and `scale_scaledobjects.go`.

use balance::Time;

use crate::autoscale::settings::KedaSettings;

pub(super) struct KedaActivation {
    settings: KedaSettings,
    /// Last time with demand.
    active_at: Time,
    polled_at: Time,
}

impl KedaActivation {
    pub(super) fn new(settings: KedaSettings) -> Self {
        Self { settings, active_at: Time::ZERO, polled_at: Time::ZERO }
    }

    /// Returns the desired number of pods if it changes.
    pub(super) fn activate(&mut self, pods: u32, has_demand: bool, now: Time) -> Option<u32> {
        // Pushed demand is known at once, other demand when KEDA polls.
        if now.saturating_since(self.polled_at) < self.settings.polling {
            return None;
        }
        self.polled_at = now;
        if has_demand {
            self.active_at = now;
            return (pods == 0).then_some(1);
        }
        let is_cold = now.saturating_since(self.active_at) >= self.settings.cooldown;
        (is_cold && pods > 0).then_some(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn activation(polling: u64) -> KedaActivation {
        let [polling, cooldown] = [polling, 300].map(Duration::from_secs);
        KedaActivation::new(KedaSettings { polling, cooldown })
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn pushed_demand_starts_a_pod_at_once_and_a_cold_deployment_has_none() {
        let mut keda = activation(0);
        assert_eq!(keda.activate(0, true, at(1)), Some(1));
        assert_eq!(keda.activate(1, true, at(2)), None);
        assert_eq!(keda.activate(7, false, at(301)), None);
        assert_eq!(keda.activate(7, false, at(302)), Some(0));
        assert_eq!(keda.activate(0, false, at(303)), None);
    }

    #[test]
    fn polled_demand_waits_for_the_interval() {
        let mut keda = activation(30);
        assert_eq!(keda.activate(0, true, at(29)), None);
        assert_eq!(keda.activate(0, true, at(30)), Some(1));
        assert_eq!(keda.activate(0, true, at(31)), None);
        assert_eq!(keda.activate(0, true, at(60)), Some(1));
    }
}
