//! The body of a request before the request has a slot, and how slowly it may arrive after that.
//!
//! A slot of a capped backend is scarce, and a client can send a body as slowly as it likes. So the body is received
//! first, up to the bytes that are kept for a retry, and the request asks for a slot when it is complete. Three kinds
//! of requests ask for a slot earlier: longer ones, which then have to keep a minimum rate (`pace`); those whose
//! endpoint may have to answer before the body is complete, because both sides have streams (gRPC); and those whose
//! `Expect: 100-continue` the endpoint answers. Their number is bounded for each connection (`connection_share`). At
//! a backend without a cap nothing of this happens. See docs/decisions/0010.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use balance::Time;
use codec::head::{BodyFraming, KnownFieldName, RequestHead};
use gateway::snapshot::ClientSettings;

use crate::accept::client::ClientConnection;
use crate::backend::{BackendConfig, BackendRef};
use crate::body::{BodyError, BodyPump, BodySource};
use crate::clock;
use crate::context::RequestContext;
use crate::exchange::{Exchange, RequestPolicy};
use crate::failure::Failure;
use crate::relay;
use crate::scratch::ArrivalReservation;

/// Slots and queue places that one client connection has for incomplete requests.
pub(crate) mod connection_share;
/// The minimum rate of a body.
pub(crate) mod pace;
/// Whole bodies, for authorizers.
pub(crate) mod whole;

use connection_share::SharePlace;
use pace::UploadPace;

/// True if some of the body has to arrive before the request asks for a slot.
pub(crate) fn has_to_arrive(context: &RequestContext<'_>, policy: &RequestPolicy<'_>) -> bool {
    policy.is_capped() && !is_at_hand(context.client, context.exchange)
}

/// Receives what has to arrive of the body before the request asks for a slot.
pub(crate) async fn receive(
    context: &mut RequestContext<'_>,
    policy: &mut RequestPolicy<'_>,
    backend: &BackendRef,
) -> Result<(), Failure> {
    let mut arrival = BodyArrival::new(context.exchange, policy);
    let at_once = poll_fn(|cx| Poll::Ready(arrival.poll_body(cx, context, backend))).await;
    if let Poll::Ready(Err(failure)) = at_once {
        return Err(failure);
    }
    if context.exchange.owes_continue && context.exchange.upload.body_bytes == 0 {
        let (patience, until) = (policy.client.body_timeout, policy.deadline);
        let RequestContext { client, exchange, .. } = context;
        Box::pin(relay::send_continue(client, exchange, patience, until)).await?;
    }
    if at_once.is_pending() {
        // Boxed: most bodies arrive with their heads.
        Box::pin(arrival.wait(context, policy, backend)).await?;
        policy.ready = clock::now();
    }
    Ok(())
}

/// True if the whole body has arrived with the head, or there is none. An upgrade goes on after its head.
fn is_at_hand(client: &ClientConnection, exchange: &Exchange) -> bool {
    let buffered = || client.buffer.as_ref().map_or(0, |buffer| buffer.len() as u64);
    let is_complete = match exchange.request.framing {
        BodyFraming::Length(length) if client.share.is_none() => length <= buffered(),
        _ => exchange.upload.is_read(),
    };
    is_complete && !(exchange.request.upgrade && client.share.is_some())
}

/// Decides if this proxy answers the expectation of the request, and takes it out of the head if so.
///
/// The endpoint's answer is better: it may refuse the body. But until then the request holds a slot without having sent
/// anything, so such requests get only slots that leave at least half of them free.
pub(crate) fn answers_expectation(request: &mut RequestHead, policy: &RequestPolicy<'_>) -> bool {
    let answers =
        request.expect_continue && policy.is_capped() && !has_free_half(&policy.backend_config);
    if answers {
        request.expect_continue = false;
        request.fields.remove(KnownFieldName::Expect);
    }
    answers
}

fn has_free_half(current: &BackendConfig) -> bool {
    current.in_flight().saturating_add(1) <= current.slots() / 2
}

/// Returns the failure of a request whose body did not arrive.
pub(crate) fn failure(stop: BodyError) -> Option<Failure> {
    match stop {
        BodyError::SourceEnded => Some(Failure::ClientGone),
        BodyError::SourceBad(bad) => Some(Failure::BadRequestBody(bad)),
        BodyError::TooLarge => Some(Failure::BodyTooLarge),
        BodyError::Untranslatable => Some(Failure::BadWebText),
        BodyError::Evicted => Some(Failure::BodyEvicted),
        BodyError::SinkFailed => None,
    }
}

/// Returns the pace that the body has to keep; `None`: the policy sets none, or the request is exempt.
pub(crate) fn pace(
    client: &ClientConnection,
    exchange: &Exchange,
    policy: &RequestPolicy<'_>,
) -> Option<UploadPace> {
    let rate = policy.client.min_body_rate.filter(|_| policy.is_capped())?;
    let is_call = exchange.grpc_call.is_some() && exchange.request.version.has_streams();
    let is_exempt = is_call || exchange.upload.is_read();
    let received = exchange.upload.body_bytes;
    (!is_exempt).then(|| {
        UploadPace::new(rate, policy.client.body_timeout, received, client.share.as_deref())
    })
}

/// The wait for a body.
struct BodyArrival {
    /// True if the request asks for a slot before its body is complete.
    is_early: bool,
    /// `None` until it turns out that the body has not arrived yet.
    room: Option<ArrivalReservation>,
    /// True if as much of the body has arrived as is kept.
    is_full: bool,
}

impl BodyArrival {
    fn new(exchange: &Exchange, policy: &RequestPolicy<'_>) -> Self {
        let request = &exchange.request;
        let is_streamed = request.framing == BodyFraming::Stream
            && request.version.has_streams()
            && policy.endpoint_protocol.has_streams();
        let is_early = request.expect_continue
            || is_streamed
            || policy.client.body_buffering_timeout.is_zero();
        Self { is_early, room: None, is_full: false }
    }

    /// Ready when the request may ask for a slot.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        context: &mut RequestContext<'_>,
        backend: &BackendRef,
    ) -> Poll<Result<(), Failure>> {
        let RequestContext { worker, client, exchange, .. } = context;
        let Exchange { upload, request, .. } = &mut **exchange;
        if !self.is_full {
            let mut source = BodySource { stream: &mut client.stream, buffer: &mut client.buffer };
            match upload.poll_receive(cx, &mut source, &worker.scratch, self.room.as_ref()) {
                Poll::Ready(Ok(())) => self.is_full = true,
                Poll::Ready(Err(stop)) => {
                    return Poll::Ready(Err(failure(stop).unwrap_or(Failure::ClientGone)));
                }
                Poll::Pending => {}
            }
        }
        if upload.is_read() && !request.upgrade {
            return Poll::Ready(Ok(()));
        }
        if !self.is_full && !self.is_early {
            return Poll::Pending;
        }
        match take_place(cx, client, backend) {
            Ok(place) => {
                upload.share_place = place;
                Poll::Ready(Ok(()))
            }
            // A client that has been read as far as is kept is noticed only so when it leaves.
            Err(()) if self.is_full => {
                client.poll_disconnected(cx, worker).map(|()| Err(Failure::ClientGone))
            }
            Err(()) => Poll::Pending,
        }
    }

    async fn wait(
        mut self,
        context: &mut RequestContext<'_>,
        policy: &RequestPolicy<'_>,
        backend: &BackendRef,
    ) -> Result<(), Failure> {
        self.room = Some(ArrivalReservation::new(&context.worker.replay_budget));
        let mut limits = ArrivalDeadlines::new(context, policy);
        let mut held = context.client.held_memory(context.worker);
        let received = poll_fn(|cx| {
            if self.room.as_ref().is_some_and(|room| !room.watch(cx)) {
                return Poll::Ready(Err(Failure::BodyEvicted));
            }
            if let Poll::Ready(received) = self.poll_body(cx, context, backend) {
                return Poll::Ready(received);
            }
            let waits = !self.is_full && !self.is_early;
            // A request that waits for a place is stalled like one in the queue.
            let unread = context.client.stream.unread_bytes().unwrap_or(0);
            let bytes = unread + context.exchange.upload.body_bytes as usize;
            if held.stall_if(!waits, bytes, cx.waker()) {
                return Poll::Ready(Err(Failure::OutOfMemory));
            }
            limits.poll(cx, context.client, &context.exchange.upload, waits).map(Err)
        })
        .await;
        if let Some(room) = &self.room {
            context.exchange.upload.adopt_arrived(room);
        }
        received
    }
}

/// Takes a place in the share of the connection for an incomplete request. A connection that carries one request at a
/// time needs none.
fn take_place(
    cx: &Context<'_>,
    client: &ClientConnection,
    backend: &BackendRef,
) -> Result<Option<SharePlace>, ()> {
    let Some(share) = &client.share else { return Ok(None) };
    let most = || {
        let current = backend.config();
        let own = current.settings.max_incomplete_per_connection;
        own.map_or_else(|| (current.slots() / 2).max(1), Into::into)
    };
    share.take(backend.backend(), most, cx).map(Some).ok_or(())
}

/// The deadlines of the wait for a body, and of the wait for a place in the share of the connection.
struct ArrivalDeadlines {
    /// End of the wait for the body.
    body: Time,
    /// End of the wait for a place; it is set when that wait begins.
    place: Time,
    /// Maximum time to wait for a place.
    place_timeout: Duration,
    /// Deadline of the request.
    request: Time,
    /// Maximum time without a byte.
    patience: Duration,
    /// End of that time.
    idle: Time,
    pace: Option<UploadPace>,
    /// Progress of the upload when these were updated last.
    seen: u64,
}

impl ArrivalDeadlines {
    fn new(context: &RequestContext<'_>, policy: &RequestPolicy<'_>) -> Self {
        Self {
            body: policy.started + policy.client.body_buffering_timeout,
            place: Time::MAX,
            place_timeout: policy.backend_settings().queue_timeout,
            request: policy.deadline,
            patience: policy.client.body_timeout,
            idle: Time::MAX,
            pace: pace(context.client, context.exchange, policy),
            seen: u64::MAX,
        }
    }

    /// Returns the deadlines of a body that an authorizer gets.
    fn of_whole_body(settings: &ClientSettings, started: Time, deadline: Time) -> Self {
        // Without a time for the whole body, it has the time for a part of it.
        let whole = Some(settings.body_buffering_timeout).filter(|it| !it.is_zero());
        Self {
            body: started + whole.unwrap_or(settings.body_timeout),
            place: Time::MAX,
            place_timeout: Duration::ZERO,
            request: deadline,
            patience: settings.body_timeout,
            idle: Time::MAX,
            pace: None,
            seen: u64::MAX,
        }
    }

    /// Ready with the failure when a deadline has passed. The client has to send something if `waits` is true.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut ClientConnection,
        upload: &BodyPump,
        waits: bool,
    ) -> Poll<Failure> {
        if self.seen != upload.progress {
            self.seen = upload.progress;
            let now = clock::now();
            self.idle = now + self.patience;
            self.observe_pace(now, client, upload, waits);
        }
        if !waits && self.place == Time::MAX {
            self.place = clock::now() + self.place_timeout;
        }
        loop {
            client.deadline.set(self.due(waits).min(self.request));
            ready!(client.deadline.poll(cx));
            let now = clock::now();
            self.observe_pace(now, client, upload, waits);
            if let Some(failure) = self.expired(now, waits) {
                return Poll::Ready(failure);
            }
        }
    }

    fn observe_pace(
        &mut self,
        now: Time,
        client: &ClientConnection,
        upload: &BodyPump,
        waits: bool,
    ) {
        if let Some(pace) = &mut self.pace {
            pace.observe(now, upload.body_bytes, client.share.as_deref(), waits);
        }
    }

    /// Returns the time by which something has to happen: the client sends something, or a place becomes free.
    fn due(&self, waits: bool) -> Time {
        if !waits {
            return self.place;
        }
        self.pace.map_or(Time::MAX, |pace| pace.due()).min(self.idle).min(self.body)
    }

    fn expired(&self, now: Time, waits: bool) -> Option<Failure> {
        let failure = match () {
            () if now >= self.request => Failure::RequestTimeout,
            () if !waits => Failure::ConnectionShare,
            () if now >= self.body => Failure::BodyBuffering,
            () if now >= self.idle => Failure::BodyTimeout,
            () => Failure::BodyRate,
        };
        (now >= self.due(waits).min(self.request)).then_some(failure)
    }
}
