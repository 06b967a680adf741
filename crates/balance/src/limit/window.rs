//! Observations of all replicas at one endpoint, over windows of about a second.
//!
//! Beside other replicas the number of requests in flight is not known at the pick of each, so the
//! level is the mean of a window. No window has the time in which a trial begins or ends: replicas
//! learn of it one after the other, and requests have to end.

use std::time::Duration;

use super::counters::{LevelTotals, SQUARE};
use super::message::{MAX_REQUESTS, ObservationSums};
use super::sharing::PeerView;
use crate::time::Time;

/// Minimum duration of a window.
const SHORTEST: Duration = Duration::from_secs(1);
/// Maximum duration of a window.
const LONGEST: Duration = Duration::from_secs(30);
/// Minimum duration of a window as a multiple of a request's duration.
const SERVICES: f64 = 5.0;
/// Time after which all replicas know of a trial.
const PROPAGATION: Duration = Duration::from_millis(250);
/// Maximum time between two samples of the load; a longer one is not observed.
const LONGEST_SAMPLE: Duration = Duration::from_secs(1);
/// Weight of the newest sample in the mean load.
const LOAD_WEIGHT: f64 = 0.3;

/// Window of one endpoint, and the load by this replica.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObservationWindow {
    /// Observations of this replica.
    pub(super) sums: ObservationSums,
    /// The same at the beginning of the window.
    start: ObservationSums,
    /// Time of the last sample.
    sampled: Option<Time>,
    begins: Time,
    /// True while the endpoint has a trial.
    is_trial: bool,
    /// Mean requests in flight.
    pub(super) in_flight: f64,
    /// Mean requests in flight, and the endpoint's part of those that wait.
    pub(super) demand: f64,
    /// Totals of this process at the last sample.
    totals: LevelTotals,
}

/// Observations of one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WindowSample {
    /// Mean requests in flight, of all replicas.
    pub(super) level: f64,
    /// Requests of observed replicas that have finished.
    pub(super) finished: f64,
    /// Duration; less if not all replicas were observed.
    pub(super) seconds: f64,
    /// Seconds squared.
    pub(super) slot_seconds_squared: f64,
}

impl ObservationWindow {
    /// Adds a sample of the load: requests in flight, the limit in force, the endpoint's part of
    /// requests that wait, and the totals of finished requests.
    pub(super) fn sample(
        &mut self,
        (in_flight, limit): (u32, u32),
        waiting: f64,
        totals: LevelTotals,
        now: Time,
    ) {
        let in_flight = in_flight.min(MAX_REQUESTS as u32);
        self.in_flight += LOAD_WEIGHT * (f64::from(in_flight) - self.in_flight);
        self.demand += LOAD_WEIGHT * (f64::from(in_flight) + waiting - self.demand);
        let before = std::mem::replace(&mut self.totals, totals);
        let Some(last) = self.sampled.replace(now) else {
            self.sums.begun_nanos = now.as_nanos();
            return;
        };
        let passed = now.saturating_since(last);
        if passed > LONGEST_SAMPLE {
            return;
        }
        let nanos = passed.as_nanos() as u64;
        let (sums, in_flight_nanos) = (&mut self.sums, nanos * u64::from(in_flight));
        sums.observed_nanos += nanos;
        sums.in_flight_nanos += in_flight_nanos;
        sums.limited_nanos += if in_flight >= limit { in_flight_nanos } else { 0 };
        sums.finished += totals.finished.wrapping_sub(before.finished);
        sums.held_nanos = sums.held_nanos.wrapping_add(totals.held.wrapping_sub(before.held));
        sums.squares = sums.squares.wrapping_add(totals.squares.wrapping_sub(before.squares));
    }

    /// Ends the window if it is long enough, or if a trial begins or ends. Then another one begins
    /// (the caller calls [`LimitSharing::begin_window`](super::LimitSharing)). `service` is the
    /// duration of a request in seconds.
    pub(super) fn end(
        &mut self,
        view: &PeerView,
        is_trial: bool,
        service: f64,
        now: Time,
    ) -> WindowEnd {
        if now < self.begins {
            self.start = self.sums;
            return WindowEnd::Restarted;
        }
        let service = Duration::try_from_secs_f64(service).unwrap_or(LONGEST).min(LONGEST);
        let length = service.mul_f64(SERVICES).clamp(SHORTEST, LONGEST);
        let has_changed = std::mem::replace(&mut self.is_trial, is_trial) != is_trial;
        let lasts = now.saturating_since(self.begins);
        if !has_changed && lasts < length {
            return WindowEnd::GoesOn;
        }
        let sample = self.result(view).filter(|_| lasts >= length / 2);
        self.start = self.sums;
        self.begins = if has_changed { now + PROPAGATION + service } else { now };
        sample.map_or(WindowEnd::Restarted, WindowEnd::Ended)
    }

    fn result(&self, view: &PeerView) -> Option<WindowSample> {
        let own = self.sums.since(&self.start);
        let observed = || view.observed.iter().chain([&own]).filter(|it| it.observed_nanos > 0);
        let sum = |of: fn(&ObservationSums) -> u64| observed().map(|it| of(it) as f64).sum::<f64>();
        let seen: f64 = observed().map(ObservationSums::in_flight).sum();
        let level = seen + view.unobserved;
        let (in_flight, held) = (sum(|it| it.in_flight_nanos), sum(|it| it.held_nanos));
        // Mostly idle, or nothing finished: that shows nothing.
        if level < 0.5 || seen <= 0.0 || own.observed_nanos == 0 || in_flight <= 0.0 {
            return None;
        }
        // If limits are reached, the level is exact, and so is the rate. Otherwise samples of the
        // level have an error, which must not look like a knee: the time per request is compared.
        let limited = sum(|it| it.limited_nanos) / in_flight;
        let by_rate = own.observed_nanos as f64 * (seen / level);
        let by_time = held / level;
        Some(WindowSample {
            level,
            finished: sum(|it| it.finished),
            seconds: (limited * by_rate + (1.0 - limited) * by_time) / 1e9,
            slot_seconds_squared: sum(|it| it.squares) * SQUARE,
        })
    }
}

/// Result of [`ObservationWindow::end`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WindowEnd {
    /// It has not ended.
    GoesOn,
    /// It has ended without a result, and another one has begun.
    Restarted,
    /// It has ended, and another one has begun.
    Ended(WindowSample),
}

impl ObservationSums {
    /// Returns the observations since an earlier moment.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            begun_nanos: self.begun_nanos,
            observed_nanos: self.observed_nanos.saturating_sub(before.observed_nanos),
            in_flight_nanos: self.in_flight_nanos.saturating_sub(before.in_flight_nanos),
            limited_nanos: self.limited_nanos.saturating_sub(before.limited_nanos),
            finished: self.finished.saturating_sub(before.finished),
            held_nanos: self.held_nanos.wrapping_sub(before.held_nanos),
            squares: self.squares.wrapping_sub(before.squares),
        }
    }

    /// Returns the mean number of requests in flight.
    fn in_flight(&self) -> f64 {
        self.in_flight_nanos as f64 / self.observed_nanos as f64
    }
}
