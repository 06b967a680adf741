//! What TCP connections and UDP flows have in common: the way to an endpoint, chosen once for all that passes.
//!
//! A passage holds a slot to its end. It is placed by the rule of its listener, and by nothing that passes through it.

use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use balance::hash::hash;
use balance::{Rank, Wish};
use gateway::snapshot::Rule;

use crate::backend::{self, Admitted, BackendRef, Place, Slot};
use crate::clock;
use crate::dial::pool::Endpoint;
use crate::failure::Failure;
use crate::live::{Ours, Route};
use crate::request::choose_backend;
use crate::worker::Worker;

/// Where a passage goes, and by which rule.
pub(crate) struct Way {
    pub(crate) route: Arc<Route>,
    pub(crate) backend: BackendRef,
}

impl Way {
    /// One of the rule's backends, by weight.
    pub(crate) fn by(worker: &Worker, live: &Rc<Ours>, rule: &Rule) -> Result<Self, Failure> {
        let backend = choose_backend(worker, live, rule)?.apart();
        Ok(Self { route: Arc::clone(&live.routes[rule.index]), backend })
    }
}

/// What a passage gets at once.
pub(crate) enum Entered {
    Slot(Slot),
    /// A place in the queue; the calling task is woken when it is granted.
    Queued(Place),
}

/// Asks for a slot for this client, not at an endpoint that was tried while another is left.
pub(crate) async fn enter(
    worker: &Worker,
    backend: &BackendRef,
    client: IpAddr,
    tried: &[Arc<Endpoint>],
) -> Result<Entered, Failure> {
    let client = match client {
        IpAddr::V4(client) => client.to_ipv6_mapped(),
        IpAddr::V6(client) => client,
    };
    let key = Some(hash(&client.octets()));
    let now = clock::now();
    let rank = Rank { until: now + backend.hold().settings.queue_timeout, ..Rank::default() };
    let wish = Wish { tried, key, now, rank, ..Wish::default() };
    let entered = poll_fn(|cx| {
        Poll::Ready(backend::enter(backend, worker.index, &wish, &backend.hold(), || {
            cx.waker().clone()
        }))
    });
    match entered.await {
        Admitted::Slot(slot) => Ok(Entered::Slot(slot)),
        Admitted::Queued(place) => Ok(Entered::Queued(place)),
        Admitted::Refused(failure) => Err(turn_away(worker, backend, failure)),
    }
}

/// Whether the slot's backend has an endpoint at which the passage was not tried.
pub(crate) fn is_another_left(slot: &Slot, tried: &[Arc<Endpoint>]) -> bool {
    let is_tried = |it: &Arc<Endpoint>| tried.iter().any(|tried| Arc::ptr_eq(tried, it));
    let current = slot.backend.hold();
    let members = || current.set.members().iter().filter(|member| member.weight > 0);
    // An endpoint that has left since it was tried does not count against those that are left.
    let gone = tried.iter().filter(|it| !current.set.contains(it)).count();
    tried.len() < members().count() + gone && members().any(|it| !is_tried(&it.endpoint))
}

/// A passage gets no slot, and counts as if it had one for a while.
pub(crate) fn turn_away(worker: &Worker, backend: &BackendRef, failure: Failure) -> Failure {
    if failure != Failure::ClientGone {
        backend.demand.refuse(worker.index, clock::now());
    }
    failure
}
