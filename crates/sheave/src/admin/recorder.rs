//! Samples of the traffic, off the workers: every second while a dashboard asks, else every five seconds for the curves.
//!
//! A sample costs time that grows with the number of endpoints. The interval grows with it, so that sampling never takes
//! more than a small share of one CPU.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use proxy::{Proxy, Time, TrafficSummary, clock};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::history::{
    DURATION_BUCKETS, DurationCounts, HistoryCurve, HistoryRange, IntervalCounts, TrafficHistory,
};

/// Interval of samples while a dashboard asks.
const WATCHED_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of samples otherwise: the finest step of a curve.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum interval.
const MAX_INTERVAL: Duration = Duration::from_secs(30);
/// Time after a question for which a dashboard counts as open.
const WATCH_TIME: Duration = Duration::from_secs(10);
/// Intervals are at least this many times the duration of the last sample: 3 % of a CPU while a dashboard asks.
const WATCHED_COST: u32 = 33;
/// The same without a dashboard: 0.5 % of a CPU.
const IDLE_COST: u32 = 200;

/// Sampler of the traffic of a process, with its curves.
pub(crate) struct TrafficRecorder {
    proxy: Arc<Proxy>,
    started: Time,
    /// Time of the last question, in nanoseconds since the start.
    asked_at: AtomicU64,
    asked: Notify,
    latest: Mutex<Arc<TrafficSample>>,
    history: Mutex<TrafficHistory>,
}

/// Traffic at one time, with the differences from the sample before.
#[derive(Debug, Default)]
pub(super) struct TrafficSample {
    /// Number of the sample; 0: nothing has been sampled yet.
    pub(super) number: u64,
    pub(super) at: Option<SystemTime>,
    taken: Time,
    /// Seconds since the sample before; 0 for the first one.
    pub(super) seconds: f64,
    pub(super) summary: TrafficSummary,
    /// Differences per route and per backend, in the order of `summary`.
    pub(super) routes: Vec<RouteInterval>,
    pub(super) backends: Vec<BackendInterval>,
    /// Accepted connections per listener, and rejected requests per rate limit.
    pub(super) accepted: Vec<u64>,
    pub(super) limited: Vec<u64>,
    pub(super) totals: IntervalCounts,
    pub(super) durations: DurationCounts,
    /// JSON of the overview, made by the first question about this sample.
    pub(super) overview: std::sync::OnceLock<axum::body::Bytes>,
}

/// Requests of a rule in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RouteInterval {
    pub(super) requests: u64,
    pub(super) errors: u64,
    /// Responses 429 and 503 of the slots and the queue.
    pub(super) rejected: u64,
    pub(super) durations: DurationCounts,
}

/// Requests of a backend in one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct BackendInterval {
    pub(super) requests: u64,
    pub(super) failures: u64,
    pub(super) retries: u64,
    pub(super) rejected: Vec<u64>,
}

impl TrafficRecorder {
    pub(crate) fn new(proxy: Arc<Proxy>) -> Arc<Self> {
        Arc::new(Self {
            proxy,
            started: clock::now(),
            asked_at: AtomicU64::new(0),
            asked: Notify::new(),
            latest: Mutex::default(),
            history: Mutex::new(TrafficHistory::new()),
        })
    }

    /// Samples until the task is aborted. The traffic is read on a thread of its own: with many endpoints it takes
    /// longer than the control thread may be busy.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let recorder = Arc::clone(&self);
            let sampled = tokio::task::spawn_blocking(move || recorder.sample()).await;
            let Ok(spent) = sampled else { return };
            if self.is_watched() {
                tokio::time::sleep(interval(WATCHED_INTERVAL, spent * WATCHED_COST)).await;
            } else {
                let interval = interval(IDLE_INTERVAL, spent * IDLE_COST);
                // The first question ends the wait. Then the sample that it gets is not the last one for long.
                drop(timeout(interval, self.asked.notified()).await);
            }
        }
    }

    /// Returns the newest sample, and samples more often for some time.
    pub(super) fn latest(&self) -> Arc<TrafficSample> {
        let was_watched = self.is_watched();
        let since_start = clock::now().saturating_since(self.started).as_nanos();
        self.asked_at.store(u64::try_from(since_start).unwrap_or(u64::MAX), Ordering::Relaxed);
        if !was_watched {
            self.asked.notify_one();
        }
        Arc::clone(&lock(&self.latest))
    }

    /// Returns the curve of all requests, or of a backend; `None`: it is not one of the busiest.
    pub(super) fn curve(&self, backend: Option<&str>, range: HistoryRange) -> Option<HistoryCurve> {
        let now = seconds(clock::now());
        let history = lock(&self.history);
        match backend {
            None => Some(history.totals(range, now, TrafficSummary::duration_bounds())),
            Some(name) => history.backend(name, range, now),
        }
    }

    fn is_watched(&self) -> bool {
        let asked_at = Duration::from_nanos(self.asked_at.load(Ordering::Relaxed));
        asked_at > Duration::ZERO
            && clock::now().saturating_since(self.started).saturating_sub(asked_at) < WATCH_TIME
    }

    /// Takes a sample, and returns the time that it took.
    fn sample(&self) -> Duration {
        let began = clock::now();
        let summary = self.proxy.traffic();
        let last = Arc::clone(&lock(&self.latest));
        let sample = TrafficSample::after(&last, summary, began);
        if sample.seconds > 0.0 {
            let now = seconds(began);
            let backends: Vec<_> = sample.backend_counts().collect();
            let mut history = lock(&self.history);
            history.add_totals(now, sample.seconds, &sample.totals, &sample.durations);
            history.add_backends(now, sample.seconds, &backends);
        }
        *lock(&self.latest) = Arc::new(sample);
        clock::now().saturating_since(began)
    }
}

impl TrafficSample {
    fn after(last: &Self, summary: TrafficSummary, taken: Time) -> Self {
        let seconds = match last.number {
            0 => 0.0,
            _ => taken.saturating_since(last.taken).as_secs_f64(),
        };
        let routes = route_intervals(&last.summary, &summary, last.number > 0);
        let backends = backend_intervals(&last.summary, &summary, last.number > 0);
        let mut durations: DurationCounts = [0; DURATION_BUCKETS];
        for route in &routes {
            for (sum, count) in durations.iter_mut().zip(&route.durations) {
                *sum = sum.saturating_add(*count);
            }
        }
        let unlimited = summary.backends.iter().any(|it| it.slots.is_none() && it.endpoints > 0);
        let slots = summary.backends.iter().filter_map(|it| it.slots);
        let totals = IntervalCounts {
            requests: routes.iter().map(|it| it.requests).sum(),
            errors: routes.iter().map(|it| it.errors).sum(),
            rejected: routes.iter().map(|it| it.rejected).sum(),
            waiting: summary.backends.iter().fold(0, |sum, it| it.waiting.saturating_add(sum)),
            in_flight: summary.backends.iter().fold(0, |sum, it| it.in_flight.saturating_add(sum)),
            slots: (!unlimited).then(|| slots.fold(0, u32::saturating_add)),
            endpoints: summary.backends.iter().fold(0, |sum, it| it.endpoints.saturating_add(sum)),
        };
        let accepted = differences(
            last.summary.listeners.iter().map(|it| (it.name.to_string(), it.accepted)),
            summary.listeners.iter().map(|it| (it.name.to_string(), it.accepted)),
        );
        let limited = differences(
            last.summary.rate_limits.iter().map(|it| ((&it.policy, &it.target), it.rejected)),
            summary.rate_limits.iter().map(|it| ((&it.policy, &it.target), it.rejected)),
        );
        Self {
            number: last.number + 1,
            at: Some(clock::wall()),
            taken,
            seconds,
            routes,
            backends,
            accepted,
            limited,
            totals,
            durations,
            summary,
            overview: std::sync::OnceLock::new(),
        }
    }

    /// Returns the counts of each backend, for its curve.
    fn backend_counts(&self) -> impl Iterator<Item = (Arc<str>, IntervalCounts)> {
        self.summary.backends.iter().zip(&self.backends).map(|(backend, interval)| {
            let counts = IntervalCounts {
                requests: interval.requests,
                errors: interval.failures,
                rejected: interval.rejected.iter().sum(),
                waiting: backend.waiting,
                in_flight: backend.in_flight,
                slots: backend.slots,
                endpoints: backend.endpoints,
            };
            (Arc::clone(&backend.name), counts)
        })
    }

    /// Returns a count of the interval per second.
    pub(super) fn rate(&self, count: u64) -> f64 {
        if self.seconds > 0.0 { count as f64 / self.seconds } else { 0.0 }
    }
}

/// Returns the time in seconds, as curves take it. A day is added, so that the longest curve has all of its points on a
/// machine that was started less than a day ago.
fn seconds(now: Time) -> u64 {
    const DAY_SECONDS: u64 = 86_400;
    now.saturating_since(Time::ZERO).as_secs() + DAY_SECONDS
}

fn interval(usual: Duration, cost: Duration) -> Duration {
    usual.max(cost).min(MAX_INTERVAL)
}

/// Returns the increase of each count; a name that is new begins at 0, unless there is no sample before.
fn differences<K: Eq + std::hash::Hash>(
    before: impl Iterator<Item = (K, u64)>,
    after: impl Iterator<Item = (K, u64)>,
) -> Vec<u64> {
    let before: HashMap<K, u64> = before.collect();
    let is_first = before.is_empty();
    let difference = |(name, count): (K, u64)| match before.get(&name) {
        Some(before) => count.saturating_sub(*before),
        None if is_first => 0,
        None => count,
    };
    after.map(difference).collect()
}

/// Returns the increase of a count; one that is new begins at 0.
fn increase(now: u64, then: Option<u64>) -> u64 {
    now.saturating_sub(then.unwrap_or_default())
}

fn route_intervals(
    before: &TrafficSummary,
    after: &TrafficSummary,
    is_known: bool,
) -> Vec<RouteInterval> {
    let before: HashMap<&str, _> = before.routes.iter().map(|it| (&*it.name, it)).collect();
    let interval = |route: &proxy::RouteTraffic| {
        if !is_known {
            return RouteInterval::default();
        }
        let last = before.get(&*route.name);
        let class =
            |index: usize| increase(route.responses[index], last.map(|last| last.responses[index]));
        let mut durations = [0; DURATION_BUCKETS];
        for (index, (sum, count)) in durations.iter_mut().zip(&route.durations).enumerate() {
            let then = last.and_then(|last| last.durations.get(index)).copied();
            *sum = u32::try_from(increase(*count, then)).unwrap_or(u32::MAX);
        }
        RouteInterval {
            requests: (0..6).map(class).sum::<u64>()
                + increase(route.sessions, last.map(|last| last.sessions)),
            errors: class(5),
            rejected: increase(route.rejected, last.map(|last| last.rejected)),
            durations,
        }
    };
    after.routes.iter().map(interval).collect()
}

fn backend_intervals(
    before: &TrafficSummary,
    after: &TrafficSummary,
    is_known: bool,
) -> Vec<BackendInterval> {
    let before: HashMap<&str, _> = before.backends.iter().map(|it| (&*it.name, it)).collect();
    let interval = |backend: &proxy::BackendTraffic| {
        let last = before.get(&*backend.name);
        if !is_known {
            return BackendInterval {
                rejected: vec![0; backend.rejected.len()],
                ..BackendInterval::default()
            };
        }
        let rejected = backend.rejected.iter().enumerate();
        BackendInterval {
            requests: increase(backend.requests, last.map(|last| last.requests)),
            failures: increase(backend.failures, last.map(|last| last.failures)),
            retries: increase(backend.retries, last.map(|last| last.retries)),
            rejected: rejected
                .map(|(index, count)| {
                    increase(*count, last.and_then(|last| last.rejected.get(index)).copied())
                })
                .collect(),
        }
    };
    after.backends.iter().map(interval).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_a_new_name_begin_at_zero_and_the_first_sample_has_no_rates() {
        assert_eq!(differences([].into_iter(), [("a", 5)].into_iter()), [0]);
        let after = [("a", 7), ("b", 2)].into_iter();
        assert_eq!(differences([("a", 5)].into_iter(), after), [2, 2]);
        // A counter that starts anew, because its object was replaced, does not wrap.
        assert_eq!(differences([("a", 5)].into_iter(), [("a", 1)].into_iter()), [0]);
        assert!(TrafficSample::default().rate(5).abs() < f64::EPSILON);
    }

    #[test]
    fn sampling_takes_a_bounded_share_of_a_cpu() {
        let cheap = Duration::from_micros(100);
        assert_eq!(interval(WATCHED_INTERVAL, cheap * WATCHED_COST), WATCHED_INTERVAL);
        let dear = Duration::from_millis(60);
        assert_eq!(interval(WATCHED_INTERVAL, dear * WATCHED_COST), dear * WATCHED_COST);
        assert_eq!(interval(IDLE_INTERVAL, dear * IDLE_COST), dear * IDLE_COST);
        assert_eq!(interval(IDLE_INTERVAL, Duration::from_secs(9) * IDLE_COST), MAX_INTERVAL);
    }
}
