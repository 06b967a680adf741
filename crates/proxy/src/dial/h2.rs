//! Requests to endpoints that speak HTTP/2: each is a stream on one of few connections.
//!
//! Beyond how a stream is had, and what its loss means, an attempt is the same as over HTTP/1.1. A stream carries one
//! request and is never kept; the connections are, by `trunk`. A request that is given up resets its stream, which tells
//! the endpoint, so its slot is free at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use balance::{End, Time};
use http::uri::Scheme;

use crate::accept::client::Client;
use crate::backend::{Current, Slot};
use crate::dial::attempt::{self, Lease, Lost, Retry};
use crate::dial::pool::{Connection, Endpoint};
use crate::exchange::{Exchange, Terms};
use crate::failure::Failure;
use crate::h1::BadResponse;
use crate::h2::{Message, request};
use crate::head::{Framing, RequestHead, ResponseHead};
use crate::stream::{Broken, Stream};
use crate::worker::Worker;

/// The connections to an endpoint.
pub(crate) mod trunk;
/// One connection.
pub(crate) mod link;
/// WebSocket over a stream.
pub(crate) mod websocket;

use link::{Berth, Link};
use trunk::{Dial, Kind, Waiting};

/// One request for which a stream is to be opened.
pub(crate) struct Call<'a> {
    pub(crate) worker: usize,
    pub(crate) endpoint: &'a Arc<Endpoint>,
    pub(crate) current: &'a Current,
    /// The client whose address a connection must begin with (PROXY protocol), and how it says so.
    pub(crate) announced: Option<SocketAddr>,
    pub(crate) header: Vec<u8>,
    /// The request was lost on another connection just now.
    pub(crate) fresh: bool,
    pub(crate) now: Time,
    pub(crate) order: Order,
}

/// What is sent first: the head, which may be all.
pub(crate) struct Order {
    /// `None` once it has been sent.
    head: Option<http::Request<()>>,
    is_whole: bool,
    /// It asks to leave HTTP.
    upgrade: bool,
}

impl Order {
    pub(crate) fn new(
        request: &RequestHead,
        framing: Framing,
        endpoint: &Endpoint,
        current: &Current,
    ) -> Result<Self, Failure> {
        let scheme = if current.trust.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        let head = request::write(request, framing, scheme, endpoint.address);
        let is_whole = !request.upgrade && framing.is_empty();
        Ok(Self {
            head: Some(head.map_err(Failure::BadRequest)?),
            is_whole,
            upgrade: request.upgrade,
        })
    }
}

/// How a body of which its head says `said` goes by a stream.
pub(crate) fn framing(said: Framing) -> Framing {
    if said.is_empty() { Framing::None } else { Framing::Stream }
}

/// What came of asking for a stream.
pub(crate) enum Asked {
    Opened(Box<Connection>),
    /// Every link is full, and another is being opened if there may be one.
    Wait(Waiting),
}

impl Call<'_> {
    /// Asks for a stream; `waiting` tells since when.
    pub(crate) fn ask(&mut self, waiting: Option<&Waiting>) -> Result<Asked, Failure> {
        let settings = &self.current.settings;
        let kind = Kind { announced: self.announced, trust: self.current.trust.as_ref() };
        let links = &self.endpoint.data.links[self.worker];
        let counters = &self.endpoint.data.counters[self.worker];
        let mut trunks = links.trunks();
        let trunk = trunk::of(&mut trunks, kind);
        if let Some(link) = trunk.usable(settings, counters, self.now) {
            let berth = link.berth(self.fresh);
            let sent = self.order.send(link, berth, self.worker, self.now);
            return sent.map(Asked::Opened);
        }
        if let Some(failure) = trunk.failure_since(waiting) {
            return Err(failure);
        }
        if trunk.wants_another(settings, self.endpoint.data.links.len()) {
            let dial = Dial {
                endpoint: Arc::clone(self.endpoint),
                worker: self.worker,
                announced: self.announced,
                trust: self.current.trust.clone(),
                header: self.header.clone(),
                patience: settings.connect_timeout,
            };
            tokio::task::spawn_local(dial.run());
        }
        Ok(Asked::Wait(trunk.waiting(waiting)))
    }

    /// Waits for a stream that could not be had at once; the caller bounds the time.
    pub(crate) async fn wait(mut self, mut waiting: Waiting) -> Result<Box<Connection>, Failure> {
        loop {
            waiting.wait().await;
            match self.ask(Some(&waiting))? {
                Asked::Opened(connection) => return Ok(connection),
                Asked::Wait(further) => waiting = further,
            }
        }
    }
}

impl Order {
    /// Sends the head on a stream of its own.
    fn send(
        &mut self,
        link: &mut Link,
        berth: Berth,
        worker: usize,
        now: Time,
    ) -> Result<Box<Connection>, Failure> {
        if self.upgrade && !link.takes_websockets() {
            return Err(Failure::NoUpgrade);
        }
        let head = self.head.take().expect("a call is over once it has its stream");
        // The link has just said that it takes one.
        let message = link.send(head, self.is_whole).map_err(|_gone| Failure::EndpointClosed)?;
        let stream = Stream::H2(Box::new(message));
        Ok(Box::new(Connection::on_link(stream, berth, worker, now)))
    }
}

/// A stream for the request of `exchange`, on which its head has been sent.
pub(super) async fn connection(
    worker: &Worker,
    client: &mut Client,
    exchange: &Exchange,
    slot: Slot,
    fresh: bool,
    terms: &Terms<'_>,
    now: Time,
) -> Result<(Slot, Box<Connection>), Lost> {
    let (current, request) = (&*terms.current, &exchange.request);
    let order = Order::new(request, request.framing, &slot.endpoint, current);
    let asked = order.and_then(|order| {
        let announced = current.settings.proxy_protocol.map(|_| client.peer);
        let header = client.announcement(&current.settings);
        let endpoint = &slot.endpoint;
        let worker = worker.index;
        let mut call = Call { worker, endpoint, current, announced, header, fresh, now, order };
        call.ask(None).map(|asked| (call, asked))
    });
    let opened = match asked {
        Ok((_, Asked::Opened(connection))) => Ok(connection),
        Ok((call, Asked::Wait(waiting))) => {
            attempt::in_time(worker, client, terms, now, Box::pin(call.wait(waiting))).await
        }
        Err(failure) => Err(failure),
    };
    match opened {
        Ok(connection) => Ok((slot, connection)),
        Err(failure) => Err(attempt::unsent(worker, slot, failure, terms)),
    }
}

/// Ready when `response` is the head of the endpoint's response, interim or final.
pub(super) fn poll_response(
    cx: &mut Context<'_>,
    message: &mut Message,
    request: &RequestHead,
    response: &mut ResponseHead,
) -> Poll<Result<(), Failure>> {
    if let Err(failure) = ready!(message.poll_response(cx, request, response)) {
        return Poll::Ready(Err(message.broken().map_or(failure, failure_by)));
    }
    websocket::answer_key(request, response);
    Poll::Ready(Ok(()))
}

fn failure_by(broken: Broken) -> Failure {
    match broken {
        Broken::Refused => Failure::StreamRefused,
        Broken::Reset => Failure::EndpointReset,
        Broken::Malformed => Failure::BadResponse(BadResponse::Rules),
        Broken::Unprocessed | Broken::Closed => Failure::EndpointClosed,
    }
}

/// The endpoint has said that it has done nothing of the request.
fn is_unprocessed(stream: &Stream) -> bool {
    matches!(stream.message_broken(), Some(Broken::Refused | Broken::Unprocessed))
}

/// Says whether the request may be sent again. Its stream has ended or is reset, and its slot is free.
pub(super) fn lost(
    worker: &Worker,
    lease: Lease,
    exchange: &Exchange,
    failure: Failure,
    terms: &Terms<'_>,
) -> Lost {
    lease.doubt(failure);
    let Lease { connection, slot, .. } = lease;
    let unprocessed = is_unprocessed(&connection.stream);
    let (was_idle, fresh) =
        connection.berth.as_ref().map_or((false, true), |berth| (berth.was_idle, berth.fresh));
    // To end a connection is an endpoint's right, if it says for what, or if nothing is under way.
    let stale = failure == Failure::EndpointClosed && (unprocessed || was_idle);
    let end = if stale { End::Unfinished } else { terms.judge(failure.end(), &slot) };
    slot.conclude(worker, &terms.current, end, None);
    slot.endpoint.data.counters[worker.index].streams_refused.add(u64::from(unprocessed));
    drop(connection);
    let is_the_endpoints = matches!(
        failure,
        Failure::EndpointClosed
            | Failure::EndpointReset
            | Failure::AttemptTimeout
            | Failure::BadResponse(_)
    );
    let repeatable = unprocessed || (is_the_endpoints && exchange.request.method.is_idempotent());
    let retry = match () {
        () if !repeatable => Retry::Never,
        () if stale && !fresh => Retry::SameEndpoint(slot),
        () => Retry::Elsewhere(Arc::clone(&slot.endpoint)),
    };
    Lost { failure, retry }
}

#[cfg(test)]
mod tests;
