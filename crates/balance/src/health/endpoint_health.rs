//! Health of one endpoint of a backend.

use std::net::SocketAddr;

use crate::health::ejection::{EjectionState, EjectionTracker};
use crate::health::outlier::AttemptTotals;
use crate::health::probe::ProbeState;
use crate::health::settings::{HealthSettings, PassiveSettings};
use crate::health::slow_start::share_percent;
use crate::time::Time;

/// Health of an endpoint, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthStatus {
    /// Ejection state.
    pub ejection: EjectionState,
    /// True if probes find it healthy; also true while there are no probes.
    pub passes_probes: bool,
    /// Percentage of its weight that slow start allows.
    pub share_percent: u32,
}

/// Health of one endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointHealth {
    pub(crate) address: SocketAddr,
    /// Configured weight.
    pub(crate) weight: u32,
    pub(crate) ejection: EjectionTracker,
    /// Time at which it began to serve, if it has to start slowly.
    pub(crate) slow_start_from: Option<Time>,
    /// Probe state, if endpoints are probed.
    pub(crate) probe: Option<ProbeState>,
    /// Totals of its attempts when success rates were last compared; `None` if it was not a member
    /// then.
    pub(crate) last_totals: Option<AttemptTotals>,
    /// End of the time in which fewer failures eject it, because other replicas have ejected it.
    pub(crate) suspected_until: Time,
    /// True if its last ejection needed that.
    pub(crate) was_suspected: bool,
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
            suspected_until: Time::ZERO,
            was_suspected: false,
        }
    }

    /// Returns the number of consecutive failures that eject it now.
    pub(crate) fn ejecting_failures(&self, settings: &PassiveSettings, now: Time) -> u32 {
        let all = settings.consecutive_failures.get();
        if now < self.suspected_until { all.div_ceil(2).max(2).min(all) } else { all }
    }

    fn passes_probes(&self) -> bool {
        self.probe.is_none_or(|probe| probe.passes())
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.ejection.is_serving() && self.passes_probes()
    }

    /// Returns the time of its half-open request, if it is half-open. While probes find it
    /// unhealthy, it gets none.
    pub(crate) fn half_open_since(&self) -> Option<Time> {
        self.ejection.half_open_since().filter(|_| self.passes_probes())
    }

    /// True if it is ejected or half-open and has a weight: an endpoint without a weight is not
    /// missed.
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
