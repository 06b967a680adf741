//! A connection as its tasks see it.
//!
//! What a task asks for is done in the connection's state at once; the port's task, which is told that there is something
//! to say, says it when the tasks that are ready have had their turn. A task that has to wait is remembered until then:
//! for each thing that can be waited for, the last one that asked.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{ConnectionHandle, Dir, StreamId, VarInt};

use crate::accept::accepted_connection::ConnectionGuard;
use crate::clock;
use crate::quic::driver_handle::DriverHandle;
use crate::quic::stream_scheduler::StreamScheduler;
use crate::quic::{CloseReason, RecvStream, SendStream, transport};
use crate::tls::TlsInfo;

/// A connection. It lives until one side closes it, whether anybody holds it or not.
#[derive(Clone)]
pub(crate) struct QuicConnection(pub(super) Rc<QuicConnectionInner>);

/// What the port and the connection's tasks share.
pub(super) struct QuicConnectionInner {
    pub(super) handle: ConnectionHandle,
    pub(super) state: RefCell<QuicConnectionState>,
    pub(super) tls_info: OnceCell<Arc<TlsInfo>>,
    driver_handle: Rc<DriverHandle>,
    /// It is on the agenda.
    pub(super) is_ready: Cell<bool>,
    /// Something has come for it that nobody knows of yet.
    pub(super) has_input: Cell<bool>,
    /// The port has let go of it: its handle may be another's by now.
    pub(super) is_removed: Cell<bool>,
}

/// What QUIC knows of the connection, and who waits for what.
pub(super) struct QuicConnectionState {
    pub(super) proto: quinn_proto::Connection,
    pub(super) established: bool,
    /// As far as is known the other side allows another stream with both directions.
    pub(super) may_open_bi: bool,
    /// Streams on which we alone speak, all of which stay open.
    pub(super) send_only_streams: usize,
    pub(super) closed: Option<CloseReason>,
    /// The end of its handshake has been counted.
    pub(super) handshake_concluded: bool,
    /// For when the port's timers have it.
    pub(super) timer: Option<Instant>,
    /// By when its handshake has to be over.
    pub(super) handshake_deadline: Option<Instant>,
    /// When the other side is to be asked for a sign of life.
    pub(super) ping_at: Option<Instant>,
    /// A client's, in the counts of its listener and worker: until somebody serves it, or it is over.
    pub(super) connection_guard: Option<ConnectionGuard>,
    pub(super) wakers: QuicWakers,
    pub(super) scheduler: StreamScheduler,
}

/// The tasks that wait for something of the connection.
#[derive(Default)]
pub(super) struct QuicWakers {
    pub(super) established: Option<Waker>,
    /// For the other side's next stream, by its direction.
    pub(super) opened: [Option<Waker>; 2],
    /// Until another stream with both directions may be opened.
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
        agenda: &Rc<DriverHandle>,
    ) -> Rc<Self> {
        let state = QuicConnectionState {
            proto,
            established: false,
            may_open_bi: true,
            send_only_streams: 0,
            closed: None,
            handshake_concluded: false,
            timer: None,
            handshake_deadline: None,
            ping_at: None,
            connection_guard: None,
            wakers: QuicWakers::default(),
            scheduler: StreamScheduler::default(),
        };
        Rc::new(Self {
            handle,
            state: RefCell::new(state),
            tls_info: OnceCell::new(),
            driver_handle: Rc::clone(agenda),
            is_ready: Cell::new(false),
            has_input: Cell::new(false),
            is_removed: Cell::new(false),
        })
    }

    /// It has something to say, or its timers have changed.
    pub(super) fn mark_ready(&self) {
        if !self.is_ready.get() && !self.is_removed.get() {
            self.is_ready.set(true);
            self.driver_handle.mark_ready(self.handle);
        }
    }
}

impl QuicConnectionState {
    /// The connection is over: nobody has to wait for it any more.
    pub(super) fn set_closed(&mut self, why: CloseReason) {
        if self.closed.is_none() {
            self.closed = Some(why);
        }
        self.wakers.wake_all();
    }

    /// What may have been written and not been acknowledged, as the path is now.
    pub(super) fn send_window(&self) -> u64 {
        transport::max_unacknowledged(self.proto.congestion_state().window())
    }

    /// From here on the stream goes after what its equals have written; with its first portion before those that go on.
    pub(super) fn begin_portion(&mut self, id: StreamId, priority: i32, is_first: bool) {
        let place = if is_first {
            self.scheduler.first_rank(priority)
        } else {
            self.scheduler.next_rank(priority)
        };
        // What is over goes nowhere.
        self.proto.send_stream(id).set_priority(place).unwrap_or_default();
    }

    /// Does what writes on a stream of this priority, with the room that such a stream has.
    ///
    /// Room comes free for all alike. What goes first finds some more, so that what does not, which has taken the rest
    /// while there was nothing else to write, never keeps it waiting.
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
    /// Ready when the handshake is complete.
    pub(crate) fn poll_established(&self, cx: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        let state = &mut *self.0.state.borrow_mut();
        match state.closed {
            Some(closed) => Poll::Ready(Err(closed)),
            None if state.established => Poll::Ready(Ok(())),
            None => register_waker(&mut state.wakers.established, cx),
        }
    }

    /// The next stream with both directions that the other side has opened.
    pub(crate) fn poll_accept_bi(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(SendStream, RecvStream), CloseReason>> {
        let id = ready!(self.poll_accept(cx, Dir::Bi))?;
        Poll::Ready(Ok((SendStream::new(self, id), RecvStream::new(self, id))))
    }

    /// The next stream with one direction that the other side has opened.
    pub(crate) fn poll_accept_uni(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<RecvStream, CloseReason>> {
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

    /// A new stream with both directions; `None`: the other side allows no more now, or the connection is over.
    pub(crate) fn open_bi(&self) -> Option<(SendStream, RecvStream)> {
        let opened = {
            let state = &mut *self.0.state.borrow_mut();
            let opened = state.proto.streams().open(Dir::Bi);
            state.may_open_bi = opened.is_some();
            opened
        };
        let id = opened?;
        Some((SendStream::new(self, id), RecvStream::new(self, id)))
    }

    /// A new stream on which we alone speak; `None`: the other side allows no more now, or the connection is over.
    pub(crate) fn open_uni(&self) -> Option<SendStream> {
        let id = {
            let state = &mut *self.0.state.borrow_mut();
            let id = state.proto.streams().open(Dir::Uni)?;
            state.send_only_streams += 1;
            id
        };
        Some(SendStream::new(self, id))
    }

    /// Waits until the other side allows more streams with both directions: for who has just been refused one.
    pub(crate) fn poll_can_open_bi(&self, cx: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        let state = &mut *self.0.state.borrow_mut();
        match state.closed {
            Some(closed) => Poll::Ready(Err(closed)),
            None if state.may_open_bi => Poll::Ready(Ok(())),
            None => register_waker(&mut state.wakers.can_open_bi, cx),
        }
    }

    /// Closes the connection with a code of the protocol that it carries. What was written and not yet sent is lost.
    pub(crate) fn close(&self, code: u64, reason: &'static str) {
        let state = &mut *self.0.state.borrow_mut();
        if state.closed.is_none() {
            let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
            let reason = Bytes::from_static(reason.as_bytes());
            state.proto.close(clock::quic_now(), code, reason);
            state.set_closed(CloseReason::ByUs);
            self.0.mark_ready();
        }
    }

    /// Ready when the connection is over.
    pub(crate) fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        let state = &mut *self.0.state.borrow_mut();
        match state.closed {
            Some(closed) => Poll::Ready(closed),
            None => register_waker(&mut state.wakers.closed, cx),
        }
    }

    /// Why it is over, if it is.
    pub(crate) fn closed(&self) -> Option<CloseReason> {
        self.0.state.borrow().closed
    }

    /// Where the other side is now: a client may move.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.0.state.borrow().proto.remote_address()
    }

    /// Our address as the other side knows it, where the kernel tells.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        self.0.state.borrow().proto.local_ip()
    }

    /// What the client's TLS has told; of an endpoint's connection: nothing.
    pub(crate) fn tls_info(&self) -> &Arc<TlsInfo> {
        self.0.tls_info.get_or_init(|| Arc::new(TlsInfo::of_quic()))
    }

    /// How long a word takes to the other side and back, as far as is known.
    pub(crate) fn round_trip(&self) -> Duration {
        self.0.state.borrow().proto.rtt()
    }

    /// Streams with both directions have something that the other side has not acknowledged: a close would lose it.
    pub(crate) fn has_unacknowledged(&self) -> bool {
        let state = &mut *self.0.state.borrow_mut();
        state.proto.streams().send_streams() > state.send_only_streams
    }

    /// The handshake is not complete: what comes may be a copy of what has come before (0-RTT, RFC 9001 §9.2).
    pub(crate) fn is_early_data(&self) -> bool {
        self.0.state.borrow().proto.is_handshaking()
    }

    /// From now on the other side may have as many streams with both directions open at a time.
    #[cfg(test)]
    pub(crate) fn set_max_concurrent_bi(&self, most: u32) {
        self.0.state.borrow_mut().proto.set_max_concurrent_streams(Dir::Bi, most.into());
        self.0.mark_ready();
    }

    /// Datagrams that have come from the other side.
    pub(crate) fn received(&self) -> u64 {
        self.0.state.borrow().proto.stats().udp_rx.datagrams
    }

    /// Asks the other side for a sign of life.
    pub(crate) fn ping(&self) {
        self.0.state.borrow_mut().proto.ping();
        self.0.mark_ready();
    }
}
