//! Who waits for one backend, in order, and who may be given what.

use std::collections::VecDeque;
use std::sync::Arc;

use balance::{AdmissionDecision, AdmissionRejection, Ticket};

use crate::fault_simulation::ServerEndpoint;
use crate::invariants::{ConfigView, RequestConstraints};
use crate::requests::RequestId;

/// Who waits for one backend, in order.
#[derive(Default)]
pub(crate) struct QueueModel(VecDeque<ModelWaiter>);

struct ModelWaiter {
    id: RequestId,
    constraints: RequestConstraints,
    ticket: Arc<Ticket<usize>>,
    /// How often a younger one of a higher priority has gone before it.
    overtaken: usize,
    /// How many of its own priority were there when it came.
    same_priority_ahead: usize,
}

/// What was true when a slot was granted, to be held against the endpoint once the waiter shows it.
pub(crate) struct GrantCheck {
    view: ConfigView,
    constraints: RequestConstraints,
    /// It had been passed over as often as anybody may be.
    overdue: bool,
    /// What those who came before it want.
    older: Vec<RequestConstraints>,
    /// What those who came after it want.
    younger: Vec<RequestConstraints>,
}

/// So often younger ones of a higher priority go before somebody who is the first of its line.
const MAX_OVERTAKEN: usize = 7;

impl QueueModel {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A request has asked for a slot. `seen` is what its worker knows, `current` what is in force.
    pub(crate) fn check_entry(
        &mut self,
        (id, want): (RequestId, RequestConstraints),
        entry: &AdmissionDecision<usize, RequestId>,
        seen: &ConfigView,
        current: &ConfigView,
    ) {
        let waiting = self.len() as u32;
        match entry {
            AdmissionDecision::Slot(endpoint) => {
                let fits =
                    |view: &ConfigView| view.allows(want, endpoint) && view.is_within_cap(endpoint);
                let by_sight = waiting == 0 && fits(seen);
                assert!(
                    by_sight || fits(current),
                    "not an endpoint to use, or over the cap: {endpoint:?} for {want:?} by {seen:?}"
                );
                let passed_over = seen.is_passed_over(endpoint) && current.is_passed_over(endpoint);
                assert!(!passed_over, "sent to an unreachable endpoint while another is reachable");
                let wanted =
                    self.0.iter().any(|waiter| current.must_serve(waiter.constraints, endpoint));
                assert!(!wanted, "barged in before somebody who waits");
            }
            AdmissionDecision::Waiting { ticket, evicted: turned_out } => {
                let room = waiting < current.limits.max_waiting;
                assert_eq!(turned_out.is_none(), room, "waits beyond the limit");
                if let Some(victim) = turned_out {
                    self.check_eviction(*victim, want, current);
                }
                let same = |waiter: &&ModelWaiter| waiter.constraints.priority == want.priority;
                let behind = self.0.iter().filter(same).count();
                self.0.push_back(ModelWaiter {
                    id,
                    constraints: want,
                    ticket: ticket.clone(),
                    overtaken: 0,
                    same_priority_ahead: behind,
                });
            }
            AdmissionDecision::Rejected(refusal) => {
                let decides = if waiting >= seen.limits.max_waiting { seen } else { current };
                let mut free = decides.free();
                let served =
                    waiting == 0 && free.any(|endpoint| decides.must_serve(want, endpoint));
                assert!(!served, "refused though there is a slot");
                let last_resort = waiting == 0 && decides.has_last_resort(want);
                assert!(!last_resort, "refused before it was tried at every endpoint");
                if *refusal == AdmissionRejection::WouldMissDeadline {
                    return;
                }
                assert!(waiting >= decides.limits.max_waiting, "refused though it may wait");
                let reasons = [seen, current].map(Self::expected_rejection);
                assert!(reasons.contains(refusal), "refused for a wrong reason");
            }
        }
    }

    fn expected_rejection(view: &ConfigView) -> AdmissionRejection {
        let nobody = view.limits.max_waiting == 0 && !view.is_usable();
        match nobody {
            _ if view.is_unreachable() => AdmissionRejection::Unreachable,
            true => AdmissionRejection::NoEndpoint,
            false => AdmissionRejection::Full,
        }
    }

    /// A place in a full queue has gone to somebody who wants this.
    fn check_eviction(
        &mut self,
        victim: RequestId,
        want: RequestConstraints,
        current: &ConfigView,
    ) {
        let victim = self.take(victim);
        assert_eq!(victim.ticket.refused(), Some(AdmissionRejection::Evicted));
        let (party, own) = (current.flow_key(victim.constraints), current.flow_key(want));
        assert!(party.0 > own.0 || (party.0 == own.0 && party.1 != own.1), "for nobody better");
        let lower =
            self.0.iter().any(|waiter| waiter.constraints.priority > victim.constraints.priority);
        assert!(!lower, "a lower one was left");
    }

    /// Somebody has been woken, so it no longer waits: it has a slot, or else has been let go.
    pub(crate) fn check_wake(&mut self, id: RequestId, current: &ConfigView) -> Option<GrantCheck> {
        let position = self.position(id);
        let waiter = self.0.remove(position).expect("it was found there");
        if let Some(refusal) = waiter.ticket.refused() {
            assert_eq!(refusal, AdmissionRejection::Shed);
            assert!(current.limits.delay.is_some(), "let go without a target");
            return None;
        }
        for older in self.0.range_mut(..position) {
            older.overtaken +=
                usize::from(older.constraints.priority > waiter.constraints.priority);
            let most = MAX_OVERTAKEN * (older.same_priority_ahead + 1);
            assert!(
                !current.is_free(older.constraints) || older.overtaken <= most,
                "somebody starves"
            );
        }
        let wants = |waiter: &ModelWaiter| waiter.constraints;
        Some(GrantCheck {
            view: current.clone(),
            constraints: waiter.constraints,
            overdue: waiter.overtaken >= MAX_OVERTAKEN,
            older: self.0.range(..position).map(wants).collect(),
            younger: self.0.range(position..).map(wants).collect(),
        })
    }

    /// How many of those who have been woken have a slot.
    pub(crate) fn count_granted(&self, woken: &[RequestId]) -> usize {
        let granted = |id: &&RequestId| self.0[self.position(**id)].ticket.refused().is_none();
        woken.iter().filter(granted).count()
    }

    pub(crate) fn remove_cancelled(&mut self, id: RequestId) {
        self.take(id);
    }

    fn take(&mut self, id: RequestId) -> ModelWaiter {
        self.0.remove(self.position(id)).expect("it was found there")
    }

    fn position(&self, id: RequestId) -> usize {
        let position = self.0.iter().position(|waiter| waiter.id == id);
        position.expect("only who waits is granted a slot, or gives up")
    }

    /// Nobody waits while a slot that it may use is free.
    pub(crate) fn check(&self, current: &ConfigView) {
        if self.0.is_empty() {
            return;
        }
        for endpoint in current.free() {
            let wanted =
                self.0.iter().any(|waiter| current.must_serve(waiter.constraints, endpoint));
            assert!(!wanted, "somebody waits while {endpoint:?} is free");
        }
    }
}

impl GrantCheck {
    /// The waiter shows which endpoint it was granted.
    pub(crate) fn check_endpoint(&self, endpoint: &ServerEndpoint) {
        let Self { view, constraints: want, .. } = self;
        assert!(view.allows(*want, endpoint), "granted an endpoint not to use");
        assert!(view.reachable[endpoint.data], "granted a slot at an unreachable endpoint");
        let could = |other: &&RequestConstraints| view.must_serve(**other, endpoint);
        let party = view.flow_key(*want);
        let passed = self.older.iter().filter(could).any(|&other| view.flow_key(other) == party);
        assert!(!passed, "somebody of the same priority and route came first");
        let all = self.older.iter().chain(&self.younger);
        let higher = all.filter(could).any(|other| other.priority < want.priority);
        assert!(!higher || self.overdue, "somebody of a higher priority waits");
    }
}
