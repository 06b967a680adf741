//! Counts of the datagrams that have passed a relay.

use std::collections::BTreeMap;

use super::packets::{PacketKind, packet_kinds};
use super::socket::RelayedDatagram;

/// Counts of a relay.
#[derive(Clone, Debug, Default)]
pub struct LineRecord {
    pub from_client: DirectionRecord,
    pub from_server: DirectionRecord,
    /// Number of client addresses.
    pub flows: u64,
    /// Number of changes of the address that the server sees.
    pub rebindings: u64,
    /// Largest ratio of bytes that the server has sent to bytes that it has received, over all flows, until the client
    /// has proved its address by the use of an ID that the server has sent to it (RFC 9000 §8.1).
    pub amplification: f64,
}

/// Counts of one direction of a relay.
#[derive(Clone, Debug, Default)]
pub struct DirectionRecord {
    /// Number of datagrams, including dropped ones.
    pub datagrams: u64,
    pub dropped: u64,
    pub corrupted: u64,
    /// Number of datagrams that came as ECN-capable.
    pub ecn_capable: u64,
    /// Number of packets of each type in datagrams that came.
    pub packets: BTreeMap<PacketKind, u64>,
}

impl DirectionRecord {
    /// Counts a datagram that has come.
    pub(super) fn count(&mut self, datagram: &RelayedDatagram) {
        self.datagrams += 1;
        self.ecn_capable += u64::from(datagram.ecn.is_some());
        for kind in packet_kinds(&datagram.bytes) {
            *self.packets.entry(kind).or_default() += 1;
        }
    }

    /// Returns the number of packets of this type.
    pub fn packets(&self, kind: PacketKind) -> u64 {
        self.packets.get(&kind).copied().unwrap_or_default()
    }
}
