//! Limits beside other replicas: what they have told becomes evidence, and limits become parts.

use super::{ConcurrencyLimiter, LimitInForce};
use crate::endpoint::SetMember;
use crate::leases::PoolKey;
use crate::limit::message::{MAX_REQUESTS, SharedLimit};
use crate::limit::sharing::{LimitSharing, PeerView};
use crate::limit::window::WindowEnd;
use crate::limit::{LimitReason, LimitSettings};
use crate::load::ConcurrencyCap;
use crate::time::Time;

impl ConcurrencyLimiter {
    /// Returns what peers have told of each endpoint. The result is empty if no peer was heard.
    pub(super) fn peer_views<T>(
        &mut self,
        ours: &[(usize, &SetMember<T>)],
        sharing: &mut Option<(PoolKey, &mut LimitSharing)>,
        settings: &LimitSettings,
        now: Time,
    ) -> Vec<Option<PeerView>> {
        let mut views = Vec::new();
        if let Some((pool, sharing)) = sharing {
            let keys = self.estimators.iter().map(|estimator| (*pool, estimator.address));
            views = keys.map(|key| sharing.view(key, now)).collect();
        }
        let has_heard_peers = views.iter().any(Option::is_some);
        let has_lost_peers = self.has_heard_peers && !has_heard_peers;
        self.has_heard_peers = has_heard_peers;
        if has_lost_peers {
            self.forget_peers(ours, sharing.is_some(), settings, now);
        }
        if !has_heard_peers {
            return Vec::new();
        }
        for (estimator, view) in self.estimators.iter_mut().zip(&views) {
            let leader = view.as_ref().and_then(|view| view.leader);
            let is_tried = leader.is_some_and(|leader| leader.reason == LimitReason::Probing);
            estimator.follow_trial(is_tried, now);
        }
        views
    }

    /// Goes on alone. If peers have only become silent, each endpoint keeps this replica's part as
    /// the limit until more is known: what was learned is about all of them together.
    fn forget_peers<T>(
        &mut self,
        ours: &[(usize, &SetMember<T>)],
        are_members: bool,
        settings: &LimitSettings,
        now: Time,
    ) {
        self.estimators.iter_mut().for_each(|estimator| estimator.follow_trial(false, now));
        if are_members {
            self.estimators.clear();
            self.sync_members(ours, settings, now);
        }
    }

    /// Samples the load, and adds the observations of all replicas to the estimates.
    pub(super) fn observe<T>(
        &mut self,
        ours: &[(usize, &SetMember<T>)],
        waiting: u32,
        views: &[Option<PeerView>],
        (pool, sharing): (PoolKey, &mut LimitSharing),
        now: Time,
    ) {
        let usable = ours.iter().filter(|(_, member)| member.weight > 0).count();
        let waiting = f64::from(waiting) / usable.max(1) as f64;
        for (at, estimator) in self.estimators.iter_mut().enumerate() {
            let member = ours[at].1;
            let waiting = if member.weight > 0 { waiting } else { 0.0 };
            let totals = member.endpoint.limit_counters.total();
            let limit = member.endpoint.limit(ConcurrencyCap::Learned).unwrap_or(u32::MAX);
            let in_flight = member.endpoint.in_flight();
            estimator.window.sample((in_flight, limit), waiting, totals, now);
            let Some(view) = views.get(at).and_then(Option::as_ref) else { continue };
            let is_trial =
                estimator.is_tried_by_peer || self.trials.of(estimator.address).is_some();
            let end = estimator.window.end(view, is_trial, estimator.service, now);
            if let WindowEnd::Ended(window) = end
                && !view.is_idle()
            {
                estimator.add_window(&window);
            }
            if end != WindowEnd::GoesOn {
                sharing.begin_window((pool, estimator.address));
            }
        }
    }

    /// Makes limits parts of the totals, and publishes them.
    pub(super) fn share_limits<T>(
        &mut self,
        ours: &[(usize, &SetMember<T>)],
        views: &[Option<PeerView>],
        (pool, sharing): (PoolKey, &mut LimitSharing),
        settings: &LimitSettings,
        now: Time,
    ) {
        for (at, in_force) in self.in_force.iter_mut().enumerate() {
            let (estimator, member) = (&self.estimators[at], ours[at].1);
            let (key, load) = ((pool, estimator.address), &estimator.window);
            let mut claim = in_force.limit;
            if let Some(view) = views.get(at).and_then(Option::as_ref) {
                in_force.follow(view, settings);
                let (total, before) = (in_force.total, sharing.claim(key).unwrap_or(0));
                // The demand that others are told, so that all divide the same.
                let demand = milli(load.demand) as f64 / 1000.0;
                claim = sharing.part(key.1, total, demand, before, view, settings);
                in_force.limit = claim.max(1);
            }
            let reported = member.endpoint.limit_counters.reported_limit(now).unwrap_or(0);
            let state = SharedLimit {
                in_flight_milli: milli(load.in_flight),
                demand_milli: milli(load.demand),
                total: in_force.total,
                claim,
                reason: in_force.reason,
                preferred: in_force.preferred,
                reported: settings.clamp_reported(reported),
            };
            sharing.publish(key, state, load.sums, now);
        }
    }
}

impl LimitInForce {
    /// Adopts the total of the replica that decides.
    fn follow(&mut self, view: &PeerView, settings: &LimitSettings) {
        if let Some(leader) = view.leader {
            self.total = settings.clamp(leader.total);
            (self.reason, self.preferred) = (leader.reason, leader.preferred);
        }
    }
}

fn milli(requests: f64) -> u64 {
    ((requests * 1000.0).round() as u64).min(MAX_REQUESTS * 1000)
}
