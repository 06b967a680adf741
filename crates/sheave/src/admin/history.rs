//! Curves of the last minutes and hours, in memory that is bounded by construction.
//!
//! Each series is kept at three resolutions. It knows counts per interval; it must not know the data plane.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::Serialize;

/// Number of buckets of durations, those of `sheave_request_duration_seconds`.
pub(super) const DURATION_BUCKETS: usize = 16;
/// Maximum number of backends with curves of their own: the busiest.
const MAX_BACKENDS: usize = 32;
/// Share of the old load that remains in the rank of a backend after one second.
const RANK_DECAY: f64 = 0.98;

/// Length of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryRange {
    TenMinutes,
    TwoHours,
    Day,
}

/// Counts of one interval, of all requests or of one backend.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct IntervalCounts {
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) rejected: u64,
    pub(super) waiting: u32,
    pub(super) in_flight: u32,
    pub(super) slots: Option<u32>,
    pub(super) endpoints: u32,
}

/// Requests by the bucket of their duration.
pub(super) type DurationCounts = [u32; DURATION_BUCKETS];

/// Curves of all requests, and of the busiest backends.
#[derive(Debug)]
pub(super) struct TrafficHistory {
    totals: [HistoryRing<TotalPoint>; HistoryRange::ALL.len()],
    backends: BTreeMap<Arc<str>, BackendCurves>,
}

/// Curves of one backend.
#[derive(Debug)]
struct BackendCurves {
    rings: [HistoryRing<LoadPoint>; HistoryRange::ALL.len()],
    /// Requests per second, as a decaying mean: the least busy backend gives its place to a busier one.
    rank: f64,
}

/// The newest points of a series, at one resolution.
#[derive(Debug)]
struct HistoryRing<P> {
    points: VecDeque<P>,
    /// Number of steps since the start of the clock, of the last point.
    last_step: u64,
    range: HistoryRange,
}

/// Counts of one step of a curve.
#[derive(Clone, Copy, Debug, Default)]
struct LoadPoint {
    /// Part of the step that was measured; 0: nothing is known.
    seconds: f32,
    requests: u32,
    errors: u32,
    rejected: u32,
    /// Maximum of the step.
    waiting: u32,
    /// Sum of the requests in flight, each sample times its seconds.
    in_flight_seconds: f32,
    /// `u32::MAX`: no limit.
    slots: u32,
    endpoints: u32,
}

/// Counts of all requests in one step.
#[derive(Clone, Copy, Debug, Default)]
struct TotalPoint {
    load: LoadPoint,
    durations: DurationCounts,
}

/// A curve as columns, the oldest step first; `null`: nothing is known of the step.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct HistoryCurve {
    step_seconds: u64,
    requests_per_second: Vec<Option<f64>>,
    errors_per_second: Vec<Option<f64>>,
    rejections_per_second: Vec<Option<f64>>,
    waiting: Vec<Option<u32>>,
    in_flight: Vec<Option<f64>>,
    slots: Vec<Option<u32>>,
    endpoints: Vec<Option<u32>>,
    /// Empty for a backend: durations are those of requests, which belong to routes.
    p50_seconds: Vec<Option<f64>>,
    p99_seconds: Vec<Option<f64>>,
}

impl HistoryRange {
    pub(super) const ALL: [Self; 3] = [Self::TenMinutes, Self::TwoHours, Self::Day];

    /// Returns the range with this name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|range| range.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::TenMinutes => "10m",
            Self::TwoHours => "2h",
            Self::Day => "24h",
        }
    }

    /// Seconds between two points.
    const fn step_seconds(self) -> u64 {
        match self {
            Self::TenMinutes => 5,
            Self::TwoHours => 30,
            Self::Day => 300,
        }
    }

    /// Number of points of a curve.
    const fn len(self) -> usize {
        match self {
            Self::TenMinutes => 120,
            Self::TwoHours => 240,
            Self::Day => 288,
        }
    }

    /// Number of points in memory: the last step has not ended, and is not part of the curve.
    const fn kept(self) -> usize {
        self.len() + 1
    }
}

impl TrafficHistory {
    pub(super) fn new() -> Self {
        Self { totals: HistoryRange::ALL.map(HistoryRing::new), backends: BTreeMap::new() }
    }

    /// Adds the counts of an interval that ends at `now`, in seconds of a clock that never goes back.
    pub(super) fn add_totals(
        &mut self,
        now: u64,
        seconds: f64,
        counts: &IntervalCounts,
        durations: &DurationCounts,
    ) {
        for ring in &mut self.totals {
            let point = ring.point_at(now);
            point.load.add(seconds, counts);
            for (sum, count) in point.durations.iter_mut().zip(durations) {
                *sum = sum.saturating_add(*count);
            }
        }
    }

    /// Adds the counts of each backend in the same interval. Backends that are no longer named lose their curves.
    pub(super) fn add_backends(
        &mut self,
        now: u64,
        seconds: f64,
        backends: &[(Arc<str>, IntervalCounts)],
    ) {
        let named: BTreeMap<&str, &IntervalCounts> =
            backends.iter().map(|(name, counts)| (&**name, counts)).collect();
        self.backends.retain(|name, _| named.contains_key(&**name));
        let decay = RANK_DECAY.powf(seconds);
        for (name, curves) in &mut self.backends {
            let rate = named[&**name].requests as f64 / seconds;
            curves.rank = curves.rank * decay + rate * (1.0 - decay);
        }
        self.admit_busier(seconds, backends);
        for (name, curves) in &mut self.backends {
            for ring in &mut curves.rings {
                ring.point_at(now).add(seconds, named[&**name]);
            }
        }
    }

    /// Gives free places, and those of less busy backends, to the busiest backends without curves.
    fn admit_busier(&mut self, seconds: f64, backends: &[(Arc<str>, IntervalCounts)]) {
        let without = backends.iter().filter(|(name, _)| !self.backends.contains_key(name));
        let mut candidates: Vec<_> = without.collect();
        candidates.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.requests));
        for (name, counts) in candidates.into_iter().take(MAX_BACKENDS) {
            let rate = counts.requests as f64 / seconds;
            if self.backends.len() >= MAX_BACKENDS {
                let ranks = self.backends.iter().map(|(name, curves)| (curves.rank, name));
                let least = ranks.min_by(|(some, _), (other, _)| some.total_cmp(other));
                let Some((_, idle)) = least.filter(|(rank, _)| *rank * 2.0 < rate) else { return };
                let idle = Arc::clone(idle);
                self.backends.remove(&idle);
            }
            // A newcomer's first interval alone does not make it the busiest for minutes.
            let curves =
                BackendCurves { rings: HistoryRange::ALL.map(HistoryRing::new), rank: rate / 2.0 };
            self.backends.insert(Arc::clone(name), curves);
        }
    }

    /// Returns the curve of all requests.
    pub(super) fn totals(&self, range: HistoryRange, now: u64, bounds: &[f64]) -> HistoryCurve {
        let ring = &self.totals[range as usize];
        let points = || ring.window(now);
        let quantiles = |share| {
            points().map(move |it| it.and_then(|it| quantile(&it.durations, bounds, share)))
        };
        HistoryCurve {
            p50_seconds: quantiles(0.5).collect(),
            p99_seconds: quantiles(0.99).collect(),
            ..HistoryCurve::of(range, points().map(|it| it.map(|it| it.load)))
        }
    }

    /// Returns the curve of a backend, or `None` if it is not one of the busiest.
    pub(super) fn backend(
        &self,
        name: &str,
        range: HistoryRange,
        now: u64,
    ) -> Option<HistoryCurve> {
        let ring = &self.backends.get(name)?.rings[range as usize];
        Some(HistoryCurve::of(range, ring.window(now)))
    }
}

impl<P: Copy + Default> HistoryRing<P> {
    fn new(range: HistoryRange) -> Self {
        Self { points: VecDeque::new(), last_step: 0, range }
    }

    /// Returns the point of this time; steps without a measurement before it become empty points.
    fn point_at(&mut self, now: u64) -> &mut P {
        let step = now / self.range.step_seconds();
        let missing = match self.points.is_empty() {
            true => 1,
            false => step.saturating_sub(self.last_step),
        };
        self.last_step = step.max(self.last_step);
        for _ in 0..missing.min(self.range.kept() as u64) {
            if self.points.len() == self.range.kept() {
                self.points.pop_front();
            }
            self.points.push_back(P::default());
        }
        let last = self.points.len() - 1;
        &mut self.points[last]
    }

    /// Returns a point for each step of the range, up to the last step that has ended.
    fn window(&self, now: u64) -> impl Iterator<Item = Option<P>> {
        let end = now / self.range.step_seconds();
        let steps = end.saturating_sub(self.range.len() as u64)..end;
        steps.map(|step| {
            let age = usize::try_from(self.last_step.checked_sub(step)?).ok()?;
            let index = self.points.len().checked_sub(age + 1)?;
            self.points.get(index).copied()
        })
    }
}

impl LoadPoint {
    fn add(&mut self, seconds: f64, counts: &IntervalCounts) {
        let add = |sum: &mut u32, count: u64| {
            *sum = sum.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        };
        self.seconds += seconds as f32;
        add(&mut self.requests, counts.requests);
        add(&mut self.errors, counts.errors);
        add(&mut self.rejected, counts.rejected);
        self.waiting = self.waiting.max(counts.waiting);
        self.in_flight_seconds += (f64::from(counts.in_flight) * seconds) as f32;
        self.slots = counts.slots.unwrap_or(u32::MAX);
        self.endpoints = counts.endpoints;
    }
}

impl HistoryCurve {
    fn of(range: HistoryRange, points: impl Iterator<Item = Option<LoadPoint>>) -> Self {
        let mut curve = Self { step_seconds: range.step_seconds(), ..Self::default() };
        for point in points {
            let known = point.filter(|it| it.seconds > 0.0);
            let rate = |pick: fn(&LoadPoint) -> u32| {
                known.map(|it| f64::from(pick(&it)) / f64::from(it.seconds))
            };
            curve.requests_per_second.push(rate(|it| it.requests));
            curve.errors_per_second.push(rate(|it| it.errors));
            curve.rejections_per_second.push(rate(|it| it.rejected));
            curve.waiting.push(known.map(|it| it.waiting));
            curve.in_flight.push(known.map(|it| f64::from(it.in_flight_seconds / it.seconds)));
            curve.slots.push(known.map(|it| it.slots).filter(|slots| *slots < u32::MAX));
            curve.endpoints.push(known.map(|it| it.endpoints));
        }
        curve
    }
}

/// Returns the duration that this share of the requests did not exceed, in seconds, linear within its bucket; `None`:
/// there were none.
pub(super) fn quantile(counts: &DurationCounts, bounds: &[f64], share: f64) -> Option<f64> {
    let total: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    let mut left = total as f64 * share;
    for (index, count) in counts.iter().enumerate() {
        let count = f64::from(*count);
        if count > 0.0 && left <= count {
            let low = index.checked_sub(1).and_then(|index| bounds.get(index)).copied();
            let low = low.unwrap_or_default();
            // The last bucket has no upper bound.
            let high = bounds.get(index).copied().unwrap_or(low);
            return Some(low + (high - low) * left / count);
        }
        left -= count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [f64; 15] = [
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
    ];

    fn counts(requests: u64) -> IntervalCounts {
        IntervalCounts { requests, in_flight: 3, ..IntervalCounts::default() }
    }

    #[test]
    fn samples_of_one_step_are_summed_and_gaps_are_unknown() {
        let mut history = TrafficHistory::new();
        for now in [1000, 1001, 1002, 1003, 1004, 1015] {
            history.add_totals(now, 1.0, &counts(10), &[0; DURATION_BUCKETS]);
        }
        let curve = history.totals(HistoryRange::TenMinutes, 1020, &BOUNDS);
        let tail = &curve.requests_per_second[116..];
        assert_eq!(tail, [Some(10.0), None, None, Some(10.0)]);
        assert_eq!(curve.in_flight[116], Some(3.0));
        assert_eq!(curve.requests_per_second[..116], [None; 116]);
        assert_eq!(curve.step_seconds, 5);
    }

    #[test]
    fn every_range_has_its_number_of_points_for_ever() {
        let mut history = TrafficHistory::new();
        let backends = [(Arc::from("a"), counts(1))];
        for now in (0..200_000).step_by(5) {
            history.add_totals(now, 5.0, &counts(1), &[0; DURATION_BUCKETS]);
            history.add_backends(now, 5.0, &backends);
        }
        for range in HistoryRange::ALL {
            let curve = history.totals(range, 200_000, &BOUNDS);
            assert_eq!(curve.requests_per_second.len(), range.len());
            assert!(curve.requests_per_second.iter().all(Option::is_some));
            assert_eq!(history.totals[range as usize].points.len(), range.kept());
        }
    }

    #[test]
    fn memory_is_bounded_and_the_busiest_backends_have_curves() {
        let mut history = TrafficHistory::new();
        let named =
            |index: u64, requests| (Arc::<str>::from(format!("ns/b{index}:80")), counts(requests));
        let backends: Vec<_> = (0..1000).map(|index| named(index, index)).collect();
        history.add_backends(5, 5.0, &backends);
        assert_eq!(history.backends.len(), MAX_BACKENDS);
        assert!(history.backend("ns/b999:80", HistoryRange::Day, 5).is_some());
        assert!(history.backend("ns/b1:80", HistoryRange::Day, 5).is_none());
        // A backend that becomes far busier takes the place of the least busy one.
        let mut later = backends;
        later[1] = named(1, 1_000_000);
        history.add_backends(10, 5.0, &later);
        assert_eq!(history.backends.len(), MAX_BACKENDS);
        assert!(history.backend("ns/b1:80", HistoryRange::Day, 10).is_some());
        // Removed backends are forgotten.
        history.add_backends(15, 5.0, &[named(1, 1)]);
        assert_eq!(history.backends.len(), 1);
        let points: usize = HistoryRange::ALL.iter().map(|range| range.kept()).sum();
        let bytes = points * (size_of::<TotalPoint>() + MAX_BACKENDS * size_of::<LoadPoint>());
        // The bound that docs/operate/dashboard.md states.
        assert!(bytes < 1 << 20, "{bytes}");
    }

    #[test]
    fn quantile_is_linear_within_its_bucket() {
        let mut durations = [0; DURATION_BUCKETS];
        assert_eq!(quantile(&durations, &BOUNDS, 0.5), None);
        durations[1] = 100;
        let half = quantile(&durations, &BOUNDS, 0.5).unwrap();
        assert!((half - 0.00075).abs() < 1e-9, "{half}");
        durations[15] = 100;
        assert_eq!(quantile(&durations, &BOUNDS, 0.99), Some(60.0));
    }

    #[test]
    fn unknown_range_is_rejected() {
        assert_eq!(HistoryRange::parse("24h"), Some(HistoryRange::Day));
        assert_eq!(HistoryRange::parse("1y"), None);
    }
}
