//! The one kind of message that replicas exchange, and the reasons to refuse one.

use std::net::SocketAddr;
use std::time::Duration;

use crate::queue::PriorityLevel;
use crate::time::Time;

/// Version of the messages. A message of another version is refused.
pub const LEASE_VERSION: u16 = 1;

/// One run of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaIdentity {
    /// Address in the list of members.
    pub member: SocketAddr,
    /// Number that increases with each start, such as the time of the start. Never 0.
    pub incarnation: u64,
}

/// Set of interchangeable endpoints: those for which one queue waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolKey(pub u64);

/// State that a replica tells a peer: changes since the newest message that the peer has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseMessage {
    /// [`LEASE_VERSION`].
    pub version: u16,
    /// Sender.
    pub from: ReplicaIdentity,
    /// Receiver; incarnation 0 if the sender does not know it yet.
    pub to: ReplicaIdentity,
    /// Time of sending by the sender's clock, and at the same time the sequence number: it strictly
    /// increases.
    pub sent: Time,
    /// The newest `sent` of the receiver that the sender has processed, which acknowledges all up
    /// to it and renews the leases of that moment. Zero if there is none.
    pub echo: Time,
    /// Period in which the counts of `lent` began. A new one begins when the sender takes back all
    /// slots of a silent receiver.
    pub lending_epoch: u64,
    /// Period of the receiver's lending to which `returned` refers.
    pub borrowing_epoch: u64,
    /// Slots that the sender lends to the receiver.
    pub lent: Vec<LentEntry>,
    /// Slots of the receiver that the sender has returned.
    pub returned: Vec<ReturnedEntry>,
    /// Demand for slots at the sender.
    pub pools: Vec<PoolEntry>,
}

/// Slots of one endpoint that the sender lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentEntry {
    /// Endpoint whose slots are lent.
    pub endpoint: SocketAddr,
    /// Number of slots granted so far in this epoch, returned ones included.
    pub granted: u64,
    /// Number of slots that the receiver may hold; it returns others as soon as they are free.
    pub keep: u32,
    /// True if all slots are returned and the sender forgets the counts.
    pub closed: bool,
}

/// Slots of one endpoint that the sender has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnedEntry {
    /// Endpoint whose slots were lent.
    pub endpoint: SocketAddr,
    /// Number of slots returned so far in this epoch.
    pub returned: u64,
}

/// Demand for the slots of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolEntry {
    /// Pool.
    pub pool: PoolKey,
    /// State of the pool at the sender.
    pub state: PoolState,
    /// Number of slots that the sender asks of the receiver, beside those in messages that the
    /// sender has not seen yet.
    pub wanted: u32,
}

/// State of a pool at one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolState {
    /// Slots that are not in use.
    pub free: u32,
    /// Requests that wait for a slot.
    pub queued: u32,
    /// Highest priority among them.
    pub priority: PriorityLevel,
    /// Number of them with that priority.
    pub first_queued: u32,
    /// Wait of the oldest of those so far.
    pub oldest_wait: Duration,
    /// Mean number of requests in flight and queued, in thousandths.
    pub demand_milli: u64,
}

/// Requests of one replica that wait for a slot of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    /// Their number.
    pub queued: u32,
    /// Highest priority among them.
    pub priority: PriorityLevel,
    /// Number of them with that priority.
    pub first_queued: u32,
    /// Time since which the oldest of those waits; `None` if no request waits.
    pub oldest: Option<Time>,
}

impl QueueState {
    /// Returns the state of a queue whose requests have the same priority.
    pub fn of_one_priority(queued: u32, oldest: Option<Time>) -> Self {
        Self { queued, first_queued: queued, oldest, ..Self::default() }
    }
}

/// Reason for which a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseRefusal {
    /// The version is not ours.
    Version,
    /// The sender is not a member that we know.
    UnknownMember,
    /// The receiver is another replica, or we before a restart.
    Misaddressed,
    /// The sender was restarted since.
    StaleIncarnation,
    /// The sender was restarted, and the leases of its predecessor have not expired yet.
    PredecessorLease,
    /// A newer message came before, or the same one.
    StaleSequence,
    /// A number is impossible, or there are too many entries.
    Absurd,
}

impl LeaseRefusal {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::Version,
        Self::UnknownMember,
        Self::Misaddressed,
        Self::StaleIncarnation,
        Self::PredecessorLease,
        Self::StaleSequence,
        Self::Absurd,
    ];

    /// Returns the name, as metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::UnknownMember => "unknown_member",
            Self::Misaddressed => "misaddressed",
            Self::StaleIncarnation => "stale_incarnation",
            Self::PredecessorLease => "predecessor_lease",
            Self::StaleSequence => "stale_sequence",
            Self::Absurd => "absurd",
        }
    }
}
