//! Observations of workers of one endpoint, and the load reports that it sends.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::epoch::LevelStats;
use super::levels::{LEVELS, step};
use crate::outcome::AttemptResult;
use crate::time::{Time, nanos};

/// Time for which a reported limit holds, unless it is reported again.
const REPORT_LIFETIME: Duration = Duration::from_secs(60);
/// Utilization below which an endpoint has capacity for more requests.
const SPARE_CAPACITY_UTILIZATION: f64 = 0.8;

/// Observation of one request at an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSample {
    /// Requests in flight at the endpoint when this one was picked, itself included.
    pub level: u32,
    /// Time for which it kept its slot.
    pub slot_time: Duration,
}

/// Load report of an endpoint with a response.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EndpointLoadReport {
    /// Load as a share of capacity: 1 is all of it, more than 1 is overload.
    pub utilization: Option<f64>,
    /// Maximum of requests in flight that the endpoint wants.
    pub max_in_flight: Option<u32>,
}

/// Observations of one endpoint by level of concurrency, over all workers: sums that only grow.
///
/// Each figure is an atomic of its own that orders no other memory. Without observations it takes
/// no memory.
#[derive(Debug, Default)]
pub struct LimitCounters {
    levels: OnceLock<Box<[LevelCounters; LEVELS]>>,
    /// Limit that the endpoint reports, 0 if none; and the time until which it holds.
    reported_limit: AtomicU32,
    reported_until: AtomicU64,
    /// Highest level at which the endpoint reported spare capacity, since this was last read.
    spare_capacity_level: AtomicU32,
    /// Last round in which a backend computed a limit from it.
    round: AtomicU64,
}

#[derive(Debug, Default)]
struct LevelCounters {
    finished: AtomicU64,
    /// Nanoseconds.
    held: AtomicU64,
    /// Squares, in units of 16 microseconds.
    squares: AtomicU64,
}

/// Totals of one level; the sums wrap around.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LevelTotals {
    pub(super) finished: u64,
    /// Nanoseconds.
    pub(super) held: u64,
    pub(super) squares: u64,
}

impl LimitCounters {
    /// Records a sample. A failed attempt gives no information; one that was cut short shows that
    /// it would have taken longer.
    pub fn learn(&self, sample: LimitSample, end: AttemptResult) {
        let finished = match end {
            AttemptResult::Success => 1,
            AttemptResult::TimedOut | AttemptResult::Cancelled => 0,
            AttemptResult::ServerError
            | AttemptResult::Refused { .. }
            | AttemptResult::RateLimited { .. }
            | AttemptResult::ConnectFailed
            | AttemptResult::ConnectionBroken => return,
        };
        let rows =
            self.levels.get_or_init(|| Box::new(std::array::from_fn(|_| LevelCounters::default())));
        let row = &rows[step(sample.level)];
        let held = nanos(sample.slot_time);
        row.finished.fetch_add(finished, Ordering::Relaxed);
        row.held.fetch_add(held, Ordering::Relaxed);
        // Saturates at 19 hours.
        let coarse = (held >> 14).min(u64::from(u32::MAX));
        row.squares.fetch_add(coarse * coarse * finished, Ordering::Relaxed);
    }

    /// Records the load report in the response to a request that was picked at this level.
    pub fn report(&self, report: &EndpointLoadReport, level: u32, now: Time) {
        if let Some(most) = report.max_in_flight {
            self.reported_limit.store(most, Ordering::Relaxed);
            self.reported_until.store((now + REPORT_LIFETIME).as_nanos(), Ordering::Relaxed);
        }
        if report.utilization.is_some_and(|utilization| utilization < SPARE_CAPACITY_UTILIZATION) {
            self.spare_capacity_level.fetch_max(level, Ordering::Relaxed);
        }
    }

    /// Returns the limit that the endpoint reports.
    pub(super) fn reported_limit(&self, now: Time) -> Option<u32> {
        let limit = self.reported_limit.load(Ordering::Relaxed);
        (limit > 0 && now.as_nanos() < self.reported_until.load(Ordering::Relaxed)).then_some(limit)
    }

    /// Returns the highest level at which the endpoint reported spare capacity since the last call.
    pub(super) fn take_spare_capacity_level(&self) -> u32 {
        self.spare_capacity_level.swap(0, Ordering::Relaxed)
    }

    /// True if no other backend computes a limit from it in this round, which is not 0: backends
    /// may share an endpoint.
    pub(super) fn claim_round(&self, round: u64) -> bool {
        self.round.swap(round, Ordering::Relaxed) != round
    }

    /// Returns the totals over all levels.
    pub(super) fn total(&self) -> LevelTotals {
        let rows = self.levels.get().map_or(&[][..], |rows| &rows[..]);
        rows.iter().map(LevelCounters::read).fold(LevelTotals::default(), LevelTotals::plus)
    }

    pub(super) fn sums(&self) -> Option<[LevelTotals; LEVELS]> {
        let rows = self.levels.get()?;
        Some(std::array::from_fn(|step| rows[step].read()))
    }
}

impl LevelCounters {
    fn read(&self) -> LevelTotals {
        LevelTotals {
            finished: self.finished.load(Ordering::Relaxed),
            held: self.held.load(Ordering::Relaxed),
            squares: self.squares.load(Ordering::Relaxed),
        }
    }
}

/// Seconds squared in the square of a unit of 2^14 nanoseconds.
pub(super) const SQUARE: f64 = 16_384e-9 * 16_384e-9;

impl LevelTotals {
    fn plus(self, other: Self) -> Self {
        Self {
            finished: self.finished.wrapping_add(other.finished),
            held: self.held.wrapping_add(other.held),
            squares: self.squares.wrapping_add(other.squares),
        }
    }

    pub(super) fn since(&self, before: &Self) -> LevelStats {
        LevelStats {
            finished: self.finished.wrapping_sub(before.finished) as f64,
            slot_seconds: self.held.wrapping_sub(before.held) as f64 / 1e9,
            slot_seconds_squared: self.squares.wrapping_sub(before.squares) as f64 * SQUARE,
        }
    }
}
