//! Sets the number of pods, from readings every few seconds.

use balance::Time;

use super::metrics::MetricReading;
use super::settings::{DaySettings, ScalerKind};

/// Kubernetes' HorizontalPodAutoscaler.
mod hpa;
/// KEDA, which starts the first pod and removes the last ones.
mod keda;
/// Script that reads the rate of rejections.
mod script;

use hpa::HpaScaler;
use keda::KedaActivation;
use script::RefusalScaler;

/// Readings of the deployment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScalerInput {
    /// Pods, starting ones included.
    pub(crate) pods: u32,
    /// Ready pods.
    pub(crate) ready: u32,
    pub(crate) metrics: MetricReading,
    /// Requests rejected per second since the last run.
    pub(crate) refusals: f64,
    /// Slots that the requests of the next second will keep busy.
    pub(crate) needed_slots: f64,
}

/// Scaler, with KEDA's activation if that is used.
pub(crate) struct PodScaler {
    algorithm: ScalerAlgorithm,
    keda: Option<KedaActivation>,
}

enum ScalerAlgorithm {
    Hpa(HpaScaler),
    Script(RefusalScaler),
}

impl PodScaler {
    pub(crate) fn new(settings: &DaySettings) -> Self {
        let algorithm = match settings.scaler.kind {
            ScalerKind::Demand | ScalerKind::InFlight | ScalerKind::Busy | ScalerKind::Need => {
                ScalerAlgorithm::Hpa(HpaScaler::new(settings))
            }
            ScalerKind::Refusals | ScalerKind::RefusalsAlone => {
                ScalerAlgorithm::Script(RefusalScaler::new(settings))
            }
        };
        Self { algorithm, keda: settings.scaler.keda.map(KedaActivation::new) }
    }

    /// Returns the desired number of pods.
    pub(crate) fn sync(&mut self, input: &ScalerInput, now: Time) -> u32 {
        match &mut self.algorithm {
            // An autoscaler of a deployment with zero replicas is disabled.
            ScalerAlgorithm::Hpa(_) if input.pods == 0 => 0,
            ScalerAlgorithm::Hpa(hpa) => hpa.sync(input, now),
            ScalerAlgorithm::Script(script) => script.sync(input, now),
        }
    }

    /// Returns the desired number of pods if KEDA changes it this second.
    pub(crate) fn activate(&mut self, pods: u32, has_demand: bool, now: Time) -> Option<u32> {
        self.keda.as_mut().and_then(|keda| keda.activate(pods, has_demand, now))
    }
}
