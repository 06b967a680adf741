//! State of each session, as metrics show it.

use std::sync::{Arc, Mutex, MutexGuard};

use rustbgpd_fsm::SessionState;

/// State of the session with one router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// Name of the router.
    pub name: String,
    /// State of the session.
    pub state: SessionState,
    /// Number of routes that the router has been told.
    pub routes: usize,
    /// Why the last session or connection attempt ended; empty while a session is up.
    pub error: String,
    /// Counts since the start.
    pub counts: PeerCounts,
}

/// Counts of one router since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounts {
    /// Sessions that came up.
    pub established: u64,
    /// Sessions and connection attempts that ended with an error.
    pub failures: u64,
    /// UPDATE messages that were sent.
    pub updates_sent: u64,
    /// UPDATE messages that were received and discarded.
    pub updates_discarded: u64,
}

/// A report that the task of a session writes and metrics read.
#[derive(Clone, Debug)]
pub(crate) struct SharedReport(Arc<Mutex<PeerReport>>);

impl SharedReport {
    pub(crate) fn new(name: &str) -> Self {
        Self(Arc::new(Mutex::new(PeerReport {
            name: name.to_owned(),
            state: SessionState::Idle,
            routes: 0,
            error: String::new(),
            counts: PeerCounts::default(),
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, PeerReport> {
        self.0.lock().expect("no holder of the lock panics")
    }
}
