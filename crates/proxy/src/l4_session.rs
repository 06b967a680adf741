//! L4 sessions, the common part of TCP connections and UDP flows: an endpoint is chosen once for the whole session.
//!
//! A session holds a slot to its end. The rule of its listener chooses the backend; the forwarded bytes have no
//! influence.

use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use balance::hash::hash;
use balance::{PickRequest, QueueParameters};
use gateway::snapshot::Rule;

use crate::active_config::{Route, WorkerConfig};
use crate::backend::{self, BackendRef, QueueGuard, Slot, SlotAdmission};
use crate::clock;
use crate::dial::pool::Endpoint;
use crate::failure::Failure;
use crate::request::choose_backend;
use crate::worker::Worker;

/// The route and backend of an L4 session.
pub(crate) struct L4Route {
    pub(crate) route: Arc<Route>,
    pub(crate) backend: BackendRef,
}

impl L4Route {
    /// Chooses one of the rule's backends, by weight.
    pub(crate) fn choose(
        worker: &Worker,
        active_config: &Rc<WorkerConfig>,
        rule: &Rule,
    ) -> Result<Self, Failure> {
        let backend = choose_backend(worker, active_config, rule)?.detached();
        Ok(Self { route: Arc::clone(&active_config.routes[rule.index]), backend })
    }
}

/// The immediate result of asking for a slot.
pub(crate) enum L4Admission {
    Slot(Slot),
    /// A place in the queue; the calling task is woken when it is granted.
    Queued(QueueGuard),
}

/// Asks for a slot for this client. Endpoints that were tried are excluded while another is left.
pub(crate) async fn enter(
    worker: &Worker,
    backend: &BackendRef,
    client: IpAddr,
    tried: &[Arc<Endpoint>],
) -> Result<L4Admission, Failure> {
    let client = match client {
        IpAddr::V4(client) => client.to_ipv6_mapped(),
        IpAddr::V6(client) => client,
    };
    let key = Some(hash(&client.octets()));
    let now = clock::now();
    let queueing = QueueParameters {
        deadline: now + backend.config().settings.queue_timeout,
        ..QueueParameters::default()
    };
    let pick = PickRequest { tried, key, now, queueing, ..PickRequest::default() };
    let entered = poll_fn(|cx| {
        let (config, waker) = (backend.config(), || cx.waker().clone());
        Poll::Ready(backend::enter(backend, worker.index, &pick, config.admission(), waker))
    });
    match entered.await {
        SlotAdmission::Slot(slot) => Ok(L4Admission::Slot(slot)),
        SlotAdmission::Queued(place) => Ok(L4Admission::Queued(place)),
        SlotAdmission::Refused(failure) => Err(count_refusal(worker, backend, failure)),
    }
}

/// True if the slot's backend has an endpoint at which the session was not tried.
pub(crate) fn is_another_left(slot: &Slot, tried: &[Arc<Endpoint>]) -> bool {
    let is_tried = |it: &Arc<Endpoint>| tried.iter().any(|tried| Arc::ptr_eq(tried, it));
    let current = slot.backend.config();
    let members = || current.set.members().iter().filter(|member| member.weight > 0);
    // An endpoint that has left the backend since it was tried does not count against the remaining ones.
    let gone = tried.iter().filter(|it| !current.set.contains(it)).count();
    tried.len() < members().count() + gone && members().any(|it| !is_tried(&it.endpoint))
}

/// Counts a session that gets no slot: it adds to demand as if it had held one for the mean service time.
pub(crate) fn count_refusal(worker: &Worker, backend: &BackendRef, failure: Failure) -> Failure {
    if failure != Failure::ClientGone {
        backend.demand.refuse(worker.index, clock::now());
    }
    failure
}
