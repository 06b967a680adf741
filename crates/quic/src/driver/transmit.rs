//! Sends the packets of connections, as far as the socket accepts them.

use std::io;
use std::rc::Rc;
use std::task::Context;
use std::time::Instant;

use quinn_proto::{Dir, Transmit};

use super::{DriverRole, EndpointDriver};
use crate::DatagramDropReason;
use crate::connection::QuicConnectionInner;

/// Runs of datagrams sent in one turn, before datagrams are received again.
const MAX_RUNS_PER_POLL: usize = 32;

/// The result of sending for one connection.
enum TransmitOutcome {
    /// The connection may have more to send.
    More,
    /// The connection has nothing more to send.
    Done,
    /// The socket is full.
    Blocked,
}

impl EndpointDriver {
    /// Sends the packets of ready connections, round-robin, until the socket is full or the turn's limit is reached.
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
            let state = &mut *inner.state.borrow_mut();
            match state.max_datagrams(self.socket.max_segments(state.proto.current_mtu())) {
                0 => None,
                most => state.proto.poll_transmit(now, most, outbox),
            }
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

    /// Updates the timers and the send window of a connection that has nothing more to send for now.
    fn finish_transmit(&mut self, inner: &Rc<QuicConnectionInner>, now: Instant) {
        if inner.is_removed.get() {
            return;
        }
        let state = &mut *inner.state.borrow_mut();
        if state.proto.is_closed() {
            state.admitted = None;
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

    /// Sends a run of datagrams. Returns false if the socket is full.
    fn send(&mut self, transmit: &Transmit, contents: &[u8]) -> bool {
        match self.socket.try_send(transmit, contents) {
            Ok(()) => self.count_sent(transmit),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            // An MTU probe that is larger than the path carries: this is what the probe was to find out.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {}
            // Lost, as on any path: the protocol retransmits what matters.
            Err(error) => {
                self.count_drop(DatagramDropReason::Send);
                self.handle_refusal(&error);
            }
        }
        true
    }

    /// Sends the packet that the socket did not accept before. Returns false if the socket is still full.
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

    fn count_sent(&mut self, transmit: &Transmit) {
        if let DriverRole::Server(server) = &mut self.role {
            let count = transmit.segment_size.map_or(1, |size| transmit.size.div_ceil(size));
            server.count_sent(count);
        }
    }

    /// Sends the packet in `reply`, if the socket accepts it at once: a client that gets no reply retransmits.
    pub(crate) fn send_reply(&mut self, transmit: &Transmit) {
        match self.socket.try_send(transmit, &self.reply) {
            Ok(()) => self.count_sent(transmit),
            Err(_) => self.count_drop(DatagramDropReason::Send),
        }
    }

    pub(crate) fn count_drop(&mut self, why: DatagramDropReason) {
        if let DriverRole::Server(server) = &mut self.role {
            server.count_drop(why);
        }
    }
}
