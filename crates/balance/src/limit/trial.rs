//! Schedules trials: for a short time an endpoint gets more or fewer requests than its limit, to
//! measure the effect.
//!
//! A limit that is right never shows what lies above it, and one that is always reached never shows
//! what lies below. So one endpoint in eight, and at least one, has a trial at a time. Up: it is
//! preferred until it has slightly more than its limit. Down: it gets half of its limit. Trials
//! take at most half of the time while limits are unknown, and a tenth when they are known.

use std::net::SocketAddr;
use std::time::Duration;

use super::estimator::LimitEstimator;
use super::{LimitReason, LimitSettings};
use crate::time::Time;

/// Duration of a trial, as a multiple of a request's duration; longer if the trial makes requests
/// wait.
const SERVICES: f64 = 5.0;
/// Maximum duration of a trial.
const LONGEST: Duration = Duration::from_secs(30);
/// Minimum duration of a trial: limits are not updated more often.
pub(super) const SHORTEST: Duration = Duration::from_millis(100);
/// The same with other replicas, which learn of it by a message.
pub(super) const SHORTEST_WITH_PEERS: Duration = Duration::from_millis(1300);
/// Share of the time with a trial if limits are known, and if they are unknown.
const TRIAL_SHARE_KNOWN: f64 = 0.1;
const TRIAL_SHARE_UNKNOWN: f64 = 0.5;
/// The first of these with other replicas: a trial shows less, as levels are means of a second.
const TRIAL_SHARE_WITH_PEERS: f64 = 0.25;
/// Number of eager trials for each endpoint without a known limit as the result, after which the
/// share has sunk to a half.
const TRIALS_TO_HALVE_SHARE: f64 = 6.0;
/// Number of endpoints for each one that has a trial at a time.
const ONE_IN: usize = 8;
/// Maximum number of endpoints that have a trial at a time.
pub(super) const AT_ONCE: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct LimitTrial {
    pub(super) address: SocketAddr,
    /// Limit of the endpoint during the trial.
    pub(super) target: u32,
    pub(super) up: bool,
    until: Time,
}

/// Trials of one backend.
#[derive(Debug, Default)]
pub(super) struct TrialScheduler {
    pub(super) running: Vec<LimitTrial>,
    next: Time,
    /// Trials that were held because limits were unknown, less those held since they are known.
    eager_trials: f64,
    /// Number of trials still to be held eagerly because something has changed.
    eager_trials_left: usize,
}

/// Possible trial of one endpoint.
struct TrialCandidate {
    urgent: bool,
    up: bool,
    target: u32,
}

impl TrialScheduler {
    /// Ends the trials whose time is over, or whose endpoint has gone or is tried by a peer.
    pub(super) fn end(&mut self, estimators: &mut [LimitEstimator], now: Time) {
        self.running.retain(|trial| {
            let estimator =
                estimators.iter_mut().find(|estimator| estimator.address == trial.address);
            let is_ours = estimator.as_ref().is_some_and(|it| !it.is_tried_by_peer);
            let goes_on = now < trial.until && is_ours;
            if !goes_on && let Some(estimator) = estimator {
                estimator.trial_ended(now);
            }
            goes_on
        });
    }

    pub(super) fn of(&self, address: SocketAddr) -> Option<&LimitTrial> {
        self.running.iter().find(|trial| trial.address == address)
    }

    /// Schedules eager trials because an endpoint has changed.
    pub(super) fn schedule_eager_trials(&mut self, endpoints: usize) {
        self.eager_trials_left = 2 * endpoints;
    }

    /// Begins the next trial if it is due. `demand` is the number of requests in flight and queued;
    /// `is_fit` returns true if an endpoint may have a trial. A trial lasts `shortest` at least.
    pub(super) fn begin(
        &mut self,
        estimators: &mut [LimitEstimator],
        demand: u32,
        is_fit: impl Fn(usize) -> bool,
        shortest: Duration,
        settings: &LimitSettings,
        now: Time,
    ) {
        let at_once = (estimators.len() / ONE_IN + 1).min(AT_ONCE);
        if now < self.next || self.running.len() >= at_once {
            return;
        }
        let candidates = estimators.iter().enumerate().filter(|&(at, estimator)| {
            is_fit(at) && estimator.is_settled(now) && self.of(estimator.address).is_none()
        });
        let candidates = candidates.filter_map(|(at, estimator)| {
            Some((
                at,
                estimator.last_trial,
                candidate(estimator, demand, self.eager_trials_left > 0, settings)?,
            ))
        });
        let first = candidates.min_by_key(|(_, last, candidate)| (!candidate.urgent, *last));
        let Some((at, _, candidate)) = first else { return };
        let estimator = &mut estimators[at];
        estimator.next_goes_up = !candidate.up;
        let more = f64::from(candidate.target) / f64::from(estimator.limit.max(1));
        let lasts = SERVICES * estimator.service * more.max(1.0);
        let lasts = Duration::try_from_secs_f64(lasts).unwrap_or(LONGEST);
        let lasts = lasts.clamp(shortest, LONGEST);
        let known = if shortest > SHORTEST { TRIAL_SHARE_WITH_PEERS } else { TRIAL_SHARE_KNOWN };
        let share = self.share(candidate.urgent, known, estimators.len());
        let TrialCandidate { up, target, .. } = candidate;
        let address = estimators[at].address;
        self.running.push(LimitTrial { address, target, up, until: now + lasts });
        self.next = now + lasts.div_f64(share * at_once as f64);
    }

    /// Returns the share of the time to be spent on trials from now on.
    fn share(&mut self, urgent: bool, known: f64, endpoints: usize) -> f64 {
        self.eager_trials_left = self.eager_trials_left.saturating_sub(1);
        if !urgent {
            self.eager_trials = (self.eager_trials - 1.0).max(0.0);
            return known;
        }
        self.eager_trials += 1.0;
        let used = self.eager_trials / (TRIALS_TO_HALVE_SHARE * endpoints as f64);
        (TRIAL_SHARE_UNKNOWN / (1.0 + used * used)).max(known)
    }
}

/// Returns the possible trial of an endpoint, if it is useful and there are enough requests for it.
fn candidate(
    estimator: &LimitEstimator,
    demand: u32,
    alarmed: bool,
    settings: &LimitSettings,
) -> Option<TrialCandidate> {
    if estimator.service <= 0.0 || estimator.reason == LimitReason::Reported {
        return None;
    }
    let limit = f64::from(estimator.limit);
    let higher = match estimator.reason {
        LimitReason::Saturation => limit + (limit / 4.0).ceil().max(2.0),
        LimitReason::Start
        | LimitReason::Growing
        | LimitReason::Reported
        | LimitReason::Probing => limit * 1.5 + 1.0,
    };
    // If the limit is not reached, approach it step by step.
    let higher = if estimator.highest_visited < limit {
        higher.min(estimator.highest_visited * 1.5 + 1.0)
    } else {
        higher
    };
    let higher = (higher as u32).min(demand).min(settings.max);
    let lower = settings.clamp((limit / 2.0).ceil() as u32);
    let can_rise = f64::from(higher) > estimator.highest_visited.min(limit);
    let can_fall = lower < estimator.limit && f64::from(lower) < estimator.highest_visited;
    let wants_rise = can_rise && estimator.highest_likely > limit * 1.1 + 1.0;
    let wants_fall = can_fall && estimator.lowest_likely < limit * 0.9 - 1.0;
    let up = match (can_rise, can_fall) {
        (true, true) => estimator.next_goes_up,
        (true, false) => true,
        (false, true) => false,
        (false, false) => return None,
    };
    let target = if up { higher } else { lower };
    Some(TrialCandidate { urgent: wants_rise || wants_fall || alarmed, up, target })
}
