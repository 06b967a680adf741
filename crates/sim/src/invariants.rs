//! What must hold in any world. Keeps its own account of who holds and who waits, and asks `balance` for nothing but
//! the state it would show anybody.

use std::rc::Rc;
use std::sync::Arc;

use balance::{AdmissionLimits, Algorithm, ConcurrencyCap, EndpointSet, PriorityLevel};

use crate::fault_simulation::ServerEndpoint;

/// Who waits, and who may be given what.
mod queue_model;
/// What a judgement may do.
mod evaluation;
/// How a request may be sent again.
mod retries;
/// What is true when all is over.
mod final_state;
/// An endpoint that fails attracts no requests.
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
    /// By server.
    shares: Rc<[ServerShare]>,
    /// By server: whether it is not marked unreachable, as of the moment of the view.
    reachable: Rc<[bool]>,
}

/// What a server is given, as far as a view goes.
#[derive(Clone, Copy, Debug, Default)]
struct ServerShare {
    weight: u32,
    half_open: bool,
    /// It is ejected or found unfit, and nobody panics.
    out: bool,
}

/// What a request asks of choosing, by server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestConstraints {
    pub(crate) tried: TriedServers,
    pub(crate) only: Option<usize>,
    pub(crate) key: Option<u64>,
    pub(crate) priority: PriorityLevel,
    pub(crate) route: u64,
}

/// The servers at which a request has been tried.
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

    /// All of them, the latest one last.
    pub(crate) fn servers(self) -> impl Iterator<Item = usize> {
        let others = (0..32).filter(move |&it| self.contains(it) && Some(it) != self.latest);
        others.chain(self.latest)
    }

    fn only_latest(self) -> Self {
        Self { servers: self.latest.map_or(0, |latest| 1 << latest), ..self }
    }
}

/// What a want comes to in a view.
enum EligibleServers {
    AllExcept(TriedServers),
    Only(usize),
    /// One that is left; which, only the table knows.
    ByTable(TriedServers),
}

impl ConfigView {
    /// `out` says of each server whether it must get nothing.
    pub(crate) fn new(
        set: Arc<EndpointSet<usize>>,
        limits: AdmissionLimits,
        algorithm: Algorithm,
        out: Vec<bool>,
    ) -> Self {
        let part = |out| ServerShare { out, ..ServerShare::default() };
        let mut parts: Vec<_> = out.into_iter().map(part).collect();
        for member in set.members() {
            let part = &mut parts[member.endpoint.data];
            (part.weight, part.half_open) = (member.weight, member.half_open);
        }
        let reachable = vec![true; parts.len()].into();
        Self { set, limits, algorithm, shares: parts.into(), reachable }.as_of_now()
    }

    /// The same with what is marked unreachable now, of which nothing learns late.
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

    /// Servers with a weight at which a request has not been tried.
    pub(crate) fn untried(&self, tried: TriedServers) -> usize {
        let regular = (0..self.shares.len()).filter(|&it| self.shares[it].weight > 0);
        regular.filter(|&server| !tried.contains(server)).count()
    }

    /// Those who share one share of the queue.
    fn flow_key(&self, want: RequestConstraints) -> (PriorityLevel, u64) {
        (want.priority, if self.limits.fair { want.route } else { 0 })
    }

    /// Any endpoint will do, whatever the set.
    fn is_free(&self, want: RequestConstraints) -> bool {
        want.only.is_none() && want.tried.is_empty() && self.algorithm != Algorithm::Maglev
    }

    fn eligible(&self, want: RequestConstraints) -> EligibleServers {
        let excluded = self.excluded(want.tried);
        let is_left = |server: &usize| self.is_open(*server) && !excluded.contains(*server);
        if let Some(only) = want.only.filter(is_left) {
            return EligibleServers::Only(only);
        }
        let binds = self.algorithm == Algorithm::Maglev;
        let owner = want.key.filter(|_| binds).and_then(|key| self.set.maglev().member(key));
        match owner.map(|member| self.set.members()[member].endpoint.data) {
            Some(owner) if is_left(&owner) => EligibleServers::Only(owner),
            Some(_) => EligibleServers::ByTable(excluded),
            None => EligibleServers::AllExcept(excluded),
        }
    }

    /// Returns the servers to avoid: all that were tried if an untried one can be chosen, else the latest, unless it is the
    /// only choice.
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

    /// Whether a request may be given a slot of this endpoint, which it has taken.
    fn allows(&self, want: RequestConstraints, endpoint: &ServerEndpoint) -> bool {
        let server = endpoint.data;
        let part = self.shares[server];
        if part.out && !part.half_open {
            return false;
        }
        let claim = self.eligible(want);
        if part.half_open {
            return self.reachable[server]
                && match claim {
                    EligibleServers::AllExcept(excluded) | EligibleServers::ByTable(excluded) => {
                        !excluded.contains(server)
                    }
                    EligibleServers::Only(_) => want.only.is_none(),
                };
        }
        let may_reach = self.reachable[server] || self.is_last_resort();
        part.weight > 0 && may_reach && Self::serves(&claim, server)
    }

    /// True if a request may be sent to an unreachable endpoint: no endpoint with a weight is reachable, and there is no
    /// queue in which to wait for one.
    fn is_last_resort(&self) -> bool {
        self.limits.max_waiting == 0 && self.is_unreachable()
    }

    /// True if no request may be sent to the endpoint, because it is marked unreachable and another is reachable.
    fn is_passed_over(&self, endpoint: &ServerEndpoint) -> bool {
        !self.reachable[endpoint.data] && !self.is_last_resort()
    }

    /// True if a request that cannot wait must be sent to an unreachable endpoint, as no other is left.
    fn has_last_resort(&self, want: RequestConstraints) -> bool {
        let claim = self.eligible(want);
        let is_free = |endpoint: &ServerEndpoint| {
            let server = endpoint.data;
            let serves = self.shares[server].weight > 0 && Self::serves(&claim, server);
            serves && self.has_room(endpoint)
        };
        let is_known = !matches!(claim, EligibleServers::ByTable(_));
        let mut endpoints = self.set.members().iter().map(|member| &*member.endpoint);
        is_known && self.is_last_resort() && endpoints.any(is_free)
    }

    fn serves(claim: &EligibleServers, server: usize) -> bool {
        match claim {
            EligibleServers::AllExcept(excluded) | EligibleServers::ByTable(excluded) => {
                !excluded.contains(server)
            }
            EligibleServers::Only(only) => server == *only,
        }
    }

    /// Whether a request that waits must be given a slot of this endpoint when there is one.
    fn must_serve(&self, want: RequestConstraints, endpoint: &ServerEndpoint) -> bool {
        let server = endpoint.data;
        self.is_open(server)
            && match self.eligible(want) {
                EligibleServers::AllExcept(excluded) => !excluded.contains(server),
                EligibleServers::Only(only) => server == only,
                EligibleServers::ByTable(_) => false,
            }
    }

    /// Requests in flight at each member.
    pub(crate) fn loads(&self) -> Vec<u32> {
        self.set.members().iter().map(|member| member.endpoint.in_flight()).collect()
    }

    /// So many grants were given since the loads were `before`: as much has been added, nowhere beyond the cap.
    pub(crate) fn check_grants_since(&self, before: &[u32], grants: usize) {
        let mut added = 0;
        for (member, &before) in self.set.members().iter().zip(before) {
            added += member.endpoint.in_flight() - before;
            if member.endpoint.in_flight() > before {
                self.check_grant_at(&member.endpoint);
            }
        }
        assert_eq!(added as usize, grants, "a slot for each who was woken, and no other");
    }

    /// A grant was given at this endpoint.
    pub(crate) fn check_grant_at(&self, endpoint: &ServerEndpoint) {
        let part = self.shares[endpoint.data];
        assert!(part.weight > 0 || part.half_open, "{endpoint:?} has left");
        assert!(self.is_within_cap(endpoint), "{endpoint:?} is over the cap");
    }

    /// A trial is one request at a time, whatever the cap.
    fn is_within_cap(&self, endpoint: &ServerEndpoint) -> bool {
        let alone = self.shares[endpoint.data].half_open;
        let cap = if alone { ConcurrencyCap::of(1) } else { self.limits.cap };
        most(endpoint, cap).is_none_or(|most| endpoint.in_flight() <= most)
    }

    /// The endpoints that have a weight and could take one more.
    fn free(&self) -> impl Iterator<Item = &ServerEndpoint> {
        let members = self.set.members().iter();
        let members = members.filter(|member| self.is_open(member.endpoint.data));
        members.map(|member| &*member.endpoint).filter(|endpoint| self.has_room(endpoint))
    }

    fn has_room(&self, endpoint: &ServerEndpoint) -> bool {
        most(endpoint, self.limits.cap).is_none_or(|most| endpoint.in_flight() < most)
    }

    /// Whether anybody can be given anything.
    fn is_usable(&self) -> bool {
        self.shares.iter().any(|part| part.weight > 0 || part.half_open)
    }
}

/// Where there is no cap, one that is full is asked all the same if nobody else has room.
fn most(endpoint: &ServerEndpoint, cap: ConcurrencyCap) -> Option<u32> {
    endpoint.limit(cap).filter(|_| cap.is_some())
}
