//! What a port's task is to look at: the face that it shows to everybody else on its thread.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use quinn_proto::ConnectionHandle;

use crate::live::Bound;
use crate::quic::Datagram;

/// What a port's task is to look at.
pub(super) struct Agenda {
    waker: RefCell<Waker>,
    /// The task is about to run.
    awake: Cell<bool>,
    /// Connections that may have something to say, each once.
    noted: RefCell<VecDeque<ConnectionHandle>>,
    /// Datagrams that came to other workers.
    letters: RefCell<Vec<Datagram>>,
    /// The listener for which clients' connections are taken in.
    bound: RefCell<Option<Arc<Bound>>>,
    /// All is to be closed at once.
    ending: Cell<bool>,
}

impl Agenda {
    /// Of a port that takes in clients' connections for `bound`, or nobody's.
    pub(super) fn new(bound: Option<Arc<Bound>>) -> Self {
        Self {
            waker: RefCell::new(Waker::noop().clone()),
            awake: Cell::new(false),
            noted: RefCell::default(),
            letters: RefCell::default(),
            bound: RefCell::new(bound),
            ending: Cell::new(false),
        }
    }

    /// The port's task runs, and is to be woken by this from now on.
    pub(super) fn begin_turn(&self, waker: &Waker) {
        self.waker.borrow_mut().clone_from(waker);
        self.awake.set(false);
    }

    /// The port's task is to run once more, after those that are ready already.
    pub(super) fn wake(&self) {
        if !self.awake.replace(true) {
            self.waker.borrow().wake_by_ref();
        }
    }

    /// That connection may have something to say.
    pub(super) fn note(&self, connection: ConnectionHandle) {
        self.noted.borrow_mut().push_back(connection);
        self.wake();
    }

    /// The next connection that may have something to say.
    pub(super) fn next(&self) -> Option<ConnectionHandle> {
        self.noted.borrow_mut().pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.noted.borrow().is_empty()
    }

    /// A datagram has come to another worker.
    pub(super) fn post(&self, letter: Datagram) {
        self.letters.borrow_mut().push(letter);
        self.wake();
    }

    pub(super) fn take_letters(&self) -> Vec<Datagram> {
        std::mem::take(&mut *self.letters.borrow_mut())
    }

    /// New connections of clients are taken in.
    pub(super) fn takes_in(&self) -> bool {
        self.bound.borrow().is_some()
    }

    pub(super) fn bound(&self) -> Option<Arc<Bound>> {
        self.bound.borrow().clone()
    }

    /// From now on new connections are of this listener; `None`: none are taken in any more.
    pub(super) fn take_in_for(&self, bound: Option<Arc<Bound>>) {
        *self.bound.borrow_mut() = bound;
        self.wake();
    }

    /// All connections are to be closed, and the port's task is to end.
    pub(super) fn end(&self) {
        self.ending.set(true);
        self.wake();
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.get()
    }
}

/// When connections are to be looked at next: for each at most one moment, which may be too early.
///
/// A connection's timers move with each datagram, nearly always away: they are looked at when an earlier moment has come.
#[derive(Default)]
pub(super) struct Alarms(BTreeSet<(Instant, usize)>);

impl Alarms {
    /// From `alarm`, for when the connection is here already, to the earlier of that and `at`.
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

    /// A connection whose moment has come.
    pub(super) fn due(&mut self, now: Instant) -> Option<ConnectionHandle> {
        let &(at, connection) = self.0.first()?;
        (at <= now).then(|| {
            self.0.pop_first();
            ConnectionHandle(connection)
        })
    }

    pub(super) fn first(&self) -> Option<Instant> {
        self.0.first().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::clock;

    #[test]
    fn connection_timer_fires_at_its_earliest_deadline() {
        let now = clock::quic_now();
        let later = |milliseconds| now + Duration::from_millis(milliseconds);
        let (mut alarms, mut alarm) = (Alarms::default(), None);
        let connection = ConnectionHandle(3);
        alarms.set(connection, &mut alarm, Some(later(50)));
        alarms.set(connection, &mut alarm, Some(later(20)));
        // What is later than that can wait until it is looked at.
        alarms.set(connection, &mut alarm, Some(later(90)));
        assert_eq!((alarms.first(), alarm), (Some(later(20)), Some(later(20))));
        assert_eq!(alarms.due(later(19)), None);
        assert_eq!(alarms.due(later(20)), Some(connection));
        assert_eq!(alarms.due(later(100)), None);
    }
}
