//! What must hold in any world. Keeps its own account of who holds and who waits, and asks `balance` for nothing but
//! the state it would show anybody.

use std::collections::VecDeque;
use std::sync::Arc;

use balance::{EndpointSet, Entry, Limits, Refusal};

use crate::requests::Id;
use crate::world::Endpoint;

/// Endpoints and limits, as the queue has them or as a worker still sees them.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) set: Arc<EndpointSet<usize>>,
    pub(crate) limits: Limits,
}

/// Who waits for one backend, in order.
#[derive(Default)]
pub(crate) struct Line(VecDeque<Waiter>);

struct Waiter {
    id: Id,
    except: Option<usize>,
}

/// What was true when a slot was granted, to be held against the endpoint once the waiter shows it.
pub(crate) struct Grant {
    view: View,
    except: Option<usize>,
    /// What those who were passed over are kept from.
    passed: Vec<Option<usize>>,
}

impl View {
    /// Whether a request kept from `except` may use the endpoint.
    fn may_use(&self, except: Option<usize>, endpoint: &Endpoint) -> bool {
        let usable = |usable: &Endpoint| self.weight(usable) > 0;
        let others = || self.set.members().iter().filter(|member| usable(&member.endpoint)).count();
        usable(endpoint) && (except != Some(endpoint.data) || others() == 1)
    }

    fn weight(&self, endpoint: &Endpoint) -> u32 {
        let mut members = self.set.members().iter();
        let member = members.find(|member| std::ptr::eq(&*member.endpoint, endpoint));
        member.map_or(0, |member| member.weight)
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
        assert!(self.weight(endpoint) > 0, "{endpoint:?} has left");
        assert!(self.is_within_cap(endpoint), "{endpoint:?} is over the cap");
    }

    fn is_within_cap(&self, endpoint: &Endpoint) -> bool {
        self.limits.cap.is_none_or(|cap| endpoint.in_flight() <= cap.get())
    }

    /// The endpoints that have a weight and could take one more.
    fn free(&self) -> impl Iterator<Item = &Endpoint> {
        let has_room = |endpoint: &Endpoint| {
            self.limits.cap.is_none_or(|cap| endpoint.in_flight() < cap.get())
        };
        let members = self.set.members().iter().filter(|member| member.weight > 0);
        members.map(|member| &*member.endpoint).filter(move |endpoint| has_room(endpoint))
    }
}

impl Line {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A request has asked for a slot. `seen` is what its worker knows, `current` what is in force.
    pub(crate) fn entered(
        &mut self,
        (id, except): (Id, Option<usize>),
        entry: &Entry<usize>,
        seen: &View,
        current: &View,
    ) {
        let waiting = self.len() as u32;
        match entry {
            Entry::Slot(endpoint) => {
                let fits =
                    |view: &View| view.may_use(except, endpoint) && view.is_within_cap(endpoint);
                let by_sight = waiting == 0 && fits(seen);
                assert!(by_sight || fits(current), "not an endpoint to use, or over the cap");
                let wanted = self.0.iter().any(|waiter| current.may_use(waiter.except, endpoint));
                assert!(!wanted, "barged in before somebody who waits");
            }
            Entry::Waiting(_) => {
                assert!(waiting < current.limits.max_waiting, "waits beyond the limit");
                self.0.push_back(Waiter { id, except });
            }
            Entry::Refused(refusal) => {
                let decides = if waiting >= seen.limits.max_waiting { seen } else { current };
                assert!(waiting >= decides.limits.max_waiting, "refused though it may wait");
                let mut free = decides.free();
                let served = waiting == 0 && free.any(|endpoint| decides.may_use(except, endpoint));
                assert!(!served, "refused though there is a slot");
                let weights = decides.set.members().iter().any(|member| member.weight > 0);
                let nobody = decides.limits.max_waiting == 0 && !weights;
                assert_eq!(*refusal == Refusal::NoEndpoint, nobody, "refused for a wrong reason");
            }
        }
    }

    /// Somebody has been woken, so it no longer waits.
    pub(crate) fn granted(&mut self, id: Id, current: &View) -> Grant {
        let position = self.0.iter().position(|waiter| waiter.id == id);
        let position = position.expect("only who waits is granted a slot");
        let passed = self.0.range(..position).map(|waiter| waiter.except).collect();
        let waiter = self.0.remove(position).expect("it was found there");
        Grant { view: current.clone(), except: waiter.except, passed }
    }

    pub(crate) fn gave_up(&mut self, id: Id) {
        let position = self.0.iter().position(|waiter| waiter.id == id);
        self.0.remove(position.expect("only who waits gives up"));
    }

    /// Nobody waits while a slot that it may use is free.
    pub(crate) fn check(&self, current: &View) {
        if self.0.is_empty() {
            return;
        }
        for endpoint in current.free() {
            let wanted = self.0.iter().any(|waiter| current.may_use(waiter.except, endpoint));
            assert!(!wanted, "somebody waits while {endpoint:?} is free");
        }
    }
}

impl Grant {
    /// The waiter shows which endpoint it was granted.
    pub(crate) fn shown(&self, endpoint: &Endpoint) {
        assert!(self.view.may_use(self.except, endpoint), "granted an endpoint not to use");
        let passed = self.passed.iter().any(|&except| self.view.may_use(except, endpoint));
        assert!(!passed, "somebody who may use it came first");
    }
}
