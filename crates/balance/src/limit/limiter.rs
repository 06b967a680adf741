//! Computes the concurrency limits of one backend's endpoints from observations.
//!
//! It belongs to one thread, beside the workers. The observations of one endpoint count for the
//! others too, since most backends consist of equal endpoints. They count only so far that a
//! different endpoint is recognised by its own evidence.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::epoch::{LimitLikelihoods, normalize};
use super::estimator::{LimitEstimator, highest_level};
use super::levels::LEVELS;
use super::sharing::{LimitSharing, PeerView};
use super::trial::{SHORTEST, SHORTEST_WITH_PEERS, TrialScheduler};
use super::{LimitReason, LimitSettings};
use crate::endpoint::{EndpointSet, SetMember};
use crate::leases::PoolKey;
use crate::load::ConcurrencyCap;
use crate::time::Time;

/// Sharing of limits with other replicas.
mod group_update;

/// Weight of the evidence of all other endpoints, as a number of endpoints.
const OTHERS_WEIGHT: f64 = 8.0;
/// Probability that an endpoint is unlike the others.
const OUTLIER_PROBABILITY: f64 = 0.05;

/// Concurrency limits of a backend's endpoints.
#[derive(Debug, Default)]
pub struct ConcurrencyLimiter {
    estimators: Vec<LimitEstimator>,
    trials: TrialScheduler,
    /// Limits in force, in the order of the estimators.
    in_force: Vec<LimitInForce>,
    /// True if limits were shared with peers in the last round.
    has_heard_peers: bool,
}

/// Limit of one endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitInForce {
    pub(super) address: SocketAddr,
    /// Limit of this replica.
    pub(super) limit: u32,
    /// Limit of all replicas together.
    pub(super) total: u32,
    pub(super) reason: LimitReason,
    pub(super) preferred: bool,
}

impl ConcurrencyLimiter {
    /// Returns a limiter without observations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Computes limits from the observations and applies them. True if some endpoint may have more
    /// requests than before; then queued requests may use it
    /// ([`Admission::dispatch`](crate::Admission::dispatch)). To be called ten times a second, and
    /// before a set is used for the first time.
    ///
    /// `set` is the set that pickers use, `waiting` the number of requests in its queue. `round` is
    /// unique for each round: of the backends that share an endpoint, the first in a round computes
    /// its limit.
    pub fn update<T>(
        &mut self,
        set: &EndpointSet<T>,
        settings: &LimitSettings,
        waiting: u32,
        round: u64,
        now: Time,
    ) -> bool {
        self.update_with(set, settings, waiting, round, None, now)
    }

    /// The same beside other replicas. `pool` names the backend, the same at each replica.
    pub fn update_shared<T>(
        &mut self,
        set: &EndpointSet<T>,
        settings: &LimitSettings,
        waiting: u32,
        round: u64,
        (pool, sharing): (PoolKey, &mut LimitSharing),
        now: Time,
    ) -> bool {
        self.update_with(set, settings, waiting, round, Some((pool, sharing)), now)
    }

    fn update_with<T>(
        &mut self,
        set: &EndpointSet<T>,
        settings: &LimitSettings,
        waiting: u32,
        round: u64,
        sharing: Option<(PoolKey, &mut LimitSharing)>,
        now: Time,
    ) -> bool {
        let members = set.members().iter().enumerate();
        let ours: Vec<_> =
            members.filter(|(_, it)| it.endpoint.limit_counters.claim_round(round)).collect();
        let mut sharing = sharing.filter(|(_, sharing)| sharing.has_peers());
        self.sync_members(&ours, settings, now);
        let views = self.peer_views(&ours, &mut sharing, settings, now);
        self.trials.end(&mut self.estimators, now);
        if let Some((pool, sharing)) = &mut sharing {
            self.observe(&ours, waiting, &views, (*pool, sharing), now);
        }
        self.update_estimates(&ours, &views, settings, now);
        let in_flight = ours.iter().map(|(_, member)| member.endpoint.in_flight());
        let of_peers: f64 = views.iter().flatten().map(PeerView::demand).sum();
        let demand = in_flight.fold(waiting, u32::saturating_add).saturating_add(of_peers as u32);
        let is_led = |at: usize| views.get(at).and_then(Option::as_ref)?.leader;
        let is_fit = |at: usize| ours[at].1.weight > 0 && is_led(at).is_none();
        let is_alone = views.iter().flatten().all(PeerView::is_idle);
        let shortest = if is_alone { SHORTEST } else { SHORTEST_WITH_PEERS };
        self.trials.begin(&mut self.estimators, demand, is_fit, shortest, settings, now);
        self.in_force = self.own_limits();
        if let Some((pool, sharing)) = sharing {
            self.share_limits(&ours, &views, (pool, sharing), settings, now);
        }
        self.apply_limits(&ours, set)
    }

    /// Returns the limit of each endpoint and its reason.
    pub fn limits(&self) -> impl Iterator<Item = (SocketAddr, u32, LimitReason)> {
        self.in_force.iter().map(|it| (it.address, it.limit, it.reason))
    }

    /// Returns the limit of each endpoint for all replicas together.
    pub fn totals(&self) -> impl Iterator<Item = (SocketAddr, u32)> {
        self.in_force.iter().map(|it| (it.address, it.total))
    }

    /// Returns the limit that each endpoint would have without trials.
    pub fn estimates(&self) -> impl Iterator<Item = (SocketAddr, u32)> {
        self.estimators.iter().map(|estimator| (estimator.address, estimator.limit))
    }

    /// Keeps one estimator for each member, in their order; known endpoints keep their estimate.
    fn sync_members<T>(
        &mut self,
        ours: &[(usize, &SetMember<T>)],
        settings: &LimitSettings,
        now: Time,
    ) {
        let addresses = ours.iter().map(|(_, member)| member.endpoint.address);
        if self.estimators.iter().map(|estimator| estimator.address).eq(addresses) {
            return;
        }
        let known = std::mem::take(&mut self.estimators).into_iter();
        let mut known: BTreeMap<_, _> =
            known.map(|estimator| (estimator.address, estimator)).collect();
        let estimator = |(_, member): &(usize, &SetMember<T>)| {
            let endpoint = &member.endpoint;
            let learned = endpoint.limit(ConcurrencyCap::Learned);
            known.remove(&endpoint.address).unwrap_or_else(|| {
                LimitEstimator::new(
                    endpoint.address,
                    &endpoint.limit_counters,
                    learned,
                    settings,
                    now,
                )
            })
        };
        self.estimators = ours.iter().map(estimator).collect();
    }

    /// Updates the estimates from the observations.
    fn update_estimates<T>(
        &mut self,
        ours: &[(usize, &SetMember<T>)],
        views: &[Option<PeerView>],
        settings: &LimitSettings,
        now: Time,
    ) {
        let mut surprise = false;
        for (at, (estimator, (_, member))) in self.estimators.iter_mut().zip(ours).enumerate() {
            let view = views.get(at).and_then(Option::as_ref);
            estimator.gather(&member.endpoint.limit_counters, view, now);
            if self.trials.of(estimator.address).is_none() && !estimator.is_tried_by_peer {
                surprise |= estimator.close_epoch(now);
            }
        }
        if surprise {
            self.trials.schedule_eager_trials(self.estimators.len());
        }
        let likelihoods: Vec<LimitLikelihoods> =
            self.estimators.iter().map(LimitEstimator::current_likelihoods).collect();
        let mut sum = [0.0; LEVELS];
        for likelihoods in &likelihoods {
            sum.iter_mut().zip(likelihoods).for_each(|(sum, each)| *sum += each);
        }
        let top = highest_level(
            |step| self.estimators.iter().map(|estimator| estimator.samples_at(step)).sum(),
            10.0,
        );
        for (at, (estimator, mut likelihoods)) in
            self.estimators.iter_mut().zip(likelihoods).enumerate()
        {
            let others = likelihoods_of_others(&sum, &likelihoods, ours.len() - 1);
            likelihoods.iter_mut().zip(others).for_each(|(own, others)| *own += others);
            normalize(&mut likelihoods);
            let reported = ours[at].1.endpoint.limit_counters.reported_limit(now);
            let view = views.get(at).and_then(Option::as_ref);
            let reported = reported.or_else(|| view.and_then(|view| view.reported));
            estimator.update_limit(&likelihoods, top, reported, settings);
        }
    }

    /// Returns the limits that this replica would use alone.
    fn own_limits(&self) -> Vec<LimitInForce> {
        let limit = |estimator: &LimitEstimator| {
            let address = estimator.address;
            let (limit, reason, preferred) = match self.trials.of(address) {
                Some(trial) => (trial.target, LimitReason::Probing, trial.up),
                None => (estimator.limit, estimator.reason, false),
            };
            LimitInForce { address, limit, total: limit, reason, preferred }
        };
        self.estimators.iter().map(limit).collect()
    }

    /// Applies the limits. True if some endpoint may have more requests than before.
    fn apply_limits<T>(&self, ours: &[(usize, &SetMember<T>)], set: &EndpointSet<T>) -> bool {
        let mut raised = false;
        for (in_force, (_, member)) in self.in_force.iter().zip(ours) {
            raised |= member.endpoint.set_learned(in_force.limit);
        }
        let preferred = self.in_force.iter().zip(ours).filter(|(in_force, _)| in_force.preferred);
        set.prefer(preferred.map(|(_, &(at, _))| at));
        raised
    }
}

/// Returns the likelihoods of an endpoint's limits from the evidence of the others. The endpoint is
/// like the others or, with a small probability, has any limit.
fn likelihoods_of_others(
    sum: &LimitLikelihoods,
    own: &LimitLikelihoods,
    others: usize,
) -> LimitLikelihoods {
    if others == 0 {
        return [0.0; LEVELS];
    }
    let weight = (OTHERS_WEIGHT / others as f64).min(1.0);
    let mut likelihoods: LimitLikelihoods =
        std::array::from_fn(|step| (sum[step] - own[step]) * weight);
    normalize(&mut likelihoods);
    let total: f64 = likelihoods.iter().map(|each| each.exp()).sum();
    likelihoods.map(|each| {
        ((1.0 - OUTLIER_PROBABILITY) * each.exp() / total + OUTLIER_PROBABILITY / LEVELS as f64)
            .ln()
    })
}
