//! The message with which replicas ask one another for tokens and hand them over.

use crate::leases::ReplicaIdentity;
use crate::time::Time;

/// Version of the messages. A message of another version is refused.
pub const TOKENS_VERSION: u16 = 1;
/// Maximum number of gifts, and of wishes, in a message.
pub const MAX_TOKEN_ENTRIES: usize = 256;
/// Maximum number of millionths of a token in an entry: a million tokens.
pub(super) const MAX_MICROS: u64 = 1_000_000_000_000;

/// Identity of a limit: the same at all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitId(pub u64);

/// Tokens for one peer, and tokens that the sender wants from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMessage {
    /// [`TOKENS_VERSION`].
    pub version: u16,
    /// Sender.
    pub from: ReplicaIdentity,
    /// Receiver, with incarnation 0 if it is not known yet.
    pub to: ReplicaIdentity,
    /// Time of sending by the sender's clock, and at the same time the sequence number: it strictly
    /// increases.
    pub sent: Time,
    /// Number of the gift, which is repeated until it is acknowledged; 0 if there has been none.
    pub gift: u64,
    /// Number of the newest gift of the receiver that the sender has added to its buckets.
    pub gift_seen: u64,
    /// Tokens of the gift. They have been removed from the sender's buckets.
    pub gifts: Vec<TokenAmount>,
    /// Tokens that the sender wants.
    pub wishes: Vec<TokenAmount>,
}

/// Tokens of the bucket of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenAmount {
    /// Limit.
    pub limit: LimitId,
    /// Key of the bucket.
    pub key: u128,
    /// Number of millionths of a token.
    pub micros: u64,
}

/// Reason for which a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRefusal {
    /// The version is not ours.
    Version,
    /// The sender is not a member that we know.
    UnknownMember,
    /// The message is for another replica, or for an earlier run of this one.
    Misaddressed,
    /// The sender was restarted since.
    StaleIncarnation,
    /// A newer message came before, or the same one.
    StaleSequence,
    /// A number is impossible, or there are too many entries.
    Absurd,
}

impl TokenRefusal {
    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::Version,
        Self::UnknownMember,
        Self::Misaddressed,
        Self::StaleIncarnation,
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
            Self::StaleSequence => "stale_sequence",
            Self::Absurd => "absurd",
        }
    }
}
