//! What is known of one endpoint of a backend.

use std::net::SocketAddr;

use crate::health::ejection::{EjectionState, EjectionTracker};
use crate::health::outlier::AttemptTotals;
use crate::health::probe::ProbeState;
use crate::health::settings::HealthSettings;
use crate::health::slow_start::share_percent;
use crate::time::Time;

/// How an endpoint stands, to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthStatus {
    /// Where it stands between ejection and serving.
    pub ejection: EjectionState,
    /// Whether probes find it fit; as long as there are none, it is.
    pub passes_probes: bool,
    /// The share of its weight in a hundred that its slow start allows.
    pub share_percent: u32,
}

/// What is known of one endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointHealth {
    pub(crate) address: SocketAddr,
    /// As configured.
    pub(crate) weight: u32,
    pub(crate) ejection: EjectionTracker,
    /// When it began to serve, if it has to start slowly.
    pub(crate) slow_start_from: Option<Time>,
    /// If endpoints are probed.
    pub(crate) probe: Option<ProbeState>,
    /// What had come of its requests when success rates were compared last; `None`: it was not there.
    pub(crate) last_totals: Option<AttemptTotals>,
}

impl EndpointHealth {
    pub(crate) fn new(address: SocketAddr, slow_start_from: Option<Time>) -> Self {
        Self {
            address,
            weight: 0,
            ejection: EjectionTracker::default(),
            slow_start_from,
            probe: None,
            last_totals: None,
        }
    }

    fn passes_probes(&self) -> bool {
        self.probe.is_none_or(|probe| probe.passes())
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.ejection.is_serving() && self.passes_probes()
    }

    /// When it was given its trial, if it is on trial. While probes find it unfit, it is not tried.
    pub(crate) fn half_open_since(&self) -> Option<Time> {
        self.ejection.half_open_since().filter(|_| self.passes_probes())
    }

    /// Ejected or tried, and missed for it: an endpoint without a weight is not.
    pub(crate) fn is_ejected(&self) -> bool {
        self.weight > 0 && !self.ejection.is_serving()
    }

    pub(crate) fn share_percent(&self, settings: &HealthSettings, now: Time) -> u32 {
        match (&settings.slow_start, self.slow_start_from) {
            (Some(slow_start), Some(started)) => {
                share_percent(slow_start, now.saturating_since(started))
            }
            (Some(_) | None, Some(_) | None) => 100,
        }
    }

    pub(crate) fn status(&self, settings: &HealthSettings, now: Time) -> HealthStatus {
        HealthStatus {
            ejection: self.ejection.state(),
            passes_probes: self.passes_probes(),
            share_percent: self.share_percent(settings, now),
        }
    }
}
