//! What connections have to say, as far as the socket takes it.

use std::io;
use std::rc::Rc;
use std::task::Context;
use std::time::Instant;

use quinn_proto::{Dir, Transmit};

use super::{DriverRole, EndpointDriver};
use crate::quic::DatagramDropReason;
use crate::quic::connection::QuicConnectionInner;

/// Runs of datagrams that are sent in one turn, before what has come is heard again.
const MAX_RUNS_PER_POLL: usize = 32;

/// What became of a connection's turn to speak.
enum TransmitOutcome {
    /// It may have more to say.
    More,
    /// That was all.
    Done,
    /// The socket takes no more.
    Blocked,
}

impl EndpointDriver {
    /// Says what connections have to say, in turns, until the socket is full or others have to have their turn.
    pub(super) fn transmit(&mut self, cx: &mut Context<'_>, now: Instant) {
        if !self.retry_blocked(cx) {
            return;
        }
        for _ in 0..MAX_RUNS_PER_POLL {
            let Some(handle) = self.driver_handle.next_ready() else { break };
            let Some(inner) = self.connection(handle) else { continue };
            inner.is_ready.set(false);
            match self.transmit_for(&inner, now) {
                TransmitOutcome::More => inner.mark_ready(),
                TransmitOutcome::Done => {}
                TransmitOutcome::Blocked => {
                    inner.mark_ready();
                    self.retry_blocked(cx);
                    break;
                }
            }
        }
    }

    /// Sends a run of a connection's datagrams.
    fn transmit_for(&mut self, inner: &Rc<QuicConnectionInner>, now: Instant) -> TransmitOutcome {
        self.poll_events(inner);
        let buffers = Rc::clone(&self.buffers);
        let outbox = &mut *buffers.transmit.borrow_mut();
        outbox.clear();
        let transmit = {
            let proto = &mut inner.state.borrow_mut().proto;
            let most = self.socket.max_segments(proto.current_mtu());
            proto.poll_transmit(now, most, outbox)
        };
        let Some(transmit) = transmit else {
            self.finish_transmit(inner, now);
            return TransmitOutcome::Done;
        };
        if self.send(&transmit, outbox) {
            return TransmitOutcome::More;
        }
        let kept = outbox[..transmit.size].into();
        self.blocked_transmit = Some((transmit, kept));
        TransmitOutcome::Blocked
    }

    /// The connection has no more to say for now.
    fn finish_transmit(&mut self, inner: &Rc<QuicConnectionInner>, now: Instant) {
        if inner.is_removed.get() {
            return;
        }
        let state = &mut *inner.state.borrow_mut();
        if state.proto.is_closed() {
            state.connection_guard = None;
        }
        if let DriverRole::Server(server) = &self.role {
            let is_busy =
                !state.proto.is_closed() && state.proto.streams().remote_open_streams(Dir::Bi) > 0;
            state.ping_at = is_busy.then(|| server.ping_at(now)).flatten();
        }
        let most = state.send_window();
        state.proto.set_send_window(most);
        let moments = [state.proto.poll_timeout(), state.handshake_deadline, state.ping_at];
        let next = moments.into_iter().flatten().min();
        self.timers.set(inner.handle, &mut state.timer, next);
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
                self.count_drop(DatagramDropReason::Send);
                self.handle_refusal(&error);
            }
        }
        true
    }

    /// Sends what the socket did not take before. False: it still does not.
    fn retry_blocked(&mut self, cx: &mut Context<'_>) -> bool {
        while let Some((transmit, contents)) = self.blocked_transmit.take() {
            let writable = self.socket.poll_writable(cx).is_ready();
            if !writable || !self.send(&transmit, &contents) {
                self.blocked_transmit = Some((transmit, contents));
            }
            if !writable {
                return false;
            }
        }
        true
    }

    fn count_sent(&self, transmit: &Transmit) {
        if let DriverRole::Server(server) = &self.role {
            let count = transmit.segment_size.map_or(1, |size| transmit.size.div_ceil(size));
            server.counters().sent.add(count as u64);
        }
    }

    /// Sends what is in the reply, if it can be sent at once: whoever gets none asks again.
    pub(in crate::quic) fn send_reply(&mut self, transmit: &Transmit) {
        match self.socket.try_send(transmit, &self.reply) {
            Ok(()) => self.count_sent(transmit),
            Err(_) => self.count_drop(DatagramDropReason::Send),
        }
    }

    pub(in crate::quic) fn count_drop(&self, why: DatagramDropReason) {
        if let DriverRole::Server(server) = &self.role {
            server.counters().dropped[why as usize].add(1);
        }
    }
}
