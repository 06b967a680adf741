//! Events and results of a health evaluation.

use std::net::SocketAddr;
use std::time::Duration;

use crate::health::ejection::EjectionCause;

/// Result of a health evaluation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthEvaluation {
    /// True if [`HealthEvaluator::effective_set`](crate::HealthEvaluator::effective_set) returns
    /// another set than before.
    pub changed: bool,
    /// Events in order, for the log.
    pub events: Vec<HealthEvent>,
}

/// Event of a backend's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthEvent {
    /// Change of one endpoint.
    Endpoint(SocketAddr, HealthChange),
    /// Too few endpoints are usable: from now on health is ignored.
    PanicBegins,
    /// Enough endpoints are usable again.
    PanicEnds,
}

/// Change of an endpoint's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthChange {
    /// It gets no requests for a time.
    Ejected {
        /// Cause of the ejection.
        cause: EjectionCause,
        /// Duration of the ejection.
        lasts: Duration,
    },
    /// The ejection time is over: it gets one request at a time.
    HalfOpened,
    /// It serves again: it served its half-open request, or it is needed because of a panic or
    /// because the set has shrunk. Or it is unreachable, which keeps requests away by itself.
    Unejected,
    /// Probes find it unhealthy.
    ProbesFail,
    /// Probes find it healthy again.
    ProbesSucceed,
}
