//! Messages that replicas exchange. Each is the newest state of its kind.

use balance::leases::{LeaseMessage, ReplicaIdentity};
use balance::limit::LimitMessage;
use balance::peer_reports::{DemandMessage, OutageMessage, RefusalMessage};
use balance::rate_limit::TokenMessage;

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
    /// Tokens of rate limits. A gift is repeated until the peer acknowledges it.
    Tokens(TokenMessage),
}

/// Message that a peer has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Sender, as its connection was authenticated.
    pub from: ReplicaIdentity,
    /// The message.
    pub message: ReplicaMessage,
}
