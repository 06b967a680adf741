//! Estimates how long an endpoint takes to begin a response, and how far it is to be avoided for what went wrong.
//!
//! The estimate is Finagle's peak EWMA: a slower response counts at once, faster ones pull it down over ten seconds,
//! and so does silence, so that an endpoint that was slow is tried again. What failed says nothing about latency:
//! whoever fails fast would look fast and attract the traffic of all (linkerd2#11669). Failures are blame instead,
//! which makes an endpoint look up to 17 times as slow.

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

/// How much slower full blame makes an endpoint look.
const PENALTY: f32 = 16.0;

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

    pub(crate) fn learn(&self, outcome: &Outcome, now: Time) {
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
        let Self { estimate, estimated_at, blame, blamed_at, spared_until } = self;
        estimate.store(0, Ordering::Relaxed);
        blame.store(0, Ordering::Relaxed);
        for time in [estimated_at, blamed_at, spared_until] {
            time.store(0, Ordering::Relaxed);
        }
    }

    fn observe(&self, latency: Duration, now: Time) {
        // Never 0, which stands for nothing.
        let latency = (nanos(latency) as f32).max(1.0);
        let silence = self.silence(now);
        let left = left_of_memory(silence);
        let before = f32::from_bits(self.estimate.load(Ordering::Relaxed)) * left;
        // Every request comes by, and hardly one has news.
        if latency <= before && silence < NEWS {
            return;
        }
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
        let since = now.saturating_since(Time::from_nanos(self.blamed_at.load(Ordering::Relaxed)));
        blame * (1.0 - since.as_secs_f32() / GRUDGE.as_secs_f32()).max(0.0)
    }

    fn silence(&self, now: Time) -> Duration {
        now.saturating_since(Time::from_nanos(self.estimated_at.load(Ordering::Relaxed)))
    }
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
        latency.learn(&success(10), at(0));
        latency.learn(&success(100), at(1));
        assert!((99.0..=100.0).contains(&estimate(&latency, at(1))));
        for now in 2..10_000 {
            latency.learn(&success(10), at(now));
        }
        let after = estimate(&latency, at(10_000));
        // e^-1 of the 90 ms above is left.
        assert!((41.0..45.0).contains(&after), "{after}");
    }

    #[test]
    fn who_was_slow_is_forgotten_in_silence() {
        let latency = Latency::default();
        latency.learn(&success(1_000), at(0));
        assert!(estimate(&latency, at(60_000)) < 20.0);
    }

    #[test]
    fn failures_are_blame_that_decays_in_five_seconds_and_no_latency() {
        let latency = Latency::default();
        latency.learn(&success(10), at(0));
        for _ in 0..20 {
            latency.learn(&outcome(End::ServerError, 1), at(0));
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
        latency.learn(&outcome(End::Broken, 1), at(0));
        assert_eq!(latency.at(at(0)).penalty, 5.0);
        for _ in 0..10 {
            latency.learn(&success(10), at(1));
        }
        assert!(latency.at(at(1)).penalty < 1.3);
    }

    #[test]
    fn retry_after_is_heeded_and_bounded() {
        let refused = |seconds| End::Refused { retry_after: Some(Duration::from_secs(seconds)) };
        let latency = Latency::default();
        latency.learn(&outcome(refused(30), 1), at(0));
        latency.learn(&success(10), at(1));
        assert_eq!(latency.at(at(29_999)).penalty, 17.0);
        assert_eq!(latency.at(at(30_000)).penalty, 1.0);
        latency.learn(&outcome(refused(1_000_000), 1), at(0));
        assert_eq!(latency.at(at(300_000)).penalty, 1.0);
    }

    #[test]
    fn who_leaves_says_nothing() {
        let latency = Latency::default();
        latency.learn(&outcome(End::Unfinished, 1), at(0));
        let Impression { latency, penalty } = latency.at(at(0));
        assert_eq!((latency, penalty), (None, 1.0));
    }
}
