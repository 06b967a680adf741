//! Estimates how long an endpoint takes to begin a response, and how far it is to be avoided for
//! failures.
//!
//! The estimate is Finagle's peak EWMA. A slower response counts at once. Faster responses reduce
//! the estimate over ten seconds, and so does silence, so that an endpoint that was slow is tried
//! again. A failure says nothing about latency: an endpoint that fails fast would look fast and
//! attract the traffic of all (linkerd2#11669). Failures count as blame instead, which makes an
//! endpoint look up to 17 times as slow.
//!
//! Beside the peak there is the mean of the logarithm. One slow response hardly moves it, however
//! slow: a few requests that take very long say nothing about the endpoint. And there is the share
//! of recent attempts that failed. Pickers that choose by load compare these two between endpoints
//! ([`crate::pick`]).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::limit::MAX_BACKOFF;
use crate::outcome::{AttemptResult, Outcome};
use crate::time::{Time, nanos};

/// Time constant of the estimate: after this time, about e^-1 of an observation is left.
const MEMORY: Duration = Duration::from_secs(10);

/// Time until blame ends after the last report about the endpoint.
const BLAME_LIFETIME: Duration = Duration::from_secs(5);

/// Age below which the current estimate is not replaced by an observation that is not slower.
const UPDATE_INTERVAL: Duration = Duration::from_millis(1);

/// Minimum time between two responses that count in the mean, so that hardly any request has to add
/// to it. Half the latency of the response has to pass too, so that requests that waited behind a
/// long one count as one or two.
const SAMPLING: Duration = Duration::from_millis(4);

/// Additional slowness of an endpoint with full blame, as a multiple of its latency.
const PENALTY: f32 = 16.0;

/// Weight of one response in the mean, and that of one after a long silence. With a larger weight,
/// uneven service times would make endpoints look slow (`sim --study`).
const MEAN_SHARE: f32 = 1.0 / 16.0;
const MEAN_SHARE_AFTER_SILENCE: f32 = 1.0 / 4.0;

/// Number of first responses that are not counted in the mean: an endpoint that has started is slow
/// until its caches are filled and its code is compiled.
const COLD_SAMPLES: u32 = 16;

/// Number of responses that make a mean. Until then an endpoint that is slow because it is cold
/// counts as average; and each of the first responses has the same weight.
const MEAN_SAMPLES: u32 = 8;

/// Weight of one attempt in the share of failed attempts.
const FAILURE_SHARE: f32 = 1.0 / 8.0;

/// Estimates for one endpoint, over all workers.
///
/// These are evidence and need not be consistent: each figure is an atomic of its own, and of two
/// reports at the same moment one may be lost. They order no other memory, so they are std's
/// atomics in loom models too.
#[derive(Debug, Default)]
pub(crate) struct LatencyTracker {
    /// Nanoseconds, as bits of an `f32`; 0 if nothing is known.
    estimate: AtomicU32,
    estimated_at: AtomicU64,
    /// From 0 to 1, as bits of an `f32`.
    blame: AtomicU32,
    blamed_at: AtomicU64,
    /// End of the `Retry-After`: until then the blame is full.
    retry_after_until: AtomicU64,
    /// Mean [`logarithm`] of the nanoseconds, as bits of an `f32`; 0 if nothing is known.
    mean: AtomicU32,
    samples: AtomicU32,
    mean_at: AtomicU64,
    /// From 0 to 1, as bits of an `f32`.
    failing: AtomicU32,
    failing_at: AtomicU64,
    /// Time of its last refusal, or of its last response to a client above its quota.
    refused_at: AtomicU64,
}

/// Figures that a picker compares between endpoints that it otherwise chooses by load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MemberStats {
    /// Mean of nanoseconds to the head of a response; `None` before enough responses.
    pub(crate) mean: Option<f32>,
    /// Share of recent attempts that failed, from 0 to 1.
    pub(crate) failure_share: f32,
    /// True if it has refused requests recently.
    pub(crate) has_refused: bool,
}

/// Latency estimate of an endpoint at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatencyEstimate {
    /// Nanoseconds to the head of a response; `None` before the first response.
    pub(crate) latency: Option<f32>,
    /// Factor by which failures make it look slower; 1 or more.
    pub(crate) penalty: f32,
}

impl LatencyTracker {
    pub(crate) fn estimate_at(&self, now: Time) -> LatencyEstimate {
        let estimate = f32::from_bits(self.estimate.load(Ordering::Relaxed));
        let latency = (estimate > 0.0).then(|| estimate * remaining_weight(self.silence(now)));
        LatencyEstimate { latency, penalty: 1.0 + PENALTY * self.blame(now) }
    }

    /// Updates the mean and the share of failures.
    #[inline]
    pub(crate) fn learn_mean(&self, outcome: &Outcome, now: Time) {
        match outcome.result {
            AttemptResult::Success => {
                if self.failing.load(Ordering::Relaxed) != 0 {
                    self.set_failing(self.failing(now) * (1.0 - FAILURE_SHARE), now);
                }
                if let Some(latency) = outcome.head_after
                    && self.is_sample(latency, now)
                {
                    self.observe_mean(latency, now);
                }
            }
            AttemptResult::ServerError
            | AttemptResult::ConnectFailed
            | AttemptResult::TimedOut
            | AttemptResult::ConnectionBroken => {
                let failing = self.failing(now);
                self.set_failing(failing + (1.0 - failing) * FAILURE_SHARE, now);
            }
            // Both come at once: the endpoint must not attract more than its share.
            AttemptResult::Refused { .. } | AttemptResult::RateLimited { .. } => {
                self.refused_at.store(now.as_nanos(), Ordering::Relaxed)
            }
            AttemptResult::Cancelled => {}
        }
    }

    /// Updates the peak estimate and the blame.
    pub(crate) fn learn_peak(&self, outcome: &Outcome, now: Time) {
        match outcome.result {
            AttemptResult::Success => {
                self.reduce_blame(now);
                if let Some(latency) = outcome.head_after {
                    self.observe(latency, now);
                }
            }
            AttemptResult::ServerError
            | AttemptResult::ConnectFailed
            | AttemptResult::TimedOut
            | AttemptResult::ConnectionBroken => {
                let blame = self.blame(now);
                self.set_blame(blame + (1.0 - blame) / 4.0, now);
            }
            AttemptResult::Refused { retry_after } => {
                self.set_blame(1.0, now);
                let until = now + retry_after.unwrap_or_default().min(MAX_BACKOFF);
                self.retry_after_until.fetch_max(until.as_nanos(), Ordering::Relaxed);
            }
            AttemptResult::RateLimited { .. } | AttemptResult::Cancelled => {}
        }
    }

    /// Resets all figures, because the next endpoint that is counted here is another one.
    pub(crate) fn forget(&self) {
        let Self { estimate, estimated_at, blame, blamed_at, retry_after_until: until, .. } = self;
        let Self { mean, samples, mean_at, failing, failing_at, refused_at, .. } = self;
        for level in [estimate, blame, mean, samples, failing] {
            level.store(0, Ordering::Relaxed);
        }
        for time in [estimated_at, blamed_at, until, mean_at, failing_at, refused_at] {
            time.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the figures that pickers compare between endpoints.
    pub(crate) fn stats(&self, now: Time) -> MemberStats {
        let mean = f32::from_bits(self.mean.load(Ordering::Relaxed));
        let is_known = self.samples.load(Ordering::Relaxed) >= COLD_SAMPLES + MEAN_SAMPLES;
        let refused_at = self.refused_at.load(Ordering::Relaxed);
        let since_refusal = now.saturating_since(Time::from_nanos(refused_at));
        MemberStats {
            mean: is_known.then(|| power(mean) * remaining_weight(since(&self.mean_at, now))),
            failure_share: self.failing(now),
            has_refused: refused_at > 0 && since_refusal < BLAME_LIFETIME,
        }
    }

    /// True if a response of this latency counts in the mean.
    #[inline]
    fn is_sample(&self, latency: Duration, now: Time) -> bool {
        // Nearly every response comes soon after the last sample.
        if is_within(SAMPLING, &self.mean_at, now) {
            return false;
        }
        let is_cold = || self.samples.load(Ordering::Relaxed) < COLD_SAMPLES;
        since(&self.mean_at, now) >= latency / 2 || is_cold()
    }

    /// Adds a sample. The caller samples by time and not by latency, so that the mean is unbiased.
    #[cold]
    fn observe_mean(&self, latency: Duration, now: Time) {
        let samples = self.samples.load(Ordering::Relaxed);
        let silence = since(&self.mean_at, now);
        self.samples.store(samples.saturating_add(1), Ordering::Relaxed);
        self.mean_at.store(now.as_nanos(), Ordering::Relaxed);
        let Some(samples) = samples.checked_sub(COLD_SAMPLES) else { return };
        let before = f32::from_bits(self.mean.load(Ordering::Relaxed));
        let latency = logarithm((nanos(latency) as f32).max(1.0));
        let by_silence = (1.0 - remaining_weight(silence)).min(MEAN_SHARE_AFTER_SILENCE);
        let share = by_silence.max(MEAN_SHARE).max(1.0 / (samples as f32 + 1.0));
        let mean = before + (latency - before) * share;
        self.mean.store(mean.to_bits(), Ordering::Relaxed);
    }

    fn failing(&self, now: Time) -> f32 {
        let failing = f32::from_bits(self.failing.load(Ordering::Relaxed));
        if failing == 0.0 {
            return 0.0;
        }
        failing
            * (1.0 - since(&self.failing_at, now).as_secs_f32() / BLAME_LIFETIME.as_secs_f32())
                .max(0.0)
    }

    fn set_failing(&self, failing: f32, now: Time) {
        self.failing.store(failing.to_bits(), Ordering::Relaxed);
        self.failing_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn observe(&self, latency: Duration, now: Time) {
        // Never 0, which means that nothing is known.
        let latency = (nanos(latency) as f32).max(1.0);
        let before = f32::from_bits(self.estimate.load(Ordering::Relaxed));
        // Every request gets here, and hardly any changes the estimate.
        if latency <= before && is_within(UPDATE_INTERVAL, &self.estimated_at, now) {
            return;
        }
        let left = remaining_weight(self.silence(now));
        let before = before * left;
        let estimate = latency.max(before + latency * (1.0 - left));
        self.estimate.store(estimate.to_bits(), Ordering::Relaxed);
        self.estimated_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn reduce_blame(&self, now: Time) {
        let blame = self.blame(now);
        if blame > 0.0 {
            self.set_blame(blame * 0.75, now);
        }
    }

    fn set_blame(&self, blame: f32, now: Time) {
        self.blame.store(blame.to_bits(), Ordering::Relaxed);
        self.blamed_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn blame(&self, now: Time) -> f32 {
        if now.as_nanos() < self.retry_after_until.load(Ordering::Relaxed) {
            return 1.0;
        }
        let blame = f32::from_bits(self.blame.load(Ordering::Relaxed));
        if blame == 0.0 {
            return 0.0;
        }
        blame
            * (1.0 - since(&self.blamed_at, now).as_secs_f32() / BLAME_LIFETIME.as_secs_f32())
                .max(0.0)
    }

    fn silence(&self, now: Time) -> Duration {
        since(&self.estimated_at, now)
    }
}

/// Returns the binary logarithm of a number from 1 on, plus 127, within 0.09: exponent and
/// mantissa, read as one number.
fn logarithm(number: f32) -> f32 {
    number.to_bits() as f32 / MANTISSA
}

/// Returns the number with that logarithm.
fn power(logarithm: f32) -> f32 {
    f32::from_bits((logarithm * MANTISSA) as u32)
}

const MANTISSA: f32 = 8_388_608.0;

/// True if the event has happened, less than `duration` ago.
fn is_within(duration: Duration, then: &AtomicU64, now: Time) -> bool {
    let then = then.load(Ordering::Relaxed);
    then > 0 && now.as_nanos().saturating_sub(then) < duration.as_nanos() as u64
}

fn since(then: &AtomicU64, now: Time) -> Duration {
    now.saturating_since(Time::from_nanos(then.load(Ordering::Relaxed)))
}

/// Returns the weight that is left of an observation: (1 + t/8)^-8, which is within 0.04 of e^-t
/// and needs no exponential.
fn remaining_weight(silence: Duration) -> f32 {
    let once = 1.0 / (1.0 + silence.as_secs_f32() / (8.0 * MEMORY.as_secs_f32()));
    let twice = once * once;
    let four_times = twice * twice;
    four_times * four_times
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn outcome(end: AttemptResult, head_millis: u64) -> Outcome {
        let head_after = Some(Duration::from_millis(head_millis));
        Outcome { started: Time::ZERO, head_after, result: end }
    }

    fn success(head_millis: u64) -> Outcome {
        outcome(AttemptResult::Success, head_millis)
    }

    /// Returns the estimate in milliseconds.
    fn estimate(latency: &LatencyTracker, now: Time) -> f32 {
        latency.estimate_at(now).latency.expect("it has answered") / 1e6
    }

    #[test]
    fn latency_estimate_jumps_to_a_peak_and_decays_slowly() {
        let latency = LatencyTracker::default();
        assert!(latency.estimate_at(at(0)).latency.is_none());
        latency.learn_peak(&success(10), at(0));
        latency.learn_peak(&success(100), at(1));
        assert!((99.0..=100.0).contains(&estimate(&latency, at(1))));
        for now in 2..10_000 {
            latency.learn_peak(&success(10), at(now));
        }
        let after = estimate(&latency, at(10_000));
        // e^-1 of the 90 ms above is left.
        assert!((41.0..45.0).contains(&after), "{after}");
    }

    #[test]
    fn latency_estimate_decays_without_traffic() {
        let latency = LatencyTracker::default();
        latency.learn_peak(&success(1_000), at(0));
        assert!(estimate(&latency, at(60_000)) < 20.0);
    }

    #[test]
    fn failures_add_a_penalty_that_decays_in_five_seconds() {
        let latency = LatencyTracker::default();
        latency.learn_peak(&success(10), at(0));
        for _ in 0..20 {
            latency.learn_peak(&outcome(AttemptResult::ServerError, 1), at(0));
        }
        let shown = |now| latency.estimate_at(at(now));
        assert!((9.9..=10.0).contains(&estimate(&latency, at(0))));
        assert!(shown(0).penalty > 16.9);
        assert!((8.0..10.0).contains(&shown(2_500).penalty));
        assert_eq!(shown(5_000).penalty, 1.0);
    }

    #[test]
    fn single_failure_adds_a_small_penalty_that_successes_remove() {
        let latency = LatencyTracker::default();
        latency.learn_peak(&outcome(AttemptResult::ConnectionBroken, 1), at(0));
        assert_eq!(latency.estimate_at(at(0)).penalty, 5.0);
        for _ in 0..10 {
            latency.learn_peak(&success(10), at(1));
        }
        assert!(latency.estimate_at(at(1)).penalty < 1.3);
    }

    #[test]
    fn retry_after_is_honored_and_bounded() {
        let refused =
            |seconds| AttemptResult::Refused { retry_after: Some(Duration::from_secs(seconds)) };
        let latency = LatencyTracker::default();
        latency.learn_peak(&outcome(refused(30), 1), at(0));
        latency.learn_peak(&success(10), at(1));
        assert_eq!(latency.estimate_at(at(29_999)).penalty, 17.0);
        assert_eq!(latency.estimate_at(at(30_000)).penalty, 1.0);
        latency.learn_peak(&outcome(refused(1_000_000), 1), at(0));
        assert_eq!(latency.estimate_at(at(60_000)).penalty, 1.0);
    }

    #[test]
    fn quota_of_one_client_adds_no_penalty_and_bounds_the_share() {
        let latency = LatencyTracker::default();
        let hour = Some(Duration::from_secs(3600));
        let outcome = outcome(AttemptResult::RateLimited { retry_after: hour }, 1);
        latency.learn_peak(&outcome, at(0));
        latency.learn_mean(&outcome, at(1));
        assert_eq!(latency.estimate_at(at(1)).penalty, 1.0);
        let stats = latency.stats(at(2));
        assert!(stats.has_refused && stats.failure_share == 0.0 && stats.mean.is_none());
    }

    #[test]
    fn concurrent_slow_responses_count_once_in_the_mean() {
        let latency = LatencyTracker::default();
        let learn = |started: u64, ended: u64| {
            let head_after = Some(Duration::from_millis(ended - started));
            let outcome =
                Outcome { started: at(started), head_after, result: AttemptResult::Success };
            latency.learn_mean(&outcome, at(ended));
        };
        let mean = |now| latency.stats(at(now)).mean.expect("enough samples are there") / 1e6;
        (1..=40).for_each(|sample| learn(sample * 20, sample * 20 + 10));
        let before = mean(1_000);
        learn(1_000, 1_200);
        (1..=20).for_each(|waiting| learn(1_000 + waiting, 1_200 + waiting * 10));
        assert!(mean(1_400) < before * 1.6, "{before} ms became {} ms", mean(1_400));
        (0..20).for_each(|sample| learn(1_400 + sample * 200, 1_600 + sample * 200));
        assert!(mean(5_400) > before * 8.0, "{before} ms became {} ms", mean(5_400));
    }

    #[test]
    fn unfinished_request_does_not_change_the_latency_estimate() {
        let latency = LatencyTracker::default();
        latency.learn_peak(&outcome(AttemptResult::Cancelled, 1), at(0));
        let LatencyEstimate { latency, penalty } = latency.estimate_at(at(0));
        assert_eq!((latency, penalty), (None, 1.0));
    }
}
