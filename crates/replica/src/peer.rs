//! One peer as the sender sees it: messages that wait for the connection, and the state of that.

use std::mem;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::message::ReplicaMessage;

/// State of the connection to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerState {
    /// Address in the list of members.
    pub member: SocketAddr,
    /// Time since the peer is connected; renewals do not interrupt it. `None` if it is not.
    pub connected_for: Option<Duration>,
    /// The last reason why the connection failed or was lost.
    pub last_error: Option<String>,
}

/// Messages to one peer, and the state of the connection to it.
#[derive(Debug, Default)]
pub(crate) struct PeerChannel {
    inner: Mutex<PeerChannelState>,
    ready: Notify,
}

#[derive(Debug, Default)]
struct PeerChannelState {
    /// At most one message of each kind.
    unsent: Vec<ReplicaMessage>,
    connected_since: Option<Instant>,
    last_error: Option<String>,
}

impl PeerChannel {
    /// Keeps a message until it is sent. Returns true if it replaces an earlier one of its kind.
    pub(crate) fn put(&self, message: ReplicaMessage) -> bool {
        let mut inner = self.lock();
        let kind = mem::discriminant(&message);
        let earlier = inner.unsent.iter_mut().find(|it| mem::discriminant(*it) == kind);
        let replaces = match earlier {
            Some(earlier) => {
                *earlier = message;
                true
            }
            None => {
                inner.unsent.push(message);
                false
            }
        };
        drop(inner);
        self.ready.notify_one();
        replaces
    }

    /// Waits for a message.
    pub(crate) async fn has_message(&self) {
        while self.lock().unsent.is_empty() {
            self.ready.notified().await;
        }
    }

    /// Takes the messages that wait.
    pub(crate) fn take(&self) -> Vec<ReplicaMessage> {
        mem::take(&mut self.lock().unsent)
    }

    pub(crate) fn record_connected(&self) {
        self.lock().connected_since = Some(Instant::now());
    }

    pub(crate) fn record_lost(&self, error: String) {
        let mut inner = self.lock();
        inner.connected_since = None;
        inner.last_error = Some(error);
    }

    /// Records that an attempt to connect has failed, be it the first connection or a renewal.
    pub(crate) fn record_failed_attempt(&self, error: String) {
        self.lock().last_error = Some(error);
    }

    /// Returns the state of the connection.
    pub(crate) fn state(&self, member: SocketAddr) -> PeerState {
        let inner = self.lock();
        PeerState {
            member,
            connected_for: inner.connected_since.map(|since| since.elapsed()),
            last_error: inner.last_error.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PeerChannelState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
