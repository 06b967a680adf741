//! Who waits for one backend, in order, and who may be given what.

use std::collections::VecDeque;
use std::sync::Arc;

use balance::{Entry, Refusal, Ticket};

use crate::laws::{View, Want};
use crate::requests::Id;
use crate::world::Endpoint;

/// Who waits for one backend, in order.
#[derive(Default)]
pub(crate) struct Line(VecDeque<Waiter>);

struct Waiter {
    id: Id,
    want: Want,
    ticket: Arc<Ticket<usize>>,
    /// How often a younger one of a higher priority has gone before it.
    passed: usize,
    /// How many of its own priority were there when it came.
    behind: usize,
}

/// What was true when a slot was granted, to be held against the endpoint once the waiter shows it.
pub(crate) struct Grant {
    view: View,
    want: Want,
    /// It had been passed over as often as anybody may be.
    overdue: bool,
    /// What those who came before it want.
    older: Vec<Want>,
    /// What those who came after it want.
    younger: Vec<Want>,
}

/// So often younger ones of a higher priority go before somebody who is the first of its line.
const PASSED_AT_MOST: usize = 7;

impl Line {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A request has asked for a slot. `seen` is what its worker knows, `current` what is in force.
    pub(crate) fn entered(
        &mut self,
        (id, want): (Id, Want),
        entry: &Entry<usize, Id>,
        seen: &View,
        current: &View,
    ) {
        let waiting = self.len() as u32;
        match entry {
            Entry::Slot(endpoint) => {
                let fits =
                    |view: &View| view.allows(want, endpoint) && view.is_within_cap(endpoint);
                let by_sight = waiting == 0 && fits(seen);
                assert!(
                    by_sight || fits(current),
                    "not an endpoint to use, or over the cap: {endpoint:?} for {want:?} by {seen:?}"
                );
                let passed_over = seen.is_passed_over(endpoint) && current.is_passed_over(endpoint);
                assert!(!passed_over, "sent to an unreachable endpoint while another is reachable");
                let wanted = self.0.iter().any(|waiter| current.wants(waiter.want, endpoint));
                assert!(!wanted, "barged in before somebody who waits");
            }
            Entry::Waiting { ticket, turned_out } => {
                let room = waiting < current.limits.max_waiting;
                assert_eq!(turned_out.is_none(), room, "waits beyond the limit");
                if let Some(victim) = turned_out {
                    self.turned_out(*victim, want, current);
                }
                let same = |waiter: &&Waiter| waiter.want.priority == want.priority;
                let behind = self.0.iter().filter(same).count();
                self.0.push_back(Waiter { id, want, ticket: ticket.clone(), passed: 0, behind });
            }
            Entry::Refused(refusal) => {
                let decides = if waiting >= seen.limits.max_waiting { seen } else { current };
                let mut free = decides.free();
                let served = waiting == 0 && free.any(|endpoint| decides.wants(want, endpoint));
                assert!(!served, "refused though there is a slot");
                let last_resort = waiting == 0 && decides.has_last_resort(want);
                assert!(!last_resort, "refused before it was tried at every endpoint");
                if *refusal == Refusal::Late {
                    return;
                }
                assert!(waiting >= decides.limits.max_waiting, "refused though it may wait");
                let reasons = [seen, current].map(Self::reason);
                assert!(reasons.contains(refusal), "refused for a wrong reason");
            }
        }
    }

    fn reason(view: &View) -> Refusal {
        let nobody = view.limits.max_waiting == 0 && !view.is_usable();
        match nobody {
            _ if view.is_unreachable() => Refusal::Unreachable,
            true => Refusal::NoEndpoint,
            false => Refusal::Full,
        }
    }

    /// A place in a full queue has gone to somebody who wants this.
    fn turned_out(&mut self, victim: Id, want: Want, current: &View) {
        let victim = self.take(victim);
        assert_eq!(victim.ticket.refused(), Some(Refusal::TurnedOut));
        let (party, own) = (current.party(victim.want), current.party(want));
        assert!(party.0 > own.0 || (party.0 == own.0 && party.1 != own.1), "for nobody better");
        let lower = self.0.iter().any(|waiter| waiter.want.priority > victim.want.priority);
        assert!(!lower, "a lower one was left");
    }

    /// Somebody has been woken, so it no longer waits: it has a slot, or else has been let go.
    pub(crate) fn woken(&mut self, id: Id, current: &View) -> Option<Grant> {
        let position = self.position(id);
        let waiter = self.0.remove(position).expect("it was found there");
        if let Some(refusal) = waiter.ticket.refused() {
            assert_eq!(refusal, Refusal::LetGo);
            assert!(current.limits.delay.is_some(), "let go without a target");
            return None;
        }
        for older in self.0.range_mut(..position) {
            older.passed += usize::from(older.want.priority > waiter.want.priority);
            let most = PASSED_AT_MOST * (older.behind + 1);
            assert!(!current.is_free(older.want) || older.passed <= most, "somebody starves");
        }
        let wants = |waiter: &Waiter| waiter.want;
        Some(Grant {
            view: current.clone(),
            want: waiter.want,
            overdue: waiter.passed >= PASSED_AT_MOST,
            older: self.0.range(..position).map(wants).collect(),
            younger: self.0.range(position..).map(wants).collect(),
        })
    }

    /// How many of those who have been woken have a slot.
    pub(crate) fn granted_of(&self, woken: &[Id]) -> usize {
        let granted = |id: &&Id| self.0[self.position(**id)].ticket.refused().is_none();
        woken.iter().filter(granted).count()
    }

    pub(crate) fn gave_up(&mut self, id: Id) {
        self.take(id);
    }

    fn take(&mut self, id: Id) -> Waiter {
        self.0.remove(self.position(id)).expect("it was found there")
    }

    fn position(&self, id: Id) -> usize {
        let position = self.0.iter().position(|waiter| waiter.id == id);
        position.expect("only who waits is granted a slot, or gives up")
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
        let Self { view, want, .. } = self;
        assert!(view.allows(*want, endpoint), "granted an endpoint not to use");
        assert!(view.reachable[endpoint.data], "granted a slot at an unreachable endpoint");
        let could = |other: &&Want| view.wants(**other, endpoint);
        let party = view.party(*want);
        let passed = self.older.iter().filter(could).any(|&other| view.party(other) == party);
        assert!(!passed, "somebody of the same priority and route came first");
        let all = self.older.iter().chain(&self.younger);
        let higher = all.filter(could).any(|other| other.priority < want.priority);
        assert!(!higher || self.overdue, "somebody of a higher priority waits");
    }
}
