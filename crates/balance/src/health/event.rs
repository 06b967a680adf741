//! What is told of a judgement.

use std::net::SocketAddr;
use std::time::Duration;

use crate::health::ejection::EjectionCause;

/// What has changed by a judgement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthEvaluation {
    /// Whether [`HealthEvaluator::effective_set`](crate::HealthEvaluator::effective_set) gives another set than before.
    pub changed: bool,
    /// What happened, in order, for the log.
    pub events: Vec<HealthEvent>,
}

/// Something that happened to a backend's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthEvent {
    /// To one endpoint.
    Endpoint(SocketAddr, HealthChange),
    /// Too few endpoints are usable: from now on health is ignored.
    PanicBegins,
    /// Enough endpoints are usable again.
    PanicEnds,
}

/// What happened to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthChange {
    /// It gets nothing for a time.
    Ejected {
        /// Why.
        cause: EjectionCause,
        /// How long.
        lasts: Duration,
    },
    /// Its time is over: it is tried with one request at a time.
    HalfOpened,
    /// It serves again: it passed its trial, or cannot be spared, in a panic or because the set has shrunk. Or it cannot
    /// be reached, which keeps requests away by itself.
    Unejected,
    /// Probes say that it is not fit to serve.
    ProbesFail,
    /// Probes say that it is fit again.
    ProbesSucceed,
}
