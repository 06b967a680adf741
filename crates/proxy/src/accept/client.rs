//! A client's connection as its requests see it.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use balance::Time;
use gateway::snapshot::{BackendSettings, ClientSettings, UrlScheme};

use crate::accept::arrival::Arrival;
use crate::accept::carrier::Carrier;
use crate::buffer::{BUFFER_BYTES, Buffer};
use crate::clock;
use crate::deadline::Deadline;
use crate::demand::Refused;
use crate::forwarded::Origin;
use crate::live::{Bound, Live, LiveListener, Ours};
use crate::proxy_protocol::{self, Addresses, Header};
use crate::stream::Stream;
use crate::tls::{Greeting, Session};
use crate::worker::{Stage, Worker};

/// A connection as its requests see it.
pub(crate) struct Client {
    pub(crate) stream: Stream,
    /// Read from the client and not yet used.
    pub(crate) buffer: Option<Buffer>,
    /// The one timer of whatever the connection waits for.
    pub(crate) deadline: Deadline,
    pub(crate) bound: Arc<Bound>,
    /// `None`: the connection began without TLS.
    pub(crate) greeting: Option<Arc<Greeting>>,
    pub(crate) origin: Rc<Origin>,
    pub(crate) peer: SocketAddr,
    /// Where its packets come from now: elsewhere than from `peer` if it has moved, as only QUIC lets it.
    pub(crate) seen_at: SocketAddr,
    /// Where a proxy before us says that the client has connected to.
    pub(super) destination: Option<SocketAddr>,
    pub(crate) accepted: Time,
    /// What it has been refused, on any stream of its connection.
    pub(crate) refused: Rc<RefCell<Refused>>,
    /// When it last took anything, on any stream of its connection.
    pub(super) taken: Rc<Cell<Time>>,
    /// When the last thing happened.
    pub(crate) since: Time,
    pub(super) seen_tick: u32,
    pub(super) has_served: bool,
}

/// What came of reading from a client.
pub(super) enum Filled {
    Some,
    Gone,
    Late,
}

/// What ended a wait before its time.
pub(crate) enum Interrupt {
    ClientGone,
    Deadline,
}

impl Client {
    pub(super) fn new(stream: Stream, arrival: Arrival) -> Self {
        let origin = Rc::new(arrival.origin());
        let Arrival { peer, destination, bound, greeting, accepted, refused, .. } = arrival;
        let now = clock::now();
        Self {
            stream,
            buffer: None,
            deadline: Deadline::new(now + Duration::from_secs(60)),
            bound,
            greeting,
            origin,
            peer,
            seen_at: peer,
            destination,
            accepted,
            refused: Rc::new(RefCell::new(refused)),
            taken: Rc::new(Cell::new(now)),
            since: now,
            seen_tick: u32::MAX,
            has_served: false,
        }
    }

    /// A request that has a stream of its client's connection to itself.
    pub(super) fn of_stream(carrier: &Carrier, worker: &Worker, stream: Stream) -> Self {
        let since = carrier.begun();
        Self {
            stream,
            buffer: None,
            deadline: worker.scratch.deadline(since),
            bound: Arc::clone(&carrier.bound),
            greeting: carrier.greeting.clone(),
            origin: Rc::clone(&carrier.origin),
            peer: carrier.peer,
            seen_at: carrier.peer,
            destination: carrier.destination,
            accepted: carrier.accepted,
            refused: Rc::clone(&carrier.refused),
            taken: Rc::clone(&carrier.taken),
            since,
            seen_tick: u32::MAX,
            has_served: false,
        }
    }

    /// What carries it, its timer, and what is known of it.
    pub(super) fn into_parts(self) -> (Stream, Deadline, Arrival) {
        let Self { stream, deadline, peer, destination, bound, greeting, accepted, .. } = self;
        let refused = self.refused.take();
        let arrival =
            Arrival { peer, destination, bound, greeting, accepted, refused, moved: false };
        (stream, deadline, arrival)
    }

    /// A stream's end: what can be used again goes back.
    pub(super) fn part(mut self, worker: &Worker) {
        worker.scratch.stock.reclaim(&mut self.buffer);
        worker.scratch.give_back_deadline(self.deadline);
    }

    /// A proxy before us has said who the client is.
    pub(super) fn introduced(&mut self, addresses: Addresses) {
        self.origin = Rc::new(Origin::new(addresses.client, self.origin.scheme));
        (self.peer, self.seen_at) = (addresses.client, addresses.client);
        self.destination = Some(addresses.destination);
    }

    /// What was plain until now goes by the session from now on.
    pub(super) fn secured(self, session: Box<Session>) -> Self {
        let origin = Rc::new(Origin::new(self.peer, UrlScheme::Https));
        Self { stream: self.stream.secured(session), origin, ..self }
    }

    /// What a new connection to an endpoint begins with by this policy: nothing, or who the client is.
    pub(crate) fn announcement(&self, settings: &BackendSettings) -> Vec<u8> {
        let mut header = Vec::new();
        let Some(version) = settings.proxy_protocol else { return header };
        let destination = self.destination.or_else(|| self.stream.local_addr().ok());
        // A connection that has been broken already has no addresses.
        let addresses = destination.map_or(Header::Local, |destination| {
            Header::Proxied(Addresses { client: self.peer, destination })
        });
        proxy_protocol::write(version, &addresses, &mut header);
        header
    }

    /// What has been read from the client and not yet used.
    pub(crate) fn take_unread(&mut self, worker: &Worker) -> Vec<u8> {
        let Some(mut buffer) = self.buffer.take() else { return Vec::new() };
        let unread = buffer.unread().to_vec();
        buffer.consume(unread.len());
        worker.scratch.stock.give_back(buffer);
        unread
    }

    /// Reads once, before the deadline.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut Buffer,
        most: usize,
    ) -> Poll<Filled> {
        match buffer.poll_fill(cx, &mut self.stream, most) {
            Poll::Ready(Ok(count)) if count > 0 => Poll::Ready(Filled::Some),
            Poll::Ready(_) => Poll::Ready(Filled::Gone),
            Poll::Pending => self.deadline.poll(cx).map(|()| Filled::Late),
        }
    }

    /// Closes the connection with a reset, so that what the client got does not look whole.
    pub(crate) fn reset_on_close(&self) {
        self.stream.reset_on_close();
    }

    /// The listener the connection came by, or `None` if nobody listens there any more.
    pub(crate) fn listener<'l>(&self, live: &'l Live) -> Option<&'l LiveListener> {
        live.listener(&self.bound)
    }

    /// True if the connection is not older than what its listener asks of TLS: requests for its own name can be served.
    pub(crate) fn has_valid_handshake(&self, live: &Live) -> bool {
        self.listener(live)
            .is_some_and(|listener| listener.accepts_handshake(self.greeting.as_deref()))
    }

    /// The connection may be used for another request: by its age, and as long as somebody listens. `live` is what was in
    /// force when this one came.
    pub(crate) fn may_stay(&self, worker: &Worker, live: &Ours, settings: &ClientSettings) -> bool {
        let age = self.since.saturating_since(self.accepted);
        let is_listened_for = || self.listener(&worker.live()).is_some();
        worker.stage() == Stage::Serving
            && (live.is_current(&worker.shared.live) || is_listened_for())
            && settings.connection_max_age.is_none_or(|most| age < most)
    }

    /// Ready when the client has closed the connection.
    ///
    /// A half-closed connection counts as closed, as in most proxies: a client that has gone looks just the same.
    /// What a client sends ahead is kept, up to a buffer of it.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>, worker: &Worker) -> Poll<()> {
        match &mut self.stream {
            Stream::Tcp(_) | Stream::Tls(_) | Stream::Framed(_) => {}
            Stream::H2(message) => return message.poll_cancelled(cx),
            Stream::H3(message) => return message.poll_cancelled(cx),
        }
        loop {
            if self.buffer.as_ref().is_some_and(|buffer| buffer.len() >= BUFFER_BYTES / 2) {
                return Poll::Pending;
            }
            // Costs no system call while nothing has come.
            if ready!(self.stream.poll_read_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            let buffer = self.buffer.get_or_insert_with(|| worker.scratch.stock.take());
            match buffer.poll_fill(cx, &mut self.stream, BUFFER_BYTES) {
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    worker.scratch.stock.reclaim(&mut self.buffer);
                    return Poll::Pending;
                }
            }
        }
    }

    /// It takes something of a response.
    pub(crate) fn takes(&self, now: Time) {
        self.taken.set(now);
    }

    /// When a client that takes no more has been waited for long enough. On a slow line the streams of a connection wait
    /// for one another: none has stalled while any of them moves.
    pub(crate) fn stalls_at(&self, patience: Duration) -> Time {
        self.taken.get() + patience
    }

    /// Awaits `future`, but not beyond `deadline` and not for a client that has gone.
    pub(crate) async fn until<F: Future>(
        &mut self,
        worker: &Worker,
        deadline: Time,
        future: F,
    ) -> Result<F::Output, Interrupt> {
        let mut future = pin!(future);
        self.deadline.set(deadline);
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            if self.poll_gone(cx, worker).is_ready() {
                return Poll::Ready(Err(Interrupt::ClientGone));
            }
            self.deadline.poll(cx).map(|()| Err(Interrupt::Deadline))
        })
        .await
    }
}
