//! The task that drives a socket and its connections.
//!
//! It works in turns. A turn first says what there is to say, then hears what has come, then takes one step of a
//! handshake; what was heard wakes the tasks that it is for, and they have their turn before the port's next. So what
//! they answer leaves together with the acknowledgements, and what goes to one client leaves by one system call.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use quinn_proto::{ConnectionHandle, Endpoint, Transmit, VarInt};
use tokio::time::Sleep;

use crate::clock;
use crate::quic::Closed;
use crate::quic::agenda::{Agenda, Alarms};
use crate::quic::connection::Inner;
use crate::quic::server::Server;
use crate::quic::socket::{Buffers, Socket};
use crate::tls::Unsecured;

/// What connections have to say.
mod speak;
/// What has come for them.
mod hear;
/// What they have to tell.
mod attend;

/// How often in a row an endpoint's host has to say that nobody is there for a connection that has been established.
///
/// Once is enough before: then nobody but the host can have lied, and another way may be tried.
const REFUSALS: u32 = 3;
/// What a connection is closed with when its worker ends: H3_NO_ERROR (RFC 9114 §8.1).
const NO_ERROR: u32 = 0x100;

/// A socket and its connections.
pub(super) struct Port {
    pub(super) endpoint: Endpoint,
    pub(super) socket: Rc<Socket>,
    pub(super) agenda: Rc<Agenda>,
    /// By handle.
    connections: Vec<Option<Rc<Inner>>>,
    /// How many there are.
    open: usize,
    alarms: Alarms,
    timer: Option<Timer>,
    buffers: Rc<Buffers>,
    /// What the socket did not take.
    stuck: Option<(Transmit, Box<[u8]>)>,
    /// What is said without a connection.
    pub(super) reply: Vec<u8>,
    /// Connections for which something has come in this turn.
    heard: Vec<Rc<Inner>>,
    pub(super) role: Role,
    refusals: u32,
}

/// Whose connections these are.
pub(super) enum Role {
    /// Clients'.
    Server(Box<Server>),
    /// Ours, to an endpoint.
    Client,
}

/// Wakes the port's task.
struct Timer {
    sleep: Pin<Box<Sleep>>,
    at: Instant,
}

impl Port {
    pub(super) fn new(
        endpoint: Endpoint,
        socket: Socket,
        agenda: Rc<Agenda>,
        buffers: Rc<Buffers>,
        role: Role,
    ) -> Self {
        Self {
            endpoint,
            socket: Rc::new(socket),
            agenda,
            connections: Vec::new(),
            open: 0,
            alarms: Alarms::default(),
            timer: None,
            buffers,
            stuck: None,
            reply: Vec::new(),
            heard: Vec::new(),
            role,
            refusals: 0,
        }
    }

    /// Drives the connections until there are none, and there will be none.
    pub(super) async fn run(mut self) {
        if let Role::Server(_) = self.role {
            return poll_fn(|cx| self.poll(cx)).await;
        }
        let socket = Rc::clone(&self.socket);
        loop {
            tokio::select! {
                () = poll_fn(|cx| self.poll(cx)) => return,
                error = socket.failure() => self.take_refusal(&error),
            }
        }
    }

    /// One turn.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = clock::quic_now();
        self.agenda.begin_turn(cx.waker());
        if self.agenda.is_ending() {
            self.close_all(cx, now);
            return Poll::Ready(());
        }
        self.expire(now);
        self.speak(cx, now);
        let more = self.hear(cx, now);
        let steps = self.step(now);
        if self.is_over() {
            return Poll::Ready(());
        }
        let may_speak = self.stuck.is_none() && !self.agenda.is_empty();
        if more || steps || may_speak {
            self.agenda.wake();
        }
        self.watch_clock(cx);
        Poll::Pending
    }

    fn is_over(&self) -> bool {
        let is_idle = self.open == 0;
        match &self.role {
            Role::Server(server) => is_idle && server.is_idle() && !self.agenda.takes_in(),
            Role::Client => is_idle,
        }
    }

    /// A new connection.
    pub(super) fn add(
        &mut self,
        handle: ConnectionHandle,
        connection: quinn_proto::Connection,
    ) -> Rc<Inner> {
        let inner = Inner::new(handle, connection, &self.agenda);
        if self.connections.len() <= handle.0 {
            self.connections.resize(handle.0 + 1, None);
        }
        self.connections[handle.0] = Some(Rc::clone(&inner));
        self.open += 1;
        inner.note();
        inner
    }

    fn connection(&self, handle: ConnectionHandle) -> Option<Rc<Inner>> {
        self.connections.get(handle.0)?.as_ref().map(Rc::clone)
    }

    /// What was to happen by now, happens.
    fn expire(&mut self, now: Instant) {
        while let Some(handle) = self.alarms.due(now) {
            let Some(inner) = self.connection(handle) else { continue };
            {
                let state = &mut *inner.state.borrow_mut();
                state.alarm = None;
                if state.proto.poll_timeout().is_some_and(|at| at <= now) {
                    state.proto.handle_timeout(now);
                }
                if state.ping_at.take_if(|at| *at <= now).is_some() {
                    state.proto.ping();
                }
            }
            self.check_handshake(&inner, now);
            self.attend(&inner);
            inner.note();
        }
    }

    /// A handshake that takes too long is given up.
    fn check_handshake(&self, inner: &Rc<Inner>, now: Instant) {
        let late = inner.state.borrow_mut().handshake_until.take_if(|at| *at <= now).is_some();
        if late {
            self.conclude(inner, Err(Unsecured::Late));
            give_up(inner, Closed::TimedOut, now);
        }
    }

    /// The kernel has told that nobody is there.
    fn take_refusal(&mut self, error: &io::Error) {
        let (Role::Client, Some(libc::ECONNREFUSED)) = (&self.role, error.raw_os_error()) else {
            return;
        };
        self.refusals += 1;
        let refused = self
            .connections
            .iter()
            .flatten()
            .filter(|inner| self.refusals >= REFUSALS || !inner.state.borrow().established);
        for inner in refused {
            give_up(inner, Closed::Refused, clock::quic_now());
        }
    }

    /// Says goodbye on every connection, and nothing more after that.
    fn close_all(&mut self, cx: &mut Context<'_>, now: Instant) {
        for inner in self.connections.iter().flatten() {
            give_up(inner, Closed::ByUs, now);
        }
        if let Role::Server(server) = &mut self.role {
            server.forget_steps(&mut self.endpoint);
        }
        while self.stuck.is_none() && !self.agenda.is_empty() {
            self.speak(cx, now);
        }
    }

    /// Is woken when the next connection is to be looked at.
    fn watch_clock(&mut self, cx: &mut Context<'_>) {
        let Some(first) = self.alarms.first() else { return };
        let timer = self.timer.get_or_insert_with(|| Timer {
            sleep: Box::pin(tokio::time::sleep_until(first.into())),
            at: first,
        });
        if first < timer.at || timer.sleep.is_elapsed() {
            timer.sleep.as_mut().reset(first.into());
            timer.at = first;
        }
        if timer.sleep.as_mut().poll(cx).is_ready() {
            self.agenda.wake();
        }
    }
}

/// Closes a connection for which there is no use any more.
fn give_up(inner: &Inner, why: Closed, now: Instant) {
    let state = &mut *inner.state.borrow_mut();
    state.end(why);
    state.proto.close(now, VarInt::from_u32(NO_ERROR), Bytes::new());
    inner.note();
}
