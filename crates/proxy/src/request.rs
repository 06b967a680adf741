//! The stages of a request, from its head to its Outcome.
//!
//! route -> body -> admit -> { connection -> send -> await head } until done or out of attempts -> stream body -> record.
//! Each stage is a plainly named function; each early exit is a `Failure`.

use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use balance::{PickRequest, PriorityLevel, Time};
use codec::h1::write;
use codec::head::{BodyFraming, RequestHead};
use gateway::snapshot::{BackendSettings, EndpointProtocol, Rule, RuleTarget};

use crate::accept::client::{ClientConnection, WaitInterrupt};
use crate::active_config::{ActiveListener, HeadTreatment, WorkerConfig};
use crate::address_share::AddressPlace;
use crate::affinity::SessionAffinity;
use crate::backend::{self, BackendRef, Slot, SlotAdmission};
use crate::body::BodyPump;
use crate::client_certificate::{self, CertificateCheck};
use crate::clock;
use crate::context::{AttemptContext, RequestContext};
use crate::credentials;
use crate::dial::attempt::{self, AttemptHistory};
use crate::dial::pool::{Endpoint, EndpointData};
use crate::dial::{stream_request, websocket};
use crate::direct_response;
use crate::exchange::{ConnectionOutcome, Exchange, RequestPolicy};
use crate::external_auth::{self, DenialBody};
use crate::failure::Failure;
use crate::filter::RequestFilters;
use crate::forwarded;
use crate::grpc;
use crate::hash_key;
use crate::health_check;
use crate::mirror::{self, ReplayLayout};
use crate::observe::access::AccessRecord;
use crate::priority;
use crate::relay;
use crate::request_body;
use crate::request_path::path_rules;
use crate::request_rules::{self, MAX_REROUTES, RuleStep};
use crate::retry::{self, NextAttempt, RetryState};
use crate::routed_request::RoutedRequest;
use crate::trace::{self, AttemptEnd};
use crate::worker::Worker;

/// Serves the request whose head `exchange` holds.
pub(crate) async fn serve(
    worker: &Rc<Worker>,
    client: &mut ClientConnection,
    exchange: &mut Exchange,
) -> ConnectionOutcome {
    let mut record = AccessRecord::new(clock::now());
    let framing = exchange.request.framing;
    exchange.upload.start_first(client.stream.framing(framing), framing);
    let mut context = RequestContext { worker, client, exchange, record: &mut record };
    let after = match forward(&mut context).await {
        Ok(after) => after,
        Err(failure) => {
            context.record.failure = Some(failure);
            relay::answer(&mut context).await
        }
    };
    client.last_event_at = record.ended.unwrap_or_else(clock::now);
    record.close(worker, client, exchange);
    after
}

/// Answers a request whose head could not be read.
pub(crate) async fn refuse(
    worker: &Rc<Worker>,
    client: &mut ClientConnection,
    exchange: &mut Exchange,
    failure: Failure,
) -> ConnectionOutcome {
    let mut record = AccessRecord::new(clock::now());
    record.failure = Some(failure);
    exchange.request.keep_alive = false;
    let mut context = RequestContext { worker, client, exchange, record: &mut record };
    let after = relay::answer(&mut context).await;
    client.last_event_at = clock::now();
    record.close(worker, client, exchange);
    after
}

async fn forward(context: &mut RequestContext<'_>) -> Result<ConnectionOutcome, Failure> {
    let worker = context.worker;
    let active_config = worker.config();
    let listener = context.client.listener(&active_config).ok_or(Failure::NoRoute)?;
    clean(context.client, listener, &mut context.exchange.request)?;
    let RoutedRule { rule, target, step } = route(context, &active_config, listener)?;
    let mut ready = context.record.started;
    let step = match step {
        Some(step) => step,
        None => answer_locally(context, &active_config, listener)?,
    };
    match step {
        LocalStep::Forward => {}
        LocalStep::Reply => return Ok(relay::reply_with(context, b"").await),
        LocalStep::RuleResponse { rule } => {
            return direct_response::send_of_rule(context, rule).await;
        }
        LocalStep::DirectResponse => return direct_response::send(context).await,
        LocalStep::Authorize { client } => {
            let authorized = authorize(context, &active_config, listener, rule, target, client);
            // On the heap, so that the other requests need no memory for it.
            if let Some(denial) = Box::pin(authorized).await? {
                return Ok(relay::reply_with(context, &denial.0).await);
            }
            if direct_response::is_due(context.exchange) {
                return direct_response::send(context).await;
            }
            ready = clock::now();
        }
    }
    let backend = backend_of(&active_config, rule, target)?;
    context.record.backend = Some(backend.clone());
    let mut policy = request_policy(context, &active_config, listener, rule, &backend);
    policy.ready = ready;
    grpc::begin_call(context.exchange, &mut policy, context.record.started);
    prepare(context, &policy, listener.head_treatment)?;
    if let Some(priorities) = policy.backend_settings().queue_priority.clone() {
        let request = &context.exchange.request;
        policy.priority = priority::of_request(worker, &backend, &priorities, rule, request);
    }
    grpc::translate_upload(context.exchange);
    if request_body::has_to_arrive(context, &policy) {
        request_body::receive(context, &mut policy, &backend).await?;
        trace::resume(context.exchange, policy.ready);
    }

    let context = &mut context.with_policy(&policy);
    context.client.refusals.borrow_mut().take_back(backend.backend(), policy.started);
    let window = policy.backend_settings().retry.budget_window;
    backend.retry_budget.request(window, worker.index, policy.started);
    let mut retries = RetryState::new(rule, &backend);
    let mut next = NextAttempt::NewSlot;
    let attempt = loop {
        if let Some(pause) = retries.take_backoff() {
            retry::wait_backoff(context, pause).await?;
            trace::resume(context.exchange, clock::now());
        }
        let tried = retries.tried();
        let (slot, fresh) = match next {
            NextAttempt::NewSlot => (admit(context, &backend, tried).await?, false),
            NextAttempt::SameSlot(slot) => (slot, true),
        };
        context.record.attempt(&slot);
        grpc::update_timeout(context.exchange, policy.started, slot.started);
        let history = AttemptHistory { fresh, tried };
        next = match attempt::attempt(context, slot, history).await {
            Err(failed_attempt) => {
                let failure = failed_attempt.failure;
                let next = retries.after_failure(context, failed_attempt)?;
                trace::end_attempt(context, AttemptEnd::Failure(failure));
                next
            }
            Ok(attempt) if retries.should_retry_response(context) => {
                let end = AttemptEnd::Discarded(context.exchange.response.status);
                let next = retries.discard_response(context, attempt);
                trace::end_attempt(context, end);
                next
            }
            Ok(attempt) => break attempt,
        };
    };
    context.exchange.upload.drop_replay();
    if let Some(filters) = &mut context.exchange.filters {
        filters.body_reservation = None;
        if let Some(trace) = &mut filters.trace {
            trace.note_head(&attempt, context.exchange.response.status, policy.endpoint_protocol);
        }
    }
    relay::relay(context, attempt).await
}

/// Removes what an untrusted client may not say, and brings the path to the form that routes and the endpoint see.
fn clean(
    client: &ClientConnection,
    listener: &ActiveListener,
    request: &mut RequestHead,
) -> Result<(), Failure> {
    let settings = &listener.client;
    match listener.head_treatment {
        HeadTreatment::Described | HeadTreatment::DescribedAndTraced => {
            forwarded::remove_untrusted_fields(&mut request.fields, &client.origin, settings);
        }
        HeadTreatment::Unchanged | HeadTreatment::UnchangedAndTraced => {}
    }
    request.normalise_path(path_rules(settings.path)).map_err(|bad| {
        request.keep_alive = false;
        Failure::BadRequest(bad)
    })
}

/// The rule that serves a request.
struct RoutedRule<'l> {
    rule: &'l Arc<Rule>,
    /// Index of the target in the rule; `None` if the rule has none.
    target: Option<usize>,
    /// The next step, if a request rule has answered.
    step: Option<LocalStep>,
}

/// Finds the rule that serves the request. Request rules of its policy may answer, or choose another one by a new path.
fn route<'l>(
    context: &mut RequestContext<'_>,
    active_config: &Rc<WorkerConfig>,
    listener: &'l ActiveListener,
) -> Result<RoutedRule<'l>, Failure> {
    let worker = context.worker;
    for _ in 0..=MAX_REROUTES {
        let tls_info = context.client.tls_info.as_deref();
        let namespace = || worker.client_namespace(context.client.intercepted.as_deref()?.address);
        let request = RoutedRequest(&context.exchange.request);
        let rule = listener.request_rule(tls_info, namespace, &request)?;
        context.record.rule = Some(rule.index);
        context.record.config = Some(Rc::clone(active_config));
        let target = choose_target(worker, rule);
        context.exchange.filters = RequestFilters::new(rule, target, &context.exchange.request);
        let step = match request_rules::apply(context, listener)? {
            RuleStep::Proceed => None,
            RuleStep::Reply => Some(LocalStep::Reply),
            RuleStep::Respond { rule } => Some(LocalStep::RuleResponse { rule }),
            // The request keeps this rule until another one is found, so that an endless loop is attributed to it.
            RuleStep::Route => continue,
        };
        return Ok(RoutedRule { rule, target, step });
    }
    Err(Failure::RequestRules)
}

/// Chooses one of the rule's backends, by weight.
pub(crate) fn choose_backend(
    worker: &Worker,
    active_config: &Rc<WorkerConfig>,
    rule: &Rule,
) -> Result<BackendRef, Failure> {
    backend_of(active_config, rule, choose_target(worker, rule))
}

/// Chooses one of the rule's targets, by weight.
fn choose_target(worker: &Worker, rule: &Rule) -> Option<usize> {
    let targets = match rule.targets.as_slice() {
        [] => return None,
        [_] => return Some(0),
        targets => targets,
    };
    let total: u64 = targets.iter().map(|target| u64::from(target.weight)).sum();
    let mut ticket = worker.rng.borrow_mut().next_u64() % total.max(1);
    targets.iter().position(|target| {
        let weight = u64::from(target.weight);
        let here = ticket < weight;
        ticket = ticket.saturating_sub(weight);
        here
    })
}

/// The step of a request that comes after the filters of its route.
enum LocalStep {
    Forward,
    /// The response's head is ready.
    Reply,
    /// A policy has the response to every request.
    DirectResponse,
    /// The request rule with this index has the response.
    RuleResponse {
        rule: usize,
    },
    /// The request needs credentials, or an authorizer decides.
    Authorize {
        client: IpAddr,
    },
}

/// Rejects a request of a client that may not send it, and one over its rate limit; else lets a filter of the route
/// answer in place of an endpoint.
fn answer_locally(
    context: &mut RequestContext<'_>,
    active_config: &WorkerConfig,
    listener: &ActiveListener,
) -> Result<LocalStep, Failure> {
    let RequestContext { worker, client, exchange, record } = context;
    let Exchange { request, response, filters: filtering, .. } = &mut **exchange;
    let Some(filtering) = filtering else { return Ok(LocalStep::Forward) };
    if let Some(access) = filtering.client_certificate() {
        let is_trusted = client.origin.is_trusted(&listener.client);
        let (tls_info, fields) = (client.tls_info.as_deref(), &mut request.fields);
        let result = client_certificate::check(access, tls_info, is_trusted, fields, response)?;
        if result == CertificateCheck::Redirected {
            return Ok(LocalStep::Reply);
        }
    }
    let address = || client.origin.client(&request.fields, &listener.client);
    filtering.admit(address)?;
    if let Some(limiter) = filtering.rate_limit() {
        let limiter = &active_config.rate_limiters[limiter];
        if !filtering.limits_claims(limiter) {
            let admitted = limiter.admit(worker.index, request, address, record.started);
            admitted.map_err(|rejection| filtering.reject(rejection))?;
        }
    }
    if filtering.answer(request, client.origin.scheme, listener.public_port, response)? {
        return Ok(LocalStep::Reply);
    }
    let needs_credentials = filtering.security().is_some_and(|it| credentials::are_required(it));
    Ok(if needs_credentials || filtering.has_authorizer() {
        LocalStep::Authorize { client: address() }
    } else if filtering.has_direct_response() {
        LocalStep::DirectResponse
    } else {
        LocalStep::Forward
    })
}

/// Checks the credentials of a request, then asks its authorizers. Returns the answer of one that denies the request.
async fn authorize(
    context: &mut RequestContext<'_>,
    active_config: &Rc<WorkerConfig>,
    listener: &ActiveListener,
    rule: &Rule,
    target: Option<usize>,
    client: IpAddr,
) -> Result<Option<DenialBody>, Failure> {
    let security = context.exchange.filters.as_ref().and_then(RequestFilters::security);
    let security = security.filter(|it| credentials::are_required(it)).map(Arc::clone);
    if let Some(security) = security {
        credentials::check(context, active_config, &security, client).await?;
        limit_claims(context, active_config, client)?;
    }
    let deadline = request_deadline(active_config, rule, target, context.record.started);
    external_auth::authorize(context, active_config, listener, rule, deadline).await
}

/// Rejects a request over its rate limit, if the limit depends on claims of its token, which are known now.
fn limit_claims(
    context: &mut RequestContext<'_>,
    active_config: &WorkerConfig,
    client: IpAddr,
) -> Result<(), Failure> {
    let RequestContext { worker, exchange, record, .. } = context;
    let Exchange { request, filters, .. } = &mut **exchange;
    let Some(filters) = filters else { return Ok(()) };
    let Some(limiter) = filters.rate_limit() else { return Ok(()) };
    let limiter = &active_config.rate_limiters[limiter];
    if !filters.limits_claims(limiter) {
        return Ok(());
    }
    let admitted = limiter.admit(worker.index, request, || client, record.started);
    admitted.map_err(|rejection| filters.reject(rejection))
}

/// Returns the time by which a request has to be complete.
fn request_deadline(
    active_config: &Rc<WorkerConfig>,
    rule: &Rule,
    target: Option<usize>,
    started: Time,
) -> Time {
    let of_backend =
        || backend_of(active_config, rule, target).ok()?.config().settings.request_timeout;
    rule.request_timeout.or_else(of_backend).map_or(Time::MAX, |most| started + most)
}

fn backend_of(
    active_config: &Rc<WorkerConfig>,
    rule: &Rule,
    target: Option<usize>,
) -> Result<BackendRef, Failure> {
    match target.map(|target| rule.targets[target].target) {
        Some(RuleTarget::Backend(index)) => Ok(BackendRef::new(Rc::clone(active_config), index)),
        Some(RuleTarget::Unresolved) | None => Err(Failure::Unresolved),
    }
}

fn request_policy<'l>(
    context: &RequestContext<'_>,
    active_config: &'l Rc<WorkerConfig>,
    listener: &'l ActiveListener,
    rule: &'l Rule,
    backend: &BackendRef,
) -> RequestPolicy<'l> {
    let request = &context.exchange.request;
    let started = context.record.started;
    let current = backend.config();
    let most = rule.request_timeout.or(current.settings.request_timeout);
    let deadline = most.map_or(Time::MAX, |most| started + most);
    let address = || context.client.origin.client(&request.fields, &listener.client);
    let of_rule = rule.affinity.as_ref();
    RequestPolicy {
        config: active_config,
        client: &listener.client,
        alt_svc: listener.alt_svc(),
        hash_key: hash_key::of_request(&current.settings, request, address),
        affinity: SessionAffinity::of_request(of_rule, backend, &current, request, address),
        priority: PriorityLevel::default(),
        route: rule.index as u64,
        client_address: current.settings.max_requests_per_address.map(|_| address()),
        endpoint_protocol: endpoint_protocol(context, &current.settings),
        backend_config: current,
        started,
        ready: started,
        deadline,
        attempt_timeout: rule.attempt_timeout,
    }
}

/// Returns the protocol in which the endpoint gets the request. The client of an intercepted connection speaks the
/// endpoint's protocol, so it is that of the client unless the configuration says another.
fn endpoint_protocol(context: &RequestContext<'_>, settings: &BackendSettings) -> EndpointProtocol {
    if settings.protocol_is_assumed
        && context.client.intercepted.is_some()
        && context.exchange.request.version.has_streams()
    {
        return EndpointProtocol::Http2;
    }
    settings.protocol
}

/// Prepares the request for sending: rewrites its head and sets up its body for the endpoint's protocol.
fn prepare(
    context: &mut RequestContext<'_>,
    policy: &RequestPolicy<'_>,
    treatment: HeadTreatment,
) -> Result<(), Failure> {
    let filtering = context.exchange.filters.as_ref();
    let of_rule = filtering.and_then(RequestFilters::max_body_bytes);
    let most = of_rule.or(policy.client.max_body_bytes).unwrap_or(u64::MAX);
    if treatment == HeadTreatment::Described {
        add_forwarding_fields(context, policy);
    } else {
        treat_head(context, policy, treatment);
    }
    let Exchange { request, filters: filtering, upload, owes_continue, .. } = context.exchange;
    // Only now: a request that is refused may be traced too.
    if matches!(request.framing, BodyFraming::Length(length) if length > most) {
        return Err(Failure::BodyTooLarge);
    }
    if let Some(filtering) = filtering {
        filtering.change_request(request);
    }
    *owes_continue = request_body::answers_expectation(request, policy);
    let form = write_request(request, policy.endpoint_protocol, upload);
    let listener = mirror::prepare(context, policy.config, form);
    let upload = &mut context.exchange.upload;
    upload.set_max_body_bytes(most);
    upload.keep_for_replay(&context.worker.replay_budget, listener);
    Ok(())
}

fn add_forwarding_fields(context: &mut RequestContext<'_>, policy: &RequestPolicy<'_>) {
    let rng = &mut context.worker.rng.borrow_mut();
    let request = &mut context.exchange.request;
    forwarded::add_forwarding_fields(request, &context.client.origin, policy.client, rng);
}

/// Adds the fields of a request whose listener forwards heads unchanged, or which may be traced.
#[inline(never)]
fn treat_head(
    context: &mut RequestContext<'_>,
    policy: &RequestPolicy<'_>,
    treatment: HeadTreatment,
) {
    match treatment {
        HeadTreatment::Described => {}
        HeadTreatment::DescribedAndTraced => {
            add_forwarding_fields(context, policy);
            trace::begin(context, policy, true);
        }
        HeadTreatment::Unchanged | HeadTreatment::UnchangedAndTraced => {
            if policy.client.appends_forwarded_for {
                let fields = &mut context.exchange.request.fields;
                forwarded::append_forwarded_for(fields, &context.client.origin);
            }
            if treatment == HeadTreatment::UnchangedAndTraced {
                trace::begin(context, policy, false);
            }
        }
    }
}

/// Sets up the upload in the endpoint's protocol. For HTTP/1.1 the upload also carries the head, as bytes.
fn write_request(
    request: &mut RequestHead,
    protocol: EndpointProtocol,
    upload: &mut BodyPump,
) -> ReplayLayout {
    let framing = match protocol {
        EndpointProtocol::Http1 => write_http1_request(request, upload),
        EndpointProtocol::Http2 | EndpointProtocol::Http3 => {
            // A server may ignore an upgrade that a client offers (RFC 9110 §7.8).
            request.upgrade &= websocket::is_websocket_upgrade(request);
            stream_request::stream_framing(request.framing)
        }
    };
    upload.write_as(framing);
    ReplayLayout { head_bytes: upload.out.len(), framing }
}

fn write_http1_request(request: &RequestHead, upload: &mut BodyPump) -> BodyFraming {
    let framing = match request.framing {
        BodyFraming::Stream => BodyFraming::Chunked,
        same @ (BodyFraming::None
        | BodyFraming::Length(_)
        | BodyFraming::Chunked
        | BodyFraming::UntilClose) => same,
    };
    write::request_head(request, framing, request.upgrade, &mut upload.out);
    framing
}

/// Acquires a slot at one of the backend's endpoints, at once or after a wait in the queue, within the share of the
/// client's address.
async fn admit(
    context: &mut AttemptContext<'_>,
    backend: &BackendRef,
    tried: &[Arc<Endpoint>],
) -> Result<Slot, Failure> {
    let policy = context.policy;
    let most = policy.backend_settings().max_requests_per_address.filter(|_| policy.is_capped());
    let place = match most.zip(policy.client_address) {
        Some((most, client)) => Some(AddressPlace::take(backend.backend(), client, most)?),
        None => None,
    };
    let mut slot = acquire(context, backend, tried).await?;
    slot.address_place = place;
    Ok(slot)
}

async fn acquire(
    context: &mut AttemptContext<'_>,
    backend: &BackendRef,
    tried: &[Arc<Endpoint>],
) -> Result<Slot, Failure> {
    let (worker, policy) = (context.worker, context.policy);
    if policy.backend_config.set.members().is_empty()
        && health_check::is_health_check(&context.exchange.request)
    {
        return Err(Failure::NoEndpoint);
    }
    // The first attempt begins with the request, accurately enough: the clock is not read again.
    let now = if tried.is_empty() { policy.ready } else { clock::now() };
    let only = policy.affinity.as_ref().and_then(SessionAffinity::endpoint);
    let pick = PickRequest {
        tried,
        only,
        key: policy.hash_key,
        now,
        queueing: policy.queue_priority(now),
    };
    let failure = match enter(context, backend, &pick).await {
        Err(full) if full.is_overload() && only.is_some() => full,
        Err(gone @ (Failure::ClientGone | Failure::OutOfMemory)) => return Err(gone),
        Err(failure) => return Err(count_refusal(worker, context.client, backend, failure)),
        Ok(slot) => return Ok(slot),
    };
    // If the affinity target is full, fall back to any endpoint instead of rejecting.
    let unbound = PickRequest { only: None, ..pick };
    let elsewhere = backend::enter_at_once(backend, worker.index, &unbound);
    elsewhere.ok_or_else(|| count_refusal(worker, context.client, backend, failure))
}

/// Counts a request that gets no slot: it adds to demand as if it had held one for the mean service time.
fn count_refusal(
    worker: &Worker,
    client: &ClientConnection,
    backend: &BackendRef,
    failure: Failure,
) -> Failure {
    client.refusals.borrow_mut().record_refusal(backend.backend(), worker.index, clock::now());
    failure
}

async fn enter(
    context: &mut AttemptContext<'_>,
    backend: &BackendRef,
    pick: &PickRequest<'_, EndpointData>,
) -> Result<Slot, Failure> {
    let AttemptContext { worker, client, record, policy, .. } = context;
    let entered = poll_fn(|cx| {
        // A first attempt uses the configuration of the backend that the request has just taken.
        let newer = (pick.now != policy.started).then(|| backend.config());
        let current = newer.as_ref().unwrap_or(&policy.backend_config);
        let waker = || cx.waker().clone();
        Poll::Ready(backend::enter(backend, worker.index, pick, current.admission(), waker))
    });
    let place = match entered.await {
        SlotAdmission::Slot(slot) => return Ok(slot),
        SlotAdmission::Refused(failure) => return Err(failure),
        SlotAdmission::Queued(place) => place,
    };
    record.queue_position = backend.waiting();
    let since = clock::now();
    let patience = since + policy.backend_settings().queue_timeout;
    let granted = poll_fn(|_| place.poll());
    let result = client.wait_until(worker, patience.min(policy.deadline), granted).await;
    record.add_queue_time(worker, backend, clock::now().saturating_since(since));
    result.unwrap_or_else(|interrupt| {
        Err(match interrupt {
            WaitInterrupt::ClientGone => Failure::ClientGone,
            WaitInterrupt::OutOfMemory => Failure::OutOfMemory,
            WaitInterrupt::Deadline if patience > policy.deadline => Failure::RequestTimeout,
            WaitInterrupt::Deadline => backend.queue_timeout_failure(),
        })
    })
}
