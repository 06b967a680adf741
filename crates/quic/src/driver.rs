//! The task that drives a socket and its connections.
//!
//! It works in turns. A turn first sends what is ready, then receives datagrams, then takes one step of a handshake.
//! Received events wake tasks, which run before the driver's next turn. So their responses leave together with the
//! acknowledgements, and the packets for one client leave in one system call.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use quinn_proto::{ConnectionHandle, Endpoint, Transmit, VarInt};
use tls::ClientTlsError;
use tokio::time::Sleep;

use crate::CloseReason;
use crate::connection::QuicConnectionInner;
use crate::driver_handle::{ConnectionTimers, DriverHandle};
use crate::server::ConnectionAcceptor;
use crate::socket::{QuicSocket, SocketBuffers};

/// Sends the packets of connections.
mod transmit;
/// Receives datagrams and dispatches them to connections.
mod receive;
/// Dispatches the events of connections to the endpoint and to tasks.
mod events;

/// Consecutive ECONNREFUSED errors (ICMP port unreachable) from an endpoint's host that close an established
/// connection.
///
/// Before it is established, one is enough: then only the host itself can have sent a false one, and another transport
/// can be tried.
const MAX_REFUSALS: u32 = 3;
/// The error code that closes connections when their worker ends: H3_NO_ERROR (RFC 9114 §8.1).
const NO_ERROR: u32 = 0x100;
/// The error code that closes the connection of a client that floods it: H3_EXCESSIVE_LOAD.
const EXCESSIVE_LOAD: u32 = 0x107;

/// A socket and its connections.
pub(super) struct EndpointDriver {
    pub(super) endpoint: Endpoint,
    pub(super) socket: Rc<QuicSocket>,
    pub(super) driver_handle: Rc<DriverHandle>,
    /// The connections, by handle.
    connections: Vec<Option<Rc<QuicConnectionInner>>>,
    /// The number of connections.
    open: usize,
    timers: ConnectionTimers,
    timer: Option<DriverTimer>,
    buffers: Rc<SocketBuffers>,
    /// A packet that the socket did not accept.
    blocked_transmit: Option<(Transmit, Box<[u8]>)>,
    /// Buffer for packets that belong to no connection.
    pub(super) reply: Vec<u8>,
    /// Connections that have received a datagram in this turn.
    connections_with_input: Vec<Rc<QuicConnectionInner>>,
    pub(super) role: DriverRole,
    refusals: u32,
}

/// The side that we are on.
pub(super) enum DriverRole {
    /// Connections that clients open.
    Server(Box<ConnectionAcceptor>),
    /// A connection that we open to an endpoint.
    Client,
}

/// The timer that wakes the driver's task.
struct DriverTimer {
    sleep: Pin<Box<Sleep>>,
    at: Instant,
}

impl EndpointDriver {
    pub(super) fn new(
        endpoint: Endpoint,
        socket: QuicSocket,
        driver_handle: Rc<DriverHandle>,
        buffers: Rc<SocketBuffers>,
        role: DriverRole,
    ) -> Self {
        Self {
            endpoint,
            socket: Rc::new(socket),
            driver_handle,
            connections: Vec::new(),
            open: 0,
            timers: ConnectionTimers::default(),
            timer: None,
            buffers,
            blocked_transmit: None,
            reply: Vec::new(),
            connections_with_input: Vec::new(),
            role,
            refusals: 0,
        }
    }

    /// Drives the connections until none is left, and none can follow.
    pub(super) async fn run(mut self) {
        if let DriverRole::Server(_) = self.role {
            return poll_fn(|cx| self.poll(cx)).await;
        }
        let socket = Rc::clone(&self.socket);
        loop {
            tokio::select! {
                () = poll_fn(|cx| self.poll(cx)) => return,
                error = socket.next_error() => self.handle_refusal(&error),
            }
        }
    }

    /// Takes one turn, and reports its datagrams.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let end = self.take_turn(cx);
        if let DriverRole::Server(server) = &mut self.role {
            server.report_datagrams();
        }
        end
    }

    fn take_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.driver_handle.now();
        self.driver_handle.begin_poll(cx.waker());
        if self.driver_handle.is_closing() {
            self.close_all(cx, now);
            return Poll::Ready(());
        }
        self.handle_timeouts(now);
        self.transmit(cx, now);
        let more = self.receive_datagrams(cx, now);
        let steps = self.advance_handshakes(now);
        if self.is_over() {
            return Poll::Ready(());
        }
        let may_speak = self.blocked_transmit.is_none() && !self.driver_handle.has_none_ready();
        if more || steps || may_speak {
            self.driver_handle.wake();
        }
        self.arm_timer(cx);
        Poll::Pending
    }

    fn is_over(&self) -> bool {
        let is_idle = self.open == 0;
        match &self.role {
            DriverRole::Server(server) => {
                is_idle && server.is_idle() && !self.driver_handle.accepts_connections()
            }
            DriverRole::Client => is_idle,
        }
    }

    /// Adds a connection.
    pub(super) fn add(
        &mut self,
        handle: ConnectionHandle,
        connection: quinn_proto::Connection,
    ) -> Rc<QuicConnectionInner> {
        let inner = QuicConnectionInner::new(handle, connection, &self.driver_handle);
        if self.connections.len() <= handle.0 {
            self.connections.resize(handle.0 + 1, None);
        }
        self.connections[handle.0] = Some(Rc::clone(&inner));
        self.open += 1;
        inner.mark_ready();
        inner
    }

    fn connection(&self, handle: ConnectionHandle) -> Option<Rc<QuicConnectionInner>> {
        self.connections.get(handle.0)?.as_ref().map(Rc::clone)
    }

    /// Handles the timers that are due.
    fn handle_timeouts(&mut self, now: Instant) {
        while let Some(handle) = self.timers.pop_due(now) {
            let Some(inner) = self.connection(handle) else { continue };
            {
                let state = &mut *inner.state.borrow_mut();
                state.timer = None;
                if state.proto.poll_timeout().is_some_and(|at| at <= now) {
                    state.proto.handle_timeout(now);
                }
                if state.ping_at.take_if(|at| *at <= now).is_some() {
                    state.proto.ping();
                }
            }
            self.check_handshake_deadline(&inner, now);
            self.poll_events(&inner);
            inner.mark_ready();
        }
    }

    /// Closes the connection if its handshake takes too long.
    fn check_handshake_deadline(&self, inner: &Rc<QuicConnectionInner>, now: Instant) {
        let late = inner.state.borrow_mut().handshake_deadline.take_if(|at| *at <= now).is_some();
        if late {
            self.conclude_handshake(inner, Err(ClientTlsError::Timeout));
            close_connection(inner, CloseReason::TimedOut, now);
        }
    }

    /// Closes the connection if the client floods it with frames.
    fn check_flood(&self, inner: &QuicConnectionInner, now: Instant) {
        if inner.state.borrow_mut().is_flooded(now) {
            close_connection(inner, CloseReason::Flood, now);
        }
    }

    /// Handles an ECONNREFUSED from the kernel: no server listens at the endpoint's address.
    fn handle_refusal(&mut self, error: &io::Error) {
        let (DriverRole::Client, Some(libc::ECONNREFUSED)) = (&self.role, error.raw_os_error())
        else {
            return;
        };
        self.refusals += 1;
        let refused = self
            .connections
            .iter()
            .flatten()
            .filter(|inner| self.refusals >= MAX_REFUSALS || !inner.state.borrow().established);
        for inner in refused {
            close_connection(inner, CloseReason::Refused, self.driver_handle.now());
        }
    }

    /// Closes every connection and sends the close packets; nothing is sent after that.
    fn close_all(&mut self, cx: &mut Context<'_>, now: Instant) {
        for inner in self.connections.iter().flatten() {
            close_connection(inner, CloseReason::ByUs, now);
        }
        if let DriverRole::Server(server) = &mut self.role {
            server.drop_steps(&mut self.endpoint);
        }
        while self.blocked_transmit.is_none() && !self.driver_handle.has_none_ready() {
            self.transmit(cx, now);
        }
    }

    /// Arms the timer for the next connection that is due.
    fn arm_timer(&mut self, cx: &mut Context<'_>) {
        let Some(first) = self.timers.next_deadline() else { return };
        let timer = self.timer.get_or_insert_with(|| DriverTimer {
            sleep: Box::pin(tokio::time::sleep_until(first.into())),
            at: first,
        });
        if first < timer.at || timer.sleep.is_elapsed() {
            timer.sleep.as_mut().reset(first.into());
            timer.at = first;
        }
        if timer.sleep.as_mut().poll(cx).is_ready() {
            self.driver_handle.wake();
        }
    }
}

/// Closes a connection that has no further use.
fn close_connection(inner: &QuicConnectionInner, why: CloseReason, now: Instant) {
    let state = &mut *inner.state.borrow_mut();
    let code = if why == CloseReason::Flood { EXCESSIVE_LOAD } else { NO_ERROR };
    state.set_closed(why);
    state.proto.close(now, VarInt::from_u32(code), Bytes::new());
    inner.mark_ready();
}
