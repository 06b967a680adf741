//! Picks one endpoint of a set and takes a slot there.
//!
//! A picker belongs to one worker and one backend. It has state of its own; it shares only the
//! in-flight counts, the endpoints' latency and failure figures, and the tables of a set. It knows
//! neither queue nor connections.

use std::sync::Arc;

use crate::endpoint::{Endpoint, EndpointSet};
use crate::load::{CapacityLimits, ConcurrencyCap, MemberLoad, PickCandidates, PickExclusion};
use crate::rng::Rng;
use crate::time::Time;

/// Constraints of one request.
mod request;
/// Penalties for members that are slower than others, or fail.
mod penalty;
/// Endpoint with the least load for its weight.
mod least_load;
/// Weighted round robin.
mod round_robin;
/// Weighted random choice.
mod random;
/// Endpoint that is likely to answer first.
mod peak_ewma;
/// Endpoint of a key, unless it has more than its share of the load.
mod consistent_hash;
/// Endpoint of a key, always.
mod maglev;

pub(crate) use consistent_hash::HashRing;
pub use maglev::MaglevTable;
use penalty::MemberPenalties;
pub use request::PickRequest;
pub(crate) use request::{EligibleEndpoints, PickConstraints};

/// Load-balancing algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// The endpoint with the fewest requests in flight for its weight. One that is clearly slower
    /// than others counts as more loaded. If there are more than 64, the better of two random ones.
    #[default]
    LeastLoad,
    /// Each endpoint in turn, by weight, smoothly spread.
    RoundRobin,
    /// A random endpoint, by weight.
    Random,
    /// The endpoint that is likely to answer first: the least latency x (in flight + 1) / weight,
    /// where latency jumps to peaks and decays. It learns from outcomes ([`Endpoint::learn`]);
    /// failures count as slowness. If there are more than 64 endpoints, the better of two random
    /// ones.
    PeakEwma,
    /// The endpoint that belongs to the request's key, unless it has a quarter more in flight than
    /// its share; then another that depends on the key alone. When endpoints change, only their own
    /// keys move.
    ConsistentHash,
    /// The endpoint that belongs to the request's key by Maglev's table, however busy it is: at its
    /// cap the request waits.
    Maglev,
}

/// Number of members up to which a picker compares all of them, rather than two.
const SCAN: usize = 64;

/// Picker of one worker and one backend.
#[derive(Debug)]
pub struct Picker {
    algorithm: Algorithm,
    state: AlgorithmState,
    penalties: MemberPenalties,
}

/// The state of the algorithm. Those that hash have that of LeastLoad, for requests without a key.
#[derive(Debug)]
enum AlgorithmState {
    LeastLoad(least_load::LeastLoad),
    RoundRobin(round_robin::RoundRobin),
    Random(random::Random),
    PeakEwma(peak_ewma::PeakEwma),
}

impl Picker {
    /// Number of times that a picker, after losing the last slot to another worker, looks for the
    /// best endpoint again.
    const MAX_TRIES: usize = 4;

    /// Returns a picker. The seed decides where it begins, so that workers do not move in step.
    pub fn new(algorithm: Algorithm, seed: u64) -> Self {
        let state = match algorithm {
            // Requests without a key are balanced by load.
            Algorithm::LeastLoad | Algorithm::ConsistentHash | Algorithm::Maglev => {
                AlgorithmState::LeastLoad(least_load::LeastLoad::new(seed))
            }
            Algorithm::RoundRobin => AlgorithmState::RoundRobin(round_robin::RoundRobin::new(seed)),
            Algorithm::Random => AlgorithmState::Random(random::Random::new(seed)),
            Algorithm::PeakEwma => AlgorithmState::PeakEwma(peak_ewma::PeakEwma::new(seed)),
        };
        Self { algorithm, state, penalties: MemberPenalties::default() }
    }

    /// Returns its algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Picks an endpoint and takes a slot there; the request counts from now on.
    ///
    /// `None` means that each endpoint that the request permits was seen at the cap during the
    /// call. Each slot taken must be returned once, by
    /// [`Admission::release`](crate::Admission::release).
    pub fn take<T>(
        &mut self,
        set: &EndpointSet<T>,
        cap: ConcurrencyCap,
        request: &PickRequest<'_, T>,
    ) -> Option<Arc<Endpoint<T>>> {
        let candidates = |exclusion| {
            PickCandidates::new(&set.loads, CapacityLimits::within(cap, request.now), exclusion)
        };
        let member = match self.eligible(set, request) {
            EligibleEndpoints::Any => {
                self.take_member(set, &candidates(PickExclusion::None), request)
            }
            EligibleEndpoints::AllExcept(excluded) => {
                let is_barred = |member| excluded.contains(&member);
                self.take_member(set, &candidates(PickExclusion::Matching(&is_barred)), request)
            }
            EligibleEndpoints::Only(member) => {
                self.take_bound(set, &candidates(PickExclusion::None), request, member)
            }
        };
        member.map(|member| set.members()[member].endpoint.clone())
    }

    /// Picks like [`take`](Self::take) among unreachable endpoints, for a request that cannot wait
    /// and for which no endpoint is reachable: the attempt fails with the real error, or finds that
    /// the endpoint is back before anything else does.
    #[cold]
    pub(crate) fn take_unreachable<T>(
        &mut self,
        set: &EndpointSet<T>,
        cap: ConcurrencyCap,
        request: &PickRequest<'_, T>,
    ) -> Option<Arc<Endpoint<T>>> {
        let eligible = self.eligible(set, request);
        let is_barred = |member| !eligible.allows(member);
        if (0..set.members().len()).any(|member| set.is_open(member) && !is_barred(member)) {
            return None;
        }
        let candidates = PickCandidates::new(
            &set.loads,
            CapacityLimits::within(cap, request.now),
            PickExclusion::Matching(&is_barred),
        );
        let member = self.take_regular(set, &candidates.with_unreachable(), request);
        member.map(|member| set.members()[member].endpoint.clone())
    }

    /// Picks like [`take`](Self::take), without the members for which `is_barred` returns true.
    pub(crate) fn take_except<T>(
        &mut self,
        set: &EndpointSet<T>,
        cap: ConcurrencyCap,
        request: &PickRequest<'_, T>,
        is_barred: &dyn Fn(usize) -> bool,
    ) -> Option<Arc<Endpoint<T>>> {
        let candidates = |exclusion| {
            PickCandidates::new(&set.loads, CapacityLimits::within(cap, request.now), exclusion)
        };
        let member = match self.eligible(set, request) {
            EligibleEndpoints::Only(member) => self.take_bound(
                set,
                &candidates(PickExclusion::Matching(is_barred)),
                request,
                member,
            ),
            eligible @ (EligibleEndpoints::Any | EligibleEndpoints::AllExcept(_)) => {
                let is_barred = |member| !eligible.allows(member) || is_barred(member);
                self.take_member(set, &candidates(PickExclusion::Matching(&is_barred)), request)
            }
        };
        member.map(|member| set.members()[member].endpoint.clone())
    }

    /// Returns the members that may serve the request.
    pub(crate) fn eligible<T>(
        &self,
        set: &EndpointSet<T>,
        request: &PickRequest<'_, T>,
    ) -> EligibleEndpoints {
        set.eligible(request.tried, request.only, self.binding_key(request.key))
    }

    /// Returns the constraints that a request keeps while it waits.
    pub(crate) fn constraints<T>(&self, request: &PickRequest<'_, T>) -> PickConstraints<T> {
        let (tried, only) = (request.tried.into(), request.only.cloned());
        PickConstraints { tried, only, key: self.binding_key(request.key) }
    }

    /// Returns the key, if the algorithm binds the request to one endpoint by it.
    fn binding_key(&self, key: Option<u64>) -> Option<u64> {
        key.filter(|_| self.algorithm == Algorithm::Maglev)
    }

    /// Takes a slot of the member that the request is bound to. A request that is bound by its key
    /// may be the half-open request of another endpoint: if all requests have keys, no other
    /// request would be.
    fn take_bound<T>(
        &self,
        set: &EndpointSet<T>,
        candidates: &PickCandidates<'_>,
        request: &PickRequest<'_, T>,
        member: usize,
    ) -> Option<usize> {
        if set.loads.has_half_open()
            && request.only.is_none()
            && request.tried.is_empty()
            && let Some(tried) = candidates.take_half_open()
        {
            return Some(tried);
        }
        let take = |candidates: &PickCandidates<'_>| candidates.take(member).then_some(member);
        take(candidates).or_else(|| take(&candidates.ignoring_refusals()?))
    }

    fn take_member<T>(
        &mut self,
        set: &EndpointSet<T>,
        candidates: &PickCandidates<'_>,
        request: &PickRequest<'_, T>,
    ) -> Option<usize> {
        if set.loads.has_half_open()
            && let Some(member) = candidates.take_half_open()
        {
            return Some(member);
        }
        // A request with a consistent-hash key stays with the endpoint of its key.
        let free = self.algorithm != Algorithm::ConsistentHash || request.key.is_none();
        if free && let Some(member) = candidates.take_preferred() {
            return Some(member);
        }
        self.take_regular(set, candidates, request)
            .or_else(|| self.take_regular(set, &candidates.ignoring_refusals()?, request))
    }

    fn take_regular<T>(
        &mut self,
        set: &EndpointSet<T>,
        candidates: &PickCandidates<'_>,
        request: &PickRequest<'_, T>,
    ) -> Option<usize> {
        for _ in 0..Self::MAX_TRIES {
            let member = self.choose(set, candidates, request)?;
            if candidates.take(member) {
                return Some(member);
            }
        }
        // Other workers keep winning the race for the best endpoint. The queue relies on `None`
        // meaning that each endpoint was seen full, so after the last try each endpoint is tried in
        // turn.
        (0..candidates.len()).find(|&member| candidates.take(member))
    }

    fn choose<T>(
        &mut self,
        set: &EndpointSet<T>,
        candidates: &PickCandidates<'_>,
        request: &PickRequest<'_, T>,
    ) -> Option<usize> {
        if self.algorithm == Algorithm::ConsistentHash
            && let Some(key) = request.key
            && let Some(member) = consistent_hash::choose(set.ring(), candidates, key)
        {
            return Some(member);
        }
        self.penalties.update(candidates, request.now);
        if let Some(zones) = candidates.by_zone()
            && let Some(member) = self.choose_by_zone(zones, request.now)
        {
            return Some(member);
        }
        self.state.choose(candidates, &mut self.penalties, request.now)
    }

    /// Picks by zone. A function of its own, because most sets have no zones and every request runs
    /// the caller.
    #[cold]
    fn choose_by_zone(&mut self, zones: [PickCandidates<'_>; 2], now: Time) -> Option<usize> {
        zones.iter().find_map(|zone| self.state.choose(zone, &mut self.penalties, now))
    }
}

impl AlgorithmState {
    #[inline]
    fn choose(
        &mut self,
        candidates: &PickCandidates<'_>,
        penalties: &mut MemberPenalties,
        now: Time,
    ) -> Option<usize> {
        if penalties.is_empty() {
            return match self {
                Self::LeastLoad(state) => state.choose(candidates),
                Self::RoundRobin(state) => state.choose(candidates, MemberPenalties::none),
                Self::Random(state) => state.choose(candidates),
                Self::PeakEwma(state) => state.choose(candidates, now, MemberPenalties::none),
            };
        }
        self.choose_with(candidates, penalties, now)
    }

    /// Picks with penalties. A function of its own, because usually no endpoint is slower than
    /// others or fails.
    #[cold]
    fn choose_with(
        &mut self,
        candidates: &PickCandidates<'_>,
        penalties: &mut MemberPenalties,
        now: Time,
    ) -> Option<usize> {
        let mut choose = |limited: bool| {
            let penalty = |member| penalties.of(member, limited);
            match self {
                Self::LeastLoad(state) => state.choose_with(candidates, penalty),
                Self::RoundRobin(state) => state.choose(candidates, penalty),
                Self::Random(state) => state.choose_with(candidates, penalty),
                Self::PeakEwma(state) => state.choose(candidates, now, penalty),
            }
        };
        // If all others are full, one that fails may have more than its share.
        let chosen = choose(true).or_else(|| choose(false))?;
        penalties.record_pick(chosen);
        Some(chosen)
    }
}

/// Returns the better of two different random members, or the one that can take a request; `None`
/// if neither can.
///
/// The two are different, because with two of the same the worst is chosen now and then
/// (envoy#14859).
#[inline(never)]
fn better_of_two(
    candidates: &PickCandidates<'_>,
    rng: &mut Rng,
    is_better: impl FnOnce((usize, MemberLoad), (usize, MemberLoad)) -> bool,
) -> Option<usize> {
    let (one, other) = candidates.draw_two(rng)?;
    let (one, other) = ((one, candidates.load(one)), (other, candidates.load(other)));
    let is_open = |(member, load)| candidates.is_open(member, load);
    let chosen = match (is_open(one), is_open(other)) {
        (true, true) => Some(if is_better(other, one) { other } else { one }),
        (true, false) => Some(one),
        (false, true) => Some(other),
        (false, false) => None,
    };
    chosen.map(|(member, _)| member)
}

#[cfg(all(test, not(loom)))]
mod tests;
