//! What must hold in any world. Keeps its own account of who holds and who waits, and asks `balance` for nothing but
//! the state it would show anybody.

use std::rc::Rc;
use std::sync::Arc;

use balance::{Algorithm, Cap, EndpointSet, Limits, Priority};

use crate::world::Endpoint;

/// Who waits, and who may be given what.
mod line;
/// What a judgement may do.
mod verdict;
/// What is true when all is over.
mod end;

pub(crate) use end::{keys_stay, shares_match_weights};
pub(crate) use line::{Grant, Line};
pub(crate) use verdict::check_verdict;

/// Endpoints and limits, as the queue has them or as a worker still sees them.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) set: Arc<EndpointSet<usize>>,
    pub(crate) limits: Limits,
    algorithm: Algorithm,
    /// By server.
    parts: Rc<[Part]>,
}

/// What a server is given, as far as a view goes.
#[derive(Clone, Copy, Default)]
struct Part {
    weight: u32,
    trial: bool,
    /// It is ejected or found unfit, and nobody panics.
    out: bool,
}

/// What a request asks of choosing, by server.
#[derive(Clone, Copy, Default)]
pub(crate) struct Want {
    pub(crate) except: Option<usize>,
    pub(crate) only: Option<usize>,
    pub(crate) key: Option<u64>,
    pub(crate) priority: Priority,
    pub(crate) route: u64,
}

/// What a want comes to in a view.
enum Claim {
    Any,
    But(usize),
    Only(usize),
    /// One other than this; which, only the table knows.
    NextTo(usize),
}

impl View {
    /// `out` says of each server whether it must get nothing.
    pub(crate) fn new(
        set: Arc<EndpointSet<usize>>,
        limits: Limits,
        algorithm: Algorithm,
        out: Vec<bool>,
    ) -> Self {
        let part = |out| Part { out, ..Part::default() };
        let mut parts: Vec<_> = out.into_iter().map(part).collect();
        for member in set.members() {
            let part = &mut parts[member.endpoint.data];
            (part.weight, part.trial) = (member.weight, member.trial);
        }
        Self { set, limits, algorithm, parts: parts.into() }
    }

    /// Those who share one share of the queue.
    fn party(&self, want: Want) -> (Priority, u64) {
        (want.priority, if self.limits.fair { want.route } else { 0 })
    }

    /// Any endpoint will do, whatever the set.
    fn is_free(&self, want: Want) -> bool {
        want.only.is_none() && want.except.is_none() && self.algorithm != Algorithm::Maglev
    }

    fn claim(&self, want: Want) -> Claim {
        let usable = self.parts.iter().filter(|part| part.weight > 0).count();
        let except = want.except.filter(|_| usable > 1);
        let is_usable = |server: &usize| self.parts[*server].weight > 0;
        if let Some(only) = want.only.filter(is_usable).filter(|&only| Some(only) != except) {
            return Claim::Only(only);
        }
        let binds = self.algorithm == Algorithm::Maglev;
        let owner = want.key.filter(|_| binds).and_then(|key| self.set.maglev().member(key));
        let owner = owner.map(|member| self.set.members()[member].endpoint.data);
        match (owner, except) {
            (Some(owner), Some(except)) if owner == except => Claim::NextTo(except),
            (Some(owner), _) => Claim::Only(owner),
            (None, Some(except)) => Claim::But(except),
            (None, None) => Claim::Any,
        }
    }

    /// Whether a request may be given a slot of this endpoint, which it has taken.
    fn allows(&self, want: Want, endpoint: &Endpoint) -> bool {
        let server = endpoint.data;
        let part = self.parts[server];
        if part.out && !part.trial {
            return false;
        }
        let claim = self.claim(want);
        if part.trial {
            return match claim {
                Claim::Any => true,
                Claim::But(except) | Claim::NextTo(except) => server != except,
                Claim::Only(_) => want.only.is_none(),
            };
        }
        part.weight > 0
            && match claim {
                Claim::Any => true,
                Claim::But(except) | Claim::NextTo(except) => server != except,
                Claim::Only(only) => server == only,
            }
    }

    /// Whether a request that waits must be given a slot of this endpoint when there is one.
    fn wants(&self, want: Want, endpoint: &Endpoint) -> bool {
        let server = endpoint.data;
        self.parts[server].weight > 0
            && match self.claim(want) {
                Claim::Any => true,
                Claim::But(except) => server != except,
                Claim::Only(only) => server == only,
                Claim::NextTo(_) => false,
            }
    }

    /// Requests in flight at each member.
    pub(crate) fn loads(&self) -> Vec<u32> {
        self.set.members().iter().map(|member| member.endpoint.in_flight()).collect()
    }

    /// So many grants were given since the loads were `before`: as much has been added, nowhere beyond the cap.
    pub(crate) fn granted_since(&self, before: &[u32], grants: usize) {
        let mut added = 0;
        for (member, &before) in self.set.members().iter().zip(before) {
            added += member.endpoint.in_flight() - before;
            if member.endpoint.in_flight() > before {
                self.granted_at(&member.endpoint);
            }
        }
        assert_eq!(added as usize, grants, "a slot for each who was woken, and no other");
    }

    /// A grant was given at this endpoint.
    pub(crate) fn granted_at(&self, endpoint: &Endpoint) {
        let part = self.parts[endpoint.data];
        assert!(part.weight > 0 || part.trial, "{endpoint:?} has left");
        assert!(self.is_within_cap(endpoint), "{endpoint:?} is over the cap");
    }

    /// A trial is one request at a time, whatever the cap.
    fn is_within_cap(&self, endpoint: &Endpoint) -> bool {
        let alone = self.parts[endpoint.data].trial;
        let cap = if alone { Cap::of(1) } else { self.limits.cap };
        most(endpoint, cap).is_none_or(|most| endpoint.in_flight() <= most)
    }

    /// The endpoints that have a weight and could take one more.
    fn free(&self) -> impl Iterator<Item = &Endpoint> {
        let has_room = |endpoint: &Endpoint| {
            most(endpoint, self.limits.cap).is_none_or(|most| endpoint.in_flight() < most)
        };
        let members = self.set.members().iter().filter(|member| member.weight > 0);
        members.map(|member| &*member.endpoint).filter(move |endpoint| has_room(endpoint))
    }

    /// Whether anybody can be given anything.
    fn is_usable(&self) -> bool {
        self.parts.iter().any(|part| part.weight > 0 || part.trial)
    }
}

/// Where there is no cap, one that is full is asked all the same if nobody else has room.
fn most(endpoint: &Endpoint, cap: Cap) -> Option<u32> {
    endpoint.limit(cap).filter(|_| cap.is_some())
}
