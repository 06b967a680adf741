//! Handle to the driver task of a socket, which the other tasks of its thread use.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;

use quinn_proto::ConnectionHandle;

use crate::{ConnectionOwner, ReceivedDatagram};

/// Handle to the driver task of a socket.
pub(super) struct DriverHandle {
    waker: RefCell<Waker>,
    /// True if the task has been woken and has not run since.
    is_woken: Cell<bool>,
    /// Connections that may have something to send, each once.
    ready_connections: RefCell<VecDeque<ConnectionHandle>>,
    /// Datagrams that arrived at other workers.
    pending_datagrams: RefCell<Vec<ReceivedDatagram>>,
    /// The host for which client connections are accepted.
    host: RefCell<Option<Rc<dyn ConnectionOwner>>>,
    /// True if all connections are to be closed at once.
    is_closing: Cell<bool>,
    /// Returns the current time.
    now: fn() -> Instant,
}

impl DriverHandle {
    /// Creates the handle of a driver that accepts client connections for `host`, or none.
    pub(super) fn new(host: Option<Rc<dyn ConnectionOwner>>, now: fn() -> Instant) -> Self {
        Self {
            waker: RefCell::new(Waker::noop().clone()),
            is_woken: Cell::new(false),
            ready_connections: RefCell::default(),
            pending_datagrams: RefCell::default(),
            host: RefCell::new(host),
            is_closing: Cell::new(false),
            now,
        }
    }

    /// Records that the driver's task runs, and the waker to use from now on.
    pub(super) fn begin_poll(&self, waker: &Waker) {
        self.waker.borrow_mut().clone_from(waker);
        self.is_woken.set(false);
    }

    /// Makes the driver's task run once more, after those that are ready already.
    pub(super) fn wake(&self) {
        if !self.is_woken.replace(true) {
            self.waker.borrow().wake_by_ref();
        }
    }

    /// Queues a connection that may have something to send.
    pub(super) fn mark_ready(&self, connection: ConnectionHandle) {
        self.ready_connections.borrow_mut().push_back(connection);
        self.wake();
    }

    /// Returns the next connection that may have something to send.
    pub(super) fn next_ready(&self) -> Option<ConnectionHandle> {
        self.ready_connections.borrow_mut().pop_front()
    }

    pub(super) fn has_none_ready(&self) -> bool {
        self.ready_connections.borrow().is_empty()
    }

    /// Delivers a datagram that arrived at another worker.
    pub(super) fn push_datagram(&self, datagram: ReceivedDatagram) {
        self.pending_datagrams.borrow_mut().push(datagram);
        self.wake();
    }

    pub(super) fn take_pending_datagrams(&self) -> Vec<ReceivedDatagram> {
        std::mem::take(&mut *self.pending_datagrams.borrow_mut())
    }

    /// True if new client connections are accepted.
    pub(super) fn accepts_connections(&self) -> bool {
        self.host.borrow().is_some()
    }

    pub(super) fn host(&self) -> Option<Rc<dyn ConnectionOwner>> {
        self.host.borrow().clone()
    }

    /// Sets the host that new connections belong to; `None`: no more are accepted.
    pub(super) fn set_host(&self, host: Option<Rc<dyn ConnectionOwner>>) {
        *self.host.borrow_mut() = host;
        self.wake();
    }

    /// Makes the driver close all connections and end.
    pub(super) fn close_all(&self) {
        self.is_closing.set(true);
        self.set_host(None);
    }

    /// Returns the current time.
    pub(super) fn now(&self) -> Instant {
        (self.now)()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.get()
    }
}

/// The next deadline of each connection: at most one entry per connection, which may be too early.
///
/// The timers of a connection move with each datagram, nearly always further away: they are read again when the
/// earlier deadline is due.
#[derive(Default)]
pub(super) struct ConnectionTimers(BTreeSet<(Instant, usize)>);

impl ConnectionTimers {
    /// Moves the connection's entry from `alarm`, if it has one, to the earlier of that and `at`.
    pub(super) fn set(
        &mut self,
        connection: ConnectionHandle,
        alarm: &mut Option<Instant>,
        at: Option<Instant>,
    ) {
        let Some(at) = at else { return };
        if let Some(before) = *alarm {
            if before <= at {
                return;
            }
            self.0.remove(&(before, connection.0));
        }
        self.0.insert((at, connection.0));
        *alarm = Some(at);
    }

    pub(super) fn clear(&mut self, connection: ConnectionHandle, alarm: &mut Option<Instant>) {
        if let Some(at) = alarm.take() {
            self.0.remove(&(at, connection.0));
        }
    }

    /// Removes and returns a connection that is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<ConnectionHandle> {
        let &(at, connection) = self.0.first()?;
        (at <= now).then(|| {
            self.0.pop_first();
            ConnectionHandle(connection)
        })
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.first().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::tests::now;

    #[test]
    fn connection_timer_fires_at_its_earliest_deadline() {
        let now = now();
        let later = |milliseconds| now + Duration::from_millis(milliseconds);
        let (mut alarms, mut alarm) = (ConnectionTimers::default(), None);
        let connection = ConnectionHandle(3);
        alarms.set(connection, &mut alarm, Some(later(50)));
        alarms.set(connection, &mut alarm, Some(later(20)));
        // A later deadline can wait until the connection is looked at.
        alarms.set(connection, &mut alarm, Some(later(90)));
        assert_eq!((alarms.next_deadline(), alarm), (Some(later(20)), Some(later(20))));
        assert_eq!(alarms.pop_due(later(19)), None);
        assert_eq!(alarms.pop_due(later(20)), Some(connection));
        assert_eq!(alarms.pop_due(later(100)), None);
    }
}
