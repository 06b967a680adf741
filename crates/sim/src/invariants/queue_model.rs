//! Model of one backend's queue, and checks of what it grants.

use std::collections::VecDeque;
use std::sync::Arc;

use balance::{AdmissionDecision, AdmissionRejection, Ticket};

use crate::fault_simulation::ServerEndpoint;
use crate::invariants::{ConfigView, RequestConstraints};
use crate::requests::RequestId;

/// Model of one backend's queue: requests in order.
#[derive(Default)]
pub(crate) struct QueueModel(VecDeque<ModelWaiter>);

struct ModelWaiter {
    id: RequestId,
    constraints: RequestConstraints,
    ticket: Arc<Ticket<usize>>,
    /// Number of times that a younger request of a higher priority has overtaken it.
    overtaken: usize,
    /// Number of requests of its own priority that were queued when it came.
    same_priority_ahead: usize,
}

/// State at the moment of a grant, to check the endpoint once the request takes it.
pub(crate) struct GrantCheck {
    view: ConfigView,
    constraints: RequestConstraints,
    /// True if it had been overtaken as often as is allowed.
    overdue: bool,
    /// Constraints of the requests that came before it.
    older: Vec<RequestConstraints>,
    /// Constraints of the requests that came after it.
    younger: Vec<RequestConstraints>,
}

/// Number of times that younger requests of a higher priority may overtake the first request of a
/// line.
const MAX_OVERTAKEN: usize = 7;

impl QueueModel {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Checks the result for a request that has asked for a slot. `seen` is the view of its worker,
    /// `current` the one in force.
    pub(crate) fn check_entry(
        &mut self,
        (id, constraints): (RequestId, RequestConstraints),
        entry: &AdmissionDecision<usize, RequestId>,
        seen: &ConfigView,
        current: &ConfigView,
    ) {
        let waiting = self.len() as u32;
        match entry {
            AdmissionDecision::Slot(endpoint) => {
                let fits = |view: &ConfigView| {
                    view.allows(constraints, endpoint) && view.is_within_cap(endpoint)
                };
                let fits_seen = waiting == 0 && fits(seen);
                assert!(
                    fits_seen || fits(current),
                    "not an endpoint to use, or over the cap: {endpoint:?} for {constraints:?} by {seen:?}"
                );
                let passed_over = seen.is_passed_over(endpoint) && current.is_passed_over(endpoint);
                assert!(!passed_over, "sent to an unreachable endpoint while another is reachable");
                let wanted =
                    self.0.iter().any(|waiter| current.must_serve(waiter.constraints, endpoint));
                assert!(!wanted, "overtook a queued request");
            }
            AdmissionDecision::Waiting { ticket, evicted: victim } => {
                let room = waiting < current.limits.max_waiting;
                assert_eq!(victim.is_none(), room, "waits beyond the limit");
                if let Some(victim) = victim {
                    self.check_eviction(*victim, constraints, current);
                }
                let same =
                    |waiter: &&ModelWaiter| waiter.constraints.priority == constraints.priority;
                let behind = self.0.iter().filter(same).count();
                self.0.push_back(ModelWaiter {
                    id,
                    constraints,
                    ticket: ticket.clone(),
                    overtaken: 0,
                    same_priority_ahead: behind,
                });
            }
            AdmissionDecision::Rejected(refusal) => {
                let decides = if waiting >= seen.limits.max_waiting { seen } else { current };
                let mut free = decides.free();
                let served =
                    waiting == 0 && free.any(|endpoint| decides.must_serve(constraints, endpoint));
                assert!(!served, "rejected though a slot is free");
                let last_resort = waiting == 0 && decides.has_last_resort(constraints);
                assert!(!last_resort, "rejected before it was tried at every endpoint");
                if *refusal == AdmissionRejection::WouldMissDeadline {
                    return;
                }
                assert!(waiting >= decides.limits.max_waiting, "rejected though it may wait");
                let reasons = [seen, current].map(Self::expected_rejection);
                assert!(reasons.contains(refusal), "rejected for a wrong reason");
            }
        }
    }

    fn expected_rejection(view: &ConfigView) -> AdmissionRejection {
        let is_unusable = view.limits.max_waiting == 0 && !view.is_usable();
        match is_unusable {
            _ if view.is_unreachable() => AdmissionRejection::Unreachable,
            true => AdmissionRejection::NoEndpoint,
            false => AdmissionRejection::Full,
        }
    }

    /// Checks that a place in a full queue has rightly gone to a request with these constraints.
    fn check_eviction(
        &mut self,
        victim: RequestId,
        constraints: RequestConstraints,
        current: &ConfigView,
    ) {
        let victim = self.take(victim);
        assert_eq!(victim.ticket.refused(), Some(AdmissionRejection::Evicted));
        let (victims, own) = (current.flow_key(victim.constraints), current.flow_key(constraints));
        assert!(
            victims.0 > own.0 || (victims.0 == own.0 && victims.1 != own.1),
            "evicted for a request without precedence"
        );
        let lower =
            self.0.iter().any(|waiter| waiter.constraints.priority > victim.constraints.priority);
        assert!(!lower, "a lower priority was left");
    }

    /// Checks a woken request, which no longer waits: it has a slot, or else has been shed.
    pub(crate) fn check_wake(&mut self, id: RequestId, current: &ConfigView) -> Option<GrantCheck> {
        let position = self.position(id);
        let waiter = self.0.remove(position).expect("its position is known");
        if let Some(refusal) = waiter.ticket.refused() {
            assert_eq!(refusal, AdmissionRejection::Shed);
            assert!(current.limits.delay.is_some(), "shed without a target");
            return None;
        }
        for older in self.0.range_mut(..position) {
            older.overtaken +=
                usize::from(older.constraints.priority > waiter.constraints.priority);
            let most = MAX_OVERTAKEN * (older.same_priority_ahead + 1);
            assert!(
                !current.is_free(older.constraints) || older.overtaken <= most,
                "a request starves"
            );
        }
        let constraints = |waiter: &ModelWaiter| waiter.constraints;
        Some(GrantCheck {
            view: current.clone(),
            constraints: waiter.constraints,
            overdue: waiter.overtaken >= MAX_OVERTAKEN,
            older: self.0.range(..position).map(constraints).collect(),
            younger: self.0.range(position..).map(constraints).collect(),
        })
    }

    /// Returns the number of woken requests that have a slot.
    pub(crate) fn count_granted(&self, woken: &[RequestId]) -> usize {
        let granted = |id: &&RequestId| self.0[self.position(**id)].ticket.refused().is_none();
        woken.iter().filter(granted).count()
    }

    pub(crate) fn remove_cancelled(&mut self, id: RequestId) {
        self.take(id);
    }

    fn take(&mut self, id: RequestId) -> ModelWaiter {
        self.0.remove(self.position(id)).expect("its position is known")
    }

    fn position(&self, id: RequestId) -> usize {
        let position = self.0.iter().position(|waiter| waiter.id == id);
        position.expect("only a queued request is granted a slot or cancelled")
    }

    /// Checks that no request waits while a slot that it may use is free.
    pub(crate) fn check(&self, current: &ConfigView) {
        if self.0.is_empty() {
            return;
        }
        for endpoint in current.free() {
            let wanted =
                self.0.iter().any(|waiter| current.must_serve(waiter.constraints, endpoint));
            assert!(!wanted, "a request waits while {endpoint:?} is free");
        }
    }
}

impl GrantCheck {
    /// Checks the endpoint that the request was granted.
    pub(crate) fn check_endpoint(&self, endpoint: &ServerEndpoint) {
        let Self { view, constraints, .. } = self;
        assert!(view.allows(*constraints, endpoint), "granted an endpoint that it may not use");
        assert!(view.reachable[endpoint.data], "granted a slot at an unreachable endpoint");
        let could = |other: &&RequestConstraints| view.must_serve(**other, endpoint);
        let flow = view.flow_key(*constraints);
        let passed = self.older.iter().filter(could).any(|&other| view.flow_key(other) == flow);
        assert!(!passed, "an older request of the same priority and route waits");
        let all = self.older.iter().chain(&self.younger);
        let higher = all.filter(could).any(|other| other.priority < constraints.priority);
        assert!(!higher || self.overdue, "a request of a higher priority waits");
    }
}
