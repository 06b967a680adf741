//! Invariants that hold in any simulation. They keep their own account of slots held and requests
//! queued, and read from `balance` only its public state.

use std::rc::Rc;
use std::sync::Arc;

use balance::{AdmissionLimits, Algorithm, ConcurrencyCap, EndpointSet, PriorityLevel};

use crate::fault_simulation::ServerEndpoint;

/// Model of one backend's queue, and checks of grants.
mod queue_model;
/// Checks of a health evaluation.
mod evaluation;
/// Checks of retries and resends.
mod retries;
/// Checks at the end of a simulation.
mod final_state;
/// Check that a failing endpoint attracts no requests.
mod failure_share;

pub(crate) use evaluation::check_evaluation;
pub(crate) use failure_share::failures_attract_nothing;
pub(crate) use final_state::{keys_stay, shares_match_weights};
pub(crate) use queue_model::{GrantCheck, QueueModel};
pub(crate) use retries::{RequestHistory, ResendAccount};

/// Endpoints and limits, as the queue has them or as a worker still sees them.
#[derive(Clone, Debug)]
pub(crate) struct ConfigView {
    pub(crate) set: Arc<EndpointSet<usize>>,
    pub(crate) limits: AdmissionLimits,
    algorithm: Algorithm,
    /// Shares by server.
    shares: Rc<[ServerShare]>,
    /// True for each server that is not marked unreachable, as of the moment of the view.
    reachable: Rc<[bool]>,
}

/// Weight and state of a server in a view.
#[derive(Clone, Copy, Debug, Default)]
struct ServerShare {
    weight: u32,
    half_open: bool,
    /// True if it is ejected or its probes fail, and there is no panic.
    out: bool,
}

/// Constraints of a request, by server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestConstraints {
    pub(crate) tried: TriedServers,
    pub(crate) only: Option<usize>,
    pub(crate) key: Option<u64>,
    pub(crate) priority: PriorityLevel,
    pub(crate) route: u64,
}

/// Servers at which a request has been tried.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TriedServers {
    /// One bit for each server.
    servers: u32,
    latest: Option<usize>,
}

impl TriedServers {
    pub(crate) fn add(&mut self, server: usize) {
        self.servers |= 1 << server;
        self.latest = Some(server);
    }

    pub(crate) fn contains(self, server: usize) -> bool {
        self.servers & 1 << server != 0
    }

    fn is_empty(self) -> bool {
        self.servers == 0
    }

    /// Returns all of them, the latest one last.
    pub(crate) fn servers(self) -> impl Iterator<Item = usize> {
        let others = (0..32).filter(move |&it| self.contains(it) && Some(it) != self.latest);
        others.chain(self.latest)
    }

    fn only_latest(self) -> Self {
        Self { servers: self.latest.map_or(0, |latest| 1 << latest), ..self }
    }
}

/// Servers of a view that satisfy the constraints of a request.
enum EligibleServers {
    AllExcept(TriedServers),
    Only(usize),
    /// One of the servers that are left, as the Maglev table decides.
    ByTable(TriedServers),
}

impl ConfigView {
    /// Creates a view; `out` is true for each server that must get nothing.
    pub(crate) fn new(
        set: Arc<EndpointSet<usize>>,
        limits: AdmissionLimits,
        algorithm: Algorithm,
        out: Vec<bool>,
    ) -> Self {
        let share = |out| ServerShare { out, ..ServerShare::default() };
        let mut shares: Vec<_> = out.into_iter().map(share).collect();
        for member in set.members() {
            let share = &mut shares[member.endpoint.data];
            (share.weight, share.half_open) = (member.weight, member.half_open);
        }
        let reachable = vec![true; shares.len()].into();
        Self { set, limits, algorithm, shares: shares.into(), reachable }.as_of_now()
    }

    /// Returns the view with the reachability of this moment, which takes effect without delay.
    pub(crate) fn as_of_now(&self) -> Self {
        let mut reachable = vec![true; self.shares.len()];
        for member in self.set.members() {
            reachable[member.endpoint.data] = member.endpoint.is_reachable();
        }
        Self { reachable: reachable.into(), ..self.clone() }
    }

    fn is_open(&self, server: usize) -> bool {
        self.shares[server].weight > 0 && self.reachable[server]
    }

    /// True if no endpoint that has a weight is reachable.
    fn is_unreachable(&self) -> bool {
        let mut regular =
            (0..self.shares.len()).filter(|&it| self.shares[it].weight > 0).peekable();
        regular.peek().is_some() && !regular.any(|server| self.reachable[server])
    }

    /// Returns the number of servers with a weight at which a request has not been tried.
    pub(crate) fn untried(&self, tried: TriedServers) -> usize {
        let regular = (0..self.shares.len()).filter(|&it| self.shares[it].weight > 0);
        regular.filter(|&server| !tried.contains(server)).count()
    }

    /// Returns the fair-queueing flow of a request.
    fn flow_key(&self, constraints: RequestConstraints) -> (PriorityLevel, u64) {
        (constraints.priority, if self.limits.fair { constraints.route } else { 0 })
    }

    /// True if any endpoint is eligible, whatever the set.
    fn is_free(&self, constraints: RequestConstraints) -> bool {
        constraints.only.is_none()
            && constraints.tried.is_empty()
            && self.algorithm != Algorithm::Maglev
    }

    fn eligible(&self, constraints: RequestConstraints) -> EligibleServers {
        let excluded = self.excluded(constraints.tried);
        let is_left = |server: &usize| self.is_open(*server) && !excluded.contains(*server);
        if let Some(only) = constraints.only.filter(is_left) {
            return EligibleServers::Only(only);
        }
        let binds = self.algorithm == Algorithm::Maglev;
        let owner = constraints.key.filter(|_| binds).and_then(|key| self.set.maglev().member(key));
        match owner.map(|member| self.set.members()[member].endpoint.data) {
            Some(owner) if is_left(&owner) => EligibleServers::Only(owner),
            Some(_) => EligibleServers::ByTable(excluded),
            None => EligibleServers::AllExcept(excluded),
        }
    }

    /// Returns the servers to avoid: all that were tried if an untried one can be chosen, else the
    /// latest, unless it is the only choice.
    fn excluded(&self, tried: TriedServers) -> TriedServers {
        let none_is_open = self.is_unreachable();
        let is_choice = |server: &usize| {
            self.is_open(*server) || none_is_open && self.shares[*server].weight > 0
        };
        let choices: Vec<usize> = (0..self.shares.len()).filter(is_choice).collect();
        if choices.iter().any(|&server| !tried.contains(server)) {
            return tried;
        }
        let is_another = |&server: &usize| Some(server) != tried.latest;
        if choices.iter().any(is_another) { tried.only_latest() } else { TriedServers::default() }
    }

    /// True if a request may have the slot of this endpoint, which it has taken.
    fn allows(&self, constraints: RequestConstraints, endpoint: &ServerEndpoint) -> bool {
        let server = endpoint.data;
        let share = self.shares[server];
        if share.out && !share.half_open {
            return false;
        }
        let eligible = self.eligible(constraints);
        if share.half_open {
            return self.reachable[server]
                && match eligible {
                    EligibleServers::AllExcept(excluded) | EligibleServers::ByTable(excluded) => {
                        !excluded.contains(server)
                    }
                    EligibleServers::Only(_) => constraints.only.is_none(),
                };
        }
        let may_reach = self.reachable[server] || self.is_last_resort();
        share.weight > 0 && may_reach && Self::serves(&eligible, server)
    }

    /// True if a request may be sent to an unreachable endpoint: no endpoint with a weight is
    /// reachable, and there is no queue in which to wait for one.
    fn is_last_resort(&self) -> bool {
        self.limits.max_waiting == 0 && self.is_unreachable()
    }

    /// True if no request may be sent to the endpoint, because it is marked unreachable and another
    /// is reachable.
    fn is_passed_over(&self, endpoint: &ServerEndpoint) -> bool {
        !self.reachable[endpoint.data] && !self.is_last_resort()
    }

    /// True if a request that cannot wait must be sent to an unreachable endpoint, as no other is
    /// left.
    fn has_last_resort(&self, constraints: RequestConstraints) -> bool {
        let eligible = self.eligible(constraints);
        let is_free = |endpoint: &ServerEndpoint| {
            let server = endpoint.data;
            let serves = self.shares[server].weight > 0 && Self::serves(&eligible, server);
            serves && self.has_room(endpoint)
        };
        let is_known = !matches!(eligible, EligibleServers::ByTable(_));
        let mut endpoints = self.set.members().iter().map(|member| &*member.endpoint);
        is_known && self.is_last_resort() && endpoints.any(is_free)
    }

    fn serves(eligible: &EligibleServers, server: usize) -> bool {
        match eligible {
            EligibleServers::AllExcept(excluded) | EligibleServers::ByTable(excluded) => {
                !excluded.contains(server)
            }
            EligibleServers::Only(only) => server == *only,
        }
    }

    /// True if a queued request must be granted a slot of this endpoint when one is free.
    fn must_serve(&self, constraints: RequestConstraints, endpoint: &ServerEndpoint) -> bool {
        let server = endpoint.data;
        self.is_open(server)
            && match self.eligible(constraints) {
                EligibleServers::AllExcept(excluded) => !excluded.contains(server),
                EligibleServers::Only(only) => server == only,
                EligibleServers::ByTable(_) => false,
            }
    }

    /// Returns the requests in flight at each member.
    pub(crate) fn loads(&self) -> Vec<u32> {
        self.set.members().iter().map(|member| member.endpoint.in_flight()).collect()
    }

    /// Checks that this many slots were granted since the loads were `before`: the loads have grown
    /// by as many, nowhere beyond the cap.
    pub(crate) fn check_grants_since(&self, before: &[u32], grants: usize) {
        let mut added = 0;
        for (member, &before) in self.set.members().iter().zip(before) {
            added += member.endpoint.in_flight() - before;
            if member.endpoint.in_flight() > before {
                self.check_grant_at(&member.endpoint);
            }
        }
        assert_eq!(added as usize, grants, "one slot for each woken request, and no other");
    }

    /// Checks that a slot of this endpoint could be granted.
    pub(crate) fn check_grant_at(&self, endpoint: &ServerEndpoint) {
        let share = self.shares[endpoint.data];
        assert!(share.weight > 0 || share.half_open, "{endpoint:?} has left");
        assert!(self.is_within_cap(endpoint), "{endpoint:?} is over the cap");
    }

    /// True if the endpoint is not over its cap. A half-open endpoint has one request at a time,
    /// whatever the cap.
    fn is_within_cap(&self, endpoint: &ServerEndpoint) -> bool {
        let alone = self.shares[endpoint.data].half_open;
        let cap = if alone { ConcurrencyCap::of(1) } else { self.limits.cap };
        most(endpoint, cap).is_none_or(|most| endpoint.in_flight() <= most)
    }

    /// Returns the endpoints that have a weight and a free slot.
    fn free(&self) -> impl Iterator<Item = &ServerEndpoint> {
        let members = self.set.members().iter();
        let members = members.filter(|member| self.is_open(member.endpoint.data));
        members.map(|member| &*member.endpoint).filter(|endpoint| self.has_room(endpoint))
    }

    fn has_room(&self, endpoint: &ServerEndpoint) -> bool {
        most(endpoint, self.limits.cap).is_none_or(|most| endpoint.in_flight() < most)
    }

    /// True if any request can be granted anything.
    fn is_usable(&self) -> bool {
        self.shares.iter().any(|share| share.weight > 0 || share.half_open)
    }
}

/// Returns the limit of an endpoint. If there is no cap, even a full endpoint gets requests when no
/// other has capacity.
fn most(endpoint: &ServerEndpoint, cap: ConcurrencyCap) -> Option<u32> {
    endpoint.limit(cap).filter(|_| cap.is_some())
}
