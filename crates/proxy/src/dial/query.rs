//! A query: a request of this proxy whose answer is read whole, such as the question to an authorizer.
//!
//! It is sent to one endpoint after another until one answers, within a time limit. The answer's body is bounded. The
//! wait ends when the client leaves.

use std::borrow::Cow;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use balance::{AttemptResult, PickRequest, PriorityLevel, QueueParameters, Time};
use codec::grpc::GrpcCallStatus;
use codec::h1::{HeadLimits, parse, write};
use codec::head::{BodyFraming, FieldSection, KnownFieldName, RequestHead, ResponseHead};
use gateway::snapshot::EndpointProtocol;
use tokio::io::AsyncWriteExt;

use crate::accept::client::{ClientConnection, WaitInterrupt};
use crate::backend::{self, Slot, SlotAdmission};
use crate::body::{BodyPump, BodySource};
use crate::clock;
use crate::dial::abandon::AbandonedRequest;
use crate::dial::attempt::{AttemptConnection, poll_head};
use crate::dial::pool::{self, CompletedExchange, Endpoint, EndpointConnection};
use crate::dial::subrequest::{SubrequestAttempt, SubrequestTarget};
use crate::failure::Failure;
use crate::grpc;
use crate::outcome::AttemptConclusion;
use crate::relay;
use crate::worker::Worker;

/// Maximum size of the body of an answer.
const MAX_BODY_BYTES: u64 = 60 * 1024;
/// Number of endpoints that are asked, one after another, while none has answered.
const MAX_ATTEMPTS: usize = 3;
/// Limit of interim responses to one query.
const INTERIM_RESPONSES: u32 = 16;
/// Limits of a query: those of the client's head are lower.
const LIMITS: HeadLimits =
    HeadLimits { head_bytes: 4 * 1024 * 1024, fields: 1024, target_bytes: 2 * 1024 * 1024 };

/// Fields by which a client asks for a part of a representation, or for one that has changed. The answer to a query is
/// none of these.
pub(crate) const CONDITIONS: [&str; 7] = [
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
    "if-range",
    "range",
    "expect",
];

/// Fields in which proxies describe a client and its request. They are kept only from trusted proxies.
pub(crate) const FORWARDING: [KnownFieldName; 7] = [
    KnownFieldName::Forwarded,
    KnownFieldName::XForwardedFor,
    KnownFieldName::XForwardedProto,
    KnownFieldName::XForwardedHost,
    KnownFieldName::XForwardedPort,
    KnownFieldName::XRealIp,
    KnownFieldName::XRequestId,
];

/// Reason that a query has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueryFailure {
    ClientGone,
    OutOfMemory,
    TimedOut,
    /// No endpoint gave an answer.
    Unavailable,
    /// The answer of an endpoint is not HTTP. That of another would be no better.
    Unusable,
}

impl From<WaitInterrupt> for QueryFailure {
    fn from(interrupt: WaitInterrupt) -> Self {
        match interrupt {
            WaitInterrupt::ClientGone => Self::ClientGone,
            WaitInterrupt::OutOfMemory => Self::OutOfMemory,
            WaitInterrupt::Deadline => Self::TimedOut,
        }
    }
}

impl From<Failure> for QueryFailure {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::BadResponse(_) => Self::Unusable,
            _ => Self::Unavailable,
        }
    }
}

/// The request of a query.
pub(crate) struct QueryRequest {
    pub(crate) head: RequestHead,
    framing: BodyFraming,
    body: Vec<u8>,
}

impl QueryRequest {
    /// Parses a head as it is written in HTTP/1.1, so that nothing in it can be taken for a second request.
    pub(crate) fn parse(text: &[u8], framing: BodyFraming) -> Option<Self> {
        let mut head = RequestHead::new();
        let parsed = parse::request(text, &LIMITS, &mut head);
        (parsed == Ok(Some(text.len()))).then_some(Self { head, framing, body: Vec::new() })
    }

    /// Adds a body.
    pub(crate) fn with_body(self, body: Vec<u8>) -> Self {
        Self { framing: BodyFraming::Length(body.len() as u64), body, ..self }
    }

    /// Returns what is sent on a connection on which the head has been sent if `has_sent_head` is true.
    fn unsent(&self, has_sent_head: bool) -> Cow<'_, [u8]> {
        if has_sent_head {
            return Cow::Borrowed(&self.body);
        }
        let mut out = Vec::new();
        write::request_head(&self.head, self.framing, false, &mut out);
        out.extend_from_slice(&self.body);
        Cow::Owned(out)
    }
}

/// The answer to a query.
pub(crate) struct QueryAnswer {
    pub(crate) head: ResponseHead,
    /// The body; `None`: it is too large, or did not arrive.
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) trailers: Option<FieldSection>,
}

/// The answers by which an endpoint has succeeded, for its health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuerySuccess {
    /// Those with a status of success.
    ByHttp,
    /// All: the status may be a part of the answer.
    Any,
    /// Those to a gRPC call with a status of success.
    ByGrpc,
}

impl QueryAnswer {
    /// Returns the status of a gRPC call.
    pub(crate) fn grpc_status(&self) -> Option<GrpcCallStatus> {
        grpc_status(&self.head, self.trailers.as_ref())
    }
}

fn grpc_status(head: &ResponseHead, trailers: Option<&FieldSection>) -> Option<GrpcCallStatus> {
    trailers.and_then(GrpcCallStatus::of).or_else(|| GrpcCallStatus::of(&head.fields))
}

/// A query to a backend.
pub(crate) struct EndpointQuery<'a> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(crate) target: SubrequestTarget,
    pub(crate) request: &'a QueryRequest,
    /// The fair-queueing flow.
    pub(crate) route: usize,
    pub(crate) until: Time,
    pub(crate) success: QuerySuccess,
}

impl EndpointQuery<'_> {
    /// Sends the query, and reads the answer.
    pub(crate) async fn ask(
        &self,
        client: &mut ClientConnection,
    ) -> Result<QueryAnswer, QueryFailure> {
        let mut tried: Vec<Arc<Endpoint>> = Vec::new();
        loop {
            let slot = self.slot(client, &tried).await?;
            let endpoint = Arc::clone(&slot.endpoint);
            match self.attempt(client, slot).await {
                Err(QueryFailure::Unavailable) if tried.len() + 1 < MAX_ATTEMPTS => {
                    tried.push(endpoint);
                }
                result => return result,
            }
        }
    }

    /// Returns a slot at an endpoint, after a wait in the queue if need be.
    async fn slot(
        &self,
        client: &mut ClientConnection,
        tried: &[Arc<Endpoint>],
    ) -> Result<Slot, QueryFailure> {
        let (worker, backend, now) = (self.worker, &self.target.backend, clock::now());
        let current = backend.config();
        let deadline = self.until.min(now + current.settings.queue_timeout);
        let (priority, route) = (PriorityLevel::default(), self.route as u64);
        let queueing = QueueParameters { priority, route, deadline };
        let pick = PickRequest { tried, now, queueing, ..PickRequest::default() };
        let entered = poll_fn(|cx| {
            let waker = || cx.waker().clone();
            Poll::Ready(backend::enter(backend, worker.index, &pick, current.admission(), waker))
        });
        let place = match entered.await {
            SlotAdmission::Slot(slot) => return Ok(slot),
            SlotAdmission::Refused(_) => return Err(QueryFailure::Unavailable),
            SlotAdmission::Queued(place) => place,
        };
        let granted = client.wait_until(worker, deadline, poll_fn(|_| place.poll())).await?;
        granted.map_err(|_refused| QueryFailure::Unavailable)
    }

    /// Sends the query to the endpoint of the slot, and reads the answer.
    async fn attempt(
        &self,
        client: &mut ClientConnection,
        slot: Slot,
    ) -> Result<QueryAnswer, QueryFailure> {
        let Self { worker, target, request, until, .. } = self;
        let current = target.backend.config();
        let is_http1 = current.settings.protocol == EndpointProtocol::Http1;
        let attempt = SubrequestAttempt {
            worker,
            target,
            backend_config: &current,
            slot: &slot,
            replayable: true,
            now: clock::now(),
        };
        let opening = async {
            match is_http1 {
                true => attempt.open().await,
                false => attempt.open_stream(&request.head, &request.body).await,
            }
        };
        let mut connection = match client.wait_until(worker, *until, opening).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(failure)) => {
                slot.conclude(worker, &current, AttemptConclusion::now(failure.attempt_end()));
                slot.note_connect_failure(worker, failure);
                return Err(failure.into());
            }
            Err(interrupt) => {
                slot.conclude(worker, &current, AttemptConclusion::now(AttemptResult::Cancelled));
                return Err(interrupt.into());
            }
        };
        slot.mark_request_sent();
        let unsent = request.unsent(!is_http1);
        let mut answer = AnswerReader::new(worker);
        let exchange = answer.read(worker, &mut connection, &request.head, &unsent);
        let read = client.wait_until(worker, *until, exchange).await;
        let now = clock::now();
        let result = match &read {
            Ok(Ok(())) => answer.attempt_result(self.success),
            Ok(Err(failure)) => failure.attempt_end(),
            Err(WaitInterrupt::Deadline) => AttemptResult::TimedOut,
            Err(WaitInterrupt::ClientGone | WaitInterrupt::OutOfMemory) => AttemptResult::Cancelled,
        };
        let head_after = answer.head_at.map(|at| at.saturating_since(slot.started));
        let conclusion =
            AttemptConclusion { at: now, result, head_after, hold_time_is_signal: true };
        slot.conclude(worker, &current, conclusion);
        let is_capped = current.limits.cap.is_some();
        let read = read.map_err(QueryFailure::from);
        if let Err(failure) = read.and_then(|it| it.map_err(QueryFailure::from)) {
            let is_waiting = matches!(failure, QueryFailure::ClientGone | QueryFailure::TimedOut);
            if is_capped
                && is_waiting
                && answer.head.status == 0
                && connection.stream_guard.is_none()
            {
                // The slot is free when the endpoint has finished.
                let attempt = AttemptConnection::new(slot, connection, *until);
                let sent = unsent.len() as u64;
                let rest = AbandonedRequest::sent(attempt, request.head.method, sent);
                let until = now + current.settings.abandoned_timeout;
                let worker = Rc::clone(worker);
                tokio::task::spawn_local(async move { rest.drain(&worker, until).await });
            }
            return Err(failure);
        }
        slot.mark_answered();
        connection.count_written(unsent.len() as u64);
        worker.scratch.buffer_pool.reclaim(&mut connection.buffer);
        let response_read = answer.has_body();
        let done = CompletedExchange { response: &answer.head, request_sent: true, response_read };
        pool::give_back(&slot.endpoint, connection, &done, is_capped, now);
        slot.free(now);
        let trailers = answer.pump.trailers().cloned();
        let body = response_read.then(|| std::mem::take(&mut answer.pump.out));
        Ok(QueryAnswer { head: answer.head, body, trailers })
    }
}

/// Reads an answer.
struct AnswerReader {
    head: ResponseHead,
    /// Time at which the head was complete.
    head_at: Option<Time>,
    pump: BodyPump,
}

impl AnswerReader {
    fn new(worker: &Worker) -> Self {
        let mut pump = BodyPump::new();
        pump.keep_for_replay(&worker.replay_budget, None);
        Self { head: ResponseHead::new(), head_at: None, pump }
    }

    /// True if the body has been read to its end.
    fn has_body(&self) -> bool {
        self.pump.is_read()
    }

    /// Returns the result of the attempt that has this answer.
    fn attempt_result(&self, success: QuerySuccess) -> AttemptResult {
        match success {
            QuerySuccess::Any => AttemptResult::Success,
            QuerySuccess::ByGrpc if self.head.status == 200 => {
                let status = grpc_status(&self.head, self.pump.trailers());
                status.map_or(AttemptResult::ServerError, grpc::attempt_result)
            }
            QuerySuccess::ByHttp | QuerySuccess::ByGrpc => relay::attempt_end(&self.head),
        }
    }

    /// Sends what has not been sent yet, and reads head and body. A body that is too large or that does not arrive is
    /// no error: the head may suffice.
    async fn read(
        &mut self,
        worker: &Worker,
        connection: &mut EndpointConnection,
        request: &RequestHead,
        unsent: &[u8],
    ) -> Result<(), Failure> {
        let stream = &mut connection.stream;
        if !unsent.is_empty()
            && (stream.write_all(unsent).await.is_err()
                || poll_fn(|cx| stream.poll_end(cx, None)).await.is_err())
        {
            return Err(Failure::EndpointClosed);
        }
        for _ in 0..INTERIM_RESPONSES {
            let head = &mut self.head;
            poll_fn(|cx| poll_head(cx, worker, connection, request, head)).await?;
            if !self.head.is_interim() {
                break;
            }
        }
        self.head_at = Some(clock::now());
        let from = connection.stream.framing(self.head.framing);
        self.pump.start(from, BodyFraming::None);
        self.pump.keep_for_replay(&worker.replay_budget, None);
        self.pump.set_max_body_bytes(MAX_BODY_BYTES);
        let pump = &mut self.pump;
        let read = poll_fn(|cx| {
            let mut source =
                BodySource { stream: &mut connection.stream, buffer: &mut connection.buffer };
            pump.poll_receive(cx, &mut source, &worker.scratch, None)
        });
        if read.await.is_err() {
            self.pump.out.clear();
        }
        Ok(())
    }
}
