//! What is known of one endpoint of a backend.

use std::net::SocketAddr;

use crate::health::ejection::{Ejection, Standing};
use crate::health::outlier::Totals;
use crate::health::probe::Probe;
use crate::health::settings::HealthSettings;
use crate::health::slow_start::share_percent;
use crate::time::Time;

/// How an endpoint stands, to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Where it stands between ejection and serving.
    pub standing: Standing,
    /// Whether probes find it fit; as long as there are none, it is.
    pub fit: bool,
    /// The share of its weight in a hundred that its slow start allows.
    pub share_percent: u32,
}

/// What is known of one endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) address: SocketAddr,
    /// As configured.
    pub(crate) weight: u32,
    pub(crate) ejection: Ejection,
    /// When it began to serve, if it has to start slowly.
    pub(crate) started: Option<Time>,
    /// If endpoints are probed.
    pub(crate) probe: Option<Probe>,
    /// What had come of its requests when success rates were compared last; `None`: it was not there.
    pub(crate) seen: Option<Totals>,
}

impl Case {
    pub(crate) fn new(address: SocketAddr, started: Option<Time>) -> Self {
        Self { address, weight: 0, ejection: Ejection::default(), started, probe: None, seen: None }
    }

    fn is_fit(&self) -> bool {
        self.probe.is_none_or(|probe| probe.is_fit())
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.ejection.is_serving() && self.is_fit()
    }

    /// When it was given its trial, if it is on trial. While probes find it unfit, it is not tried.
    pub(crate) fn trial(&self) -> Option<Time> {
        self.ejection.trial().filter(|_| self.is_fit())
    }

    /// Ejected or tried, and missed for it: an endpoint without a weight is not.
    pub(crate) fn is_ejected(&self) -> bool {
        self.weight > 0 && !self.ejection.is_serving()
    }

    pub(crate) fn share_percent(&self, settings: &HealthSettings, now: Time) -> u32 {
        match (&settings.slow_start, self.started) {
            (Some(slow_start), Some(started)) => {
                share_percent(slow_start, now.saturating_since(started))
            }
            (Some(_) | None, Some(_) | None) => 100,
        }
    }

    pub(crate) fn condition(&self, settings: &HealthSettings, now: Time) -> Condition {
        Condition {
            standing: self.ejection.standing(),
            fit: self.is_fit(),
            share_percent: self.share_percent(settings, now),
        }
    }
}
