//! HTTP/3 to endpoints, and what is done where it cannot be had.
//!
//! A request goes by QUIC if that is up in time; if not, by TCP to the same address, secured and checked the same way:
//! HTTP/2 or HTTP/1.1, as TLS agrees. What was learned of an endpoint is remembered for it (`Reach`), so that UDP which is
//! blocked on the way costs one request in a while a moment, and the others nothing.

use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use balance::{AttemptResult, Time};
use tokio::time::sleep_until;

use crate::clock;
use crate::dial::call::{Asked, Call};
use crate::dial::pool::Connection;
use crate::dial::trunk::Waiting;
use crate::failure::Failure;
use crate::tls::Untrusted;
use crate::worker::Worker;

/// One connection.
mod link;
/// Whether an endpoint can be reached by QUIC.
mod reach;
/// The connections of one worker.
mod links;
/// HTTP/1.1 where it is spoken in HTTP/3's place.
pub(crate) mod framed;

pub(crate) use links::Links;
pub(crate) use reach::Reach;

/// So long a QUIC connection may take before the request goes by TCP, if that is sooner there. In the same data centre a
/// handshake takes some milliseconds, around the world a third of a second.
pub(super) const HEAD_START: Duration = Duration::from_millis(300);

/// How a request goes to its endpoint.
pub(crate) enum Way {
    /// By a stream, on which its head has been sent.
    Stream(Box<Connection>),
    /// HTTP/1.1 is all that the endpoint speaks over TCP, and nothing else is to be had.
    Http1,
}

/// A stream of HTTP/3 on a connection that is open and has room.
pub(crate) fn open_at_once(worker: &Worker, call: &Call<'_>) -> Option<Box<Connection>> {
    if begins_with_header(call) {
        return None;
    }
    // What cannot be sent is found out again, where it is told.
    worker.links.stream(call).ok().flatten()
}

/// The first way that opens; the caller bounds the time.
pub(crate) async fn open(worker: &Rc<Worker>, call: Call<'_>) -> Result<Way, Failure> {
    let takes_quic = may_take_quic(worker, &call);
    let mut ways =
        Ways { worker, call, takes_quic, over_quic: None, over_tcp: None, failure: None };
    loop {
        if let Some(way) = ways.ask()? {
            return Ok(way);
        }
        ways.wait().await;
        ways.call.now = clock::now();
    }
}

fn may_take_quic(worker: &Rc<Worker>, call: &Call<'_>) -> bool {
    let reach = &call.endpoint.data.reach;
    if begins_with_header(call) {
        return false;
    }
    if !reach.is_open() && reach.claim(call.now) {
        // This request goes by TCP. It finds out for those that follow.
        worker.links.dial(worker, call);
    }
    reach.is_open()
}

/// What begins with a header (PROXY protocol) is a connection of TCP.
fn begins_with_header(call: &Call<'_>) -> bool {
    call.announced.is_some()
}

/// Ways that are being opened for one request.
struct Ways<'a> {
    worker: &'a Rc<Worker>,
    call: Call<'a>,
    /// QUIC has not failed.
    takes_quic: bool,
    over_quic: Option<Waiting>,
    over_tcp: Option<Waiting>,
    /// Why there is no way over TCP, if there is none.
    failure: Option<Failure>,
}

impl Ways<'_> {
    fn ask(&mut self) -> Result<Option<Way>, Failure> {
        if self.takes_quic {
            match self.worker.links.ask(self.worker, &self.call, self.over_quic.as_ref()) {
                Ok(Asked::Opened(connection)) => return Ok(Some(Way::Stream(connection))),
                Ok(Asked::Wait(waiting)) => self.over_quic = Some(waiting),
                // WebSocket needs what few servers know over HTTP/3, and all over HTTP/1.1.
                Err(Failure::NoUpgrade) => return Ok(Some(Way::Http1)),
                Err(failure) if is_of_quic(failure) => self.takes_quic = false,
                Err(failure) => return Err(failure),
            }
        }
        if self.tcp_from().is_some_and(|from| self.call.now < from) {
            return Ok(None);
        }
        match self.ask_tcp() {
            // It may still come by QUIC.
            Err(failure) if self.takes_quic => {
                self.failure = Some(failure);
                Ok(None)
            }
            asked => asked,
        }
    }

    /// When TCP is to be tried too; `None`: now, since QUIC is out of the question.
    fn tcp_from(&self) -> Option<Time> {
        if !self.takes_quic {
            return None;
        }
        // Where nothing is being opened, all that can be had is there, and full.
        let since = self.worker.links.dialing(&self.call);
        Some(since.map_or(Time::MAX, |since| since + HEAD_START))
    }

    fn ask_tcp(&mut self) -> Result<Option<Way>, Failure> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let endpoint = self.call.endpoint;
        let way = if endpoint.data.reach.speaks_http1() {
            Way::Http1
        } else {
            match self.call.ask(self.over_tcp.as_ref()) {
                Ok(Asked::Opened(connection)) => Way::Stream(connection),
                Ok(Asked::Wait(waiting)) => {
                    self.over_tcp = Some(waiting);
                    return Ok(None);
                }
                Err(Failure::NotHttp2) if endpoint.data.reach.speaks_http1() => Way::Http1,
                Err(Failure::NoUpgrade) => Way::Http1,
                Err(failure) => {
                    // Who is not there at all may come back with QUIC.
                    endpoint.data.reach.expire(self.call.now);
                    return Err(failure);
                }
            }
        };
        if !begins_with_header(&self.call) {
            endpoint.data.counters[self.call.worker].http3_fallbacks.add(1);
        }
        Ok(Some(way))
    }

    /// Until it is worth while to ask again.
    async fn wait(&self) {
        let tcp_from =
            self.tcp_from().filter(|_| self.over_tcp.is_none() && self.failure.is_none());
        let head_start = async {
            match tcp_from {
                Some(from) => sleep_until(clock::instant(from)).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = told(self.over_quic.as_ref()) => {}
            () = told(self.over_tcp.as_ref()) => {}
            () = head_start => {}
        }
    }
}

async fn told(waiting: Option<&Waiting>) {
    match waiting {
        Some(waiting) => waiting.wait().await,
        None => pending().await,
    }
}

/// TCP may do better. A certificate that is wrong here is wrong there.
fn is_of_quic(failure: Failure) -> bool {
    match failure {
        Failure::Untrusted(Untrusted::Certificate | Untrusted::Unusable) => false,
        Failure::Untrusted(Untrusted::Alert | Untrusted::Protocol) => true,
        failure => {
            failure.end() == AttemptResult::ConnectFailed
                || failure.end() == AttemptResult::ConnectionBroken
        }
    }
}
