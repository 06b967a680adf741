//! Estimate of one endpoint's limit.

use std::net::SocketAddr;
use std::time::Duration;

use super::counters::{LevelTotals, LimitCounters};
use super::epoch::{LevelStats, LimitLikelihoods, SampleEpoch, normalize};
use super::levels::{LEVELS, number, step};
use super::sharing::PeerView;
use super::window::{ObservationWindow, WindowSample};
use super::{LimitReason, LimitSettings};
use crate::time::Time;

/// Maximum weight of one epoch against a limit, as a logarithm: an epoch in which the endpoint
/// changed its speed half way is only one of several.
const MAX_EPOCH_WEIGHT: f64 = 8.0;
/// Maximum weight of all epochs against a limit, so that a few epochs can change the estimate.
const MAX_TOTAL_WEIGHT: f64 = 12.0;
/// Factor by which earlier epochs fade when an epoch with a trial is added.
const EPOCH_DECAY: f64 = 0.85;
/// Distance from the likeliest limit, as a logarithm, beyond which a limit is ruled out.
pub(super) const RULED_OUT: f64 = 6.0;
/// Distance from the likeliest limit within which the highest limit is chosen: a limit that is too
/// low costs throughput, one that is slightly too high costs hardly anything.
const AS_LIKELY: f64 = 0.5;
/// Weight of an epoch against the limit in force from which on it is a surprise.
const SURPRISE: f64 = 3.0;
/// Minimum number of requests in an epoch; the second is for an epoch with a trial.
const EPOCH_FINISHED: f64 = 300.0;
const EPOCH_FINISHED_WITH_TRIAL: f64 = 60.0;
/// Minimum duration of an epoch, as a multiple of a request's duration.
const EPOCH_SERVICES: f64 = 20.0;
/// Number of requests after which older statistics of levels have half their weight.
const HALF_LIFE: f64 = 1000.0;
/// Time for which a report of spare capacity at a level counts.
const SPARE_CAPACITY_LIFETIME: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(super) struct LimitEstimator {
    pub(super) address: SocketAddr,
    pub(super) limit: u32,
    pub(super) reason: LimitReason,
    /// Bounds of the limits that are not ruled out.
    pub(super) lowest_likely: f64,
    pub(super) highest_likely: f64,
    /// Highest level that was visited, within the memory of the level statistics.
    pub(super) highest_visited: f64,
    /// Seconds that a request takes while it does not wait; 0 if unknown.
    pub(super) service: f64,
    pub(super) last_trial: Option<Time>,
    /// True if the next trial goes up.
    pub(super) next_goes_up: bool,
    /// Time before which the epoch does not end: requests of a trial are still in flight.
    settled_at: Time,
    start: u32,
    sums: [LevelTotals; LEVELS],
    epoch: SampleEpoch,
    likelihoods: LimitLikelihoods,
    level_stats: [LevelStats; LEVELS],
    /// Ratio of the variance of service times to that of exponential ones: each request counts so
    /// much less.
    dispersion: f64,
    spare_capacity: Option<(u32, Time)>,
    /// Observations beside other replicas.
    pub(super) window: ObservationWindow,
    /// True while another replica holds a trial of the endpoint.
    pub(super) is_tried_by_peer: bool,
}

impl LimitEstimator {
    /// Returns an estimate without observations; it starts with the endpoint's limit, if it has
    /// one.
    pub(super) fn new(
        address: SocketAddr,
        evidence: &LimitCounters,
        limit: Option<u32>,
        settings: &LimitSettings,
        now: Time,
    ) -> Self {
        let start = settings.clamp(limit.unwrap_or(settings.start));
        Self {
            address,
            limit: start,
            reason: LimitReason::Start,
            lowest_likely: 1.0,
            highest_likely: number(LEVELS - 1),
            highest_visited: 1.0,
            service: 0.0,
            last_trial: None,
            next_goes_up: true,
            settled_at: now,
            start,
            sums: evidence.sums().unwrap_or_else(|| [LevelTotals::default(); LEVELS]),
            epoch: SampleEpoch::new(now),
            likelihoods: [0.0; LEVELS],
            level_stats: [LevelStats::default(); LEVELS],
            dispersion: 1.0,
            spare_capacity: None,
            window: ObservationWindow::default(),
            is_tried_by_peer: false,
        }
    }

    /// Adds the observations since the last call. If `peers` have requests, those of all replicas
    /// are added in another way ([`add_window`](Self::add_window)), and levels are those of all.
    pub(super) fn gather(&mut self, evidence: &LimitCounters, peers: Option<&PeerView>, now: Time) {
        if let Some(sums) = evidence.sums() {
            if peers.is_none_or(PeerView::is_idle) {
                for (step, (sum, before)) in sums.iter().zip(&self.sums).enumerate() {
                    self.epoch.add(step, &sum.since(before));
                }
            }
            self.sums = sums;
        }
        if let Some(service) = self.epoch.service(f64::from(self.limit)) {
            self.service = service;
        }
        let spare = evidence.take_spare_capacity_level();
        if spare > 0 {
            let spare = spare.saturating_add(peers.map_or(0, PeerView::requests));
            self.spare_capacity = Some((spare, now + SPARE_CAPACITY_LIFETIME));
        }
        self.spare_capacity = self.spare_capacity.filter(|&(_, until)| now < until);
    }

    /// Adds a window of observations of all replicas.
    pub(super) fn add_window(&mut self, window: &WindowSample) {
        let step = step(window.level.round() as u32);
        // With this slot time, the time at the level is that of the window.
        let slot_seconds = number(step) * window.seconds;
        let WindowSample { finished, slot_seconds_squared, .. } = *window;
        self.epoch.add(step, &LevelStats { finished, slot_seconds, slot_seconds_squared });
    }

    /// Ends the epoch if it is long enough. True if it was a surprise.
    pub(super) fn close_epoch(&mut self, now: Time) -> bool {
        let finished = self.epoch.finished();
        let lasts = now.saturating_since(self.epoch.since).as_secs_f64();
        let tried = self.last_trial.is_some_and(|at| at > self.epoch.since);
        let enough = if tried { EPOCH_FINISHED_WITH_TRIAL } else { EPOCH_FINISHED };
        if finished < enough || lasts < EPOCH_SERVICES * self.service || now < self.settled_at {
            return false;
        }
        self.dispersion = self.dispersion();
        let likelihoods = self.epoch_likelihoods();
        let kept = if tried { EPOCH_DECAY } else { 1.0 };
        for (believed, likelihood) in self.likelihoods.iter_mut().zip(&likelihoods) {
            *believed = *believed * kept + likelihood;
        }
        normalize(&mut self.likelihoods);
        self.likelihoods.iter_mut().for_each(|each| *each = each.max(-MAX_TOTAL_WEIGHT));
        let left = 0.5_f64.powf(finished / HALF_LIFE);
        for (remembered, seen) in self.level_stats.iter_mut().zip(self.epoch.levels()) {
            remembered.fade(left, seen);
        }
        self.epoch = SampleEpoch::new(now);
        self.reason == LimitReason::Saturation && likelihoods[step(self.limit)] < -SURPRISE
    }

    /// Returns the likelihoods from its own evidence alone, the current epoch included.
    pub(super) fn current_likelihoods(&self) -> LimitLikelihoods {
        let mut likelihoods = self.likelihoods;
        if self.epoch.finished() >= 10.0 {
            likelihoods
                .iter_mut()
                .zip(self.epoch_likelihoods())
                .for_each(|(each, likelihood)| *each += likelihood);
        }
        likelihoods
    }

    /// Returns the number of requests observed at a level.
    pub(super) fn samples_at(&self, step: usize) -> f64 {
        self.level_stats[step].finished + self.epoch.levels()[step].finished
    }

    /// Computes the limit from `likelihoods`, which combine its own evidence and that of the
    /// other endpoints. `others_top` is the highest level that any endpoint of the backend has
    /// visited.
    pub(super) fn update_limit(
        &mut self,
        likelihoods: &LimitLikelihoods,
        others_top: f64,
        reported: Option<u32>,
        settings: &LimitSettings,
    ) {
        self.highest_visited = highest_level(|step| self.samples_at(step), 5.0);
        let last = |within: f64| likelihoods.iter().rposition(|&each| each >= -within).unwrap_or(0);
        self.highest_likely = number(last(RULED_OUT));
        self.lowest_likely =
            number(likelihoods.iter().position(|&each| each >= -RULED_OUT).unwrap_or(0));
        let likely = number(last(AS_LIKELY));
        let knows_knee = likelihoods[LEVELS - 1] < -RULED_OUT;
        let visited = self.highest_visited.max(others_top);
        // Levels that were not visited are unknown: only trials may go there.
        let unknown = f64::from(self.start);
        let (limit, reason) = if knows_knee {
            (likely.min(visited), LimitReason::Saturation)
        } else if visited <= unknown {
            (likely.min(unknown), LimitReason::Start)
        } else {
            (likely.min(visited), LimitReason::Growing)
        };
        let spare = self.spare_capacity.map_or(0, |(level, _)| level.saturating_add(1));
        let limit = (limit.round() as u32).max(spare);
        let (limit, reason) =
            reported.map_or((limit, reason), |limit| (limit, LimitReason::Reported));
        (self.limit, self.reason) = (settings.clamp(limit), reason);
    }

    /// Records the end of a trial: its requests have to end before the epoch may.
    pub(super) fn trial_ended(&mut self, now: Time) {
        self.last_trial = Some(now);
        self.settled_at = now + Duration::try_from_secs_f64(2.0 * self.service).unwrap_or_default();
    }

    /// Follows the trials of the replica that decides the limit.
    pub(super) fn follow_trial(&mut self, is_tried_by_peer: bool, now: Time) {
        if std::mem::replace(&mut self.is_tried_by_peer, is_tried_by_peer) && !is_tried_by_peer {
            self.trial_ended(now);
        }
    }

    pub(super) fn is_settled(&self, now: Time) -> bool {
        self.settled_at <= now
    }

    /// Returns the likelihoods from the current epoch.
    fn epoch_likelihoods(&self) -> LimitLikelihoods {
        let mut likelihoods = self.epoch.likelihoods();
        likelihoods
            .iter_mut()
            .for_each(|each| *each = (*each / self.dispersion).max(-MAX_EPOCH_WEIGHT));
        likelihoods
    }

    /// Returns the dispersion of service times. If they vary more than exponential ones, one
    /// request says less by this factor.
    fn dispersion(&self) -> f64 {
        let (mut sum, mut of) = (0.0, 0.0);
        for (remembered, seen) in self.level_stats.iter().zip(self.epoch.levels()) {
            let mut all = *remembered;
            all.fade(1.0, seen);
            if let Some(variation) = all.variation() {
                sum += variation * all.finished;
                of += all.finished;
            }
        }
        if of > 0.0 { (sum / of).max(1.0) } else { 1.0 }
    }
}

/// Returns the highest level at and above which there were this many.
pub(super) fn highest_level(seen: impl Fn(usize) -> f64, many: f64) -> f64 {
    let mut sum = 0.0;
    let enough = (0..LEVELS).rev().find(|&step| {
        sum += seen(step);
        sum >= many
    });
    number(enough.unwrap_or(0))
}
