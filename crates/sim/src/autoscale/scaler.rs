//! Sets the number of pods, from readings every few seconds.

use balance::Time;

use super::settings::{DaySettings, ScalerKind};

/// Kubernetes' HorizontalPodAutoscaler.
mod hpa;
/// Script that reads the rate of rejections.
mod script;

use hpa::HpaScaler;
use script::RefusalScaler;

/// Readings of the deployment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScalerInput {
    /// Pods, starting ones included.
    pub(crate) pods: u32,
    /// Ready pods.
    pub(crate) ready: u32,
    /// Requests in flight, queued and rejected, averaged over the window.
    pub(crate) demand: f64,
    /// Requests in flight, averaged over the window.
    pub(crate) in_flight: f64,
    /// Share of the slots of ready pods that is in use, averaged over the window.
    pub(crate) utilization: f64,
    /// Requests rejected per second since the last run.
    pub(crate) refusals: f64,
    /// Slots that the requests of the next second will keep busy.
    pub(crate) needed_slots: f64,
}

pub(crate) enum PodScaler {
    Hpa(HpaScaler),
    Script(RefusalScaler),
}

impl PodScaler {
    pub(crate) fn new(settings: &DaySettings) -> Self {
        match settings.scaler.kind {
            ScalerKind::Demand | ScalerKind::InFlight | ScalerKind::Busy | ScalerKind::Need => {
                Self::Hpa(HpaScaler::new(settings))
            }
            ScalerKind::Refusals | ScalerKind::RefusalsAlone => {
                Self::Script(RefusalScaler::new(settings))
            }
        }
    }

    /// Returns the desired number of pods.
    pub(crate) fn sync(&mut self, input: &ScalerInput, now: Time) -> u32 {
        match self {
            Self::Hpa(hpa) => hpa.sync(input, now),
            Self::Script(script) => script.sync(input, now),
        }
    }
}
