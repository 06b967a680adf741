//! Messages that replicas exchange. Each is the newest state of its kind.

use balance::leases::{LeaseMessage, ReplicaIdentity};
use balance::limit::LimitMessage;
use balance::peer_reports::{DemandMessage, OutageMessage, RefusalMessage};
use balance::rate_limit::TokenMessage;
use balance::shared_keys::KeyMessage;

/// Message to a peer. Of each kind only the newest message counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaMessage {
    /// Slots lent, returned and wanted. It repeats what the peer has not acknowledged, so it may
    /// replace an earlier one that was not sent.
    Lease(LeaseMessage),
    /// Demand for backends.
    Demand(DemandMessage),
    /// Endpoints that refuse requests.
    Refusals(RefusalMessage),
    /// Endpoints that cannot be reached.
    Outages(OutageMessage),
    /// Learned limits. Its sums include those of an earlier one that was not sent.
    Limits(LimitMessage),
    /// Keys of session tickets. They are sent and taken over TLS alone.
    TicketKeys(KeyMessage),
    /// Tokens of rate limits. A gift is repeated until the peer acknowledges it.
    Tokens(TokenMessage),
}

impl ReplicaMessage {
    /// True if the message must not be sent over a connection that is not encrypted.
    pub(crate) fn is_secret(&self) -> bool {
        match self {
            Self::TicketKeys(_) => true,
            Self::Lease(_)
            | Self::Demand(_)
            | Self::Refusals(_)
            | Self::Outages(_)
            | Self::Limits(_)
            | Self::Tokens(_) => false,
        }
    }
}

/// Message that a peer has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Sender, as its connection was authenticated.
    pub from: ReplicaIdentity,
    /// The message.
    pub message: ReplicaMessage,
}
