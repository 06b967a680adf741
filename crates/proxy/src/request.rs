//! The way of a request, from its head to its Outcome.
//!
//! route -> admit -> { connection -> send -> await head } until done or out of attempts -> stream body -> record.
//! Each stage is a plainly named function; each early exit is a `Failure`.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use balance::{Priority, Time, Wish};
use gateway::snapshot::{EndpointProtocol, Rule, Target};

use crate::accept::client::{Client, Interrupt};
use crate::affinity::Bond;
use crate::backend::{self, Admitted, BackendRef, Slot};
use crate::body::Pump;
use crate::clock;
use crate::dial::attempt::{self, Effort};
use crate::dial::pool::{Endpoint, EndpointData};
use crate::dial::{call, websocket};
use crate::exchange::{After, Exchange, Terms};
use crate::failure::Failure;
use crate::filter::Filtering;
use crate::forwarded;
use crate::grpc;
use crate::h1::write;
use crate::hash_key;
use crate::head::{Framing, RequestHead};
use crate::live::{LiveListener, Ours};
use crate::mirror::{self, Form};
use crate::observe::access::Record;
use crate::priority;
use crate::relay;
use crate::retry::{Next, Retries};
use crate::worker::Worker;

/// Serves the request whose head `exchange` holds.
pub(crate) async fn serve(
    worker: &Rc<Worker>,
    client: &mut Client,
    exchange: &mut Exchange,
) -> After {
    let mut record = Record::new(clock::now());
    let framing = exchange.request.framing;
    exchange.upload.start(client.stream.framing(framing), framing);
    let after = match forward(worker, client, exchange, &mut record).await {
        Ok(after) => after,
        Err(failure) => {
            record.failure = Some(failure);
            relay::answer(worker, client, exchange, &mut record).await
        }
    };
    client.since = record.ended.unwrap_or_else(clock::now);
    record.close(worker, client, exchange);
    after
}

/// Answers a request whose head could not be read.
pub(crate) async fn refuse(
    worker: &Rc<Worker>,
    client: &mut Client,
    exchange: &mut Exchange,
    failure: Failure,
) -> After {
    let mut record = Record::new(clock::now());
    record.failure = Some(failure);
    exchange.request.keep_alive = false;
    let after = relay::answer(worker, client, exchange, &mut record).await;
    client.since = clock::now();
    record.close(worker, client, exchange);
    after
}

async fn forward(
    worker: &Rc<Worker>,
    client: &mut Client,
    exchange: &mut Exchange,
    record: &mut Record,
) -> Result<After, Failure> {
    let live = worker.live();
    let listener = client.listener(&live).ok_or(Failure::NoRoute)?;
    let rule = listener.request_rule(client.greeting.as_deref(), &exchange.request)?;
    record.rule = Some(rule.index);
    record.live = Some(Rc::clone(&live));
    let target = choose_target(worker, rule);
    exchange.filtering = Filtering::new(rule, target, &exchange.request);
    if answers_itself(client, listener, exchange)? {
        return Ok(relay::reply(worker, client, exchange, record).await);
    }
    let backend = backend_of(&live, rule, target)?;
    record.backend = Some(backend.clone());
    let mut terms =
        terms(&live, listener, rule, &backend, client, &exchange.request, record.started);
    grpc::begin(exchange, &mut terms, record.started);
    prepare(worker, &live, client, exchange, &terms)?;
    if let Some(priorities) = terms.backend().queue_priority.clone() {
        let request = &exchange.request;
        terms.priority = priority::of_request(worker, &backend, &priorities, rule, request);
    }
    grpc::translate_upload(exchange);

    client.refused.borrow_mut().ask(backend.alone(), record.started);
    backend.budget.request(worker.index, record.started);
    let mut retries = Retries::new(rule, &backend);
    let mut next = Next::Admit;
    let lease = loop {
        retries.pause(worker, client, &terms).await?;
        let tried = retries.tried();
        let (slot, fresh) = match next {
            Next::Admit => (admit(worker, client, &backend, tried, &terms, record).await?, false),
            Next::Again(slot) => (slot, true),
        };
        record.attempt(&slot);
        grpc::say_what_is_left(exchange, record.started, slot.started);
        let effort = Effort { fresh, tried };
        next = match attempt::attempt(worker, client, exchange, slot, effort, &terms).await {
            Err(lost) => retries.after(lost, worker, exchange, &terms)?,
            Ok(lease) if retries.wants_another(worker, exchange, &terms) => {
                retries.instead_of(lease, worker, exchange, &terms)
            }
            Ok(lease) => break lease,
        };
    };
    exchange.upload.forget();
    relay::relay(worker, client, exchange, lease, &terms, record).await
}

/// One of the rule's backends, by weight.
pub(crate) fn choose_backend(
    worker: &Worker,
    live: &Rc<Ours>,
    rule: &Rule,
) -> Result<BackendRef, Failure> {
    backend_of(live, rule, choose_target(worker, rule))
}

/// One of the rule's targets, by weight.
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

/// A filter of the route answers in the endpoint's place: then the response's head is ready.
fn answers_itself(
    client: &Client,
    listener: &LiveListener,
    exchange: &mut Exchange,
) -> Result<bool, Failure> {
    let Exchange { request, response, filtering, .. } = exchange;
    let Some(filtering) = filtering else { return Ok(false) };
    filtering.answer(request, client.origin.scheme, listener.public_port, response)
}

fn backend_of(live: &Rc<Ours>, rule: &Rule, target: Option<usize>) -> Result<BackendRef, Failure> {
    match target.map(|target| rule.targets[target].target) {
        Some(Target::Backend(index)) => Ok(BackendRef::new(Rc::clone(live), index)),
        Some(Target::Unresolved) | None => Err(Failure::Unresolved),
    }
}

fn terms<'l>(
    live: &'l Ours,
    listener: &'l LiveListener,
    rule: &Rule,
    backend: &BackendRef,
    client: &Client,
    request: &RequestHead,
    started: Time,
) -> Terms<'l> {
    let current = backend.hold();
    let most = rule.request_timeout.or(current.settings.request_timeout);
    let deadline = most.map_or(Time::MAX, |most| started + most);
    let address = || client.origin.client(&request.fields, &listener.client);
    Terms {
        live,
        client: &listener.client,
        alt_svc: listener.alt_svc(),
        key: hash_key::of_request(&current.settings, request, address),
        bond: Bond::of_request(backend, &current, request, address),
        priority: Priority::default(),
        route: rule.index as u64,
        current,
        started,
        deadline,
        attempt_timeout: rule.attempt_timeout,
    }
}

/// Makes the request ready to be sent: its head as the endpoint gets it, its body as it will come.
fn prepare(
    worker: &Rc<Worker>,
    live: &Rc<Ours>,
    client: &Client,
    exchange: &mut Exchange,
    terms: &Terms<'_>,
) -> Result<(), Failure> {
    let Exchange { request, filtering, upload, .. } = exchange;
    let most = terms.client.max_body_bytes.unwrap_or(u64::MAX);
    if matches!(request.framing, Framing::Length(length) if length > most) {
        return Err(Failure::BodyTooLarge);
    }
    forwarded::describe(request, &client.origin, terms.client, &mut worker.rng.borrow_mut());
    if let Some(filtering) = filtering {
        filtering.change_request(request);
    }
    let form = put(request, terms.backend().protocol, upload);
    let listener = filtering
        .as_ref()
        .and_then(|filtering| mirror::listen_along(worker, live, client, filtering, request, form));
    upload.allow(most);
    upload.keep(&worker.keep_budget, listener);
    Ok(())
}

/// Puts on its way what is sent as bytes: of HTTP/1.1 the head too.
fn put(request: &mut RequestHead, protocol: EndpointProtocol, upload: &mut Pump) -> Form {
    let framing = match protocol {
        EndpointProtocol::Http1 => put_http1(request, upload),
        EndpointProtocol::Http2 | EndpointProtocol::Http3 => {
            // An offer that need not be taken (RFC 9110 §7.8).
            request.upgrade &= websocket::is_asked_for(request);
            call::framing(request.framing)
        }
    };
    upload.write_as(framing);
    Form { head_bytes: upload.out.len(), framing }
}

fn put_http1(request: &RequestHead, upload: &mut Pump) -> Framing {
    let framing = match request.framing {
        Framing::Stream => Framing::Chunked,
        same @ (Framing::None | Framing::Length(_) | Framing::Chunked | Framing::UntilClose) => {
            same
        }
    };
    write::request_head(request, framing, request.upgrade, &mut upload.out);
    framing
}

/// A slot at one of the backend's endpoints, at once or after a wait in the queue.
async fn admit(
    worker: &Worker,
    client: &mut Client,
    backend: &BackendRef,
    tried: &[Arc<Endpoint>],
    terms: &Terms<'_>,
    record: &mut Record,
) -> Result<Slot, Failure> {
    // The first attempt begins with the request, as nearly as matters: no need to ask the clock again.
    let now = if tried.is_empty() { record.started } else { clock::now() };
    let only = terms.bond.as_ref().and_then(Bond::endpoint);
    let wish = Wish { tried, only, key: terms.key, now, rank: terms.rank(now) };
    let failure = match enter(worker, client, backend, &wish, terms, record).await {
        Err(full) if full.is_overload() && only.is_some() => full,
        Err(Failure::ClientGone) => return Err(Failure::ClientGone),
        Err(failure) => return Err(turn_away(worker, client, backend, failure)),
        Ok(slot) => return Ok(slot),
    };
    // If the affinity target is full, any endpoint will do instead of a refusal.
    let unbound = Wish { only: None, ..wish };
    let elsewhere = backend::enter_at_once(backend, worker.index, &unbound);
    elsewhere.ok_or_else(|| turn_away(worker, client, backend, failure))
}

/// The request gets no slot, and counts as if it had one for a while.
fn turn_away(worker: &Worker, client: &Client, backend: &BackendRef, failure: Failure) -> Failure {
    client.refused.borrow_mut().refuse(backend.alone(), worker.index, clock::now());
    failure
}

async fn enter(
    worker: &Worker,
    client: &mut Client,
    backend: &BackendRef,
    wish: &Wish<'_, EndpointData>,
    terms: &Terms<'_>,
    record: &mut Record,
) -> Result<Slot, Failure> {
    let entered = poll_fn(|cx| {
        // A first attempt follows at once on the look at what is in force that the request holds.
        let newer = (!wish.tried.is_empty()).then(|| backend.hold());
        let current = newer.as_ref().unwrap_or(&terms.current);
        let waker = || cx.waker().clone();
        Poll::Ready(backend::enter(backend, worker.index, wish, current, waker))
    });
    let place = match entered.await {
        Admitted::Slot(slot) => return Ok(slot),
        Admitted::Refused(failure) => return Err(failure),
        Admitted::Queued(place) => place,
    };
    let since = clock::now();
    let patience = since + terms.backend().queue_timeout;
    let granted = poll_fn(|_| place.poll());
    let result = client.until(worker, patience.min(terms.deadline), granted).await;
    record.waited(worker, backend, clock::now().saturating_since(since));
    result.unwrap_or_else(|interrupt| {
        Err(match interrupt {
            Interrupt::ClientGone => Failure::ClientGone,
            Interrupt::Deadline if patience > terms.deadline => Failure::RequestTimeout,
            Interrupt::Deadline => backend.waited_in_vain(),
        })
    })
}
