//! What workers have seen of one endpoint, and what it says of itself.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::epoch::LevelStats;
use super::levels::{LEVELS, step};
use crate::outcome::AttemptResult;
use crate::time::{Time, nanos};

/// How long what an endpoint says of its limit holds, unless it says it again.
const REPORT_LIFETIME: Duration = Duration::from_secs(60);
/// Below this share of what it can do an endpoint has room for more than it has.
const SPARE_CAPACITY_UTILIZATION: f64 = 0.8;

/// One request's stay at an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSample {
    /// How many the endpoint had when this one was picked, this one included.
    pub level: u32,
    /// How long it kept its slot.
    pub slot_time: Duration,
}

/// What an endpoint says of itself with a response.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EndpointLoadReport {
    /// What it does as a share of what it can do: 1 is all of it, more than 1 too much.
    pub utilization: Option<f64>,
    /// How many requests it wants to have at once, at most.
    pub max_in_flight: Option<u32>,
}

/// What is known of how one endpoint bears its load, over all workers: sums that only grow, by level.
///
/// Each figure is an atomic of its own that orders no other memory; where nothing is learned it takes no room.
#[derive(Debug, Default)]
pub struct LimitCounters {
    levels: OnceLock<Box<[LevelCounters; LEVELS]>>,
    /// The limit that the endpoint names, 0: none; and until when that holds.
    reported_limit: AtomicU32,
    reported_until: AtomicU64,
    /// The highest level at which it said that it had room, since somebody looked.
    spare_capacity_level: AtomicU32,
    /// The last round in which somebody made a limit of it.
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

/// What a row has come to; the sums wrap around.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LevelTotals {
    finished: u64,
    held: u64,
    squares: u64,
}

impl LimitCounters {
    /// Takes note of a stay. How one ended that came to nothing says nothing; one that was cut short says that it would
    /// have taken longer.
    pub fn learn(&self, visit: LimitSample, end: AttemptResult) {
        let finished = match end {
            AttemptResult::Success => 1,
            AttemptResult::TimedOut | AttemptResult::Cancelled => 0,
            AttemptResult::ServerError
            | AttemptResult::Refused { .. }
            | AttemptResult::ConnectFailed
            | AttemptResult::ConnectionBroken => return,
        };
        let rows =
            self.levels.get_or_init(|| Box::new(std::array::from_fn(|_| LevelCounters::default())));
        let row = &rows[step(visit.level)];
        let held = nanos(visit.slot_time);
        row.finished.fetch_add(finished, Ordering::Relaxed);
        row.held.fetch_add(held, Ordering::Relaxed);
        // Up to 19 hours.
        let coarse = (held >> 14).min(u64::from(u32::MAX));
        row.squares.fetch_add(coarse * coarse * finished, Ordering::Relaxed);
    }

    /// Takes note of what the endpoint says with the response to a request that was picked at this level.
    pub fn report(&self, report: &EndpointLoadReport, level: u32, now: Time) {
        if let Some(most) = report.max_in_flight {
            self.reported_limit.store(most, Ordering::Relaxed);
            self.reported_until.store((now + REPORT_LIFETIME).as_nanos(), Ordering::Relaxed);
        }
        if report.utilization.is_some_and(|utilization| utilization < SPARE_CAPACITY_UTILIZATION) {
            self.spare_capacity_level.fetch_max(level, Ordering::Relaxed);
        }
    }

    /// The limit that the endpoint names.
    pub(super) fn reported_limit(&self, now: Time) -> Option<u32> {
        let said = self.reported_limit.load(Ordering::Relaxed);
        (said > 0 && now.as_nanos() < self.reported_until.load(Ordering::Relaxed)).then_some(said)
    }

    /// The highest level at which the endpoint said that it had room since this was asked last.
    pub(super) fn take_spare_capacity_level(&self) -> u32 {
        self.spare_capacity_level.swap(0, Ordering::Relaxed)
    }

    /// Whether nobody else makes a limit of it in this round, which is not 0: backends may share an endpoint.
    pub(super) fn claim_round(&self, round: u64) -> bool {
        self.round.swap(round, Ordering::Relaxed) != round
    }

    pub(super) fn sums(&self) -> Option<[LevelTotals; LEVELS]> {
        let rows = self.levels.get()?;
        Some(std::array::from_fn(|step| LevelTotals {
            finished: rows[step].finished.load(Ordering::Relaxed),
            held: rows[step].held.load(Ordering::Relaxed),
            squares: rows[step].squares.load(Ordering::Relaxed),
        }))
    }
}

impl LevelTotals {
    pub(super) fn since(&self, before: &Self) -> LevelStats {
        /// Seconds squared in the square of a unit of 2^14 nanoseconds.
        const SQUARE: f64 = 16_384e-9 * 16_384e-9;
        LevelStats {
            finished: self.finished.wrapping_sub(before.finished) as f64,
            slot_seconds: self.held.wrapping_sub(before.held) as f64 / 1e9,
            slot_seconds_squared: self.squares.wrapping_sub(before.squares) as f64 * SQUARE,
        }
    }
}
