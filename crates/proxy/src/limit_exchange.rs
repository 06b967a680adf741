//! Learned limits that replicas share: the link between the health thread, which learns, and the thread that has the
//! channel to the other replicas. The rules are in [`balance::limit`].

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use balance::Time;
use balance::leases::ReplicaIdentity;
use balance::limit::{LimitMessage, LimitRefusal, LimitSharing};

use crate::control::Proxy;
use crate::lease_signal::LeaseSignal;
use crate::mutex::lock;

/// The exchange of learned limits with other replicas.
pub struct LimitExchange {
    signal: Arc<LeaseSignal>,
}

/// State of the exchange, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitSharingStatus {
    /// Peers whose load and limits are in use.
    pub peers_heard: usize,
    /// Messages refused for each reason, in the order of [`LimitRefusal::ALL`].
    pub refused: [u64; LimitRefusal::ALL.len()],
}

impl LimitExchange {
    /// Interval of messages to peers.
    pub const INTERVAL: Duration = Duration::from_millis(100);

    /// Begins to share limits, without peers at first; `None` unless the data plane was started with
    /// [`ProxySettings::leases_slots`](crate::ProxySettings::leases_slots).
    #[must_use]
    pub fn new(proxy: &Proxy, me: ReplicaIdentity) -> Option<Self> {
        let signal = Arc::clone(proxy.shared().leases.as_ref()?);
        signal.limit_sharing.get_or_init(|| Mutex::new(LimitSharing::new(me)));
        Some(Self { signal })
    }

    /// Sets the replicas that serve now, this one included.
    pub fn update_members(&self, members: impl IntoIterator<Item = SocketAddr>) {
        self.with(|sharing| sharing.update_members(members));
    }

    /// True if there are other replicas.
    #[must_use]
    pub fn has_peers(&self) -> bool {
        self.with(|sharing| sharing.has_peers())
    }

    /// Takes a message of a peer.
    ///
    /// # Errors
    ///
    /// Returns the reason if the message is refused. Then it has no effect.
    pub fn receive(&self, message: &LimitMessage, now: Time) -> Result<(), LimitRefusal> {
        self.with(|sharing| sharing.receive(message, now))
    }

    /// Returns the next message, the same for each peer; `None`: no limit is learned.
    #[must_use]
    pub fn message(&self, now: Time) -> Option<LimitMessage> {
        self.with(|sharing| sharing.message(now))
    }

    /// Returns the state of the exchange.
    #[must_use]
    pub fn status(&self, now: Time) -> LimitSharingStatus {
        self.with(|sharing| LimitSharingStatus {
            peers_heard: sharing.peers_heard(now),
            refused: sharing.refused(),
        })
    }

    fn with<R>(&self, action: impl FnOnce(&mut LimitSharing) -> R) -> R {
        let sharing = self.signal.limit_sharing.get().expect("set by the constructor");
        action(&mut lock(sharing))
    }
}
