//! Observations of one endpoint in one stretch of time, and the likelihood of each limit.
//!
//! The number of requests finished at a level and the time spent at it are the sufficient
//! statistics of a birth-and-death process. The endpoint's speed is unknown and not needed: for
//! each limit, the speed that fits best is used. So the likelihoods of an epoch depend on the
//! contrast between levels within it, and not on how fast the endpoint was.

use super::levels::{LEVELS, number};
use crate::time::Time;

/// Log-likelihood of each step of limits; 0 is the likeliest.
pub(super) type LimitLikelihoods = [f64; LEVELS];

/// Observations by level.
#[derive(Clone, Debug)]
pub(super) struct SampleEpoch {
    pub(super) since: Time,
    levels: [LevelStats; LEVELS],
}

/// Observations at one level.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LevelStats {
    pub(super) finished: f64,
    /// Slot time in seconds, summed over requests.
    pub(super) slot_seconds: f64,
    /// Seconds squared.
    pub(super) slot_seconds_squared: f64,
}

impl LevelStats {
    /// Reduces older evidence by the factor `left`, and adds newer.
    pub(super) fn fade(&mut self, left: f64, more: &Self) {
        self.finished = self.finished * left + more.finished;
        self.slot_seconds = self.slot_seconds * left + more.slot_seconds;
        self.slot_seconds_squared = self.slot_seconds_squared * left + more.slot_seconds_squared;
    }

    /// Returns the square of the coefficient of variation: 1 for exponential times; `None` if there
    /// are too few requests.
    pub(super) fn variation(&self) -> Option<f64> {
        let mean = self.slot_seconds / self.finished;
        let enough = self.finished >= 20.0 && mean > 0.0;
        enough.then(|| self.slot_seconds_squared / self.finished / (mean * mean) - 1.0)
    }
}

impl SampleEpoch {
    pub(super) fn new(since: Time) -> Self {
        Self { since, levels: [LevelStats::default(); LEVELS] }
    }

    pub(super) fn add(&mut self, step: usize, more: &LevelStats) {
        self.levels[step].fade(1.0, more);
    }

    pub(super) fn levels(&self) -> &[LevelStats; LEVELS] {
        &self.levels
    }

    pub(super) fn finished(&self) -> f64 {
        self.levels.iter().map(|seen| seen.finished).sum()
    }

    /// Returns the seconds that one request takes if this many are served at a time.
    pub(super) fn service(&self, limit: f64) -> Option<f64> {
        let finished = self.finished();
        let served = |step: usize| self.levels[step].slot_seconds * (limit / number(step)).min(1.0);
        (finished > 0.0).then(|| (0..LEVELS).map(served).sum::<f64>() / finished)
    }

    /// Returns the log-likelihood of each limit `c`. With `n` finished at level `k` and `t` the
    /// time at it, it is the sum of `n ln min(k, c)`, less the number of all finished times the
    /// logarithm of the sum of `t min(k, c)`.
    pub(super) fn likelihoods(&self) -> LimitLikelihoods {
        let finished = self.finished();
        let time = |step: usize| self.levels[step].slot_seconds / number(step);
        let mut above = finished;
        let mut time_above: f64 = (0..LEVELS).map(time).sum();
        let (mut logarithms, mut work) = (0.0, 0.0);
        let mut likelihoods = [0.0; LEVELS];
        if finished == 0.0 || time_above <= 0.0 {
            return likelihoods;
        }
        for (step, likelihood) in likelihoods.iter_mut().enumerate() {
            let (limit, here) = (number(step), self.levels[step].finished);
            logarithms += here * limit.ln();
            work += time(step) * limit;
            above -= here;
            time_above -= time(step);
            let all_work = work + time_above.max(0.0) * limit;
            *likelihood = logarithms + above * limit.ln() - finished * all_work.ln();
        }
        normalize(&mut likelihoods);
        likelihoods
    }
}

/// Shifts the likelihoods so that the largest is 0.
pub(super) fn normalize(likelihoods: &mut LimitLikelihoods) {
    let most = likelihoods.iter().copied().fold(f64::MIN, f64::max);
    likelihoods.iter_mut().for_each(|each| *each -= most);
}
