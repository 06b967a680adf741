//! What a connection has to tell: passed on to the endpoint that knows its ids, and to the tasks that wait.

use std::cmp::Reverse;
use std::rc::Rc;
use std::task::Waker;

use quinn_proto::{Dir, Event, StreamEvent, StreamId};

use super::{Port, Role};
use crate::quic::closed::unsecured;
use crate::quic::connection::{Inner, State, wake};
use crate::quic::{Closed, Connection};
use crate::tls::Unsecured;

impl Port {
    /// Passes on what a connection has to tell, to the endpoint and to its tasks.
    pub(in crate::quic) fn attend(&mut self, inner: &Rc<Inner>) {
        inner.heard.set(false);
        let mut writable = Vec::new();
        loop {
            self.attend_to_endpoint(inner);
            let event = inner.state.borrow_mut().proto.poll();
            match event {
                Some(Event::Stream(StreamEvent::Writable { id })) => writable.push(id),
                Some(event) => self.attend_to(inner, event),
                None => break,
            }
        }
        wake_writers(&mut inner.state.borrow_mut(), writable);
    }

    fn attend_to_endpoint(&mut self, inner: &Rc<Inner>) {
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
            self.conclude(inner, Err(Unsecured::Gone));
            self.forget(inner);
        }
    }

    /// The connection is no more; its handle may be another's next.
    fn forget(&mut self, inner: &Rc<Inner>) {
        let state = &mut *inner.state.borrow_mut();
        state.presence = None;
        self.alarms.clear(inner.handle, &mut state.alarm);
        inner.forgotten.set(true);
        self.connections[inner.handle.0] = None;
        self.open -= 1;
    }

    fn attend_to(&mut self, inner: &Rc<Inner>, event: Event) {
        match event {
            Event::HandshakeDataReady => {
                // What comes before the handshake's end is served where it is let in at all.
                if inner.state.borrow().proto.has_0rtt() {
                    self.begin(inner);
                }
            }
            Event::Connected => {
                establish(&mut inner.state.borrow_mut());
                self.conclude(inner, Ok(()));
                self.begin(inner);
            }
            Event::ConnectionLost { reason } => {
                self.conclude(inner, Err(unsecured(&reason)));
                inner.state.borrow_mut().end(Closed::from(&reason));
            }
            Event::Stream(event) => attend_to_stream(&mut inner.state.borrow_mut(), event),
            // We let nobody send any.
            Event::DatagramReceived | Event::DatagramsUnblocked => {}
        }
    }

    /// A client's handshake has come to its end, unless it had before.
    pub(super) fn conclude(&self, inner: &Rc<Inner>, result: Result<(), Unsecured>) {
        if let Role::Server(server) = &self.role {
            server.conclude(&mut inner.state.borrow_mut(), result);
        }
    }

    /// Somebody serves the client from now on.
    fn begin(&self, inner: &Rc<Inner>) {
        if let Role::Server(server) = &self.role {
            server.begin(&Connection(Rc::clone(inner)));
        }
    }
}

fn establish(state: &mut State) {
    state.established = true;
    state.may_open = true;
    state.handshake_until = None;
    wake(&mut state.sleepers.established);
    wake(&mut state.sleepers.room);
}

/// Wakes who may write on, the most urgent first: there is as much room as the path carries, for all streams together,
/// and who comes first takes it.
fn wake_writers(state: &mut State, mut writable: Vec<StreamId>) {
    let State { proto, sleepers, .. } = state;
    writable.sort_by_key(|&id| Reverse(proto.send_stream(id).priority().unwrap_or_default()));
    let wakers = writable.iter().filter_map(|id| sleepers.writers.remove(id));
    wakers.for_each(Waker::wake);
}

fn attend_to_stream(state: &mut State, event: StreamEvent) {
    let State { sleepers, may_open, .. } = state;
    let waker = match event {
        StreamEvent::Opened { dir } => sleepers.opened[dir as usize].take(),
        StreamEvent::Readable { id } => sleepers.readers.remove(&id),
        StreamEvent::Writable { id } | StreamEvent::Stopped { id, .. } => {
            sleepers.writers.remove(&id)
        }
        StreamEvent::Available { dir: Dir::Bi } => {
            *may_open = true;
            sleepers.room.take()
        }
        // All that we say on such streams is said at the beginning.
        StreamEvent::Available { dir: Dir::Uni } => None,
        // Nobody waits for acknowledgements.
        StreamEvent::Finished { .. } => None,
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}
