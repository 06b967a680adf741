//! What has come: found out for which connection, and given to it.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use quinn_proto::{ConnectionEvent, ConnectionHandle, DatagramEvent};

use super::{Port, Role};
use crate::quic::connection::Inner;
use crate::quic::server::Step;
use crate::quic::socket::BATCH;
use crate::quic::{Datagram, Dropped};

impl Port {
    /// Hears what has come. True: there may be more.
    pub(super) fn hear(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        for letter in self.agenda.take_letters() {
            self.take_in(letter, now);
        }
        let more = self.receive(cx, now);
        let mut heard = std::mem::take(&mut self.heard);
        for inner in heard.drain(..) {
            self.attend(&inner);
            inner.note();
        }
        self.heard = heard;
        more
    }

    /// Reads a batch. True: there may be more.
    fn receive(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        // After a short batch, once more: to be woken for the next.
        for _ in 0..2 {
            let buffers = Rc::clone(&self.buffers);
            let inbox = &mut *buffers.inbox.borrow_mut();
            match self.socket.poll_receive(cx, inbox) {
                Poll::Ready(Ok(count)) => {
                    inbox.datagrams(count).for_each(|datagram| self.sort(datagram, now));
                    if count == BATCH {
                        return true;
                    }
                }
                Poll::Ready(Err(error)) => self.take_refusal(&error),
                Poll::Pending => return false,
            }
        }
        true
    }

    /// A datagram from the socket, which may be another worker's.
    fn sort(&mut self, datagram: Datagram, now: Instant) {
        self.refusals = 0;
        let ours = match &self.role {
            Role::Server(server) => server.keep(datagram),
            Role::Client => Some(datagram),
        };
        if let Some(datagram) = ours {
            self.take_in(datagram, now);
        }
    }

    /// A datagram that is this worker's.
    fn take_in(&mut self, datagram: Datagram, now: Instant) {
        let Datagram { bytes, peer, ours, ecn } = datagram;
        let buffered = self.endpoint.incoming_buffer_bytes();
        self.reply.clear();
        match self.endpoint.handle(now, peer, ours, ecn, bytes, &mut self.reply) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => self.tell(handle, event),
            Some(DatagramEvent::NewConnection(incoming)) => self.arrive(incoming),
            Some(DatagramEvent::Response(transmit)) => self.send_reply(&transmit),
            // One that waits for its connection to be begun is not lost.
            None if self.endpoint.incoming_buffer_bytes() > buffered => {}
            None => self.drop_one(Dropped::Unknown),
        }
    }

    /// A datagram for a connection: at once, or as a step of its handshake.
    fn tell(&mut self, handle: ConnectionHandle, event: ConnectionEvent) {
        let Some(inner) = self.connection(handle) else { return };
        if let Role::Server(server) = &mut self.role
            && inner.state.borrow().proto.is_handshaking()
        {
            if !server.wait(Step::Goes(handle, event)) {
                self.drop_one(Dropped::Handshakes);
            }
            return;
        }
        self.deliver(&inner, event);
    }

    fn deliver(&mut self, inner: &Rc<Inner>, event: ConnectionEvent) {
        inner.state.borrow_mut().proto.handle_event(event);
        if !inner.heard.replace(true) {
            self.heard.push(Rc::clone(inner));
        }
    }

    /// Takes one step of one handshake. True: there are more.
    pub(super) fn step(&mut self, now: Instant) -> bool {
        let Role::Server(server) = &mut self.role else { return false };
        match server.next_step() {
            Some(Step::Begins(incoming)) => self.accept(incoming, now),
            Some(Step::Goes(handle, event)) => {
                if let Some(inner) = self.connection(handle) {
                    inner.state.borrow_mut().proto.handle_event(event);
                    self.attend(&inner);
                    inner.note();
                }
            }
            None => {}
        }
        matches!(&self.role, Role::Server(server) if !server.is_idle())
    }
}
