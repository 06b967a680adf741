//! A connection as the tasks that use it see it.
//!
//! A call of a task changes the state of the connection at once. The call tells the driver task that there is
//! something to send; the driver sends it after the tasks that are ready have run. A task that has to wait is
//! remembered until then: for each event that can be waited for, the last task that asked.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{ConnectionHandle, Dir, StreamId, VarInt};
use tls::TlsInfo;

use crate::amplification::AmplificationLimit;
use crate::driver_handle::DriverHandle;
use crate::flood_detector::FloodDetector;
use crate::host::ConnectionPermit;
use crate::stream_scheduler::StreamScheduler;
use crate::{CloseReason, RecvStream, SendStream, transport};

/// A connection. It lives until one side closes it, even if no handle to it is left.
#[derive(Clone)]
pub struct QuicConnection(pub(super) Rc<QuicConnectionInner>);

/// State that the driver and the connection's tasks share.
pub(super) struct QuicConnectionInner {
    pub(super) handle: ConnectionHandle,
    pub(super) state: RefCell<QuicConnectionState>,
    pub(super) tls_info: OnceCell<Arc<TlsInfo>>,
    driver_handle: Rc<DriverHandle>,
    /// True if it is in the driver's queue of ready connections.
    pub(super) is_ready: Cell<bool>,
    /// True if an event has arrived that has not been processed yet.
    pub(super) has_input: Cell<bool>,
    /// True if the driver has removed it: its handle may belong to another connection by now.
    pub(super) is_removed: Cell<bool>,
}

/// The protocol state of the connection, and the tasks that wait for its events.
pub(super) struct QuicConnectionState {
    pub(super) proto: quinn_proto::Connection,
    /// Limit of what is sent, until the address of a client is validated.
    pub(super) amplification_limit: Option<AmplificationLimit>,
    /// Account of the frames of a client.
    pub(super) flood_detector: Option<FloodDetector>,
    pub(super) established: bool,
    /// True if the peer, as far as is known, allows another bidirectional stream.
    pub(super) may_open_bi: bool,
    /// Unidirectional streams that we have opened, all of which stay open.
    pub(super) send_only_streams: usize,
    pub(super) closed: Option<CloseReason>,
    /// True if the end of its handshake has been counted.
    pub(super) handshake_concluded: bool,
    /// The deadline under which the driver's timers hold this connection.
    pub(super) timer: Option<Instant>,
    /// The deadline of its handshake.
    pub(super) handshake_deadline: Option<Instant>,
    /// The time at which to send a PING to the peer.
    pub(super) ping_at: Option<Instant>,
    /// The permit of a client connection, until the connection is served or closed.
    pub(super) admitted: Option<ConnectionPermit>,
    pub(super) wakers: QuicWakers,
    pub(super) scheduler: StreamScheduler,
}

/// The tasks that wait for an event of the connection.
#[derive(Default)]
pub(super) struct QuicWakers {
    pub(super) established: Option<Waker>,
    /// For the next stream that the peer opens, by direction.
    pub(super) opened: [Option<Waker>; 2],
    /// For permission to open another bidirectional stream.
    pub(super) can_open_bi: Option<Waker>,
    pub(super) closed: Option<Waker>,
    pub(super) readers: BTreeMap<StreamId, Waker>,
    pub(super) writers: BTreeMap<StreamId, Waker>,
}

impl QuicWakers {
    pub(super) fn wake_all(&mut self) {
        let Self { established, opened, can_open_bi: room, closed, readers, writers } =
            std::mem::take(self);
        let [bi, uni] = opened;
        [established, bi, uni, room, closed].into_iter().flatten().for_each(Waker::wake);
        readers.into_values().chain(writers.into_values()).for_each(Waker::wake);
    }
}

/// Remembers the task in `place`.
pub(super) fn register_waker<T>(place: &mut Option<Waker>, cx: &Context<'_>) -> Poll<T> {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
    Poll::Pending
}

/// Wakes the task in `place`.
pub(super) fn wake(place: &mut Option<Waker>) {
    if let Some(waker) = place.take() {
        waker.wake();
    }
}

impl QuicConnectionInner {
    pub(super) fn new(
        handle: ConnectionHandle,
        proto: quinn_proto::Connection,
        driver_handle: &Rc<DriverHandle>,
    ) -> Rc<Self> {
        let state = QuicConnectionState {
            proto,
            amplification_limit: None,
            flood_detector: None,
            established: false,
            may_open_bi: true,
            send_only_streams: 0,
            closed: None,
            handshake_concluded: false,
            timer: None,
            handshake_deadline: None,
            ping_at: None,
            admitted: None,
            wakers: QuicWakers::default(),
            scheduler: StreamScheduler::default(),
        };
        Rc::new(Self {
            handle,
            state: RefCell::new(state),
            tls_info: OnceCell::new(),
            driver_handle: Rc::clone(driver_handle),
            is_ready: Cell::new(false),
            has_input: Cell::new(false),
            is_removed: Cell::new(false),
        })
    }

    /// Tells the driver that the connection has something to send, or that its timers have changed.
    pub(super) fn mark_ready(&self) {
        if !self.is_ready.get() && !self.is_removed.get() {
            self.is_ready.set(true);
            self.driver_handle.mark_ready(self.handle);
        }
    }
}

impl QuicConnectionState {
    /// Returns the number of datagrams, `most` at most, that may be sent now to the peer's address.
    pub(super) fn max_datagrams(&self, most: usize) -> usize {
        let Some(limit) = &self.amplification_limit else { return most };
        most.min(limit.max_datagrams(&self.proto.stats(), self.proto.current_mtu()))
    }

    /// True if the peer is a client that floods the connection with frames.
    pub(super) fn is_flooded(&mut self, now: Instant) -> bool {
        let Some(detector) = self.flood_detector.as_mut().filter(|_| self.closed.is_none()) else {
            return false;
        };
        !detector.settle(&self.proto.stats(), now)
    }

    /// Marks the connection as over, and wakes every task that waits for it.
    pub(super) fn set_closed(&mut self, why: CloseReason) {
        if self.closed.is_none() {
            self.closed = Some(why);
        }
        self.wakers.wake_all();
    }

    /// Returns the bytes that may be written and unacknowledged, for the current state of the path.
    pub(super) fn send_window(&self) -> u64 {
        transport::max_unacknowledged(self.proto.congestion_state().window())
    }

    /// Places the stream behind what its peers of equal priority have written; for its first portion, ahead of the
    /// streams that continue.
    pub(super) fn begin_portion(&mut self, id: StreamId, priority: i32, is_first: bool) {
        let place = if is_first {
            self.scheduler.first_rank(priority)
        } else {
            self.scheduler.next_rank(priority)
        };
        // A stream that is over is unknown to the library, and has no priority.
        self.proto.send_stream(id).set_priority(place).unwrap_or_default();
    }

    /// Runs `write` for a stream of this priority, with the send window of such a stream.
    ///
    /// Space that acknowledgements free is open to all streams alike. The most urgent stream gets some extra window,
    /// so that streams of lower priority, which have taken the rest while there was nothing else to write, never keep
    /// it waiting.
    pub(super) fn with_send_window_for<T>(
        &mut self,
        priority: i32,
        write: impl FnOnce(&mut Self) -> T,
    ) -> T {
        if !self.scheduler.is_most_urgent(priority) {
            return write(self);
        }
        let most = self.send_window();
        self.proto.set_send_window(transport::max_unacknowledged_of_leader(most));
        let written = write(self);
        self.proto.set_send_window(most);
        written
    }
}

impl QuicConnection {
    /// Waits until the handshake is complete.
    pub fn poll_established(&self, cx: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        let state = &mut *self.0.state.borrow_mut();
        match state.closed {
            Some(closed) => Poll::Ready(Err(closed)),
            None if state.established => Poll::Ready(Ok(())),
            None => register_waker(&mut state.wakers.established, cx),
        }
    }

    /// Returns the next bidirectional stream that the peer has opened.
    pub fn poll_accept_bi(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(SendStream, RecvStream), CloseReason>> {
        let id = ready!(self.poll_accept(cx, Dir::Bi))?;
        Poll::Ready(Ok((SendStream::new(self, id), RecvStream::new(self, id))))
    }

    /// Returns the next unidirectional stream that the peer has opened.
    pub fn poll_accept_uni(&self, cx: &mut Context<'_>) -> Poll<Result<RecvStream, CloseReason>> {
        let id = ready!(self.poll_accept(cx, Dir::Uni))?;
        Poll::Ready(Ok(RecvStream::new(self, id)))
    }

    fn poll_accept(
        &self,
        cx: &mut Context<'_>,
        direction: Dir,
    ) -> Poll<Result<StreamId, CloseReason>> {
        let state = &mut *self.0.state.borrow_mut();
        if let Some(closed) = state.closed {
            return Poll::Ready(Err(closed));
        }
        match state.proto.streams().accept(direction) {
            Some(id) => Poll::Ready(Ok(id)),
            None => register_waker(&mut state.wakers.opened[direction as usize], cx),
        }
    }

    /// Opens a bidirectional stream; `None` if the peer allows no more now, or the connection is over.
    pub fn open_bi(&self) -> Option<(SendStream, RecvStream)> {
        let opened = {
            let state = &mut *self.0.state.borrow_mut();
            let opened = state.proto.streams().open(Dir::Bi);
            state.may_open_bi = opened.is_some();
            opened
        };
        let id = opened?;
        Some((SendStream::new(self, id), RecvStream::new(self, id)))
    }

    /// Opens a unidirectional stream; `None` if the peer allows no more now, or the connection is over.
    pub fn open_uni(&self) -> Option<SendStream> {
        let id = {
            let state = &mut *self.0.state.borrow_mut();
            let id = state.proto.streams().open(Dir::Uni)?;
            state.send_only_streams += 1;
            id
        };
        Some(SendStream::new(self, id))
    }

    /// Waits until the peer allows more bidirectional streams: for a task for which [`Self::open_bi`] has just
    /// returned `None`.
    pub fn poll_can_open_bi(&self, cx: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        let state = &mut *self.0.state.borrow_mut();
        match state.closed {
            Some(closed) => Poll::Ready(Err(closed)),
            None if state.may_open_bi => Poll::Ready(Ok(())),
            None => register_waker(&mut state.wakers.can_open_bi, cx),
        }
    }

    /// Closes the connection with an error code of the protocol that it carries. Data that is written and not yet sent
    /// is lost.
    pub fn close(&self, code: u64, reason: &'static str) {
        let state = &mut *self.0.state.borrow_mut();
        if state.closed.is_none() {
            let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
            let reason = Bytes::from_static(reason.as_bytes());
            state.proto.close(self.0.driver_handle.now(), code, reason);
            state.set_closed(CloseReason::ByUs);
            self.0.mark_ready();
        }
    }

    /// Waits until the connection is over.
    pub fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        let state = &mut *self.0.state.borrow_mut();
        match state.closed {
            Some(closed) => Poll::Ready(closed),
            None => register_waker(&mut state.wakers.closed, cx),
        }
    }

    /// Returns the reason why the connection is over, if it is.
    pub fn closed(&self) -> Option<CloseReason> {
        self.0.state.borrow().closed
    }

    /// Returns the current address of the peer: a client may migrate.
    pub fn peer(&self) -> SocketAddr {
        self.0.state.borrow().proto.remote_address()
    }

    /// Returns our address as the peer knows it, where the kernel reports it.
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.0.state.borrow().proto.local_ip()
    }

    /// Returns what is known of the client's TLS handshake; for an endpoint's connection, the defaults of QUIC.
    pub fn tls_info(&self) -> &Arc<TlsInfo> {
        self.0.tls_info.get_or_init(|| Arc::new(TlsInfo::of_quic()))
    }

    /// Returns the current estimate of the round-trip time.
    pub fn round_trip(&self) -> Duration {
        self.0.state.borrow().proto.rtt()
    }

    /// True if bidirectional streams have data that the peer has not acknowledged: closing the connection now would
    /// lose it.
    pub fn has_unacknowledged(&self) -> bool {
        let state = &mut *self.0.state.borrow_mut();
        state.proto.streams().send_streams() > state.send_only_streams
    }

    /// True if the handshake is not complete: data may be a replay of an earlier connection (0-RTT, RFC 9001 §9.2).
    pub fn is_early_data(&self) -> bool {
        self.0.state.borrow().proto.is_handshaking()
    }

    /// Limits the bidirectional streams that the peer may have open at a time.
    pub fn set_max_concurrent_bi(&self, most: u32) {
        self.0.state.borrow_mut().proto.set_max_concurrent_streams(Dir::Bi, most.into());
        self.0.mark_ready();
    }

    /// Returns the number of datagrams received from the peer.
    pub fn received(&self) -> u64 {
        self.0.state.borrow().proto.stats().udp_rx.datagrams
    }

    /// Sends a PING to the peer.
    pub fn ping(&self) {
        self.0.state.borrow_mut().proto.ping();
        self.0.mark_ready();
    }
}
