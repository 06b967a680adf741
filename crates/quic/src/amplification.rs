//! Limit of the bytes that are sent to an address before it is validated (RFC 9000 §8.1).
//!
//! The library has the limit, too, but sends a whole datagram while any of it is left, and so up to a datagram more.

use quinn_proto::{ConnectionId, ConnectionStats, Incoming};

/// Bytes that may be sent for each byte that was received.
const FACTOR: u64 = 3;

/// Limit of a client connection whose address is not validated.
pub(super) struct AmplificationLimit {
    /// Length of the first datagram, which the library's statistics leave out.
    first_datagram: u64,
    /// The connection id that the client has made up.
    original: ConnectionId,
}

impl AmplificationLimit {
    /// Returns the limit of a new connection, whose first datagram has that length; `None` if a token has validated
    /// the address.
    pub(super) fn new(incoming: &Incoming, first_datagram: usize) -> Option<Self> {
        let limit =
            Self { first_datagram: first_datagram as u64, original: *incoming.orig_dst_cid() };
        (!incoming.remote_address_validated()).then_some(limit)
    }

    /// True if a datagram of this connection, with that id in its long header, validates the address: the client uses
    /// a connection id of ours, which has 64 random bits and has only been sent to that address.
    pub(super) fn is_lifted_by(&self, id: Option<ConnectionId>) -> bool {
        id.is_none_or(|id| id != self.original)
    }

    /// Returns the number of datagrams of `size` bytes that may be sent now.
    pub(super) fn max_datagrams(&self, stats: &ConnectionStats, size: u16) -> usize {
        let received = self.first_datagram + stats.udp_rx.bytes;
        let bytes = (FACTOR * received).saturating_sub(stats.udp_tx.bytes);
        usize::try_from(bytes / u64::from(size.max(1))).unwrap_or(usize::MAX)
    }
}
