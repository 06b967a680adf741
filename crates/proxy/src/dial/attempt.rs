//! One attempt on one connection: sends the request, and awaits the head of the response.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use balance::{AttemptResult, Time};
use codec::h1::{BadResponse, parse};
use codec::head::{BodyFraming, RequestHead, ResponseHead};
use gateway::snapshot::EndpointProtocol;
use tls::ConnectionSecurity;

use crate::accept::client::{ClientConnection, WaitInterrupt};
use crate::backend::Slot;
use crate::body::{BodyError, BodyPump, BodySide, BodySource};
use crate::buffer::BUFFER_BYTES;
use crate::clock;
use crate::context::AttemptContext;
use crate::dial::RESPONSE_LIMITS;
use crate::dial::abandon;
use crate::dial::connect::{DialOptions, connect};
use crate::dial::h3::CONNECTION_ATTEMPT_DELAY;
use crate::dial::pool::{self, ConnectionRequirements, Endpoint, EndpointConnection};
use crate::dial::stream_request;
use crate::dial::websocket;
use crate::exchange::{Exchange, RequestPolicy};
use crate::failure::Failure;
use crate::grpc;
use crate::memory::stalled::HeldMemory;
use crate::outcome::AttemptConclusion;
use crate::relay;
use crate::request_body;
use crate::request_body::pace::UploadPace;
use crate::stream::ConnectionEnd;
use crate::worker::Worker;

/// Limit of interim responses to one request.
const INTERIM_RESPONSES: u32 = 16;

/// A slot with the connection that carries its request.
pub(crate) struct AttemptConnection {
    /// Declared before the slot: if both are dropped, the connection is closed first, so that the next owner of the
    /// slot does not open a connection beside it.
    pub(crate) connection: Box<EndpointConnection>,
    pub(crate) slot: Slot,
    /// True if the endpoint stopped reading the request body: the connection cannot be used again.
    pub(crate) upload_broken: bool,
    /// The latency of the response head, once it is known.
    pub(crate) head_latency: Option<Duration>,
    /// True if that latency is a signal of the endpoint's load.
    pub(crate) head_latency_is_signal: bool,
    /// The deadline of the response.
    pub(crate) deadline: Time,
    /// Memory of the part of the request body that the endpoint does not accept.
    held_upload: Option<HeldMemory>,
}

impl AttemptConnection {
    /// Forwards the received part of the request body, as far as the endpoint accepts it.
    #[inline]
    pub(crate) fn upload(
        &mut self,
        cx: &mut Context<'_>,
        worker: &Worker,
        client: &mut ClientConnection,
        upload: &mut BodyPump,
    ) -> Result<(), Failure> {
        if self.upload_broken || upload.is_done() {
            return Ok(());
        }
        self.continue_upload(cx, worker, client, upload)
    }

    fn continue_upload(
        &mut self,
        cx: &mut Context<'_>,
        worker: &Worker,
        client: &mut ClientConnection,
        upload: &mut BodyPump,
    ) -> Result<(), Failure> {
        let mut source = BodySource { stream: &mut client.stream, buffer: &mut client.buffer };
        let stop = match upload.poll(cx, &mut source, &mut self.connection.stream, &worker.scratch)
        {
            Poll::Ready(Ok(())) => return Ok(()),
            Poll::Pending => return self.stall_upload(cx, worker, client, upload),
            Poll::Ready(Err(stop)) => stop,
        };
        // The endpoint may have responded before it stopped reading.
        self.upload_broken |= stop == BodyError::SinkFailed;
        request_body::failure(stop).map_or(Ok(()), Err)
    }

    /// Records that the request body is stalled, if the endpoint does not accept it.
    fn stall_upload(
        &mut self,
        cx: &Context<'_>,
        worker: &Worker,
        client: &mut ClientConnection,
        upload: &BodyPump,
    ) -> Result<(), Failure> {
        if upload.waiting_for == BodySide::Source {
            self.held_upload.iter_mut().for_each(HeldMemory::advance);
            return Ok(());
        }
        let bytes = upload.held_bytes() + client.stream.unread_bytes().unwrap_or(0);
        let held = self.held_upload.get_or_insert_with(|| client.held_memory(worker));
        if held.stall(bytes, cx.waker()) { Err(Failure::OutOfMemory) } else { Ok(()) }
    }
}

impl AttemptConnection {
    pub(crate) fn new(slot: Slot, connection: Box<EndpointConnection>, deadline: Time) -> Self {
        let (upload_broken, head_latency_is_signal) = (false, false);
        Self {
            connection,
            slot,
            upload_broken,
            head_latency: None,
            head_latency_is_signal,
            deadline,
            held_upload: None,
        }
    }

    /// Returns the latency of the head, if it is a signal: the time until `now`, unless it was recorded before.
    pub(crate) fn head_latency_by(&mut self, now: Time) -> Option<Duration> {
        if self.head_latency_is_signal && self.head_latency.is_none() {
            self.head_latency = Some(now.saturating_since(self.slot.started));
        }
        self.head_latency
    }

    /// Marks the connection as suspect: the endpoint did not respond in time, and the connection may be dead.
    pub(crate) fn mark_suspect(&self, failure: Failure) {
        if failure.attempt_end() == AttemptResult::TimedOut
            && let Some(stream_guard) = &self.connection.stream_guard
        {
            stream_guard.mark_suspect();
        }
    }
}

/// A failed attempt.
pub(crate) struct AttemptFailure {
    pub(crate) failure: Failure,
    pub(crate) retry: RetryEligibility,
}

/// Eligibility of the request for a retry, decided where the attempt failed.
pub(crate) enum RetryEligibility {
    Never,
    /// The connection was stale; the endpoint is not at fault.
    SameEndpoint(Slot),
    /// Nothing was sent: no connection to this endpoint could be opened.
    Unsent(Arc<Endpoint>),
    AnotherEndpoint {
        /// The endpoint of the failed attempt.
        endpoint: Arc<Endpoint>,
        /// The number of requests at the endpoint then, this one included.
        in_flight: u32,
    },
}

impl RetryEligibility {
    pub(super) fn another_endpoint(endpoint: &Arc<Endpoint>) -> Self {
        Self::AnotherEndpoint { endpoint: Arc::clone(endpoint), in_flight: endpoint.in_flight() }
    }
}

/// The earlier attempts of a request, which restrict the next one.
#[derive(Clone, Copy)]
pub(crate) struct AttemptHistory<'a> {
    /// True if only a new connection may be used: the request has just failed on another one.
    pub(crate) fresh: bool,
    /// Endpoints at which the request has been tried.
    pub(crate) tried: &'a [Arc<Endpoint>],
}

impl AttemptHistory<'_> {
    /// True if another endpoint could get the request when this one is slow to accept a connection.
    fn has_alternative(self, slot: &Slot, policy: &RequestPolicy<'_>) -> bool {
        let is_tried = |it: &Arc<Endpoint>| self.tried.iter().any(|tried| Arc::ptr_eq(tried, it));
        policy.backend_config.set.members().iter().any(|member| {
            let endpoint = &member.endpoint;
            let is_another = !Arc::ptr_eq(endpoint, &slot.endpoint) && !is_tried(endpoint);
            member.weight > 0 && is_another && endpoint.is_reachable()
        })
    }

    /// Returns the time after which a connection attempt is given up in favour of another endpoint; `None` if there is
    /// no other.
    fn patience(self, slot: &Slot, policy: &RequestPolicy<'_>) -> Option<Duration> {
        let patience = slot.endpoint.data.reachability.connect_timeout();
        let patience = match policy.endpoint_protocol {
            EndpointProtocol::Http1 | EndpointProtocol::Http2 => patience,
            // TCP is tried only after this delay.
            EndpointProtocol::Http3 => patience + CONNECTION_ATTEMPT_DELAY,
        };
        self.has_alternative(slot, policy).then_some(patience)
    }

    /// Returns the deadline of a connection attempt that begins at `now`. If another endpoint could get the request,
    /// the deadline is earlier.
    pub(super) fn connect_deadline(
        self,
        slot: &Slot,
        policy: &RequestPolicy<'_>,
        now: Time,
    ) -> ConnectDeadline {
        let most = policy.backend_settings().connect_timeout;
        let slow_after = self.patience(slot, policy).filter(|slow_after| *slow_after < most);
        let until = now + slow_after.unwrap_or(most);
        let failure = match slow_after {
            _ if until > policy.deadline => Failure::RequestTimeout,
            Some(_) => Failure::ConnectSlow,
            None => Failure::ConnectTimeout,
        };
        ConnectDeadline { until: until.min(policy.deadline), failure }
    }
}

/// The deadline of a connection attempt, and the failure if it passes.
pub(super) struct ConnectDeadline {
    until: Time,
    failure: Failure,
}

impl AttemptFailure {
    fn without_retry(failure: Failure) -> Self {
        Self { failure, retry: RetryEligibility::Never }
    }
}

/// Sends the request and awaits the head of its response, which it stores in `exchange.response`.
pub(crate) async fn attempt(
    context: &mut AttemptContext<'_>,
    slot: Slot,
    history: AttemptHistory<'_>,
) -> Result<AttemptConnection, AttemptFailure> {
    let policy = context.policy;
    let started = clock::now();
    let (slot, connection) = connection(context, slot, history, started).await?;
    slot.mark_request_sent();
    let mut attempt = AttemptConnection::new(slot, connection, policy.deadline);
    let by = |most: Option<Duration>| most.map_or(Time::MAX, |most| started + most);
    attempt.deadline = by(policy.attempt_timeout).min(policy.deadline);
    let patience = by(policy.backend_settings().per_attempt_timeout).min(attempt.deadline);
    let pace = request_body::pace(context.client, context.exchange, policy);
    let mut limits = AttemptDeadlines { started, attempt: patience, idle: Time::MAX, pace, policy };
    for _ in 0..INTERIM_RESPONSES {
        if let Err(failure) = await_head(context, &mut attempt, &mut limits).await {
            let failure = grpc::reclassify_late_reset(failure, context.exchange, policy);
            return Err(conclude_failure(context, attempt, failure));
        }
        attempt.slot.mark_answered();
        let exchange = &mut *context.exchange;
        if exchange.response.upgrade && !exchange.request.upgrade {
            let failure = Failure::BadResponse(BadResponse::UnexpectedUpgrade);
            return Err(conclude_failure(context, attempt, failure));
        }
        if !exchange.response.is_interim() {
            if let Err(failure) = websocket::check_opening(&exchange.request, &exchange.response) {
                // The body of the response is still to come, for a connection that is drained.
                let from = attempt.connection.stream.framing(exchange.response.framing);
                exchange.download.start(from, BodyFraming::None);
                return Err(conclude_failure(context, attempt, failure));
            }
            // The latency of an upgrade, or of the first message of a stream, is no signal of the endpoint's load.
            let streams = exchange.response.upgrade
                || exchange.grpc_call.is_some() && !exchange.upload.is_read();
            attempt.head_latency_is_signal = !streams;
            return Ok(attempt);
        }
        exchange.request.expect_continue &= exchange.response.status != 100;
        if let Err(failure) = relay::forward_interim(context).await {
            return Err(conclude_failure(context, attempt, failure));
        }
        limits.started = clock::now();
    }
    let failure = Failure::BadResponse(BadResponse::TooManyInterim);
    Err(conclude_failure(context, attempt, failure))
}

/// Returns a connection for the request: an idle one that can carry it, a new one, or a stream on a shared one.
async fn connection(
    context: &mut AttemptContext<'_>,
    slot: Slot,
    history: AttemptHistory<'_>,
    now: Time,
) -> Result<(Slot, Box<EndpointConnection>), AttemptFailure> {
    let policy = context.policy;
    match policy.endpoint_protocol {
        EndpointProtocol::Http1 => {}
        EndpointProtocol::Http2 | EndpointProtocol::Http3 => {
            return stream_request::connection(context, slot, history, now).await;
        }
    }
    let requirements = connection_requirements(context, &slot, now);
    if !history.fresh
        && let Some(connection) = pool::take(&slot.endpoint, &requirements)
    {
        return Ok((slot, connection));
    }
    let header = context.client.proxy_protocol_header(policy.backend_settings());
    // Boxed: state that is seldom needed takes no space in each request's future.
    let opening = Box::pin(open(&slot.endpoint, &header, &requirements));
    let deadline = history.connect_deadline(&slot, policy, now);
    match await_connection(context.worker, context.client, deadline, opening).await {
        Ok(connection) => Ok((slot, connection)),
        Err(failure) => Err(conclude_unsent(context.worker, slot, failure, policy)),
    }
}

/// Returns the requirements of the request on an HTTP/1.1 connection.
pub(super) fn connection_requirements<'r>(
    context: &AttemptContext<'r>,
    slot: &Slot,
    now: Time,
) -> ConnectionRequirements<'r> {
    let AttemptContext { worker, client, exchange, policy, .. } = context;
    ConnectionRequirements {
        worker: worker.index,
        backend_config: &policy.backend_config,
        proxy_protocol_client: policy.backend_settings().proxy_protocol.map(|_| client.peer),
        client_mark: client.mark_for(worker, &slot.endpoint),
        replayable: is_replayable(&exchange.request),
        now,
    }
}

/// Opens an HTTP/1.1 connection that begins with `header`; the caller bounds the time.
pub(crate) async fn open(
    endpoint: &Endpoint,
    header: &[u8],
    requirements: &ConnectionRequirements<'_>,
) -> Result<Box<EndpointConnection>, Failure> {
    let tls_context = requirements.backend_config.tls_context.as_ref();
    let options = DialOptions {
        header,
        client_mark: requirements.client_mark.as_ref(),
        security: ConnectionSecurity::of_http1(tls_context),
        unacknowledged: requirements.backend_config.settings.unacknowledged_timeout,
    };
    let mut connection = connect(endpoint, requirements.worker, options).await?;
    connection.proxy_protocol_client = requirements.proxy_protocol_client;
    connection.tls_context = tls_context.cloned();
    Ok(connection)
}

/// Awaits a connection until the deadline, and while the client is connected.
pub(super) async fn await_connection<T>(
    worker: &Worker,
    client: &mut ClientConnection,
    deadline: ConnectDeadline,
    connecting: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match client.wait_until(worker, deadline.until, connecting).await {
        Ok(connected) => connected,
        Err(WaitInterrupt::ClientGone) => Err(Failure::ClientGone),
        Err(WaitInterrupt::OutOfMemory) => Err(Failure::OutOfMemory),
        Err(WaitInterrupt::Deadline) => Err(deadline.failure),
    }
}

/// Concludes an attempt of which no byte was sent: any request can be retried elsewhere, if the failure makes that
/// useful.
pub(super) fn conclude_unsent(
    worker: &Worker,
    slot: Slot,
    failure: Failure,
    policy: &RequestPolicy<'_>,
) -> AttemptFailure {
    let conclusion = AttemptConclusion::now(failure.attempt_end());
    slot.conclude(worker, &policy.backend_config, conclusion);
    slot.note_connect_failure(worker, failure);
    let is_of_use = !matches!(
        failure,
        Failure::ClientGone
            | Failure::RequestTimeout
            | Failure::BadRequest(_)
            | Failure::UpgradeRefused
            | Failure::OutOfDescriptors
            | Failure::OutOfMemory
    );
    if !is_of_use {
        return AttemptFailure::without_retry(failure);
    }
    AttemptFailure { failure, retry: RetryEligibility::Unsent(Arc::clone(&slot.endpoint)) }
}

/// True if the request can be sent again after an endpoint has closed an idle connection at the same moment.
fn is_replayable(request: &RequestHead) -> bool {
    request.method.is_idempotent()
}

/// The deadlines of one attempt.
struct AttemptDeadlines<'a> {
    /// The start of the wait for the endpoint.
    started: Time,
    attempt: Time,
    /// End of the time without a byte.
    idle: Time,
    /// Pace that the client's body has to keep.
    pace: Option<UploadPace>,
    policy: &'a RequestPolicy<'a>,
}

/// Sends the rest of the request and reads until a head, interim or final, is complete.
async fn await_head(
    context: &mut AttemptContext<'_>,
    attempt: &mut AttemptConnection,
    limits: &mut AttemptDeadlines<'_>,
) -> Result<(), Failure> {
    let AttemptContext { worker, client, exchange, .. } = context;
    let Exchange { request, response, upload, .. } = exchange;
    let mut seen = u64::MAX;
    poll_fn(|cx| {
        attempt.upload(cx, worker, client, upload)?;
        if let Poll::Ready(read) = poll_head(cx, worker, &mut attempt.connection, request, response)
        {
            return Poll::Ready(read);
        }
        let reads_client = !upload.is_read() && upload.waiting_for == BodySide::Source;
        // With `Expect: 100-continue` the client waits for the endpoint.
        let waits_for_client = reads_client && !request.expect_continue;
        if !reads_client && client.poll_disconnected(cx, worker).is_ready() {
            return Poll::Ready(Err(Failure::ClientGone));
        }
        if seen != upload.progress {
            // The first poll follows the start immediately: the clock need not be read again.
            let now = if seen == u64::MAX { limits.started } else { clock::now() };
            seen = upload.progress;
            limits.idle = now + limits.patience(waits_for_client);
            let due = limits.due(now, client, upload, waits_for_client);
            client.deadline.set(due);
        }
        loop {
            ready!(client.deadline.poll(cx));
            let now = clock::now();
            let due = limits.due(now, client, upload, waits_for_client);
            if now >= due {
                return Poll::Ready(Err(limits.expired_deadline(now, waits_for_client)));
            }
            client.deadline.set(due);
        }
    })
    .await
}

/// Reads until `response` holds a complete head, interim or final.
pub(crate) fn poll_head(
    cx: &mut Context<'_>,
    worker: &Worker,
    connection: &mut EndpointConnection,
    request: &RequestHead,
    response: &mut ResponseHead,
) -> Poll<Result<(), Failure>> {
    if connection.stream_guard.is_some() {
        return stream_request::poll_response(cx, connection, request, response);
    }
    loop {
        if let Some(buffer) = connection.buffer.as_mut().filter(|buffer| !buffer.is_empty()) {
            match parse::response(buffer.unread(), &RESPONSE_LIMITS, request.method, response) {
                Ok(Some(length)) => {
                    buffer.consume(length);
                    return Poll::Ready(Ok(()));
                }
                Ok(None) => {}
                Err(bad) => return Poll::Ready(Err(Failure::BadResponse(bad))),
            }
        } else if connection.stream.poll_read_ready(cx).is_pending() {
            return Poll::Pending;
        }
        let buffer =
            connection.buffer.get_or_insert_with(|| worker.scratch.buffer_pool.take_for_endpoint());
        let most = (RESPONSE_LIMITS.head_bytes + 1).max(BUFFER_BYTES);
        let read = ready!(buffer.poll_fill(cx, &mut connection.stream, most));
        connection.end = ConnectionEnd::of(read.as_ref().copied());
        if connection.end.is_some() {
            return Poll::Ready(Err(Failure::EndpointClosed));
        }
    }
}

impl AttemptDeadlines<'_> {
    /// Returns the time at which the first deadline passes, as things are at `now`.
    fn due(
        &mut self,
        now: Time,
        client: &ClientConnection,
        upload: &BodyPump,
        waits_for_client: bool,
    ) -> Time {
        let due = self.attempt.min(self.policy.deadline).min(self.idle);
        let Some(pace) = self.pace.as_mut().filter(|_| !upload.is_read()) else { return due };
        pace.observe(now, upload.body_bytes, client.share.as_deref(), waits_for_client);
        due.min(pace.due())
    }

    /// Returns the idle timeout that applies.
    fn patience(&self, waits_for_client: bool) -> Duration {
        let policy = self.policy;
        if waits_for_client {
            policy.client.body_timeout
        } else {
            policy.backend_settings().idle_timeout
        }
    }

    /// Returns the failure for the deadline that has passed.
    fn expired_deadline(&self, now: Time, waits_for_client: bool) -> Failure {
        if now >= self.policy.deadline {
            Failure::RequestTimeout
        } else if now >= self.attempt {
            Failure::AttemptTimeout
        } else if !waits_for_client {
            Failure::EndpointIdle
        } else if now >= self.idle {
            Failure::BodyTimeout
        } else {
            Failure::BodyRate
        }
    }
}

/// Decides if the request may be sent again, and frees or drains slot and connection.
fn conclude_failure(
    context: &mut AttemptContext<'_>,
    attempt: AttemptConnection,
    failure: Failure,
) -> AttemptFailure {
    if attempt.connection.stream_guard.is_some() {
        return stream_request::conclude_stream_failure(context, attempt, failure);
    }
    let AttemptContext { worker, exchange, policy, .. } = context;
    let has_answered = attempt.connection.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty());
    // An endpoint may close an idle connection at any time.
    let stale = failure == Failure::EndpointClosed
        && attempt.connection.idle_for.is_some()
        && !has_answered;
    let end = if stale {
        AttemptResult::Cancelled
    } else {
        policy.discount_late_timeout(failure.attempt_end(), &attempt.slot)
    };
    let conclusion = AttemptConclusion { hold_time_is_signal: true, ..AttemptConclusion::now(end) };
    attempt.slot.conclude(worker, &policy.backend_config, conclusion);
    if failure != Failure::EndpointClosed {
        let again = matches!(failure, Failure::AttemptTimeout | Failure::BadResponse(_))
            && exchange.request.method.is_idempotent();
        let elsewhere = RetryEligibility::another_endpoint(&attempt.slot.endpoint);
        abandon::abandon(context, attempt);
        let retry = if again { elsewhere } else { RetryEligibility::Never };
        return AttemptFailure { failure, retry };
    }
    let AttemptConnection { slot, connection, upload_broken, .. } = attempt;
    if let Some(age) = connection.idle_for {
        slot.endpoint.idle.found_closed(age);
    }
    let harmless = exchange.request.method.is_idempotent()
        || exchange.upload.written == 0
        || !upload_broken && is_unacknowledged(&connection);
    let retry = match connection.idle_for {
        _ if has_answered || !harmless => RetryEligibility::Never,
        Some(_) => RetryEligibility::SameEndpoint(slot),
        None => RetryEligibility::another_endpoint(&slot.endpoint),
    };
    AttemptFailure { failure, retry }
}

/// True if the endpoint's kernel has received no byte of the request, so that the endpoint cannot have seen it.
fn is_unacknowledged(connection: &EndpointConnection) -> bool {
    let received = connection.end.and_then(|end| end.received_at_most(&connection.stream));
    received.is_some_and(|received| received <= connection.written)
}
