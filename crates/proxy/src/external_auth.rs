//! External authorization: asks another server, the authorizer, whether a request may be served.
//!
//! The question is a request without a body, made of the head of the client's request; it is balanced over the
//! endpoints of the authorizer's backend as any request is. A positive answer adds fields to the client's request; any
//! other answer goes to the client. Without a usable answer the request is not served. The wait ends when the client
//! leaves.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use balance::{PickRequest, PriorityLevel, QueueParameters, Time};
use codec::head::{BodyFraming, KnownFieldName, RequestHead, ResponseHead};
use gateway::snapshot::{
    CookieScope, EndpointProtocol, ExternalAuthSettings, FieldSelection, Rule,
};
use tokio::io::AsyncWriteExt;

use crate::accept::client::{ClientConnection, WaitInterrupt};
use crate::active_config::{ActiveListener, WorkerConfig};
use crate::backend::{self, BackendRef, Slot, SlotAdmission};
use crate::body::{BodyPump, BodySource};
use crate::clock;
use crate::context::RequestContext;
use crate::dial::abandon::AbandonedRequest;
use crate::dial::attempt::{AttemptConnection, poll_head};
use crate::dial::pool::{self, CompletedExchange, Endpoint, EndpointConnection};
use crate::dial::subrequest::{SubrequestAttempt, SubrequestTarget};
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::filter::authorizer_cookies::AuthorizerCookies;
use crate::filter::headers;
use crate::grpc::GrpcCall;
use crate::outcome::AttemptConclusion;
use crate::relay;
use crate::worker::Worker;

/// The question to the authorizer.
mod question;

use question::AuthorizationRequest;

/// Maximum size of the body of an answer that goes to the client.
const MAX_BODY_BYTES: u64 = 60 * 1024;
/// Number of endpoints that are asked, one after another, while none has answered.
const MAX_ATTEMPTS: usize = 3;
/// Limit of interim responses to one question.
const INTERIM_RESPONSES: u32 = 16;

/// The outcome of a question to an authorizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthorizationOutcome {
    Allowed,
    Denied,
    /// There was no usable answer.
    Failed,
    TimedOut,
    /// The client left.
    Abandoned,
}

impl AuthorizationOutcome {
    pub(crate) const ALL: [Self; 5] =
        [Self::Allowed, Self::Denied, Self::Failed, Self::TimedOut, Self::Abandoned];

    /// Returns the metric label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Abandoned => "abandoned",
        }
    }

    fn of_failure(failure: Failure) -> Self {
        match failure {
            Failure::ClientGone | Failure::OutOfMemory => Self::Abandoned,
            Failure::AuthorizerTimeout | Failure::RequestTimeout => Self::TimedOut,
            _ => Self::Failed,
        }
    }
}

/// An answer that goes to the client in place of the endpoint's; its head is in the exchange.
pub(crate) struct DenialBody(pub(crate) Vec<u8>);

/// Asks the authorizers of a rule. Returns `None` if the request may be served.
///
/// # Errors
/// If an authorizer gives no usable answer, or denies a gRPC call, which is answered as gRPC requires.
pub(crate) async fn authorize(
    context: &mut RequestContext<'_>,
    active_config: &Rc<WorkerConfig>,
    listener: &ActiveListener,
    rule: &Rule,
    deadline: Time,
) -> Result<Option<DenialBody>, Failure> {
    let filters = rule.filters.as_deref();
    let of_policy = filters.and_then(|it| it.security.as_ref()?.external_auth.as_ref());
    let of_filter = filters.and_then(|it| it.external_auth.as_deref());
    for settings in of_policy.into_iter().chain(of_filter) {
        let index = settings.backend.as_ref().and_then(|key| active_config.backend_index(key));
        // A reference that cannot be resolved: Gateway API requires 500.
        let index = index.ok_or(Failure::AuthorizerUnavailable)?;
        let backend = BackendRef::new(Rc::clone(active_config), index);
        let result = ask(context, listener, rule, settings, &backend, deadline).await;
        let outcome = match &result {
            Ok(None) => AuthorizationOutcome::Allowed,
            Ok(Some(_)) | Err(Failure::AuthorizationDenied | Failure::AuthenticationRequired) => {
                AuthorizationOutcome::Denied
            }
            Err(failure) => AuthorizationOutcome::of_failure(*failure),
        };
        backend.counters[context.worker.index].authorizations[outcome as usize].add(1);
        if let Some(denial) = result? {
            return Ok(Some(denial));
        }
    }
    Ok(None)
}

/// Asks one authorizer, and applies its answer.
async fn ask(
    context: &mut RequestContext<'_>,
    listener: &ActiveListener,
    rule: &Rule,
    settings: &ExternalAuthSettings,
    backend: &BackendRef,
    deadline: Time,
) -> Result<Option<DenialBody>, Failure> {
    let RequestContext { worker, client, exchange, .. } = context;
    let question = AuthorizationRequest::new(
        settings,
        backend,
        &mut exchange.request,
        &client.origin,
        &listener.client,
        &mut worker.rng.borrow_mut(),
    )?;
    let patience = clock::now() + settings.timeout;
    let until = patience.min(deadline);
    let target = SubrequestTarget::new(backend.clone(), client);
    let query = AuthorizerQuery { worker, target, question: &question, route: rule.index, until };
    let answer = query.ask(client).await.map_err(|failure| match failure {
        Failure::AuthorizerTimeout if deadline < patience => Failure::RequestTimeout,
        failure => failure,
    })?;
    let status = answer.head.status;
    if settings.positive.contains(&status) {
        admit(settings, exchange, &answer.head);
        return Ok(None);
    }
    let Some(body) = answer.body.filter(|_| (200..500).contains(&status)) else {
        return Err(Failure::AuthorizerError);
    };
    let failure =
        if status == 401 { Failure::AuthenticationRequired } else { Failure::AuthorizationDenied };
    if GrpcCall::of(&exchange.request).is_some() {
        return Err(failure);
    }
    context.record.failure = Some(failure);
    let Exchange { request, response, filters, .. } = &mut *context.exchange;
    *response = answer.head;
    let mut body = body;
    if let Some(page) = settings.sign_in.as_ref().filter(|_| status == 401) {
        let original = question::original(request, &context.client.origin, &listener.client);
        let mut location = Vec::new();
        page.location(&original, &mut location);
        let cookies: Vec<_> = cookies(response).map(<[u8]>::to_vec).collect();
        response.clear();
        response.status = 302;
        response.fields.append("Location", location);
        cookies.iter().for_each(|value| response.fields.append("Set-Cookie", value));
        body.clear();
    }
    response.framing = BodyFraming::None;
    response.fields.remove(KnownFieldName::AltSvc);
    if let Some(filters) = filters {
        filters.allow_origin(request, response);
    }
    Ok(Some(DenialBody(body)))
}

fn cookies(response: &ResponseHead) -> impl Iterator<Item = &[u8]> {
    let fields = response.fields.iter();
    fields.filter(|(_, name, _)| name.eq_ignore_ascii_case(b"set-cookie")).map(|(.., value)| value)
}

/// Adds the fields of a positive answer to the request, in place of the client's own fields of these names.
fn admit(settings: &ExternalAuthSettings, exchange: &mut Exchange, answer: &ResponseHead) {
    let fields = &mut exchange.request.fields;
    if let FieldSelection::Only(names) = &settings.response_fields {
        let names = names.iter().filter(|name| headers::may_change(name.as_bytes()));
        names.for_each(|name| fields.remove_named(name.as_bytes()));
    }
    let is_all = settings.response_fields == FieldSelection::All;
    let is_selected = |name: &[u8]| {
        settings.response_fields.contains(name)
            && headers::may_change(name)
            && !(is_all && question::describes_answer(name))
    };
    let selected = || answer.fields.iter().filter(|(_, name, _)| is_selected(name));
    if is_all {
        selected().for_each(|(_, name, _)| fields.remove_named(name));
    }
    for (_, name, value) in selected() {
        fields.append(name, value);
    }
    let scope = settings.cookies;
    if let Some(filters) = exchange.filters.as_mut().filter(|_| scope != CookieScope::Never) {
        let values: Vec<_> = cookies(answer).map(<[u8]>::to_vec).collect();
        if !values.is_empty() {
            filters.cookies = Some(Box::new(AuthorizerCookies { scope, values }));
        }
    }
}

/// An answer of an authorizer.
struct AuthorizerAnswer {
    head: ResponseHead,
    /// The body; `None`: it is too large, or did not arrive.
    body: Option<Vec<u8>>,
}

/// Sends one question, to one endpoint after another until one answers.
struct AuthorizerQuery<'a> {
    worker: &'a Rc<Worker>,
    target: SubrequestTarget,
    question: &'a AuthorizationRequest,
    /// The fair-queueing flow.
    route: usize,
    until: Time,
}

impl AuthorizerQuery<'_> {
    async fn ask(&self, client: &mut ClientConnection) -> Result<AuthorizerAnswer, Failure> {
        let mut tried: Vec<Arc<Endpoint>> = Vec::new();
        loop {
            let slot = self.slot(client, &tried).await?;
            let endpoint = Arc::clone(&slot.endpoint);
            match self.attempt(client, slot).await {
                Err(Failure::AuthorizerUnavailable) if tried.len() + 1 < MAX_ATTEMPTS => {
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
    ) -> Result<Slot, Failure> {
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
            SlotAdmission::Refused(_) => return Err(Failure::AuthorizerUnavailable),
            SlotAdmission::Queued(place) => place,
        };
        let granted = client.wait_until(worker, deadline, poll_fn(|_| place.poll())).await;
        granted.map_err(interrupted)?.map_err(|_refused| Failure::AuthorizerUnavailable)
    }

    /// Sends the question to the endpoint of the slot, and reads the answer.
    async fn attempt(
        &self,
        client: &mut ClientConnection,
        slot: Slot,
    ) -> Result<AuthorizerAnswer, Failure> {
        let Self { worker, target, question, until, .. } = self;
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
                false => attempt.open_stream(&question.head, b"").await,
            }
        };
        let opened = client.wait_until(worker, *until, opening).await;
        let connection = opened.map_err(interrupted).and_then(|it| it);
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(failure) => {
                slot.conclude(worker, &current, AttemptConclusion::now(failure.attempt_end()));
                slot.note_connect_failure(worker, failure);
                return Err(as_unavailable(failure));
            }
        };
        slot.mark_request_sent();
        let unsent = if is_http1 { question.to_http1() } else { Vec::new() };
        let mut answer = AnswerReader::new(worker);
        let exchange = answer.read(worker, &mut connection, &question.head, &unsent);
        let read = client.wait_until(worker, *until, exchange).await;
        let read = read.map_err(interrupted).and_then(|it| it);
        let now = clock::now();
        let result = match read {
            Ok(()) => relay::attempt_end(&answer.head),
            Err(Failure::AuthorizerTimeout) => Failure::AttemptTimeout.attempt_end(),
            Err(failure) => failure.attempt_end(),
        };
        let head_after = answer.head_at.map(|at| at.saturating_since(slot.started));
        let conclusion =
            AttemptConclusion { at: now, result, head_after, hold_time_is_signal: true };
        slot.conclude(worker, &current, conclusion);
        let is_capped = current.limits.cap.is_some();
        if let Err(failure) = read {
            let is_waiting = matches!(failure, Failure::ClientGone | Failure::AuthorizerTimeout);
            if is_capped
                && is_waiting
                && answer.head.status == 0
                && connection.stream_guard.is_none()
            {
                // The slot is free when the endpoint has finished.
                let attempt = AttemptConnection::new(slot, connection, *until);
                let sent = unsent.len() as u64;
                let rest = AbandonedRequest::sent(attempt, question.head.method, sent);
                let until = now + current.settings.abandoned_timeout;
                let worker = Rc::clone(worker);
                tokio::task::spawn_local(async move { rest.drain(&worker, until).await });
            }
            return Err(as_unavailable(failure));
        }
        slot.mark_answered();
        connection.count_written(unsent.len() as u64);
        worker.scratch.buffer_pool.reclaim(&mut connection.buffer);
        let response_read = answer.has_body();
        let done = CompletedExchange { response: &answer.head, request_sent: true, response_read };
        pool::give_back(&slot.endpoint, connection, &done, is_capped, now);
        slot.free(now);
        let body = response_read.then(|| std::mem::take(&mut answer.pump.out));
        Ok(AuthorizerAnswer { head: answer.head, body })
    }
}

fn interrupted(interrupt: WaitInterrupt) -> Failure {
    match interrupt {
        WaitInterrupt::ClientGone => Failure::ClientGone,
        WaitInterrupt::OutOfMemory => Failure::OutOfMemory,
        WaitInterrupt::Deadline => Failure::AuthorizerTimeout,
    }
}

/// Returns what a failed attempt means for the client's request.
fn as_unavailable(failure: Failure) -> Failure {
    match failure {
        kept @ (Failure::ClientGone | Failure::OutOfMemory | Failure::AuthorizerTimeout) => kept,
        // The answer of another endpoint would be no better.
        Failure::BadResponse(_) => Failure::AuthorizerError,
        _ => Failure::AuthorizerUnavailable,
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
