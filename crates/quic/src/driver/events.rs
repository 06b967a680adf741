//! Events of connections: passed on to the endpoint, which knows their ids, and to the tasks that wait.

use std::cmp::Reverse;
use std::rc::Rc;
use std::task::Waker;

use quinn_proto::{Dir, Event, StreamEvent, StreamId};
use tls::ClientTlsError;

use super::{DriverRole, EndpointDriver};
use crate::close_reason::client_tls_error;
use crate::connection::{QuicConnectionInner, QuicConnectionState, wake};
use crate::{CloseReason, QuicConnection};

impl EndpointDriver {
    /// Passes the events of a connection on, to the endpoint and to its tasks.
    pub(crate) fn poll_events(&mut self, inner: &Rc<QuicConnectionInner>) {
        inner.has_input.set(false);
        let mut writable = Vec::new();
        loop {
            self.poll_endpoint_events(inner);
            let event = inner.state.borrow_mut().proto.poll();
            match event {
                Some(Event::Stream(StreamEvent::Writable { id })) => writable.push(id),
                Some(event) => self.handle_event(inner, event),
                None => break,
            }
        }
        wake_writers(&mut inner.state.borrow_mut(), writable);
    }

    fn poll_endpoint_events(&mut self, inner: &Rc<QuicConnectionInner>) {
        let mut is_drained = false;
        {
            let proto = &mut inner.state.borrow_mut().proto;
            while let Some(event) = proto.poll_endpoint_events() {
                is_drained |= event.is_drained();
                if let Some(answer) = self.endpoint.handle_event(inner.handle, event) {
                    proto.handle_event(answer);
                }
            }
        }
        if is_drained {
            self.conclude_handshake(inner, Err(ClientTlsError::Disconnected));
            self.remove_connection(inner);
        }
    }

    /// Removes the connection; its handle may belong to another connection next.
    fn remove_connection(&mut self, inner: &Rc<QuicConnectionInner>) {
        let state = &mut *inner.state.borrow_mut();
        state.admitted = None;
        self.timers.clear(inner.handle, &mut state.timer);
        inner.is_removed.set(true);
        self.connections[inner.handle.0] = None;
        self.open -= 1;
    }

    fn handle_event(&mut self, inner: &Rc<QuicConnectionInner>, event: Event) {
        match event {
            Event::HandshakeDataReady => {
                // 0-RTT data is served before the handshake completes, where it is accepted at all.
                if inner.state.borrow().proto.has_0rtt() {
                    self.serve_connection(inner);
                }
            }
            Event::Connected => {
                establish(&mut inner.state.borrow_mut());
                self.conclude_handshake(inner, Ok(()));
                self.serve_connection(inner);
            }
            Event::ConnectionLost { reason } => {
                self.conclude_handshake(inner, Err(client_tls_error(&reason)));
                inner.state.borrow_mut().set_closed(CloseReason::from(&reason));
            }
            Event::Stream(event) => handle_stream_event(&mut inner.state.borrow_mut(), event),
            // We announce no support for datagrams (RFC 9221).
            Event::DatagramReceived | Event::DatagramsUnblocked => {}
        }
    }

    /// Records the end of a client's handshake, unless it is recorded already.
    pub(super) fn conclude_handshake(
        &self,
        inner: &Rc<QuicConnectionInner>,
        result: Result<(), ClientTlsError>,
    ) {
        if let DriverRole::Server(server) = &self.role {
            server.conclude_handshake(&mut inner.state.borrow_mut(), result);
        }
    }

    /// Starts to serve the client.
    fn serve_connection(&self, inner: &Rc<QuicConnectionInner>) {
        if let DriverRole::Server(server) = &self.role {
            server.serve_connection(&QuicConnection(Rc::clone(inner)));
        }
    }
}

fn establish(state: &mut QuicConnectionState) {
    state.established = true;
    state.may_open_bi = true;
    state.handshake_deadline = None;
    wake(&mut state.wakers.established);
    wake(&mut state.wakers.can_open_bi);
}

/// Wakes the tasks that can write again, the most urgent first: all streams together have as much room as the path
/// carries, and the first writer takes it.
fn wake_writers(state: &mut QuicConnectionState, mut writable: Vec<StreamId>) {
    let QuicConnectionState { proto, wakers, .. } = state;
    writable.sort_by_key(|&id| Reverse(proto.send_stream(id).priority().unwrap_or_default()));
    let writers = writable.iter().filter_map(|id| wakers.writers.remove(id));
    writers.for_each(Waker::wake);
}

fn handle_stream_event(state: &mut QuicConnectionState, event: StreamEvent) {
    let QuicConnectionState { wakers, may_open_bi, .. } = state;
    let waker = match event {
        StreamEvent::Opened { dir } => wakers.opened[dir as usize].take(),
        StreamEvent::Readable { id } => wakers.readers.remove(&id),
        StreamEvent::Writable { id } | StreamEvent::Stopped { id, .. } => {
            wakers.writers.remove(&id)
        }
        StreamEvent::Available { dir: Dir::Bi } => {
            *may_open_bi = true;
            wakers.can_open_bi.take()
        }
        // We write to such streams only when they begin.
        StreamEvent::Available { dir: Dir::Uni } => None,
        // No task waits for acknowledgements.
        StreamEvent::Finished { .. } => None,
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}
