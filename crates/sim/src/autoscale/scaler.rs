//! Decides how many pods there are to be, from what it sees every few seconds.

use balance::Time;

use super::settings::{DaySettings, ScalerKind};

/// Kubernetes' HorizontalPodAutoscaler.
mod hpa;
/// A script that reads how many requests are refused.
mod script;

use hpa::HpaScaler;
use script::RefusalScaler;

/// What can be seen of the deployment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScalerInput {
    /// Pods, starting ones included.
    pub(crate) pods: u32,
    /// Those that are ready.
    pub(crate) ready: u32,
    /// What is in flight and queued and was refused, averaged over the window.
    pub(crate) demand: f64,
    /// What is in flight, averaged over the window.
    pub(crate) in_flight: f64,
    /// How much of the slots of ready pods is in use, averaged over the window.
    pub(crate) utilization: f64,
    /// Requests refused per second since the last look.
    pub(crate) refusals: f64,
    /// What the requests of the next second will keep busy, in slots.
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

    /// How many pods there are to be from now on.
    pub(crate) fn sync(&mut self, sight: &ScalerInput, now: Time) -> u32 {
        match self {
            Self::Hpa(hpa) => hpa.sync(sight, now),
            Self::Script(script) => script.sync(sight, now),
        }
    }
}
