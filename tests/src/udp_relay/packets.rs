//! Packet types of QUIC, read from unprotected headers (RFC 9000 §17, RFC 8999).

/// Type of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketKind {
    Initial,
    ZeroRtt,
    Handshake,
    Retry,
    VersionNegotiation,
    /// With a short header.
    OneRtt,
    /// Of a version other than 1.
    OtherVersion,
}

/// Returns the types of the packets in a datagram, until one whose length is not readable.
pub fn packet_kinds(datagram: &[u8]) -> Vec<PacketKind> {
    let mut rest = HeaderReader(datagram);
    let mut kinds = Vec::new();
    // Bytes after the last packet may be padding.
    while let Some(kind) = rest.kind() {
        kinds.push(kind);
        if rest.skip_packet(kind).is_none() {
            break;
        }
    }
    kinds
}

/// Returns the destination and the source connection ID of a datagram that begins with a long header (RFC 8999 §5.1).
pub(super) fn connection_ids(datagram: &[u8]) -> Option<[&[u8]; 2]> {
    datagram.first().filter(|first| **first & 0x80 != 0)?;
    let mut rest = HeaderReader(datagram);
    rest.take(5)?;
    Some([rest.connection_id()?, rest.connection_id()?])
}

/// Rest of a datagram.
struct HeaderReader<'d>(&'d [u8]);

impl<'d> HeaderReader<'d> {
    fn kind(&self) -> Option<PacketKind> {
        let first = *self.0.first()?;
        if first & 0x80 == 0 {
            return (first & 0x40 != 0).then_some(PacketKind::OneRtt);
        }
        Some(match self.0.get(1..5)? {
            [0, 0, 0, 0] => PacketKind::VersionNegotiation,
            [0, 0, 0, 1] => match first >> 4 & 3 {
                0 => PacketKind::Initial,
                1 => PacketKind::ZeroRtt,
                2 => PacketKind::Handshake,
                _ => PacketKind::Retry,
            },
            _ => PacketKind::OtherVersion,
        })
    }

    /// Skips a packet of this type; `None` if it is the last of its datagram, or truncated.
    fn skip_packet(&mut self, kind: PacketKind) -> Option<()> {
        let has_length =
            matches!(kind, PacketKind::Initial | PacketKind::ZeroRtt | PacketKind::Handshake);
        if !has_length {
            return None;
        }
        self.take(5)?;
        self.connection_id()?;
        self.connection_id()?;
        if kind == PacketKind::Initial {
            let token = self.integer()?;
            self.take(token)?;
        }
        let length = self.integer()?;
        self.take(length).map(|_packet| ())
    }

    fn connection_id(&mut self) -> Option<&'d [u8]> {
        let length = *self.take(1)?.first()?;
        self.take(length.into())
    }

    /// Reads a variable-length integer (RFC 9000 §16).
    fn integer(&mut self) -> Option<usize> {
        let length = 1 << (self.0.first()? >> 6);
        let bytes = self.take(length)?;
        let value = bytes.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        usize::try_from(value & (u64::MAX >> (66 - 8 * length))).ok()
    }

    fn take(&mut self, count: usize) -> Option<&'d [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_header(first: u8, version: u8, token: &[u8], length: usize) -> Vec<u8> {
        let mut packet = vec![first, 0, 0, 0, version, 2, 8, 8, 1, 9];
        packet.extend_from_slice(token);
        // In two bytes.
        packet.extend_from_slice(&(0x4000 | length as u16).to_be_bytes());
        packet.resize(packet.len() + length, 0xff);
        packet
    }

    #[test]
    fn coalesced_packets_are_told_apart() {
        let initial = long_header(0xc3, 1, &[3, 7, 7, 7], 100);
        let early = long_header(0xd0, 1, &[], 70);
        let handshake = long_header(0xe0, 1, &[], 300);
        let datagram = [&initial[..], &early, &handshake, &[0x41, 1, 2, 3]].concat();
        let kinds = packet_kinds(&datagram);
        let expected =
            [PacketKind::Initial, PacketKind::ZeroRtt, PacketKind::Handshake, PacketKind::OneRtt];
        assert_eq!(kinds, expected);
        assert_eq!(connection_ids(&datagram), Some([&[8, 8][..], &[9]]));
        assert_eq!(connection_ids(&[0x41, 1, 2, 3]), None);
        // Cut within the Initial packet, nothing follows it.
        assert_eq!(packet_kinds(&datagram[..50]), [PacketKind::Initial]);
    }

    #[test]
    fn packets_without_a_length_are_the_last() {
        let version_negotiation = long_header(0x80, 0, &[], 20);
        assert_eq!(packet_kinds(&version_negotiation), [PacketKind::VersionNegotiation]);
        let retry = long_header(0xf0, 1, &[], 20);
        assert_eq!(packet_kinds(&retry), [PacketKind::Retry]);
        assert_eq!(packet_kinds(&long_header(0xc0, 2, &[], 20)), [PacketKind::OtherVersion]);
        assert!(packet_kinds(&[0, 0, 0]).is_empty());
    }
}
