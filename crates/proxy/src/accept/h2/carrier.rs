//! What the requests of one HTTP/2 connection share, and the task that serves one of them.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use balance::{Rng, Time};
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;

use crate::accept::client::Client;
use crate::binary::WebSocketKey;
use crate::clock;
use crate::deadline::Deadline;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::forwarded::Origin;
use crate::h1::HeadLimits;
use crate::h2::{Message, request as head};
use crate::live::Bound;
use crate::request;
use crate::stream::Stream;
use crate::tls::Greeting;
use crate::worker::{Stage, Worker};

/// A connection as the requests that it carries share it.
pub(in crate::accept) struct Carrier {
    pub(super) worker: Rc<Worker>,
    pub(in crate::accept) bound: Arc<Bound>,
    pub(in crate::accept) greeting: Option<Arc<Greeting>>,
    pub(in crate::accept) origin: Rc<Origin>,
    pub(in crate::accept) peer: SocketAddr,
    pub(in crate::accept) destination: Option<SocketAddr>,
    pub(in crate::accept) accepted: Time,
    /// Requests under way.
    open: Cell<u32>,
    /// When the last of those that have ended did so.
    ended: Cell<Time>,
}

impl Carrier {
    /// Takes over what is known of the client, and its connection.
    pub(super) fn new(worker: &Rc<Worker>, client: Client) -> (Self, Stream, Deadline) {
        let Client { stream, deadline, bound, greeting, origin, peer, destination, .. } = client;
        let carrier = Self {
            worker: Rc::clone(worker),
            bound,
            greeting,
            origin,
            peer,
            destination: destination.or_else(|| stream.local_addr().ok()),
            accepted: client.accepted,
            open: Cell::new(0),
            ended: Cell::new(clock::now()),
        };
        (carrier, stream, deadline)
    }

    /// Begins a request, in a task of its own.
    pub(super) fn begin(
        self: &Rc<Self>,
        request: http::Request<RecvStream>,
        response: SendResponse<Bytes>,
    ) {
        self.open.set(self.open.get() + 1);
        let (parts, body) = request.into_parts();
        let mut exchange = self.worker.exchange();
        let read = self.read_head(&parts, body.is_end_stream(), &mut exchange);
        let message = Box::new(Message::from_client(body, response));
        let client = Client::of_stream(self, &self.worker, Stream::H2(message));
        tokio::task::spawn_local(serve(Rc::clone(self), client, exchange, read));
    }

    pub(super) fn is_busy(&self) -> bool {
        self.open.get() > 0
    }

    /// When a request begins that begins now, as nearly as matters.
    pub(in crate::accept) fn begun(&self) -> Time {
        self.ended.get()
    }

    /// Reads a request's head by the limits that are in force.
    fn read_head(
        &self,
        parts: &http::request::Parts,
        is_whole: bool,
        exchange: &mut Exchange,
    ) -> Result<(), Failure> {
        let live = self.worker.live();
        let listener = live.listener(&self.bound).ok_or(Failure::NoRoute)?;
        let limits = HeadLimits::of(&listener.client);
        let key = || websocket_key(&mut self.worker.rng.borrow_mut());
        head::read(parts, is_whole, &limits, key, &mut exchange.request)
            .map_err(Failure::BadRequest)
    }

    /// When the connection will have been idle for so long; `None`: requests are under way.
    pub(super) fn idle(&self, patience: Duration) -> Option<Time> {
        (!self.is_busy()).then(|| self.ended.get() + patience)
    }

    /// The process ends, or nobody listens there any more.
    pub(super) fn must_leave(&self) -> bool {
        self.worker.stage() != Stage::Serving || self.worker.live().listener(&self.bound).is_none()
    }

    /// For an idle connection, and for the head of a request.
    pub(super) fn timeouts(&self) -> (Duration, Duration) {
        let live = self.worker.live();
        let settings = live.listener(&self.bound).map(|listener| &listener.client);
        settings.map_or((Duration::ZERO, Duration::ZERO), |settings| {
            (settings.connection_idle_timeout, settings.head_timeout)
        })
    }
}

/// Serves one request, whose head has been read or refused.
async fn serve(
    carrier: Rc<Carrier>,
    mut client: Client,
    mut exchange: Box<Exchange>,
    read: Result<(), Failure>,
) {
    let worker = &carrier.worker;
    // What becomes of the stream, its message knows.
    let _ = match read {
        Ok(()) => request::serve(worker, &mut client, &mut exchange).await,
        Err(failure) => request::refuse(worker, &mut client, &mut exchange, failure).await,
    };
    worker.give_back(exchange);
    carrier.ended.set(client.since);
    carrier.open.set(carrier.open.get() - 1);
    client.part(worker);
}

/// 16 random bytes in Base64.
fn websocket_key(rng: &mut Rng) -> WebSocketKey {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut key = *b"AAAAAAAAAAAAAAAAAAAAAA==";
    for digit in &mut key[..22] {
        *digit = DIGITS[(rng.next_u64() >> 58) as usize];
    }
    // The last digit stands for the last two bits.
    key[21] = DIGITS[(rng.next_u64() >> 62 << 4) as usize];
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_16_bytes_in_base64() {
        let mut rng = Rng::new(1);
        for _ in 0..100 {
            let key = String::from_utf8(websocket_key(&mut rng).to_vec()).unwrap();
            let digits = key.strip_suffix("==").unwrap();
            let is_digit = |digit: char| digit.is_ascii_alphanumeric() || "+/".contains(digit);
            assert!(digits.len() == 22 && digits.chars().all(is_digit), "{key}");
            assert!(digits.ends_with(['A', 'Q', 'g', 'w']), "{key}");
        }
    }
}
