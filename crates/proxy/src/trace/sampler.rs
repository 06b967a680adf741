//! The choice of the requests that are traced: by the client's decision, by a share, and afterwards those that were slow
//! or failed.
//!
//! Clients are not trusted. A client can ask for traces of all of its requests, so there is a limit per second; slow and
//! failed requests have one of their own.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::time::Duration;

use balance::Time;

use super::parent::{IncomingContext, ParentDecision};
use super::span::TraceId;

/// Time whose traces may come at once, as long as there were none before.
const BURST: Duration = Duration::from_secs(1);
/// Number of different values by which a trace ID is sampled.
const RANDOM_VALUES: f64 = (1u64 << 56) as f64;

/// The rules by which requests are chosen.
#[derive(Clone, Debug)]
pub struct TraceSampling {
    /// Share of requests that are traced, unless their clients have decided: 0 to 1.
    pub share: f64,
    /// True if the decision that a client sends with its trace context is followed.
    pub honours_parent: bool,
    /// Duration from which a request is traced in any case.
    pub slow_after: Option<Duration>,
    /// True if a request is traced in any case if it failed.
    pub traces_failed: bool,
    /// Maximum number of traces per second of the whole process; and again of slow and failed requests.
    pub max_per_second: NonZeroU32,
}

/// The reason for which a request is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TraceReason {
    Parent,
    Share,
    Slow,
    Failed,
}

impl TraceReason {
    pub(crate) const ALL: [Self; 4] = [Self::Parent, Self::Share, Self::Slow, Self::Failed];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Parent => "parent",
            Self::Share => "share",
            Self::Slow => "slow",
            Self::Failed => "failed",
        }
    }
}

/// The result of sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SamplingResult {
    Traced(TraceReason),
    NotTraced,
    /// The request would be traced if there were not too many traces.
    Limited,
}

/// The sampler of a worker, with its part of the limits.
pub(super) struct TraceSampler {
    /// Trace IDs whose random part is less are sampled.
    threshold: u64,
    rules: TraceSampling,
    started: TracePacer,
    kept: TracePacer,
}

impl TraceSampler {
    pub(super) fn new(rules: TraceSampling, workers: usize) -> Self {
        let threshold = (rules.share.clamp(0.0, 1.0) * RANDOM_VALUES) as u64;
        let pacer = || TracePacer::new(rules.max_per_second, workers);
        let (started, kept) = (pacer(), pacer());
        Self { threshold, rules, started, kept }
    }

    /// Decides at the start of a request. `own` is a random ID that the client does not know.
    pub(super) fn begin(
        &self,
        incoming: &IncomingContext,
        own: TraceId,
        now: Time,
    ) -> SamplingResult {
        let (decision, trace) = match self.rules.honours_parent {
            true => (incoming.decision, incoming.parent.map_or(own, |(trace, _)| trace)),
            // A client that chooses the trace ID would choose the result.
            false => (ParentDecision::Deferred, own),
        };
        let reason = match decision {
            ParentDecision::Sampled => TraceReason::Parent,
            ParentDecision::Deferred if trace.random_part() < self.threshold => TraceReason::Share,
            ParentDecision::Deferred | ParentDecision::NotSampled => {
                return SamplingResult::NotTraced;
            }
        };
        limited(&self.started, reason, now)
    }

    /// Decides at the end of a request that was not chosen at its start.
    pub(super) fn end(&self, duration: Duration, is_failed: bool, now: Time) -> SamplingResult {
        let reason = if is_failed && self.rules.traces_failed {
            TraceReason::Failed
        } else if self.rules.slow_after.is_some_and(|slow_after| duration >= slow_after) {
            TraceReason::Slow
        } else {
            return SamplingResult::NotTraced;
        };
        limited(&self.kept, reason, now)
    }

    /// True if the end of a request may cause it to be traced.
    pub(super) fn decides_at_end(&self) -> bool {
        self.rules.traces_failed || self.rules.slow_after.is_some()
    }
}

fn limited(pacer: &TracePacer, reason: TraceReason, now: Time) -> SamplingResult {
    if pacer.take(now) { SamplingResult::Traced(reason) } else { SamplingResult::Limited }
}

/// A limit of traces per second, for one thread.
struct TracePacer {
    /// Time between two traces.
    interval: Duration,
    /// Time at which the next trace would be due, if they came at the maximum rate.
    next: Cell<Time>,
}

impl TracePacer {
    fn new(max_per_second: NonZeroU32, workers: usize) -> Self {
        let interval = Duration::from_secs(workers as u64) / max_per_second.get();
        Self { interval, next: Cell::new(Time::ZERO) }
    }

    fn take(&self, now: Time) -> bool {
        let next = self.next.get().max(now);
        if next.saturating_since(now) > BURST.saturating_sub(self.interval) {
            return false;
        }
        self.next.set(next + self.interval);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::span::SpanId;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rules(share: f64) -> TraceSampling {
        let max_per_second = NonZeroU32::new(1_000_000).unwrap();
        let (honours_parent, traces_failed, slow_after) = (true, true, Some(SECOND));
        TraceSampling { share, honours_parent, slow_after, traces_failed, max_per_second }
    }

    fn begun(rules: TraceSampling, decision: ParentDecision, last: u8) -> SamplingResult {
        let incoming = IncomingContext { decision, ..IncomingContext::default() };
        let mut id = [0; 16];
        id[9] = last;
        TraceSampler::new(rules, 1).begin(&incoming, TraceId(id), Time::ZERO)
    }

    #[test]
    fn parent_decides_before_the_share() {
        let traced = |reason| SamplingResult::Traced(reason);
        let (sampled, deferred) = (ParentDecision::Sampled, ParentDecision::Deferred);
        assert_eq!(begun(rules(0.0), sampled, 1), traced(TraceReason::Parent));
        assert_eq!(begun(rules(1.0), ParentDecision::NotSampled, 0), SamplingResult::NotTraced);
        assert_eq!(begun(rules(1.0), deferred, 255), traced(TraceReason::Share));
        assert_eq!(begun(rules(0.0), deferred, 0), SamplingResult::NotTraced);
        // A quarter: the first byte of the random part is below 64.
        assert_eq!(begun(rules(0.25), deferred, 63), traced(TraceReason::Share));
        assert_eq!(begun(rules(0.25), deferred, 64), SamplingResult::NotTraced);
        let alone = TraceSampling { honours_parent: false, ..rules(0.25) };
        assert_eq!(begun(alone.clone(), sampled, 64), SamplingResult::NotTraced);
        assert_eq!(begun(alone, ParentDecision::NotSampled, 0), traced(TraceReason::Share));
    }

    #[test]
    fn client_cannot_choose_the_result_by_its_trace_id_if_its_decision_does_not_count() {
        let ids = [TraceId([0; 16]), TraceId([255; 16])];
        let begun = |honours_parent, own, parent| {
            let parent = Some((parent, SpanId([1; 8])));
            let incoming = IncomingContext { parent, ..IncomingContext::default() };
            let rules = TraceSampling { honours_parent, ..rules(0.25) };
            TraceSampler::new(rules, 1).begin(&incoming, own, Time::ZERO)
        };
        let traced = SamplingResult::Traced(TraceReason::Share);
        for client in ids {
            assert_eq!(begun(false, ids[0], client), traced);
            assert_eq!(begun(false, ids[1], client), SamplingResult::NotTraced);
        }
        // A deferred decision is made by the ID of the trace, so that all proxies make the same.
        for own in ids {
            assert_eq!(begun(true, own, ids[0]), traced);
            assert_eq!(begun(true, own, ids[1]), SamplingResult::NotTraced);
        }
    }

    #[test]
    fn slow_and_failed_requests_are_traced_afterwards() {
        let sampler = TraceSampler::new(rules(0.0), 1);
        let end = |duration, is_failed| sampler.end(duration, is_failed, Time::ZERO);
        assert_eq!(end(SECOND, false), SamplingResult::Traced(TraceReason::Slow));
        assert_eq!(end(Duration::ZERO, true), SamplingResult::Traced(TraceReason::Failed));
        assert_eq!(end(SECOND / 2, false), SamplingResult::NotTraced);
        let none = TraceSampling { slow_after: None, traces_failed: false, ..rules(0.0) };
        let sampler = TraceSampler::new(none, 1);
        assert_eq!(sampler.end(SECOND * 9, true, Time::ZERO), SamplingResult::NotTraced);
        assert!(!sampler.decides_at_end());
    }

    #[test]
    fn traces_per_second_are_limited_over_all_workers() {
        for (workers, most) in [(1, 10), (2, 10), (4, 10), (16, 10)] {
            let pacers: Vec<_> = (0..workers)
                .map(|_| TracePacer::new(NonZeroU32::new(most).unwrap(), workers))
                .collect();
            let taken = |from: u64, milliseconds: u64| {
                let times = (from..from + milliseconds)
                    .map(|at| Time::from_nanos(at * 1_000_000))
                    .flat_map(|now| pacers.iter().map(move |pacer| pacer.take(now)));
                times.filter(|taken| *taken).count()
            };
            let most = most as usize;
            let first = taken(1000, 1000);
            assert!(first <= (2 * most).max(workers), "{workers} workers: {first}");
            let later = taken(2000, 10_000);
            let expected = 10 * most;
            assert!(later.abs_diff(expected) <= 2 * workers, "{workers} workers: {later}");
        }
    }
}
