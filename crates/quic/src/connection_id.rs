//! Connection ids, and the worker that each belongs to.
//!
//! An id begins as the QUIC-LB draft lays out its plaintext ids (draft-ietf-quic-load-balancers §3): an octet with the
//! configuration and the length, then the server id, then the part that differs from id to id. We give the first octet
//! of that part a meaning of our own: the worker. So a load balancer in front of us that knows our server id reaches
//! us, and a client whose address changes stays with its worker. Nothing of it is secret: an observer of an id sees
//! the server and the worker.

use std::net::{IpAddr, SocketAddr};

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

use crate::keys::random;

/// Bytes of an id.
pub(super) const LENGTH: usize = 14;
/// Offset of the worker in an id.
pub(super) const WORKER_AT: usize = 1 + SERVER_ID;
/// Offset of the id in a datagram that begins with a short header (RFC 9000 §17.3.1), and with a long one (§17.2).
pub(super) const IN_SHORT_HEADER: usize = 1;
pub(super) const IN_LONG_HEADER: usize = 6;
/// Limit of workers: one octet holds the index.
pub(super) const MOST_WORKERS: usize = 256;

const SERVER_ID: usize = 4;
/// Bytes of the longest id in version 1 (RFC 9000 §17.2).
const LONGEST: usize = 20;
/// Configuration 0, and the number of octets that follow.
const FIRST_OCTET: u8 = LENGTH as u8 - 1;
/// Set in the first octet of a long header.
const LONG: u8 = 0x80;
/// In a long header: the bits of the packet type. Handshake is the type that always has an id of ours.
const KIND: u8 = 0x30;
const HANDSHAKE: u8 = 0x20;

/// Identifies this process among others behind the same address.
pub(crate) type ServerId = [u8; SERVER_ID];

/// Returns the server id for a listen address: the address itself, or those octets of an IPv6 address that differ most
/// between pods.
pub(super) fn server_id(address: SocketAddr) -> ServerId {
    match address.ip().to_canonical() {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            [a, b, c, d]
        }
    }
}

/// Generates the connection ids of one worker.
pub(super) struct WorkerCidGenerator {
    /// The bytes that all of them begin with.
    prefix: [u8; WORKER_AT + 1],
}

impl WorkerCidGenerator {
    /// `worker` is the worker's octet.
    pub(super) fn new(server: ServerId, worker: u8) -> Self {
        let [a, b, c, d] = server;
        Self { prefix: [FIRST_OCTET, a, b, c, d, worker] }
    }
}

impl ConnectionIdGenerator for WorkerCidGenerator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = random::<LENGTH>();
        id[..self.prefix.len()].copy_from_slice(&self.prefix);
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        if id.starts_with(&self.prefix) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

/// Returns the octets that ids for this server begin with, up to the octet of the worker.
pub(super) fn own_prefix(server: ServerId) -> [u8; WORKER_AT] {
    let [a, b, c, d] = server;
    [FIRST_OCTET, a, b, c, d]
}

/// Returns the octet of the worker in the id that a datagram carries, if the id can only be one of ours.
///
/// Datagrams that begin a connection carry an id that the client has made up; the kernel sends all of them to the same
/// worker.
pub(super) fn worker_octet(datagram: &[u8]) -> Option<u8> {
    let first = *datagram.first()?;
    let id = if first & LONG == 0 {
        datagram.get(IN_SHORT_HEADER..)?
    } else if first & KIND == HANDSHAKE && datagram.get(IN_LONG_HEADER - 1) == Some(&(LENGTH as u8))
    {
        datagram.get(IN_LONG_HEADER..)?
    } else {
        return None;
    };
    (id.len() >= LENGTH && id[0] == FIRST_OCTET).then(|| id[WORKER_AT])
}

/// Returns the destination connection id of a datagram that begins with a long header (RFC 8999 §5.1).
pub(super) fn in_long_header(datagram: &[u8]) -> Option<ConnectionId> {
    datagram.first().filter(|first| **first & LONG != 0)?;
    let length = usize::from(*datagram.get(IN_LONG_HEADER - 1)?);
    let id = datagram.get(IN_LONG_HEADER..IN_LONG_HEADER + length)?;
    (length <= LONGEST).then(|| ConnectionId::new(id))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_datagram_leads_to_the_worker_of_its_id_or_to_none(
            header in prop::sample::select(vec![vec![0x40_u8], vec![0xe0, 0, 0, 0, 1, 14], vec![0xc0, 0, 0, 0, 1, 14]]),
            rest in prop::collection::vec(any::<u8>(), 0..30),
            is_own in any::<bool>(),
        ) {
            let mut id = rest;
            if let Some(first) = id.first_mut().filter(|_| is_own) {
                *first = FIRST_OCTET;
            }
            let datagram = [&header[..], &id].concat();
            let has_id = header[0] != 0xc0 && id.len() >= LENGTH && id[0] == FIRST_OCTET;
            prop_assert_eq!(worker_octet(&datagram), has_id.then(|| id[WORKER_AT]));
            let _any = worker_octet(&id);
        }
    }

    #[test]
    fn connection_id_encodes_server_and_worker() {
        let server = server_id("10.1.2.3:443".parse().unwrap());
        let mut ids = WorkerCidGenerator::new(server, 7);
        let (one, other) = (ids.generate_cid(), ids.generate_cid());
        assert_eq!(one[..6], [13, 10, 1, 2, 3, 7]);
        assert_ne!(one, other);
        assert!(ids.validate(&one).is_ok());
        assert!(WorkerCidGenerator::new(server, 8).validate(&one).is_err());
    }

    #[test]
    fn worker_is_read_from_own_connection_ids_only() {
        let id = WorkerCidGenerator::new([1, 2, 3, 4], 5).generate_cid();
        let short = [&[0x40][..], &id, &[0; 20]].concat();
        assert_eq!(worker_octet(&short), Some(5));
        let long = |kind: u8| [&[0xc0 | kind, 0, 0, 0, 1, 14][..], &id, &[0; 20]].concat();
        assert_eq!(worker_octet(&long(HANDSHAKE)), Some(5));
        assert_eq!(in_long_header(&long(0)), Some(id));
        assert_eq!(in_long_header(&long(0)[..19]), None);
        assert_eq!(in_long_header(&short), None);
        // An Initial carries an id that the client has made up.
        assert_eq!(worker_octet(&long(0)), None);
        for length in 0..short.len().min(15) {
            assert_eq!(worker_octet(&short[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn server_id_is_derived_from_ipv4_and_ipv6_addresses() {
        assert_eq!(server_id("[::ffff:10.0.0.9]:1".parse().unwrap()), [10, 0, 0, 9]);
        assert_eq!(server_id("[2001:db8::a:b]:1".parse().unwrap()), [0, 0xa, 0, 0xb]);
    }
}
