//! Decides how many pods there are to be, from what it sees every few seconds.

use balance::Time;

use super::settings::{Kind, Settings};

/// Kubernetes' HorizontalPodAutoscaler.
mod hpa;
/// A script that reads how many requests are refused.
mod script;

use hpa::Hpa;
use script::Script;

/// What can be seen of the deployment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    /// Pods, starting ones included.
    pub(crate) pods: u32,
    /// Those that are ready.
    pub(crate) ready: u32,
    /// What is in flight and queued and was refused, averaged over the window.
    pub(crate) demand: f64,
    /// What is in flight, averaged over the window.
    pub(crate) in_flight: f64,
    /// How much of the slots of ready pods is in use, averaged over the window.
    pub(crate) busy: f64,
    /// Requests refused per second since the last look.
    pub(crate) refusals: f64,
    /// What the requests of the next second will keep busy, in slots.
    pub(crate) need: f64,
}

pub(crate) enum Scaler {
    Hpa(Hpa),
    Script(Script),
}

impl Scaler {
    pub(crate) fn new(settings: &Settings) -> Self {
        match settings.scaler.kind {
            Kind::Demand | Kind::InFlight | Kind::Busy | Kind::Need => {
                Self::Hpa(Hpa::new(settings))
            }
            Kind::Refusals | Kind::RefusalsAlone => Self::Script(Script::new(settings)),
        }
    }

    /// How many pods there are to be from now on.
    pub(crate) fn sync(&mut self, sight: &Sight, now: Time) -> u32 {
        match self {
            Self::Hpa(hpa) => hpa.sync(sight, now),
            Self::Script(script) => script.sync(sight, now),
        }
    }
}
