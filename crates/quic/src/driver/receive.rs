//! Received datagrams: finds their connection, and passes them to it.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use quinn_proto::{ConnectionEvent, ConnectionHandle, ConnectionId, DatagramEvent};

use super::{DriverRole, EndpointDriver};
use crate::connection::QuicConnectionInner;
use crate::connection_id::in_long_header;
use crate::server::HandshakeStep;
use crate::socket::BATCH;
use crate::{DatagramDropReason, ReceivedDatagram};

impl EndpointDriver {
    /// Receives datagrams. Returns true if there may be more.
    pub(super) fn receive_datagrams(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        for datagram in self.driver_handle.take_pending_datagrams() {
            self.handle_datagram(datagram, now);
        }
        let more = self.receive_batch(cx, now);
        let mut with_input = std::mem::take(&mut self.connections_with_input);
        for inner in with_input.drain(..) {
            self.poll_events(&inner);
            self.check_flood(&inner, now);
            inner.mark_ready();
        }
        self.connections_with_input = with_input;
        more
    }

    /// Reads a batch. Returns true if there may be more.
    fn receive_batch(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        // After a short batch, polls once more: this registers the waker for the next.
        for _ in 0..2 {
            let buffers = Rc::clone(&self.buffers);
            let inbox = &mut *buffers.receive.borrow_mut();
            match self.socket.poll_receive(cx, inbox) {
                Poll::Ready(Ok(count)) => {
                    inbox.datagrams(count).for_each(|datagram| self.claim_datagram(datagram, now));
                    if count == BATCH {
                        return true;
                    }
                }
                Poll::Ready(Err(error)) => self.handle_refusal(&error),
                Poll::Pending => return false,
            }
        }
        true
    }

    /// Handles a datagram from the socket, which may belong to another worker.
    fn claim_datagram(&mut self, datagram: ReceivedDatagram, now: Instant) {
        self.refusals = 0;
        let ours = match &mut self.role {
            DriverRole::Server(server) => server.keep_or_hand_over(datagram),
            DriverRole::Client => Some(datagram),
        };
        if let Some(datagram) = ours {
            self.handle_datagram(datagram, now);
        }
    }

    /// Handles a datagram that belongs to this worker.
    fn handle_datagram(&mut self, datagram: ReceivedDatagram, now: Instant) {
        let ReceivedDatagram { bytes, peer, local_ip: ours, ecn } = datagram;
        let buffered = self.endpoint.incoming_buffer_bytes();
        let length = bytes.len();
        let id = in_long_header(&bytes);
        self.reply.clear();
        match self.endpoint.handle(now, peer, ours, ecn, bytes, &mut self.reply) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                self.dispatch_event(handle, event, id)
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.handle_incoming(incoming, length),
            Some(DatagramEvent::Response(transmit)) => self.send_reply(&transmit),
            // The datagram is not lost if the library buffers it until its connection is accepted.
            None if self.endpoint.incoming_buffer_bytes() > buffered => {}
            None => self.count_drop(DatagramDropReason::Unknown),
        }
    }

    /// Passes a datagram to its connection: at once, or as a step of its handshake. `id` is the connection id in its
    /// long header.
    fn dispatch_event(
        &mut self,
        handle: ConnectionHandle,
        event: ConnectionEvent,
        id: Option<ConnectionId>,
    ) {
        let Some(inner) = self.connection(handle) else { return };
        if let DriverRole::Server(server) = &mut self.role
            && inner.state.borrow().proto.is_handshaking()
        {
            let limit = &mut inner.state.borrow_mut().amplification_limit;
            limit.take_if(|limit| limit.is_lifted_by(id));
            if !server.queue_step(HandshakeStep::Continue(handle, event)) {
                self.count_drop(DatagramDropReason::Handshakes);
            }
            return;
        }
        self.deliver(&inner, event);
    }

    fn deliver(&mut self, inner: &Rc<QuicConnectionInner>, event: ConnectionEvent) {
        inner.state.borrow_mut().proto.handle_event(event);
        if !inner.has_input.replace(true) {
            self.connections_with_input.push(Rc::clone(inner));
        }
    }

    /// Takes one step of one handshake. Returns true if there are more.
    pub(super) fn advance_handshakes(&mut self, now: Instant) -> bool {
        let DriverRole::Server(server) = &mut self.role else { return false };
        match server.next_step() {
            Some(HandshakeStep::Accept(incoming, length)) => self.accept(incoming, length, now),
            Some(HandshakeStep::Continue(handle, event)) => {
                if let Some(inner) = self.connection(handle) {
                    inner.state.borrow_mut().proto.handle_event(event);
                    self.poll_events(&inner);
                    self.check_flood(&inner, now);
                    inner.mark_ready();
                }
            }
            None => {}
        }
        matches!(&self.role, DriverRole::Server(server) if !server.is_idle())
    }
}
