//! Adaptive concurrency: learns how many requests each endpoint can have in flight before
//! additional requests only wait there.
//!
//! The limit is the knee of throughput against concurrency. An endpoint of `c` servers with `k`
//! requests in flight finishes `min(k, c)` of them in the time that one takes. So each request
//! reports how many were in flight when it was picked, and how long it kept its slot. The limit is
//! the `c` with the maximum likelihood for these observations.
//!
//! Unlike Vegas and Gradient, this keeps no baseline latency, so nothing can drift: the
//! observations of a stretch of time (an epoch) are compared only with each other. If everything
//! gets slower by the same factor, the limit does not change. Levels that are not visited give no
//! information; so they are visited, in short trials of known cost. `docs/internals/limits.md` has
//! the figures.
//!
//! Workers record their observations (`LimitCounters`: a few relaxed additions). One control thread
//! computes limits from them (`ConcurrencyLimiter`), ten times a second.

/// Concurrency levels: numbers of requests in flight, in steps.
mod levels;
/// Observations of workers, and load reports of an endpoint.
mod counters;
/// Observations of one stretch of time, and the likelihood of each limit.
mod epoch;
/// Estimate of one endpoint's limit.
mod estimator;
/// Schedule of trials: short times with a higher or lower limit.
mod trial;
/// Message with which replicas share what they have learned.
mod message;
/// Division of a limit among replicas.
mod division;
/// Observations of all replicas over short times.
mod window;
/// Learned limits of several replicas.
mod sharing;
/// Limits of all endpoints of one backend.
mod limiter;
/// Backoff for endpoints that refuse requests because they are full.
mod backoff;
/// Refusals that this replica has seen itself.
mod own_refusal;

pub use backoff::RetryAfterHandling;
pub(crate) use backoff::{MAX_BACKOFF, RefusalBackoff};
pub use counters::{EndpointLoadReport, LimitCounters, LimitSample};
pub use limiter::ConcurrencyLimiter;
pub use message::{
    LIMITS_VERSION, LimitEntry, LimitMessage, LimitRefusal, MAX_LIMIT_ENTRIES, ObservationSums,
    SharedLimit,
};
pub use own_refusal::OwnRefusal;
pub(crate) use own_refusal::OwnRefusals;
pub use sharing::LimitSharing;

/// Highest limit that can be learned; a higher one would be as good as no limit.
pub const MAX_LIMIT: u32 = levels::MOST;

/// Bounds of learned limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSettings {
    /// Minimum limit.
    pub min: u32,
    /// Maximum limit.
    pub max: u32,
    /// Limit of an endpoint without observations.
    pub start: u32,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self { min: 1, max: MAX_LIMIT, start: 8 }
    }
}

impl LimitSettings {
    fn clamp(&self, limit: u32) -> u32 {
        limit.min(self.max).max(self.min)
    }

    /// Returns a reported limit within the bounds; 0 stays 0, which is none.
    fn clamp_reported(&self, limit: u32) -> u32 {
        if limit == 0 { 0 } else { self.clamp(limit) }
    }
}

/// Source of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReason {
    /// No observations of the endpoint yet.
    Start,
    /// No knee has been found up to here.
    Growing,
    /// Throughput does not grow beyond the limit.
    Saturation,
    /// The endpoint reports the limit ([`EndpointLoadReport`]).
    Reported,
    /// More or less than the estimate for a short time, to measure the effect.
    Probing,
}

impl LimitReason {
    /// Returns the label value for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Growing => "growing",
            Self::Saturation => "saturation",
            Self::Reported => "reported",
            Self::Probing => "probing",
        }
    }
}
