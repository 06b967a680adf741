//! Request mirroring: copies of requests for a second backend, whose responses are discarded.
//!
//! A copy cannot harm the original request. It is made of the bytes that are kept for a retry
//! anyway, so a request that is too large for that is not mirrored. It is sent by a task of its
//! own, once the request is complete. It takes a slot only if one is free and no request is queued.
//! Each worker has a bounded number of copies in flight. The response is read and dropped, within a
//! time limit. Copies that are not sent are counted.

use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

use balance::PickRequest;
use codec::h1::{ChunkedDecoder, ChunkedEvent, write};
use codec::head::{BodyFraming, RequestHead};
use gateway::snapshot::{EndpointProtocol, MirrorPolicy};
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::active_config::WorkerConfig;
use crate::backend::{self, BackendRef};
use crate::clock;
use crate::context::RequestContext;
use crate::dial::abandon::AbandonedRequest;
use crate::dial::attempt::AttemptConnection;
use crate::dial::subrequest::{SubrequestAttempt, SubrequestTarget};
use crate::failure::Failure;
use crate::outcome::AttemptConclusion;
use crate::worker::Worker;

/// Limit on the copies in flight.
pub(crate) mod limiter;

/// Time limit of a copy; the backend's request timeout may be shorter.
const MAX_DURATION: Duration = Duration::from_secs(30);

/// Outcome of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MirrorOutcome {
    /// The endpoint answered, with any status.
    Answered,
    /// The copy was sent and not answered, or could not be sent.
    Failed,
    /// The request was too large to be kept, or did not arrive completely.
    Incomplete,
    /// The worker already has the maximum number of copies in flight.
    TooMany,
    /// No endpoint had a free slot.
    NoSlot,
}

impl MirrorOutcome {
    pub(crate) const ALL: [Self; 5] =
        [Self::Answered, Self::Failed, Self::Incomplete, Self::TooMany, Self::NoSlot];

    /// Returns the metric label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed => "failed",
            Self::Incomplete => "not_whole",
            Self::TooMany => "too_many",
            Self::NoSlot => "no_slot",
        }
    }
}

/// Layout of the kept bytes of a request.
#[derive(Clone, Copy)]
pub(crate) struct ReplayLayout {
    /// Size of the head; 0 if the head is not sent as bytes.
    pub(crate) head_bytes: usize,
    /// Framing of the body that follows.
    pub(crate) framing: BodyFraming,
}

/// Source of all copies of one request.
struct MirrorSource {
    request: RequestHead,
    layout: ReplayLayout,
}

impl MirrorSource {
    fn body<'k>(&self, kept: &'k [u8]) -> &'k [u8] {
        &kept[self.layout.head_bytes..]
    }

    /// Returns the whole request in HTTP/1.1 format.
    fn to_http1(&self, kept: &[u8]) -> Vec<u8> {
        let body = self.body(kept);
        let framing = match self.layout.framing {
            BodyFraming::Stream => BodyFraming::Length(body.len() as u64),
            // Keeps the field that says that there is no body, if the request has one.
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

    /// Returns the body without framing.
    fn decoded_body<'k>(&self, kept: &'k [u8]) -> Cow<'k, [u8]> {
        match self.layout.framing {
            BodyFraming::Chunked => Cow::Owned(decode_chunks(self.body(kept))),
            BodyFraming::None
            | BodyFraming::Length(_)
            | BodyFraming::UntilClose
            | BodyFraming::Stream => Cow::Borrowed(self.body(kept)),
        }
    }
}

/// Returns the data of a chunked body. The body is well-formed, since we have written it.
fn decode_chunks(mut body: &[u8]) -> Vec<u8> {
    let (mut chunks, mut data) = (ChunkedDecoder::new(), Vec::new());
    while let Ok(ChunkedEvent::Data { skip, len }) = chunks.next(body) {
        data.extend_from_slice(&body[skip..skip + len]);
        body = &body[skip + len..];
    }
    data
}

/// Prepares the copies of the request. Returns the sender for the complete request, or `None` if
/// there are no copies to send.
///
/// A request for a protocol upgrade is not mirrored: it would only occupy a connection.
pub(crate) fn prepare(
    context: &RequestContext<'_>,
    active_config: &Rc<WorkerConfig>,
    layout: ReplayLayout,
) -> Option<oneshot::Sender<Rc<[u8]>>> {
    let RequestContext { worker, client, exchange, .. } = context;
    let is_of_share =
        |mirror: &&MirrorPolicy| mirror.share.samples(worker.rng.borrow_mut().next_u64());
    let chosen = exchange.filters.as_ref()?.mirrors().filter(is_of_share);
    let backends = chosen.map(|mirror| BackendRef::new(Rc::clone(active_config), mirror.backend));
    let targets: Vec<_> = backends.map(|backend| SubrequestTarget::new(backend, client)).collect();
    if targets.is_empty() || exchange.request.upgrade {
        return None;
    }
    let (whole, kept) = oneshot::channel();
    let source = MirrorSource { request: exchange.request.clone(), layout };
    tokio::task::spawn_local(send_all(Rc::clone(worker), targets, source, kept));
    Some(whole)
}

async fn send_all(
    worker: Rc<Worker>,
    targets: Vec<SubrequestTarget>,
    source: MirrorSource,
    kept: oneshot::Receiver<Rc<[u8]>>,
) {
    let (source, kept) = (Rc::new(source), kept.await.ok());
    for target in targets {
        let Some(kept) = &kept else {
            count(&worker, &target, MirrorOutcome::Incomplete);
            continue;
        };
        let Some(permit) = worker.mirrors.permit() else {
            count(&worker, &target, MirrorOutcome::TooMany);
            continue;
        };
        let (worker, source, kept) = (Rc::clone(&worker), Rc::clone(&source), Rc::clone(kept));
        tokio::task::spawn_local(async move {
            let outcome = send(&worker, &target, &source, &kept).await;
            count(&worker, &target, outcome);
            drop(permit);
        });
    }
}

fn count(worker: &Worker, target: &SubrequestTarget, outcome: MirrorOutcome) {
    target.backend.counters[worker.index].mirrors[outcome as usize].add(1);
}

/// Sends one copy and drains its response.
async fn send(
    worker: &Rc<Worker>,
    target: &SubrequestTarget,
    source: &MirrorSource,
    kept: &[u8],
) -> MirrorOutcome {
    let backend = &target.backend;
    let now = clock::now();
    let pick_request = PickRequest { now, ..PickRequest::default() };
    // Queued requests go first.
    if backend.waiting() > 0 {
        return MirrorOutcome::NoSlot;
    }
    let Some(slot) = backend::enter_at_once(backend, worker.index, &pick_request) else {
        return MirrorOutcome::NoSlot;
    };
    let current = backend.config();
    let most = current.settings.request_timeout.unwrap_or(MAX_DURATION);
    let until = now + most.min(MAX_DURATION);
    let attempt = SubrequestAttempt {
        worker,
        target,
        backend_config: &current,
        slot: &slot,
        // A copy is sent only once, so its connection must be known to be open.
        replayable: false,
        now,
    };
    let opened = match current.settings.protocol {
        EndpointProtocol::Http1 => {
            let opened = attempt.open().await;
            opened.map(|connection| (connection, Cow::Owned(source.to_http1(kept))))
        }
        EndpointProtocol::Http2 | EndpointProtocol::Http3 => {
            let body = source.decoded_body(kept);
            let opened = attempt.open_stream(&source.request, &body).await;
            opened.map(|connection| (connection, body))
        }
    };
    let (connection, unsent) = match opened {
        Ok(opened) => opened,
        Err(failure) => {
            slot.conclude(worker, &current, AttemptConclusion::now(failure.attempt_end()));
            slot.note_connect_failure(worker, failure);
            return MirrorOutcome::Failed;
        }
    };
    let attempt_connection = AttemptConnection::new(slot, connection, until);
    let mut abandoned = AbandonedRequest::new(
        attempt_connection,
        source.request.method,
        current.limits.cap.is_some(),
    );
    let result = timeout_at(clock::instant(until), abandoned.send_request(worker, &unsent)).await;
    let result = result.unwrap_or(Err(Failure::AttemptTimeout));
    abandoned.conclude(worker, &current, result);
    match result {
        Ok(()) => {
            abandoned.drain(worker, until).await;
            MirrorOutcome::Answered
        }
        Err(Failure::AttemptTimeout) if current.limits.cap.is_some() => {
            abandoned.drain(worker, until + current.settings.abandoned_timeout).await;
            MirrorOutcome::Failed
        }
        Err(_) => MirrorOutcome::Failed,
    }
}
