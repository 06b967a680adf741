//! The kernel's table of connections, by ctnetlink (linux/netfilter/nfnetlink_conntrack.h): what was decided at a
//! connection's first packet holds for its life, so decisions that are out of date must be deleted.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{IPPROTO_TCP, NFNL_SUBSYS_CTNETLINK, NFPROTO_IPV4, NFPROTO_IPV6};

use crate::InterceptError;
use crate::attributes::{AttributeList, find, find_u16};
use crate::netlink::{NetfilterMessage, NetfilterSocket};

/// `IPCTNL_MSG_CT_*`.
const GET: i32 = 1;
const DELETE: i32 = 2;
/// IPS_DST_NAT: the destination was translated.
const STATUS_DESTINATION_TRANSLATED: u32 = 1 << 5;

/// `CTA_*`: kinds of attributes.
mod kind {
    pub(super) const TUPLE_ORIG: u16 = 1;
    pub(super) const TUPLE_REPLY: u16 = 2;
    pub(super) const STATUS: u16 = 3;
    pub(super) const ID: u16 = 12;
    pub(super) const ZONE: u16 = 18;
    pub(super) const STATUS_MASK: u16 = 26;
    pub(super) const TUPLE_IP: u16 = 1;
    pub(super) const TUPLE_PROTO: u16 = 2;
    pub(super) const IP_V4_SRC: u16 = 1;
    pub(super) const IP_V4_DST: u16 = 2;
    pub(super) const IP_V6_SRC: u16 = 3;
    pub(super) const IP_V6_DST: u16 = 4;
    pub(super) const PROTO_NUM: u16 = 1;
    pub(super) const PROTO_SRC_PORT: u16 = 2;
    pub(super) const PROTO_DST_PORT: u16 = 3;
}

/// A TCP connection whose destination was translated.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TrackedConnection {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address that the client connected to.
    pub destination: SocketAddr,
    /// Address that the kernel translates it to: the source of replies.
    pub endpoint: SocketAddr,
    /// The attributes by which the kernel finds the entry.
    key: AttributeList,
}

/// Result of a deletion of several connections.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DeletedConnections {
    /// Entries that were deleted.
    pub count: usize,
    /// True if there are more, because of the limit.
    pub has_more: bool,
}

/// Access to the table of the network namespace of the thread that opens it.
///
/// A dump walks the whole table of the kernel and skips connections that were not translated: about a microsecond for
/// each that is read. Nothing but the current part of a dump is kept in memory.
pub struct Conntrack {
    socket: NetfilterSocket,
}

impl Conntrack {
    /// Opens a socket to the table. Needs the capability NET_ADMIN.
    pub fn open() -> Result<Self, InterceptError> {
        let mut conntrack = Self { socket: NetfilterSocket::open()? };
        // Find out now: an entry that cannot be.
        let unspecified = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let key = tuple(unspecified, unspecified);
        match conntrack.socket.request(&message(GET, NFPROTO_IPV4, key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(conntrack),
        }
    }

    /// Calls `each` with every TCP connection whose destination was translated.
    pub fn for_each(
        &mut self,
        mut each: impl FnMut(TrackedConnection),
    ) -> Result<(), InterceptError> {
        for family in [NFPROTO_IPV4, NFPROTO_IPV6] {
            // Kernels before 5.15 do not filter, and `connection` does.
            let filter = AttributeList::default()
                .u32(kind::STATUS, STATUS_DESTINATION_TRANSLATED)
                .u32(kind::STATUS_MASK, STATUS_DESTINATION_TRANSLATED);
            self.socket.dump(&message(GET, family, filter), |entry| {
                if let Some(connection) = connection(entry) {
                    each(connection);
                }
            })?;
        }
        Ok(())
    }

    /// Deletes a connection from the table, and returns false if it was not there any more.
    ///
    /// Its next packet is decided anew by the rules. Translated to the proxy, which does not know the connection, it is
    /// answered with a reset, and the client connects anew.
    pub fn delete(&mut self, connection: &TrackedConnection) -> Result<bool, InterceptError> {
        let family = if connection.client.is_ipv4() { NFPROTO_IPV4 } else { NFPROTO_IPV6 };
        match self.socket.execute(&message(DELETE, family, connection.key.clone())) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes up to `limit` connections to proxies that are gone, at these addresses.
    ///
    /// Such an entry makes a client that uses its port again connect to nothing. Call it at start and after a drain.
    pub fn delete_to_dead_proxies(
        &mut self,
        proxies: &BTreeSet<SocketAddr>,
        limit: usize,
    ) -> Result<DeletedConnections, InterceptError> {
        self.delete_where(limit, |connection| proxies.contains(&connection.endpoint))
    }

    /// Deletes up to `limit` connections that bypass: to one of `services`, not translated to one of `proxies`.
    ///
    /// Their clients see a reset and connect anew, through the proxy. [`ResetPacer`](crate::ResetPacer) has the limit.
    pub fn delete_bypassing(
        &mut self,
        services: &BTreeSet<SocketAddr>,
        proxies: &BTreeSet<SocketAddr>,
        limit: usize,
    ) -> Result<DeletedConnections, InterceptError> {
        self.delete_where(limit, |connection| bypasses(connection, services, proxies))
    }

    /// Returns up to `limit` connections that bypass, in no order.
    pub fn bypassing(
        &mut self,
        services: &BTreeSet<SocketAddr>,
        proxies: &BTreeSet<SocketAddr>,
        limit: usize,
    ) -> Result<Vec<TrackedConnection>, InterceptError> {
        Ok(self.select(limit, |connection| bypasses(connection, services, proxies))?.0)
    }

    /// Counts the connections that bypass.
    pub fn count_bypassing(
        &mut self,
        services: &BTreeSet<SocketAddr>,
        proxies: &BTreeSet<SocketAddr>,
    ) -> Result<u64, InterceptError> {
        let mut count = 0;
        self.for_each(|connection| {
            count += u64::from(bypasses(&connection, services, proxies));
        })?;
        Ok(count)
    }

    fn delete_where(
        &mut self,
        limit: usize,
        is_meant: impl FnMut(&TrackedConnection) -> bool,
    ) -> Result<DeletedConnections, InterceptError> {
        let (connections, has_more) = self.select(limit, is_meant)?;
        let mut count = 0;
        for connection in &connections {
            count += usize::from(self.delete(connection)?);
        }
        Ok(DeletedConnections { count, has_more })
    }

    /// Returns up to `limit` connections, and true if there are more.
    fn select(
        &mut self,
        limit: usize,
        mut is_meant: impl FnMut(&TrackedConnection) -> bool,
    ) -> Result<(Vec<TrackedConnection>, bool), InterceptError> {
        let mut selected = Vec::new();
        let mut has_more = false;
        self.for_each(|connection| {
            if is_meant(&connection) {
                if selected.len() < limit { selected.push(connection) } else { has_more = true }
            }
        })?;
        Ok((selected, has_more))
    }
}

fn bypasses(
    connection: &TrackedConnection,
    services: &BTreeSet<SocketAddr>,
    proxies: &BTreeSet<SocketAddr>,
) -> bool {
    services.contains(&connection.destination) && !proxies.contains(&connection.endpoint)
}

fn message(operation: i32, family: i32, attributes: AttributeList) -> NetfilterMessage {
    NetfilterMessage { subsystem: NFNL_SUBSYS_CTNETLINK, operation, flags: 0, family, attributes }
}

/// Reads an entry; `None` if it is not TCP, or was not translated.
fn connection(entry: &[u8]) -> Option<TrackedConnection> {
    let status = find(entry, kind::STATUS)?;
    let status = u32::from_be_bytes(status.try_into().ok()?);
    if status & STATUS_DESTINATION_TRANSLATED == 0 {
        return None;
    }
    let (client, destination) = ends_of_tuple(find(entry, kind::TUPLE_ORIG)?)?;
    let (endpoint, _) = ends_of_tuple(find(entry, kind::TUPLE_REPLY)?)?;
    // The id, so that a new connection with the same ports is not meant; and the zone, if there is one.
    let mut key = tuple(client, destination);
    for kind in [kind::ID, kind::ZONE] {
        if let Some(value) = find(entry, kind) {
            key = key.bytes(kind, value);
        }
    }
    Some(TrackedConnection { client, destination, endpoint, key })
}

/// Returns source and destination of a tuple of TCP.
fn ends_of_tuple(tuple: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let ip = find(tuple, kind::TUPLE_IP)?;
    let transport = find(tuple, kind::TUPLE_PROTO)?;
    if find(transport, kind::PROTO_NUM)? != [IPPROTO_TCP as u8] {
        return None;
    }
    let source = address(ip, kind::IP_V4_SRC, kind::IP_V6_SRC)?;
    let destination = address(ip, kind::IP_V4_DST, kind::IP_V6_DST)?;
    let source_port = find_u16(transport, kind::PROTO_SRC_PORT)?;
    let destination_port = find_u16(transport, kind::PROTO_DST_PORT)?;
    Some(((source, source_port).into(), (destination, destination_port).into()))
}

fn address(ip: &[u8], ipv4: u16, ipv6: u16) -> Option<IpAddr> {
    if let Some(octets) = find(ip, ipv4) {
        return Some(Ipv4Addr::from_octets(octets.try_into().ok()?).into());
    }
    Some(Ipv6Addr::from_octets(find(ip, ipv6)?.try_into().ok()?).into())
}

/// Returns the tuple of a TCP connection in its original direction.
fn tuple(source: SocketAddr, destination: SocketAddr) -> AttributeList {
    let list = AttributeList::default;
    let ip = match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => list()
            .bytes(kind::IP_V4_SRC, &source.octets())
            .bytes(kind::IP_V4_DST, &destination.octets()),
        (source, destination) => list()
            .bytes(kind::IP_V6_SRC, &ipv6_octets(source))
            .bytes(kind::IP_V6_DST, &ipv6_octets(destination)),
    };
    let transport = list()
        .bytes(kind::PROTO_NUM, &[IPPROTO_TCP as u8])
        .bytes(kind::PROTO_SRC_PORT, &source.port().to_be_bytes())
        .bytes(kind::PROTO_DST_PORT, &destination.port().to_be_bytes());
    let tuple = list().list(kind::TUPLE_IP, &ip).list(kind::TUPLE_PROTO, &transport);
    list().list(kind::TUPLE_ORIG, &tuple)
}

fn ipv6_octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(client: &str, destination: &str, endpoint: &str) -> AttributeList {
        let [client, destination, endpoint] =
            [client, destination, endpoint].map(|it| it.parse::<SocketAddr>().unwrap());
        let reply = tuple(endpoint, client);
        let reply = find(reply.as_bytes(), kind::TUPLE_ORIG).unwrap().to_vec();
        tuple(client, destination)
            .bytes(kind::TUPLE_REPLY, &reply)
            .u32(kind::STATUS, STATUS_DESTINATION_TRANSLATED)
            .u32(kind::ID, 5)
    }

    #[test]
    fn entries_are_read() {
        for [client, destination, endpoint] in [
            ["10.1.0.7:4000", "10.96.0.1:80", "10.1.0.8:8080"],
            ["[fd00::7]:4000", "[fd96::1]:80", "[fd00::8]:8080"],
        ] {
            let read = connection(entry(client, destination, endpoint).as_bytes()).unwrap();
            assert_eq!(read.client.to_string(), client);
            assert_eq!(read.destination.to_string(), destination);
            assert_eq!(read.endpoint.to_string(), endpoint);
            let services = BTreeSet::from([read.destination]);
            assert!(bypasses(&read, &services, &BTreeSet::new()));
            assert!(!bypasses(&read, &services, &BTreeSet::from([read.endpoint])));
            assert!(!bypasses(&read, &BTreeSet::new(), &BTreeSet::new()));
        }
    }

    proptest! {
        #[test]
        fn malformed_entries_never_panic(mut bytes: Vec<u8>, at: usize, with: u8) {
            drop(connection(&bytes));
            bytes = entry("10.1.0.7:4000", "10.96.0.1:80", "10.1.0.8:8080").as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = with;
            drop(connection(&bytes));
        }
    }
}
