//! Estimates how long an endpoint takes to begin a response, and how far it is to be avoided for what went wrong.
//!
//! The estimate is Finagle's peak EWMA: a slower response counts at once, faster ones pull it down over ten seconds,
//! and so does silence, so that an endpoint that was slow is tried again. What failed says nothing about latency:
//! whoever fails fast would look fast and attract the traffic of all (linkerd2#11669). Failures are blame instead,
//! which makes an endpoint look up to 17 times as slow.
//!
//! Beside the peak there is the mean of the logarithm, which one slow response hardly moves, however slow: where a few
//! requests take very long, that says nothing of the endpoint. And there is the share of recent attempts that failed.
//! Pickers that go by load compare those between endpoints ([`crate::pick`]).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::outcome::{End, Outcome};
use crate::time::{Time, nanos};

/// How long an observation has weight: after this, what is left of it is about e^-1.
const MEMORY: Duration = Duration::from_secs(10);

/// How long blame lasts after the last news of the endpoint.
const GRUDGE: Duration = Duration::from_secs(5);

/// The longest `Retry-After` that is heeded.
const SPARED_AT_MOST: Duration = Duration::from_secs(300);

/// News that is younger than this and no slower adds nothing.
const NEWS: Duration = Duration::from_millis(1);

/// The least time between two responses that count in the mean: hardly any request has to add to it. Half the latency of
/// the response has to pass too, so that requests which waited behind a long one count as one or two.
const SAMPLING: Duration = Duration::from_millis(4);

/// How much slower full blame makes an endpoint look.
const PENALTY: f32 = 16.0;

/// The weight of one response in the mean, and that of one after a long silence. With a larger one, uneven service times
/// would make endpoints look slow (`sim --study`).
const MEAN_SHARE: f32 = 1.0 / 16.0;
const MEAN_SHARE_AFTER_SILENCE: f32 = 1.0 / 4.0;

/// So many responses at first are not counted in the mean: an endpoint that has started is slow until its caches are filled
/// and its code is compiled.
const COLD_SAMPLES: u32 = 16;

/// So many responses make a mean. Until then an endpoint that is cold, and slow for that, counts as usual; and each of
/// the first ones weighs the same.
const MEAN_SAMPLES: u32 = 8;

/// The weight of one attempt in the share of those that failed.
const FAILURE_SHARE: f32 = 1.0 / 8.0;

/// One endpoint's estimate, over all workers.
///
/// Evidence, not a balance: each figure is an atomic of its own, and of two reports at the same moment one may be lost.
/// No other memory is ordered by these, so they are std's atomics in models too.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    /// Nanoseconds, as bits of an `f32`; 0: nothing is known.
    estimate: AtomicU32,
    estimated_at: AtomicU64,
    /// From 0 to 1, as bits of an `f32`.
    blame: AtomicU32,
    blamed_at: AtomicU64,
    /// `Retry-After`: until then the blame is full.
    spared_until: AtomicU64,
    /// The mean [`logarithm`] of the nanoseconds, as bits of an `f32`; 0: nothing is known.
    mean: AtomicU32,
    samples: AtomicU32,
    mean_at: AtomicU64,
    /// From 0 to 1, as bits of an `f32`.
    failing: AtomicU32,
    failing_at: AtomicU64,
    /// When it last refused a request because it had too much to do.
    refused_at: AtomicU64,
}

/// What a picker compares between endpoints that it otherwise chooses by load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Showing {
    /// Nanoseconds to the head of a response, on the average; `None`: it has given none yet.
    pub(crate) mean: Option<f32>,
    /// The share of recent attempts that failed, from 0 to 1.
    pub(crate) failing: f32,
    /// It has refused requests lately.
    pub(crate) refuses: bool,
}

/// What is to be thought of an endpoint at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Impression {
    /// Nanoseconds to the head of a response; `None`: it has given none yet.
    pub(crate) latency: Option<f32>,
    /// How much slower to take it for; 1 or more.
    pub(crate) penalty: f32,
}

impl Latency {
    pub(crate) fn at(&self, now: Time) -> Impression {
        let estimate = f32::from_bits(self.estimate.load(Ordering::Relaxed));
        let latency = (estimate > 0.0).then(|| estimate * left_of_memory(self.silence(now)));
        Impression { latency, penalty: 1.0 + PENALTY * self.blame(now) }
    }

    /// Takes note of what pickers compare.
    #[inline]
    pub(crate) fn learn_usual(&self, outcome: &Outcome, now: Time) {
        match outcome.end {
            End::Success => {
                if self.failing.load(Ordering::Relaxed) != 0 {
                    self.set_failing(self.failing(now) * (1.0 - FAILURE_SHARE), now);
                }
                if let Some(latency) = outcome.head_after
                    && self.is_sample(latency, now)
                {
                    self.observe_mean(latency, now);
                }
            }
            End::ServerError | End::ConnectFailed | End::TimedOut | End::Broken => {
                let failing = self.failing(now);
                self.set_failing(failing + (1.0 - failing) * FAILURE_SHARE, now);
            }
            End::Refused { .. } => self.refused_at.store(now.as_nanos(), Ordering::Relaxed),
            End::Unfinished => {}
        }
    }

    /// Takes note of peaks, and of what is blamed on the endpoint.
    pub(crate) fn learn_peak(&self, outcome: &Outcome, now: Time) {
        match outcome.end {
            End::Success => {
                self.forgive(now);
                if let Some(latency) = outcome.head_after {
                    self.observe(latency, now);
                }
            }
            End::ServerError | End::ConnectFailed | End::TimedOut | End::Broken => {
                let blame = self.blame(now);
                self.set_blame(blame + (1.0 - blame) / 4.0, now);
            }
            End::Refused { retry_after } => {
                self.set_blame(1.0, now);
                let until = now + retry_after.unwrap_or_default().min(SPARED_AT_MOST);
                self.spared_until.fetch_max(until.as_nanos(), Ordering::Relaxed);
            }
            End::Unfinished => {}
        }
    }

    /// Nobody knows the next endpoint that is counted here.
    pub(crate) fn forget(&self) {
        let Self { estimate, estimated_at, blame, blamed_at, spared_until, .. } = self;
        let Self { mean, samples, mean_at, failing, failing_at, refused_at, .. } = self;
        for level in [estimate, blame, mean, samples, failing] {
            level.store(0, Ordering::Relaxed);
        }
        for time in [estimated_at, blamed_at, spared_until, mean_at, failing_at, refused_at] {
            time.store(0, Ordering::Relaxed);
        }
    }

    /// What it has shown lately, as pickers compare it between endpoints.
    pub(crate) fn showing(&self, now: Time) -> Showing {
        let mean = f32::from_bits(self.mean.load(Ordering::Relaxed));
        let is_known = self.samples.load(Ordering::Relaxed) >= COLD_SAMPLES + MEAN_SAMPLES;
        let refused_at = self.refused_at.load(Ordering::Relaxed);
        let since_refusal = now.saturating_since(Time::from_nanos(refused_at));
        Showing {
            mean: is_known.then(|| power(mean) * left_of_memory(since(&self.mean_at, now))),
            failing: self.failing(now),
            refuses: refused_at > 0 && since_refusal < GRUDGE,
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

    /// Adds a sample. The caller takes one now and then, whatever its size, so that the mean is one.
    #[cold]
    fn observe_mean(&self, latency: Duration, now: Time) {
        let samples = self.samples.load(Ordering::Relaxed);
        let silence = since(&self.mean_at, now);
        self.samples.store(samples.saturating_add(1), Ordering::Relaxed);
        self.mean_at.store(now.as_nanos(), Ordering::Relaxed);
        let Some(samples) = samples.checked_sub(COLD_SAMPLES) else { return };
        let before = f32::from_bits(self.mean.load(Ordering::Relaxed));
        let latency = logarithm((nanos(latency) as f32).max(1.0));
        let by_silence = (1.0 - left_of_memory(silence)).min(MEAN_SHARE_AFTER_SILENCE);
        let share = by_silence.max(MEAN_SHARE).max(1.0 / (samples as f32 + 1.0));
        let mean = before + (latency - before) * share;
        self.mean.store(mean.to_bits(), Ordering::Relaxed);
    }

    fn failing(&self, now: Time) -> f32 {
        let failing = f32::from_bits(self.failing.load(Ordering::Relaxed));
        if failing == 0.0 {
            return 0.0;
        }
        failing * (1.0 - since(&self.failing_at, now).as_secs_f32() / GRUDGE.as_secs_f32()).max(0.0)
    }

    fn set_failing(&self, failing: f32, now: Time) {
        self.failing.store(failing.to_bits(), Ordering::Relaxed);
        self.failing_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn observe(&self, latency: Duration, now: Time) {
        // Never 0, which stands for nothing.
        let latency = (nanos(latency) as f32).max(1.0);
        let before = f32::from_bits(self.estimate.load(Ordering::Relaxed));
        // Every request comes by, and hardly one has news.
        if latency <= before && is_within(NEWS, &self.estimated_at, now) {
            return;
        }
        let left = left_of_memory(self.silence(now));
        let before = before * left;
        let estimate = latency.max(before + latency * (1.0 - left));
        self.estimate.store(estimate.to_bits(), Ordering::Relaxed);
        self.estimated_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn forgive(&self, now: Time) {
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
        if now.as_nanos() < self.spared_until.load(Ordering::Relaxed) {
            return 1.0;
        }
        let blame = f32::from_bits(self.blame.load(Ordering::Relaxed));
        if blame == 0.0 {
            return 0.0;
        }
        blame * (1.0 - since(&self.blamed_at, now).as_secs_f32() / GRUDGE.as_secs_f32()).max(0.0)
    }

    fn silence(&self, now: Time) -> Duration {
        since(&self.estimated_at, now)
    }
}

/// The binary logarithm of a number from 1 on, within 0.09, and 127: exponent and mantissa, read as one number.
fn logarithm(number: f32) -> f32 {
    number.to_bits() as f32 / MANTISSA
}

/// The number with that logarithm.
fn power(logarithm: f32) -> f32 {
    f32::from_bits((logarithm * MANTISSA) as u32)
}

const MANTISSA: f32 = 8_388_608.0;

/// Whether something has happened, less than this ago.
fn is_within(duration: Duration, then: &AtomicU64, now: Time) -> bool {
    let then = then.load(Ordering::Relaxed);
    then > 0 && now.as_nanos().saturating_sub(then) < duration.as_nanos() as u64
}

fn since(then: &AtomicU64, now: Time) -> Duration {
    now.saturating_since(Time::from_nanos(then.load(Ordering::Relaxed)))
}

/// What is left of an observation: (1 + t/8)^-8, which is within 0.04 of e^-t and costs no exponential.
fn left_of_memory(silence: Duration) -> f32 {
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

    fn outcome(end: End, head_millis: u64) -> Outcome {
        let head_after = Some(Duration::from_millis(head_millis));
        Outcome { started: Time::ZERO, head_after, end }
    }

    fn success(head_millis: u64) -> Outcome {
        outcome(End::Success, head_millis)
    }

    /// Milliseconds.
    fn estimate(latency: &Latency, now: Time) -> f32 {
        latency.at(now).latency.expect("it has answered") / 1e6
    }

    #[test]
    fn the_estimate_jumps_to_a_peak_and_comes_down_slowly() {
        let latency = Latency::default();
        assert!(latency.at(at(0)).latency.is_none());
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
    fn who_was_slow_is_forgotten_in_silence() {
        let latency = Latency::default();
        latency.learn_peak(&success(1_000), at(0));
        assert!(estimate(&latency, at(60_000)) < 20.0);
    }

    #[test]
    fn failures_are_blame_that_decays_in_five_seconds_and_no_latency() {
        let latency = Latency::default();
        latency.learn_peak(&success(10), at(0));
        for _ in 0..20 {
            latency.learn_peak(&outcome(End::ServerError, 1), at(0));
        }
        let shown = |now| latency.at(at(now));
        assert!((9.9..=10.0).contains(&estimate(&latency, at(0))));
        assert!(shown(0).penalty > 16.9);
        assert!((8.0..10.0).contains(&shown(2_500).penalty));
        assert_eq!(shown(5_000).penalty, 1.0);
    }

    #[test]
    fn one_failure_weighs_little_and_successes_make_up_for_it() {
        let latency = Latency::default();
        latency.learn_peak(&outcome(End::Broken, 1), at(0));
        assert_eq!(latency.at(at(0)).penalty, 5.0);
        for _ in 0..10 {
            latency.learn_peak(&success(10), at(1));
        }
        assert!(latency.at(at(1)).penalty < 1.3);
    }

    #[test]
    fn retry_after_is_heeded_and_bounded() {
        let refused = |seconds| End::Refused { retry_after: Some(Duration::from_secs(seconds)) };
        let latency = Latency::default();
        latency.learn_peak(&outcome(refused(30), 1), at(0));
        latency.learn_peak(&success(10), at(1));
        assert_eq!(latency.at(at(29_999)).penalty, 17.0);
        assert_eq!(latency.at(at(30_000)).penalty, 1.0);
        latency.learn_peak(&outcome(refused(1_000_000), 1), at(0));
        assert_eq!(latency.at(at(300_000)).penalty, 1.0);
    }

    #[test]
    fn responses_that_waited_behind_a_long_one_count_once_in_the_mean() {
        let latency = Latency::default();
        let learn = |started: u64, ended: u64| {
            let head_after = Some(Duration::from_millis(ended - started));
            let outcome = Outcome { started: at(started), head_after, end: End::Success };
            latency.learn_usual(&outcome, at(ended));
        };
        let mean = |now| latency.showing(at(now)).mean.expect("enough samples are there") / 1e6;
        (1..=40).for_each(|sample| learn(sample * 20, sample * 20 + 10));
        let before = mean(1_000);
        learn(1_000, 1_200);
        (1..=20).for_each(|waiting| learn(1_000 + waiting, 1_200 + waiting * 10));
        assert!(mean(1_400) < before * 1.6, "{before} ms became {} ms", mean(1_400));
        (0..20).for_each(|sample| learn(1_400 + sample * 200, 1_600 + sample * 200));
        assert!(mean(5_400) > before * 8.0, "{before} ms became {} ms", mean(5_400));
    }

    #[test]
    fn who_leaves_says_nothing() {
        let latency = Latency::default();
        latency.learn_peak(&outcome(End::Unfinished, 1), at(0));
        let Impression { latency, penalty } = latency.at(at(0));
        assert_eq!((latency, penalty), (None, 1.0));
    }
}
