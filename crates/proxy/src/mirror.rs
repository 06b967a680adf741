//! Copies of requests, for somebody who only listens along.
//!
//! A copy can hurt nobody: it is made of what is kept for another attempt anyway, so a request that is too large for that
//! is not copied; it is sent when all of the request is at hand, by a task of its own; it takes a slot only if one is free
//! and nobody waits; a worker has a bounded number of copies under way; the answer is read and dropped, for so long and
//! no longer. What is not sent is counted.

use std::borrow::Cow;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use balance::{PickRequest, Time};
use gateway::snapshot::{EndpointProtocol, MirrorPolicy};
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::accept::client::ClientConnection;
use crate::active_config::WorkerConfig;
use crate::backend::{self, BackendConfig, BackendRef, Slot};
use crate::clock;
use crate::dial::abandon::AbandonedRequest;
use crate::dial::attempt::{self, AttemptConnection};
use crate::dial::h3::{self, RequestTransport, h1_fallback};
use crate::dial::pool::{self, EndpointConnection};
use crate::dial::stream_request::{RequestSource, StreamGrant, StreamRequest};
use crate::failure::Failure;
use crate::filter::RequestFilters;
use crate::h1::{ChunkedEvent, ChunkedReader, write};
use crate::head::{BodyFraming, RequestHead};
use crate::worker::Worker;

/// Copies that a worker may have under way.
const MAX_CONCURRENT: usize = 256;
/// A copy is given up after this, or earlier if the backend's policy says so.
const MAX_DURATION: Duration = Duration::from_secs(30);

/// A worker's copies under way: each holds a permit.
#[derive(Default)]
pub(crate) struct MirrorLimiter(Rc<()>);

impl MirrorLimiter {
    fn permit(&self) -> Option<Rc<()>> {
        (Rc::strong_count(&self.0) <= MAX_CONCURRENT).then(|| Rc::clone(&self.0))
    }
}

/// What became of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MirrorOutcome {
    /// It was answered, with whatever status.
    Answered,
    /// It was sent and not answered, or could not be sent.
    Failed,
    /// The request was too large to be kept, or did not arrive whole.
    Incomplete,
    /// The worker has as many copies under way as it may.
    TooMany,
    /// No endpoint had a free slot.
    NoSlot,
}

impl MirrorOutcome {
    pub(crate) const ALL: [Self; 5] =
        [Self::Answered, Self::Failed, Self::Incomplete, Self::TooMany, Self::NoSlot];

    /// Metric label.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed => "failed",
            Self::Incomplete => "not_whole",
            Self::TooMany => "too_many",
            Self::NoSlot => "no_slot",
        }
    }
}

/// Who gets a copy of one request.
struct MirrorTarget {
    backend: BackendRef,
    /// Whose address a connection must begin with, and how it says so.
    announced_client: Option<SocketAddr>,
    header: Vec<u8>,
}

impl MirrorTarget {
    fn new(backend: BackendRef, client: &ClientConnection) -> Self {
        let current = backend.config();
        let announced_client = current.settings.proxy_protocol.map(|_| client.peer);
        Self { announced_client, header: client.proxy_protocol_header(&current.settings), backend }
    }

    /// What a connection of HTTP/1.1 has to be: surely open, since a copy is sent only once.
    fn wish<'c>(
        &self,
        worker: &Worker,
        current: &'c BackendConfig,
        now: Time,
    ) -> pool::ConnectionRequirements<'c> {
        pool::ConnectionRequirements {
            worker: worker.index,
            capped: current.limits.cap.is_some(),
            proxy_protocol_client: self.announced_client,
            tls_context: current.tls_context.as_ref(),
            replayable: false,
            settings: &current.settings,
            now,
        }
    }

    fn count(&self, worker: &Worker, fate: MirrorOutcome) {
        self.backend.counters[worker.index].mirrors[fate as usize].add(1);
    }
}

/// How a request stands in what is kept of it.
#[derive(Clone, Copy)]
pub(crate) struct ReplayLayout {
    /// Bytes of the head; none where the head is not sent as bytes.
    pub(crate) head_bytes: usize,
    /// Of the body that follows.
    pub(crate) framing: BodyFraming,
}

/// What all copies of one request are made of.
struct MirrorSource {
    request: RequestHead,
    form: ReplayLayout,
}

impl MirrorSource {
    fn body<'k>(&self, kept: &'k [u8]) -> &'k [u8] {
        &kept[self.form.head_bytes..]
    }

    /// All of it, as HTTP/1.1 has it.
    fn to_http1(&self, kept: &[u8]) -> Vec<u8> {
        let body = self.body(kept);
        let framing = match self.form.framing {
            BodyFraming::Stream => BodyFraming::Length(body.len() as u64),
            // Whether it says that there is none.
            BodyFraming::None => self.request.framing,
            same @ (BodyFraming::Length(_) | BodyFraming::Chunked | BodyFraming::UntilClose) => {
                same
            }
        };
        let mut copy = Vec::new();
        write::request_head(&self.request, framing, false, &mut copy);
        copy.extend_from_slice(body);
        copy
    }

    /// The body alone.
    fn decoded_body<'k>(&self, kept: &'k [u8]) -> Cow<'k, [u8]> {
        match self.form.framing {
            BodyFraming::Chunked => Cow::Owned(decode_chunks(self.body(kept))),
            BodyFraming::None
            | BodyFraming::Length(_)
            | BodyFraming::UntilClose
            | BodyFraming::Stream => Cow::Borrowed(self.body(kept)),
        }
    }
}

/// The data of a chunked body, which we have written and so is well-formed.
fn decode_chunks(mut body: &[u8]) -> Vec<u8> {
    let (mut chunks, mut data) = (ChunkedReader::new(), Vec::new());
    while let Ok(ChunkedEvent::Data { skip, len }) = chunks.next(body) {
        data.extend_from_slice(&body[skip..skip + len]);
        body = &body[skip + len..];
    }
    data
}

/// Asks for copies of the request to be sent, once all of it is at hand. Gives who wants to have it then.
///
/// A request that asks to leave HTTP is not copied: it would hold a connection for nothing.
pub(crate) fn prepare(
    worker: &Rc<Worker>,
    live: &Rc<WorkerConfig>,
    client: &ClientConnection,
    filtering: &RequestFilters,
    request: &RequestHead,
    form: ReplayLayout,
) -> Option<oneshot::Sender<Rc<[u8]>>> {
    let is_of_share =
        |mirror: &&MirrorPolicy| mirror.share.samples(worker.rng.borrow_mut().next_u64());
    let chosen = filtering.mirrors().filter(is_of_share);
    let backends = chosen.map(|mirror| BackendRef::new(Rc::clone(live), mirror.backend));
    let addressees: Vec<_> = backends.map(|backend| MirrorTarget::new(backend, client)).collect();
    if addressees.is_empty() || request.upgrade {
        return None;
    }
    let (whole, kept) = oneshot::channel();
    let original = MirrorSource { request: request.clone(), form };
    tokio::task::spawn_local(send_all(Rc::clone(worker), addressees, original, kept));
    Some(whole)
}

async fn send_all(
    worker: Rc<Worker>,
    addressees: Vec<MirrorTarget>,
    original: MirrorSource,
    kept: oneshot::Receiver<Rc<[u8]>>,
) {
    let (original, kept) = (Rc::new(original), kept.await.ok());
    for addressee in addressees {
        let Some(kept) = &kept else {
            addressee.count(&worker, MirrorOutcome::Incomplete);
            continue;
        };
        let Some(permit) = worker.mirrors.permit() else {
            addressee.count(&worker, MirrorOutcome::TooMany);
            continue;
        };
        let (worker, original, kept) = (Rc::clone(&worker), Rc::clone(&original), Rc::clone(kept));
        tokio::task::spawn_local(async move {
            let fate = send(&worker, &addressee, &original, &kept).await;
            addressee.count(&worker, fate);
            drop(permit);
        });
    }
}

/// Sends one copy and sees its answer out.
async fn send(
    worker: &Rc<Worker>,
    addressee: &MirrorTarget,
    original: &MirrorSource,
    kept: &[u8],
) -> MirrorOutcome {
    let backend = &addressee.backend;
    let now = clock::now();
    let wish = PickRequest { now, ..PickRequest::default() };
    // Who waits goes first.
    if backend.waiting() > 0 {
        return MirrorOutcome::NoSlot;
    }
    let Some(slot) = backend::enter_at_once(backend, worker.index, &wish) else {
        return MirrorOutcome::NoSlot;
    };
    let current = backend.config();
    let most = current.settings.request_timeout.unwrap_or(MAX_DURATION);
    let until = now + most.min(MAX_DURATION);
    let opened = match current.settings.protocol {
        EndpointProtocol::Http1 => {
            let opened = open(worker, addressee, &current, &slot, now).await;
            opened.map(|connection| (connection, Cow::Owned(original.to_http1(kept))))
        }
        EndpointProtocol::Http2 | EndpointProtocol::Http3 => {
            let body = original.decoded_body(kept);
            let opened =
                open_stream(worker, addressee, &current, &slot, original, &body, now).await;
            opened.map(|connection| (connection, body))
        }
    };
    let (connection, unsent) = match opened {
        Ok(opened) => opened,
        Err(failure) => {
            slot.conclude(worker, &current, failure.attempt_end(), None);
            slot.note_connect_failure(worker, failure);
            return MirrorOutcome::Failed;
        }
    };
    let lease = AttemptConnection::new(slot, connection, until);
    let mut rest =
        AbandonedRequest::new(lease, original.request.method, current.limits.cap.is_some());
    let asked = timeout_at(clock::instant(until), rest.send_request(worker, &unsent)).await;
    let asked = asked.unwrap_or(Err(Failure::AttemptTimeout));
    rest.conclude(worker, &current, asked);
    match asked {
        Ok(()) => {
            rest.drain(worker, until).await;
            MirrorOutcome::Answered
        }
        Err(Failure::AttemptTimeout) if current.limits.cap.is_some() => {
            rest.drain(worker, until + current.settings.abandoned_timeout).await;
            MirrorOutcome::Failed
        }
        Err(_) => MirrorOutcome::Failed,
    }
}

/// A connection of HTTP/1.1.
async fn open(
    worker: &Worker,
    addressee: &MirrorTarget,
    current: &BackendConfig,
    slot: &Slot,
    now: Time,
) -> Result<Box<EndpointConnection>, Failure> {
    let wish = addressee.wish(worker, current, now);
    if let Some(connection) = pool::take(&slot.endpoint, &wish) {
        return Ok(connection);
    }
    within_connect_timeout(current, now, attempt::open(&slot.endpoint, &addressee.header, &wish))
        .await
}

async fn within_connect_timeout<T>(
    current: &BackendConfig,
    now: Time,
    opening: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let patience = clock::instant(now + current.settings.connect_timeout);
    timeout_at(patience, opening).await.unwrap_or(Err(Failure::ConnectTimeout))
}

/// A stream on which the head has been sent, or what stands for one.
async fn open_stream(
    worker: &Rc<Worker>,
    addressee: &MirrorTarget,
    current: &BackendConfig,
    slot: &Slot,
    original: &MirrorSource,
    body: &[u8],
    now: Time,
) -> Result<Box<EndpointConnection>, Failure> {
    let request = &original.request;
    let framing = match body.len() {
        0 => BodyFraming::None,
        length => BodyFraming::Length(length as u64),
    };
    let order = RequestSource { request, framing };
    let call = StreamRequest {
        worker: worker.index,
        endpoint: &slot.endpoint,
        backend_config: current,
        proxy_protocol_client: addressee.announced_client,
        proxy_protocol_header: addressee.header.clone(),
        fresh: true,
        now,
        source: order,
    };
    if current.settings.protocol == EndpointProtocol::Http2 {
        return match call.acquire_http2_stream(None)? {
            StreamGrant::Opened(connection) => Ok(connection),
            StreamGrant::Wait(waiting) => {
                within_connect_timeout(current, now, call.wait_for_http2_stream(waiting)).await
            }
        };
    }
    if let Some(connection) = h3::try_open_existing(worker, &call) {
        return Ok(connection);
    }
    match within_connect_timeout(current, now, h3::open(worker, call)).await? {
        RequestTransport::Stream(connection) => Ok(connection),
        RequestTransport::Http1 => {
            let wish = addressee.wish(worker, current, now);
            let opening = h1_fallback::open(&slot.endpoint, false, &addressee.header, &wish, order);
            within_connect_timeout(current, now, opening).await.map(|(connection, _)| connection)
        }
    }
}
