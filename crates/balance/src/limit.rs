//! Learns how many requests each endpoint can have in flight before more of them only wait there.
//!
//! What is to be found is the knee of throughput against concurrency. An endpoint of `c` servers with `k` requests in
//! flight finishes `min(k, c)` of them in the time that one takes. So each request tells how many were in flight when it
//! was picked, and how long it kept its slot; the limit is the `c` that makes what was seen likeliest.
//!
//! Unlike Vegas and Gradient this keeps no base of latency, so there is nothing that could drift: what is seen in a
//! stretch of time (an epoch) is compared with what is seen in the same stretch only, and when everything gets slower
//! by the same factor, nothing follows. Levels that are not visited tell nothing; so they are visited, in short
//! trials of known cost. `docs/internals/limits.md` has the figures.
//!
//! Workers write down what they see (`LimitCounters`: a few relaxed additions); one control thread makes limits of it
//! (`ConcurrencyLimiter`), ten times a second.

/// Numbers of requests in flight, in steps.
mod levels;
/// What workers have seen of one endpoint, and what it says of itself.
mod counters;
/// What was seen in one stretch of time, and which limits it speaks for.
mod epoch;
/// What is believed of one endpoint.
mod estimator;
/// When which endpoint gets more, or less, than its limit, to see what comes of it.
mod trial;
/// All of it, for the endpoints of one backend.
mod limiter;
/// Endpoints that say that they are full.
mod backoff;

pub(crate) use backoff::RefusalBackoff;
pub use backoff::RetryAfterHandling;
pub use counters::{EndpointLoadReport, LimitCounters, LimitSample};
pub use limiter::ConcurrencyLimiter;

/// The most that can be learned; what is above it is as good as no limit.
pub const MAX_LIMIT: u32 = levels::MOST;

/// Between which bounds limits are learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSettings {
    /// A limit is never below this.
    pub min: u32,
    /// A limit is never above this.
    pub max: u32,
    /// The limit of an endpoint of which nothing is known.
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
}

/// Where a limit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReason {
    /// Nothing is known of the endpoint.
    Start,
    /// No knee has been seen up to here.
    Growing,
    /// Throughput does not grow beyond it.
    Knee,
    /// The endpoint says so ([`EndpointLoadReport`]).
    Reported,
    /// More or less than is believed, for a short time, to see what comes of it.
    Trial,
}

impl LimitReason {
    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Growing => "growing",
            Self::Knee => "knee",
            Self::Reported => "said",
            Self::Trial => "trial",
        }
    }
}
