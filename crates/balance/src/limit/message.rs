//! The message with which replicas share what they have learned of endpoints, and the reasons to
//! refuse one.

use std::net::SocketAddr;

use super::LimitReason;
use crate::leases::{PoolKey, ReplicaIdentity};
use crate::time::Time;

/// Version of the messages. A message of another version is refused.
pub const LIMITS_VERSION: u16 = 1;
/// Maximum number of endpoints in a message.
pub const MAX_LIMIT_ENTRIES: usize = 256;
/// Maximum number of requests in flight or queued that a replica may report for an endpoint.
pub(super) const MAX_REQUESTS: u64 = 1_000_000;

/// State that a replica tells all peers: of each endpoint the newest, of other endpoints than those
/// in the message before if there are many. The loss of a message costs time and no evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitMessage {
    /// [`LIMITS_VERSION`].
    pub version: u16,
    /// Sender.
    pub from: ReplicaIdentity,
    /// Time of sending by the sender's clock, and at the same time the sequence number: it strictly
    /// increases.
    pub sent: Time,
    /// Endpoints with a learned limit.
    pub endpoints: Vec<LimitEntry>,
}

/// One endpoint as the sender sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitEntry {
    /// Backend that computes the limit.
    pub pool: PoolKey,
    /// Address of the endpoint.
    pub endpoint: SocketAddr,
    /// Load and limit.
    pub state: SharedLimit,
    /// Observations.
    pub sums: ObservationSums,
}

/// Load of an endpoint by one replica, and the limit that it has learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedLimit {
    /// Mean number of requests in flight, in thousandths.
    pub in_flight_milli: u64,
    /// The same with the endpoint's part of those that wait, in thousandths.
    pub demand_milli: u64,
    /// Limit of all replicas together, as the sender sees it or tries it.
    pub total: u32,
    /// Part of the total that the sender uses.
    pub claim: u32,
    /// Source of the total.
    pub reason: LimitReason,
    /// True if the endpoint is preferred, so that it reaches the total.
    pub preferred: bool,
    /// Limit that the endpoint has reported to the sender, 0 if none.
    pub reported: u32,
}

/// Observations of one replica at one endpoint since a time: sums that only grow, so that the next
/// message has what was lost with the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObservationSums {
    /// Time at which they began, by the sender's clock.
    pub begun_nanos: u64,
    /// Time of the observation, in nanoseconds.
    pub observed_nanos: u64,
    /// Requests in flight, times the nanoseconds for which they were.
    pub in_flight_nanos: u64,
    /// The part of `in_flight_nanos` in which the sender's limit was reached.
    pub limited_nanos: u64,
    /// Requests that have finished.
    pub finished: u64,
    /// Nanoseconds for which they kept their slots. It wraps around.
    pub held_nanos: u64,
    /// Sum of the squares of their times in slots, in units of (2^14 nanoseconds)^2. It wraps
    /// around.
    pub squares: u64,
}

/// Reason for which a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitRefusal {
    /// The version is not ours.
    Version,
    /// The sender is not a member that we know.
    UnknownMember,
    /// The sender was restarted since.
    StaleIncarnation,
    /// A newer message came before, or the same one.
    StaleSequence,
    /// A number is impossible, or there are too many entries.
    Absurd,
}

impl LimitRefusal {
    /// All reasons.
    pub const ALL: [Self; 5] = [
        Self::Version,
        Self::UnknownMember,
        Self::StaleIncarnation,
        Self::StaleSequence,
        Self::Absurd,
    ];

    /// Returns the name, as metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::UnknownMember => "unknown_member",
            Self::StaleIncarnation => "stale_incarnation",
            Self::StaleSequence => "stale_sequence",
            Self::Absurd => "absurd",
        }
    }
}
