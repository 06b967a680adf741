//! Client connection as its requests see it.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use balance::Time;
use codec::h1::HeadLimits;
use codec::proxy_protocol::{ProxiedAddresses, ProxyHeader};
use gateway::snapshot::{BackendSettings, ClientSettings, UrlScheme};
use tls::{TlsInfo, TlsSession};

use crate::accept::accepted_connection::AcceptedConnection;
use crate::accept::intercepted_client::InterceptedClient;
use crate::active_config::{ActiveConfig, ActiveListener, BoundListener, WorkerConfig};
use crate::buffer::{BUFFER_BYTES, ReadBuffer};
use crate::clock;
use crate::deadline::Deadline;
use crate::demand::refusal_history::RefusalHistory;
use crate::dial::pool::Endpoint;
use crate::forwarded::RequestOrigin;
use crate::interception::ClientMark;
use crate::memory::stalled::{ConnectionIdentity, HeldMemory};
use crate::proxy_header;
use crate::request_body::connection_share::ConnectionShare;
use crate::stream::PeerStream;
use crate::worker::{DrainStage, Worker};

/// Client connection as its requests see it.
pub(crate) struct ClientConnection {
    pub(crate) stream: PeerStream,
    /// Bytes that have been read from the client and not yet consumed.
    pub(crate) buffer: Option<ReadBuffer>,
    /// The one timer for everything that the connection waits for.
    pub(crate) deadline: Deadline,
    pub(crate) bound: Arc<BoundListener>,
    /// TLS handshake results; `None` if the connection is plain text.
    pub(crate) tls_info: Option<Arc<TlsInfo>>,
    pub(crate) origin: Rc<RequestOrigin>,
    pub(crate) peer: SocketAddr,
    /// Current source address of the client's packets; it differs from `peer` after a QUIC
    /// connection migration.
    pub(crate) current_peer: SocketAddr,
    /// Destination address that a trusted proxy gives in its PROXY protocol header, or that the client of an
    /// intercepted connection wanted.
    pub(super) destination: Option<SocketAddr>,
    /// The client of an intercepted connection.
    pub(crate) intercepted: Option<Arc<InterceptedClient>>,
    pub(crate) accepted: Time,
    /// Requests rejected for lack of a slot, on any stream of the connection.
    pub(crate) refusals: Rc<RefCell<RefusalHistory>>,
    /// The share of a multiplexed connection in the slots of backends; `None`: requests follow one another.
    pub(crate) share: Option<Rc<ConnectionShare>>,
    /// Time at which the client last accepted bytes, on any stream of the connection.
    pub(super) last_write_at: Rc<Cell<Time>>,
    /// Time of the last event.
    pub(crate) last_event_at: Time,
    pub(super) seen_tick: u32,
    pub(super) has_served: bool,
}

/// Result of a read from the client.
pub(super) enum ReadOutcome {
    Data,
    Closed,
    TimedOut,
}

/// Reason that a wait ended early.
pub(crate) enum WaitInterrupt {
    ClientGone,
    Deadline,
    /// The request's body holds memory that is needed.
    OutOfMemory,
}

impl ClientConnection {
    pub(super) fn new(stream: PeerStream, arrival: AcceptedConnection) -> Self {
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
        let now = clock::now();
        Self {
            stream,
            buffer: None,
            deadline: Deadline::new(now + Duration::from_secs(60)),
            bound,
            tls_info,
            origin,
            peer,
            current_peer: peer,
            destination,
            intercepted,
            accepted,
            refusals: Rc::new(RefCell::new(refusals)),
            share: None,
            last_write_at: Rc::new(Cell::new(now)),
            last_event_at: now,
            seen_tick: u32::MAX,
            has_served: false,
        }
    }

    /// Splits the connection into its stream, its timer, and its description.
    pub(super) fn into_parts(self) -> (PeerStream, Deadline, AcceptedConnection) {
        let Self {
            stream,
            deadline,
            peer,
            destination,
            intercepted,
            bound,
            tls_info,
            accepted,
            ..
        } = self;
        let refusals = self.refusals.take();
        let arrival = AcceptedConnection {
            peer,
            destination,
            intercepted,
            bound,
            tls_info,
            accepted,
            refusals,
            moved: false,
        };
        (stream, deadline, arrival)
    }

    /// Ends the stream and returns its buffer and timer for reuse.
    pub(super) fn recycle(mut self, worker: &Worker) {
        worker.scratch.buffer_pool.reclaim(&mut self.buffer);
        worker.scratch.give_back_deadline(self.deadline);
    }

    /// Takes over the addresses that a trusted proxy gives in its PROXY protocol header.
    pub(super) fn set_proxied_addresses(&mut self, addresses: ProxiedAddresses) {
        self.origin = Rc::new(RequestOrigin::new(addresses.client, self.origin.scheme));
        (self.peer, self.current_peer) = (addresses.client, addresses.client);
        self.destination = Some(addresses.destination);
    }

    /// Continues a plain-text connection over this TLS session.
    pub(super) fn with_tls(self, session: Box<TlsSession>) -> Self {
        let origin = Rc::new(RequestOrigin::new(self.peer, UrlScheme::Https));
        Self { stream: self.stream.with_tls(session), origin, ..self }
    }

    /// Returns the address to which the client has connected; `None`: the connection is broken.
    pub(crate) fn destination(&self) -> Option<SocketAddr> {
        self.destination.or_else(|| self.stream.local_addr().ok())
    }

    /// Returns the first bytes of a new connection to an endpoint: a PROXY protocol header if the
    /// backend's policy asks for one, else nothing.
    pub(crate) fn proxy_protocol_header(&self, settings: &BackendSettings) -> Vec<u8> {
        let mut header = Vec::new();
        let Some(version) = settings.proxy_protocol else { return header };
        let destination = self.destination();
        // A connection that is already broken has no addresses.
        let addresses = destination.map_or(ProxyHeader::Local, |destination| {
            ProxyHeader::Proxied(ProxiedAddresses { client: self.peer, destination })
        });
        proxy_header::write(version, &addresses, &mut header);
        header
    }

    /// Returns the mark of a connection to this endpoint, if the connection has the client's address.
    pub(crate) fn mark_for(
        &self,
        worker: &Rc<Worker>,
        endpoint: &Endpoint,
    ) -> Option<Arc<ClientMark>> {
        self.intercepted.as_ref()?.mark_for(worker, endpoint)
    }

    /// Takes the bytes that have been read from the client and not yet consumed.
    pub(crate) fn take_unread(&mut self, worker: &Worker) -> Vec<u8> {
        let Some(mut buffer) = self.buffer.take() else { return Vec::new() };
        let unread = buffer.unread().to_vec();
        buffer.consume(unread.len());
        worker.scratch.buffer_pool.give_back(buffer);
        unread
    }

    /// Reads once, until the deadline.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuffer,
        most: usize,
    ) -> Poll<ReadOutcome> {
        match buffer.poll_fill(cx, &mut self.stream, most) {
            Poll::Ready(Ok(count)) if count > 0 => Poll::Ready(ReadOutcome::Data),
            Poll::Ready(_) => Poll::Ready(ReadOutcome::Closed),
            Poll::Pending => self.deadline.poll(cx).map(|()| ReadOutcome::TimedOut),
        }
    }

    /// Closes the connection with a reset, so that a truncated response does not look complete.
    pub(crate) fn reset_on_close(&self) {
        self.stream.reset_on_close();
    }

    /// Returns the listener of the connection, or `None` if that listener has been removed.
    pub(crate) fn listener<'l>(
        &self,
        active_config: &'l ActiveConfig,
    ) -> Option<&'l ActiveListener> {
        active_config.listener(&self.bound)
    }

    /// True if the TLS handshake meets the listener's current TLS settings, so that requests for
    /// its own server name can be served.
    pub(crate) fn has_valid_handshake(&self, active_config: &ActiveConfig) -> bool {
        self.listener(active_config)
            .is_some_and(|listener| listener.accepts_handshake(self.tls_info.as_deref()))
    }

    /// True if the connection may serve another request: it is not too old, and its listener still
    /// exists. `active_config` is the configuration that was in force when the current request arrived.
    pub(crate) fn may_keep_alive(
        &self,
        worker: &Worker,
        active_config: &WorkerConfig,
        settings: &ClientSettings,
    ) -> bool {
        let age = self.last_event_at.saturating_since(self.accepted);
        let is_listened_for = || self.listener(&worker.config()).is_some();
        worker.stage() == DrainStage::Serving
            && (active_config.is_current(&worker.shared.config) || is_listened_for())
            && settings.connection_max_age.is_none_or(|most| age < most)
    }

    /// Ready when the client has closed the connection.
    ///
    /// A half-closed connection counts as closed, as in most proxies, because a client that has
    /// disconnected looks the same. Bytes that the client sends ahead are kept, up to one buffer.
    pub(crate) fn poll_disconnected(&mut self, cx: &mut Context<'_>, worker: &Worker) -> Poll<()> {
        match &mut self.stream {
            PeerStream::Tcp(_) | PeerStream::Tls(_) | PeerStream::Framed(_) => {}
            PeerStream::H2(message) => return message.poll_cancelled(cx),
            PeerStream::H3(message) => return message.poll_cancelled(cx),
        }
        loop {
            if self.buffer.as_ref().is_some_and(|buffer| buffer.len() >= BUFFER_BYTES / 2) {
                return Poll::Pending;
            }
            // Costs no system call while no bytes have arrived.
            if ready!(self.stream.poll_read_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            let buffer = self.buffer.get_or_insert_with(|| worker.scratch.buffer_pool.take());
            match buffer.poll_fill(cx, &mut self.stream, BUFFER_BYTES) {
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    worker.scratch.buffer_pool.reclaim(&mut self.buffer);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Records that the client has accepted bytes of a response.
    pub(crate) fn note_write(&self, now: Time) {
        self.last_write_at.set(now);
    }

    /// Returns the time at which a client that accepts no more bytes has stalled. On a slow link
    /// the streams of a connection wait for one another, so no stream has stalled while any of them
    /// makes progress.
    pub(crate) fn write_deadline(&self, patience: Duration) -> Time {
        self.last_write_at.get() + patience
    }

    /// Returns the account of the memory that a transfer of this connection holds.
    pub(crate) fn held_memory(&self, worker: &Worker) -> HeldMemory {
        HeldMemory::new(&worker.stalled, ConnectionIdentity::of(&self.last_write_at))
    }

    /// Awaits `future` until `deadline`, or until the client disconnects.
    pub(crate) async fn wait_until<F: Future>(
        &mut self,
        worker: &Worker,
        deadline: Time,
        future: F,
    ) -> Result<F::Output, WaitInterrupt> {
        let mut future = pin!(future);
        let mut held = None;
        self.deadline.set(deadline);
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            // A body that has begun to arrive waits too.
            if let Some(bytes) = self.stream.unread_bytes()
                && held.get_or_insert_with(|| self.held_memory(worker)).stall(bytes, cx.waker())
            {
                return Poll::Ready(Err(WaitInterrupt::OutOfMemory));
            }
            if self.poll_disconnected(cx, worker).is_ready() {
                return Poll::Ready(Err(WaitInterrupt::ClientGone));
            }
            self.deadline.poll(cx).map(|()| Err(WaitInterrupt::Deadline))
        })
        .await
    }
}

/// Returns the limits of a request head that a listener's policy sets for its clients.
pub(super) fn head_limits(settings: &ClientSettings) -> HeadLimits {
    HeadLimits {
        head_bytes: settings.max_head_bytes as usize,
        fields: usize::from(settings.max_header_fields),
        target_bytes: settings.max_target_bytes as usize,
    }
}
