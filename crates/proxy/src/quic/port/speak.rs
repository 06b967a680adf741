//! What connections have to say, as far as the socket takes it.

use std::io;
use std::rc::Rc;
use std::task::Context;
use std::time::Instant;

use quinn_proto::{Dir, Transmit};

use super::{Port, Role};
use crate::quic::Dropped;
use crate::quic::connection::Inner;

/// Runs of datagrams that are sent in one turn, before what has come is heard again.
const RUNS: usize = 32;

/// What became of a connection's turn to speak.
enum Spoken {
    /// It may have more to say.
    Some,
    /// That was all.
    All,
    /// The socket takes no more.
    Stuck,
}

impl Port {
    /// Says what connections have to say, in turns, until the socket is full or others have to have their turn.
    pub(super) fn speak(&mut self, cx: &mut Context<'_>, now: Instant) {
        if !self.unstick(cx) {
            return;
        }
        for _ in 0..RUNS {
            let Some(handle) = self.agenda.next() else { break };
            let Some(inner) = self.connection(handle) else { continue };
            inner.noted.set(false);
            match self.speak_for(&inner, now) {
                Spoken::Some => inner.note(),
                Spoken::All => {}
                Spoken::Stuck => {
                    inner.note();
                    self.unstick(cx);
                    break;
                }
            }
        }
    }

    /// Sends a run of a connection's datagrams.
    fn speak_for(&mut self, inner: &Rc<Inner>, now: Instant) -> Spoken {
        self.attend(inner);
        let buffers = Rc::clone(&self.buffers);
        let outbox = &mut *buffers.outbox.borrow_mut();
        outbox.clear();
        let transmit = {
            let proto = &mut inner.state.borrow_mut().proto;
            let most = self.socket.longest_run(proto.current_mtu());
            proto.poll_transmit(now, most, outbox)
        };
        let Some(transmit) = transmit else {
            self.settle(inner, now);
            return Spoken::All;
        };
        if self.send(&transmit, outbox) {
            return Spoken::Some;
        }
        let kept = outbox[..transmit.size].into();
        self.stuck = Some((transmit, kept));
        Spoken::Stuck
    }

    /// The connection has no more to say for now.
    fn settle(&mut self, inner: &Rc<Inner>, now: Instant) {
        if inner.forgotten.get() {
            return;
        }
        let state = &mut *inner.state.borrow_mut();
        if state.proto.is_closed() {
            state.presence = None;
        }
        if let Role::Server(server) = &self.role {
            let is_busy =
                !state.proto.is_closed() && state.proto.streams().remote_open_streams(Dir::Bi) > 0;
            state.ping_at = is_busy.then(|| server.ping_at(now)).flatten();
        }
        let most = state.send_window();
        state.proto.set_send_window(most);
        let moments = [state.proto.poll_timeout(), state.handshake_until, state.ping_at];
        let next = moments.into_iter().flatten().min();
        self.alarms.set(inner.handle, &mut state.alarm, next);
    }

    /// False: the socket takes no more.
    fn send(&mut self, transmit: &Transmit, contents: &[u8]) -> bool {
        match self.socket.try_send(transmit, contents) {
            Ok(()) => self.count_sent(transmit),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            // Larger than the path carries, as was to be found out.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {}
            // Lost, as on any way: what matters is repeated.
            Err(error) => {
                self.drop_one(Dropped::Send);
                self.take_refusal(&error);
            }
        }
        true
    }

    /// Sends what the socket did not take before. False: it still does not.
    fn unstick(&mut self, cx: &mut Context<'_>) -> bool {
        while let Some((transmit, contents)) = self.stuck.take() {
            let writable = self.socket.poll_writable(cx).is_ready();
            if !writable || !self.send(&transmit, &contents) {
                self.stuck = Some((transmit, contents));
            }
            if !writable {
                return false;
            }
        }
        true
    }

    fn count_sent(&self, transmit: &Transmit) {
        if let Role::Server(server) = &self.role {
            let count = transmit.segment_size.map_or(1, |size| transmit.size.div_ceil(size));
            server.counters().sent.add(count as u64);
        }
    }

    /// Sends what is in the reply, if it can be sent at once: whoever gets none asks again.
    pub(in crate::quic) fn send_reply(&mut self, transmit: &Transmit) {
        match self.socket.try_send(transmit, &self.reply) {
            Ok(()) => self.count_sent(transmit),
            Err(_) => self.drop_one(Dropped::Send),
        }
    }

    pub(in crate::quic) fn drop_one(&self, why: Dropped) {
        if let Role::Server(server) = &self.role {
            server.counters().dropped[why as usize].add(1);
        }
    }
}
