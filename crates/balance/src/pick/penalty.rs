//! Penalties for members of a set, beside their load, for recent latencies, failures and refusals.
//!
//! The number of requests in flight is misleading for an endpoint that fails fast: it has the
//! fewest, and attracts the traffic of all (linkerd2#11669). It also shows late what a latency
//! shows at once. So each picker compares the members of its set many times a second:
//!
//! - A member whose mean time to the head of a response is clearly longer than that of the quicker
//!   ones counts as more loaded. Being quicker than usual has no effect, so pickers do not herd to
//!   the quickest, and an endpoint that has not answered yet counts as average.
//! - A member that fails counts as more loaded, and gets no more than its share of the requests,
//!   divided by its failure penalty.
//! - A member that refuses because of overload gets no more than its share.
//!
//! All of this is relative to the other members: if all fail alike, none has a penalty.

use std::time::Duration;

use crate::latency::MemberStats;
use crate::load::PickCandidates;
use crate::time::Time;

/// Interval between comparisons; longer for many members, in proportion.
const INTERVAL: Duration = Duration::from_millis(5);
const INTERVAL_MEMBERS: u32 = 64;

/// Latency in nanoseconds below which a difference is that of networks and schedulers; it is added
/// to both sides of a comparison.
const SMALL_LATENCY: f32 = 1_500_000.0;

/// Multiple of the reference latency from which on an endpoint is slow; below it a difference may
/// be chance. Beyond it, load counts by the cube of the excess, so that a clearly slow endpoint
/// soon gets only the requests that find no other.
const SLOW: f32 = 2.5;

/// Share of failed attempts, beyond that of the best member, from which on an endpoint counts as
/// failing: three failures in a row. Fewer may be the fault of the requests.
const FAILING: f32 = 0.25;

/// Additional load factor of an endpoint of which every attempt fails.
const PENALTY: f32 = 16.0;

/// Penalty of one member: each factor is at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MemberPenalty {
    pub(super) slowness: f32,
    pub(super) failures: f32,
}

impl MemberPenalty {
    const NONE: Self = Self { slowness: 1.0, failures: 1.0 };
}

/// Penalties of the members of one set, as of the last comparison.
#[derive(Debug, Default)]
pub(super) struct MemberPenalties {
    /// Identity of the set, and the time of the next comparison.
    set: (usize, usize),
    due_at: Time,
    /// Penalty of each member; empty if no member has one.
    members: Vec<MemberPenalty>,
    /// Members that get no more than a share of the requests.
    share_limits: Vec<ShareLimit>,
    /// Buffer for the means that are compared.
    means: Vec<f32>,
}

/// Limit of a member to the share `rate` of all requests.
#[derive(Clone, Copy, Debug)]
struct ShareLimit {
    member: usize,
    rate: f32,
    /// Credit; the member may be chosen when it is 1.
    credit: f32,
}

impl MemberPenalties {
    /// Returns no penalty, for any member.
    pub(super) fn none(_member: usize) -> Option<MemberPenalty> {
        Some(MemberPenalty::NONE)
    }

    /// Compares the members if that is due, or if the set has changed.
    #[inline]
    pub(super) fn update(&mut self, candidates: &PickCandidates<'_>, now: Time) {
        if now >= self.due_at || candidates.identity() != self.set {
            self.compare(candidates, now);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the penalty of a member; `None` if `limited` is true and it has had its share.
    pub(super) fn of(&self, member: usize, limited: bool) -> Option<MemberPenalty> {
        let is_over = |limit: &ShareLimit| limit.member == member && limit.credit < 1.0;
        if limited && self.share_limits.iter().any(is_over) {
            return None;
        }
        Some(self.members.get(member).copied().unwrap_or(MemberPenalty::NONE))
    }

    /// Records that a request goes to this member.
    pub(super) fn record_pick(&mut self, member: usize) {
        for limit in &mut self.share_limits {
            limit.credit = (limit.credit + limit.rate).min(1.0);
            if limit.member == member {
                limit.credit = (limit.credit - 1.0).max(0.0);
            }
        }
    }

    #[cold]
    fn compare(&mut self, candidates: &PickCandidates<'_>, now: Time) {
        let set = candidates.identity();
        let limits = std::mem::take(&mut self.share_limits);
        let known = if self.set == set { limits.as_slice() } else { &[] };
        self.set = set;
        self.due_at = now + INTERVAL * (1 + set.1 as u32 / INTERVAL_MEMBERS);
        self.members.clear();
        let Some(usual) = SetBaseline::of(candidates, now, &mut self.means) else { return };
        let penalties = candidates.member_stats(now).map(|showing| {
            showing.map_or(MemberPenalty::NONE, |(_, showing)| usual.penalty(showing))
        });
        self.members.extend(penalties);
        for (member, showing) in candidates.member_stats(now).enumerate() {
            let Some((weight, showing)) = showing else { continue };
            let failing = self.members[member].failures;
            if failing > 1.0 || showing.has_refused && !usual.all_refuse {
                let credit = known.iter().find(|known| known.member == member);
                let credit = credit.map_or(0.0, |known| known.credit);
                let rate = weight as f32 / usual.weights / failing;
                self.share_limits.push(ShareLimit { member, rate, credit });
            }
        }
        if self.share_limits.is_empty() && self.members.iter().all(|it| *it == MemberPenalty::NONE)
        {
            self.members.clear();
        }
    }
}

/// Baseline of a set, with which each member is compared.
struct SetBaseline {
    /// Mean latency of the quicker members; 0 if none is known.
    mean: f32,
    /// Least share of failed attempts.
    failing: f32,
    all_refuse: bool,
    /// Sum of the weights of the members that can be chosen.
    weights: f32,
}

impl SetBaseline {
    /// Returns the baseline; `None` if fewer than two members can be chosen, since there is nothing
    /// to compare.
    fn of(candidates: &PickCandidates<'_>, now: Time, means: &mut Vec<f32>) -> Option<Self> {
        means.clear();
        let mut usual = Self { mean: 0.0, failing: 1.0, all_refuse: true, weights: 0.0 };
        let mut members = 0;
        for (weight, showing) in candidates.member_stats(now).flatten() {
            members += 1;
            means.extend(showing.mean);
            usual.failing = usual.failing.min(showing.failure_share);
            usual.all_refuse &= showing.has_refused;
            usual.weights += weight as f32;
        }
        if !means.is_empty() {
            // The lower quartile: of three members a quick one, and of many not an outlier.
            let quartile = (means.len() - 1) / 4;
            usual.mean = *means.select_nth_unstable_by(quartile, f32::total_cmp).1;
        }
        (members > 1).then_some(usual)
    }

    fn penalty(&self, showing: MemberStats) -> MemberPenalty {
        let mean = showing.mean.unwrap_or(self.mean);
        let times = (mean + SMALL_LATENCY) / (self.mean + SMALL_LATENCY);
        let failing = showing.failure_share - self.failing;
        MemberPenalty {
            slowness: (times / SLOW).max(1.0).powi(3),
            failures: if failing < FAILING { 1.0 } else { 1.0 + PENALTY * failing * failing },
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
