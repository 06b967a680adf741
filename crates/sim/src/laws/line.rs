//! Who waits for one backend, in order, and who may be given what.

use std::collections::VecDeque;

use balance::{Entry, Refusal};

use crate::laws::{View, Want};
use crate::requests::Id;
use crate::world::Endpoint;

/// Who waits for one backend, in order.
#[derive(Default)]
pub(crate) struct Line(VecDeque<Waiter>);

struct Waiter {
    id: Id,
    want: Want,
}

/// What was true when a slot was granted, to be held against the endpoint once the waiter shows it.
pub(crate) struct Grant {
    view: View,
    want: Want,
    /// What those who were passed over want.
    passed: Vec<Want>,
}

impl Line {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A request has asked for a slot. `seen` is what its worker knows, `current` what is in force.
    pub(crate) fn entered(
        &mut self,
        (id, want): (Id, Want),
        entry: &Entry<usize>,
        seen: &View,
        current: &View,
    ) {
        let waiting = self.len() as u32;
        match entry {
            Entry::Slot(endpoint) => {
                let fits =
                    |view: &View| view.allows(want, endpoint) && view.is_within_cap(endpoint);
                let by_sight = waiting == 0 && fits(seen);
                assert!(by_sight || fits(current), "not an endpoint to use, or over the cap");
                let wanted = self.0.iter().any(|waiter| current.wants(waiter.want, endpoint));
                assert!(!wanted, "barged in before somebody who waits");
            }
            Entry::Waiting(_) => {
                assert!(waiting < current.limits.max_waiting, "waits beyond the limit");
                self.0.push_back(Waiter { id, want });
            }
            Entry::Refused(refusal) => {
                let decides = if waiting >= seen.limits.max_waiting { seen } else { current };
                assert!(waiting >= decides.limits.max_waiting, "refused though it may wait");
                let mut free = decides.free();
                let served = waiting == 0 && free.any(|endpoint| decides.wants(want, endpoint));
                assert!(!served, "refused though there is a slot");
                let reasons = [seen, current].map(Self::reason);
                assert!(reasons.contains(refusal), "refused for a wrong reason");
            }
        }
    }

    fn reason(view: &View) -> Refusal {
        let nobody = view.limits.max_waiting == 0 && !view.is_usable();
        if nobody { Refusal::NoEndpoint } else { Refusal::Full }
    }

    /// Somebody has been woken, so it no longer waits.
    pub(crate) fn granted(&mut self, id: Id, current: &View) -> Grant {
        let position = self.0.iter().position(|waiter| waiter.id == id);
        let position = position.expect("only who waits is granted a slot");
        let passed = self.0.range(..position).map(|waiter| waiter.want).collect();
        let waiter = self.0.remove(position).expect("it was found there");
        Grant { view: current.clone(), want: waiter.want, passed }
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
            let wanted = self.0.iter().any(|waiter| current.wants(waiter.want, endpoint));
            assert!(!wanted, "somebody waits while {endpoint:?} is free");
        }
    }
}

impl Grant {
    /// The waiter shows which endpoint it was granted.
    pub(crate) fn shown(&self, endpoint: &Endpoint) {
        assert!(self.view.allows(self.want, endpoint), "granted an endpoint not to use");
        let passed = self.passed.iter().any(|&want| self.view.wants(want, endpoint));
        assert!(!passed, "somebody who may use it came first");
    }
}
