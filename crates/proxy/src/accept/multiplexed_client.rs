//! State shared by the requests of one multiplexed connection, and the service of each request.
//!
//! This module knows nothing of frames: the protocols are in `h2` and `h3`.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use balance::{Rng, Time};
use codec::binary::WebSocketKey;
use tls::TlsInfo;

use crate::accept::accepted_connection::AcceptedConnection;
use crate::accept::client::ClientConnection;
use crate::accept::intercepted_client::InterceptedClient;
use crate::active_config::BoundListener;
use crate::clock;
use crate::demand::refusal_history::RefusalHistory;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::forwarded::RequestOrigin;
use crate::request;
use crate::request_body::connection_share::ConnectionShare;
use crate::stream::PeerStream;
use crate::worker::{DrainStage, Worker};

/// Multiplexed client connection as its requests share it.
pub(super) struct MultiplexedClient {
    pub(super) worker: Rc<Worker>,
    pub(super) bound: Arc<BoundListener>,
    pub(super) tls_info: Option<Arc<TlsInfo>>,
    pub(super) origin: Rc<RequestOrigin>,
    pub(super) peer: SocketAddr,
    pub(super) destination: Option<SocketAddr>,
    pub(super) intercepted: Option<Arc<InterceptedClient>>,
    pub(super) accepted: Time,
    /// Requests rejected for lack of a slot, on any stream.
    pub(super) refusals: Rc<RefCell<RefusalHistory>>,
    /// The connection's share in the slots of backends.
    share: Rc<ConnectionShare>,
    /// Time at which the client last accepted bytes, on any stream.
    pub(super) last_write_at: Rc<Cell<Time>>,
    /// Time at which the connection reaches its maximum age; `None` if it has none.
    pub(super) max_age_at: Option<Time>,
    /// True once a request has arrived.
    has_had_request: Cell<bool>,
    /// Number of requests in flight.
    in_flight: Cell<u32>,
    /// Time at which the latest request ended.
    last_request_ended: Cell<Time>,
    /// Task to wake when the last request ends.
    idle_waker: RefCell<Option<Waker>>,
}

impl MultiplexedClient {
    pub(super) fn new(worker: &Rc<Worker>, arrival: AcceptedConnection) -> Self {
        let origin = Rc::new(arrival.origin());
        let AcceptedConnection {
            peer,
            destination,
            intercepted,
            bound,
            tls_info,
            accepted,
            refusals,
            ..
        } = arrival;
        let (active_config, now) = (worker.config(), clock::now());
        let max_age = active_config.listener(&bound).and_then(|it| it.client.connection_max_age);
        let max_age_at = max_age.map(|age| accepted + jitter(age, &mut worker.rng.borrow_mut()));
        Self {
            worker: Rc::clone(worker),
            bound,
            tls_info,
            origin,
            peer,
            destination,
            intercepted,
            accepted,
            refusals: Rc::new(RefCell::new(refusals)),
            share: Rc::default(),
            last_write_at: Rc::new(Cell::new(now)),
            max_age_at,
            has_had_request: Cell::new(false),
            in_flight: Cell::new(0),
            last_request_ended: Cell::new(now),
            idle_waker: RefCell::default(),
        }
    }

    /// Begins a request: returns its client connection and its exchange.
    /// [`end_request`](Self::end_request) takes both back.
    pub(super) fn begin_request(&self, stream: PeerStream) -> (ClientConnection, Box<Exchange>) {
        self.has_had_request.set(true);
        self.in_flight.set(self.in_flight.get() + 1);
        (self.client_connection(stream), self.worker.take_exchange())
    }

    /// Returns the client connection of a request that has a stream of its own.
    fn client_connection(&self, stream: PeerStream) -> ClientConnection {
        let last_event_at = self.approximate_start();
        ClientConnection {
            stream,
            buffer: None,
            deadline: self.worker.scratch.take_deadline(last_event_at),
            bound: Arc::clone(&self.bound),
            tls_info: self.tls_info.clone(),
            origin: Rc::clone(&self.origin),
            peer: self.peer,
            current_peer: self.peer,
            destination: self.destination,
            intercepted: self.intercepted.clone(),
            accepted: self.accepted,
            refusals: Rc::clone(&self.refusals),
            share: Some(Rc::clone(&self.share)),
            last_write_at: Rc::clone(&self.last_write_at),
            last_event_at,
            seen_tick: u32::MAX,
            has_served: false,
        }
    }

    /// Serves a request whose head has been read or rejected, to its end.
    pub(super) async fn serve_request(
        &self,
        client: &mut ClientConnection,
        exchange: &mut Exchange,
        read: Result<(), Failure>,
    ) {
        // The outcome is ignored: the message of the stream already knows how the stream ends.
        let _ = match read {
            Ok(()) => request::serve(&self.worker, client, exchange).await,
            Err(failure) => request::refuse(&self.worker, client, exchange, failure).await,
        };
    }

    /// Ends a request, and returns its buffers for reuse.
    pub(super) fn end_request(&self, client: ClientConnection, exchange: Box<Exchange>) {
        self.worker.give_back_exchange(exchange);
        self.last_request_ended.set(client.last_event_at);
        self.in_flight.set(self.in_flight.get() - 1);
        client.recycle(&self.worker);
        if !self.is_busy()
            && let Some(waiting) = self.idle_waker.take()
        {
            waiting.wake();
        }
    }

    /// Wakes the task once, when no request is in flight any more.
    pub(super) fn wake_when_idle(&self, waker: &Waker) {
        if self.is_busy() {
            self.idle_waker.replace(Some(waker.clone()));
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.requests_in_flight() > 0
    }

    /// Returns the number of requests that have begun and not ended.
    pub(super) fn requests_in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// Returns the approximate start time of a request that begins now; saves a clock reading.
    pub(super) fn approximate_start(&self) -> Time {
        self.last_request_ended.get()
    }

    /// Returns the time at which the connection has been idle for `patience`; `None` while requests
    /// are in flight.
    pub(super) fn idle_deadline(&self, patience: Duration) -> Option<Time> {
        (!self.is_busy()).then(|| self.last_request_ended.get() + patience)
    }

    /// True if the process is shutting down, or the listener has been removed.
    pub(super) fn must_shut_down(&self) -> bool {
        let is_over = match self.worker.stage() {
            DrainStage::Serving => false,
            // A client that is told to leave before its first request would only reconnect.
            DrainStage::Announcing => self.has_had_request.get(),
            DrainStage::Draining | DrainStage::Closing => true,
        };
        is_over || self.worker.config().listener(&self.bound).is_none()
    }

    /// True if the connection is idle and closed to free its descriptor.
    pub(super) fn is_shed(&self) -> bool {
        let idle_since = self.idle_deadline(Duration::ZERO);
        idle_since.is_some_and(|since| self.worker.sheds_idle_connection(since))
    }

    /// Returns the idle timeout of the connection and the timeout for a request head.
    pub(super) fn timeouts(&self) -> (Duration, Duration) {
        let active_config = self.worker.config();
        let settings = active_config.listener(&self.bound).map(|listener| &listener.client);
        settings.map_or((Duration::ZERO, Duration::ZERO), |settings| {
            (settings.connection_idle_timeout, settings.head_timeout)
        })
    }
}

/// Varies the age by up to a tenth, so that connections accepted together do not close together.
fn jitter(age: Duration, rng: &mut Rng) -> Duration {
    let tenth = age / 10;
    let share = (rng.next_u64() >> 32) as f64 / f64::from(u32::MAX);
    age - tenth + (2 * tenth).mul_f64(share)
}

/// Returns 16 random bytes in Base64.
pub(super) fn websocket_key(rng: &mut Rng) -> WebSocketKey {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut key = *b"AAAAAAAAAAAAAAAAAAAAAA==";
    for digit in &mut key[..22] {
        *digit = DIGITS[(rng.next_u64() >> 58) as usize];
    }
    // The last digit encodes the last two bits.
    key[21] = DIGITS[(rng.next_u64() >> 62 << 4) as usize];
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_age_jitter_is_ten_percent() {
        let mut rng = Rng::new(1);
        let ages: Vec<_> = (0..1000).map(|_| jitter(Duration::from_secs(100), &mut rng)).collect();
        let (least, most) = (ages.iter().min().unwrap(), ages.iter().max().unwrap());
        assert!((90..92).contains(&least.as_secs()), "{least:?}");
        assert!((108..110).contains(&most.as_secs()), "{most:?}");
    }

    #[test]
    fn websocket_key_is_16_bytes_in_base64() {
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
