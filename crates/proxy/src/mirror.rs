//! Copies of requests, for somebody who only listens along.
//!
//! A copy can hurt nobody: it is made of what is kept for another attempt anyway, so a request that is too large for that
//! is not copied; it is sent when all of the request is at hand, by a task of its own; it takes a slot only if one is free
//! and nobody waits; a worker has a bounded number of copies under way; the answer is read and dropped, for so long and
//! no longer. What is not sent is counted.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use balance::{Time, Wish};
use gateway::snapshot::Mirror;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::accept::client::Client;
use crate::backend::{self, BackendRef, Current, Slot};
use crate::clock;
use crate::dial::abandon::Rest;
use crate::dial::attempt::Lease;
use crate::dial::connect::connect;
use crate::dial::pool::{self, Connection};
use crate::failure::Failure;
use crate::filter::Filtering;
use crate::head::{Method, RequestHead};
use crate::live::Ours;
use crate::tls::Security;
use crate::worker::Worker;

/// Copies that a worker may have under way.
const UNDER_WAY: usize = 256;
/// A copy is given up after this, or earlier if the backend's policy says so.
const PATIENCE: Duration = Duration::from_secs(30);

/// A worker's copies under way: each holds a permit.
#[derive(Default)]
pub(crate) struct Mirrors(Rc<()>);

impl Mirrors {
    fn permit(&self) -> Option<Rc<()>> {
        (Rc::strong_count(&self.0) <= UNDER_WAY).then(|| Rc::clone(&self.0))
    }
}

/// What became of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was answered, with whatever status.
    Answered,
    /// It was sent and not answered, or could not be sent.
    Failed,
    /// The request was too large to be kept, or did not arrive whole.
    NotWhole,
    /// The worker has as many copies under way as it may.
    TooMany,
    /// No endpoint had a free slot.
    NoSlot,
}

impl Fate {
    pub(crate) const ALL: [Self; 5] =
        [Self::Answered, Self::Failed, Self::NotWhole, Self::TooMany, Self::NoSlot];

    /// Metric label.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed => "failed",
            Self::NotWhole => "not_whole",
            Self::TooMany => "too_many",
            Self::NoSlot => "no_slot",
        }
    }
}

/// Who gets a copy of one request.
struct Addressee {
    backend: BackendRef,
    /// Whose address a connection must begin with, and how it says so.
    announced: Option<SocketAddr>,
    header: Vec<u8>,
}

impl Addressee {
    fn new(backend: BackendRef, client: &Client) -> Self {
        let current = backend.hold();
        let announced = current.settings.proxy_protocol.map(|_| client.peer);
        Self { announced, header: client.announcement(&current.settings), backend }
    }

    fn count(&self, worker: &Worker, fate: Fate) {
        self.backend.counters[worker.index].mirrors[fate as usize].add(1);
    }
}

/// Asks for copies of the request to be sent, once all of it is at hand. Gives who wants to have it then.
///
/// A request that asks to leave HTTP is not copied: it would hold a connection for nothing.
pub(crate) fn listen_along(
    worker: &Rc<Worker>,
    live: &Rc<Ours>,
    client: &Client,
    filtering: &Filtering,
    request: &RequestHead,
) -> Option<oneshot::Sender<Rc<[u8]>>> {
    let is_of_share = |mirror: &&Mirror| mirror.share.takes(worker.rng.borrow_mut().next_u64());
    let chosen = filtering.mirrors().filter(is_of_share);
    let backends = chosen.map(|mirror| BackendRef::new(Rc::clone(live), mirror.backend));
    let addressees: Vec<_> = backends.map(|backend| Addressee::new(backend, client)).collect();
    if addressees.is_empty() || request.upgrade {
        return None;
    }
    let (whole, request_bytes) = oneshot::channel();
    tokio::task::spawn_local(send_all(
        Rc::clone(worker),
        addressees,
        request.method,
        request_bytes,
    ));
    Some(whole)
}

async fn send_all(
    worker: Rc<Worker>,
    addressees: Vec<Addressee>,
    method: Method,
    request: oneshot::Receiver<Rc<[u8]>>,
) {
    let request = request.await.ok();
    for addressee in addressees {
        let Some(request) = &request else {
            addressee.count(&worker, Fate::NotWhole);
            continue;
        };
        let Some(permit) = worker.mirrors.permit() else {
            addressee.count(&worker, Fate::TooMany);
            continue;
        };
        let (worker, request) = (Rc::clone(&worker), Rc::clone(request));
        tokio::task::spawn_local(async move {
            let fate = send(&worker, &addressee, method, &request).await;
            addressee.count(&worker, fate);
            drop(permit);
        });
    }
}

/// Sends one copy and sees its answer out.
async fn send(worker: &Worker, addressee: &Addressee, method: Method, request: &[u8]) -> Fate {
    let backend = &addressee.backend;
    let now = clock::now();
    let wish = Wish { now, ..Wish::default() };
    // Who waits goes first.
    if backend.waiting() > 0 {
        return Fate::NoSlot;
    }
    let Some(slot) = backend::enter_at_once(backend, worker.index, &wish) else {
        return Fate::NoSlot;
    };
    let current = backend.hold();
    let most = current.settings.request_timeout.unwrap_or(PATIENCE);
    let until = now + most.min(PATIENCE);
    let connection = match open(worker, addressee, &current, &slot, now).await {
        Ok(connection) => connection,
        Err(failure) => {
            slot.conclude(worker, &current, failure.end(), None);
            return Fate::Failed;
        }
    };
    let lease = Lease { connection, slot, upload_broken: false, head_after: None, until };
    let mut rest = Rest::new(lease, method, current.limits.cap.is_some());
    let asked = timeout_at(clock::instant(until), rest.ask(worker, request)).await;
    let asked = asked.unwrap_or(Err(Failure::AttemptTimeout));
    rest.conclude(worker, &current, asked);
    match asked {
        Ok(()) => {
            rest.see_out(worker, until).await;
            Fate::Answered
        }
        Err(Failure::AttemptTimeout) if current.limits.cap.is_some() => {
            rest.see_out(worker, until + current.settings.abandoned_timeout).await;
            Fate::Failed
        }
        Err(_) => Fate::Failed,
    }
}

/// A connection that is surely open, since a copy is sent only once.
async fn open(
    worker: &Worker,
    addressee: &Addressee,
    current: &Current,
    slot: &Slot,
    now: Time,
) -> Result<Box<Connection>, Failure> {
    let wish = pool::Wish {
        worker: worker.index,
        capped: current.limits.cap.is_some(),
        announced: addressee.announced,
        trust: current.trust.as_ref(),
        replayable: false,
        settings: &current.settings,
        now,
    };
    if let Some(connection) = pool::take(&slot.endpoint, &wish) {
        return Ok(connection);
    }
    let patience = clock::instant(now + current.settings.connect_timeout);
    let security = Security::of_requests(wish.trust);
    let connecting = connect(&slot.endpoint, worker.index, &addressee.header, security);
    let opened = timeout_at(patience, connecting).await;
    let mut connection = opened.unwrap_or(Err(Failure::ConnectTimeout))?;
    connection.announced = addressee.announced;
    connection.trust = wish.trust.cloned();
    Ok(connection)
}
