//! Sockets that accept the connections that the rules take: the same port at one address of each IP version.
//!
//! During an upgrade two processes run on a node, so the port is the first free one of a range.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use intercept::ProxyAddresses;
use nix::ifaddrs::{InterfaceAddress as KernelAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use rustix::net::listen;

use super::node_address::{self, InterfaceAddress};
use crate::failure::Failure;
use crate::flags::PortRange;

/// Connections that may wait until a worker accepts them; the kernel's net.core.somaxconn bounds it too.
const BACKLOG: i32 = 4096;
/// Addresses in networks for documentation (RFC 5737, RFC 3849), to which no packet is sent: only the kernel's choice
/// of a source is asked for.
const REMOTE: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// Bound sockets.
pub(super) struct BoundSockets {
    pub(super) listeners: Vec<TcpListener>,
    pub(super) addresses: ProxyAddresses,
    /// Addresses of other ports of the range at which no process listens.
    pub(super) free: BTreeSet<SocketAddr>,
}

/// Binds the first free port of the range, at these addresses or at those that are found.
pub(super) fn bind(named: &[IpAddr], ports: PortRange) -> Result<BoundSockets, Failure> {
    let interfaces = interface_addresses().map_err(|error| {
        Failure::input(format_args!("cannot list the addresses of this node: {error}"))
    })?;
    if let Err(message) = node_address::check(named, &interfaces) {
        return Err(Failure::input(format_args!("--transparent-addresses: {message}")));
    }
    let addresses = match named {
        [] => node_address::choose(&interfaces, &sources()),
        named => named.to_vec(),
    };
    if addresses.is_empty() {
        return Err(Failure::input(
            "this node has no address that pods can reach: name one with --transparent-addresses",
        ));
    }
    bind_first_free(&addresses, ports)
}

fn bind_first_free(addresses: &[IpAddr], ports: PortRange) -> Result<BoundSockets, Failure> {
    let mut bound: Option<Vec<TcpListener>> = None;
    let mut free = BTreeSet::new();
    let mut failure = None;
    for port in ports.iter() {
        match bind_port(addresses, port) {
            Ok(listeners) if bound.is_none() => bound = Some(listeners),
            Ok(_) => free.extend(addresses.iter().map(|ip| SocketAddr::new(*ip, port))),
            Err(error) => failure = Some(error),
        }
    }
    let Some(listeners) = bound else {
        let reason = failure.map(|error| error.to_string()).unwrap_or_default();
        return Err(Failure::input(format_args!(
            "no port of --transparent-ports {ports} is free at {}: {reason}: other agents or programs have them, see \
             `ss -ltnp`",
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
        )));
    };
    let addresses = proxy_addresses(&listeners).map_err(|error| {
        Failure::input(format_args!("cannot read the address of a socket: {error}"))
    })?;
    Ok(BoundSockets { listeners, addresses, free })
}

/// Binds a port at all addresses, or at none.
fn bind_port(addresses: &[IpAddr], port: u16) -> io::Result<Vec<TcpListener>> {
    let bind = |ip: &IpAddr| {
        let listener = TcpListener::bind((*ip, port))?;
        listen(&listener, BACKLOG)?;
        Ok(listener)
    };
    addresses.iter().map(bind).collect()
}

fn proxy_addresses(listeners: &[TcpListener]) -> io::Result<ProxyAddresses> {
    let mut addresses = ProxyAddresses::default();
    for listener in listeners {
        match listener.local_addr()? {
            SocketAddr::V4(address) => addresses.ipv4 = Some(address),
            SocketAddr::V6(address) => addresses.ipv6 = Some(address),
        }
    }
    Ok(addresses)
}

/// Returns the addresses of the interfaces that are up.
fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    Ok(getifaddrs().map_err(io::Error::from)?.filter_map(|it| interface_address(&it)).collect())
}

fn interface_address(interface: &KernelAddress) -> Option<InterfaceAddress> {
    let storage = interface.address?;
    let ipv4 = storage.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
    let address = ipv4.or_else(|| storage.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))?;
    let is_up = interface.flags.contains(InterfaceFlags::IFF_UP);
    let without_link = InterfaceFlags::IFF_LOOPBACK | InterfaceFlags::IFF_NOARP;
    let is_on_link = is_up && !interface.flags.intersects(without_link);
    Some(InterfaceAddress { address, is_on_link })
}

/// Returns the addresses from which the kernel would connect to others.
fn sources() -> Vec<IpAddr> {
    let source = |remote: &&str| {
        let remote: SocketAddr = remote.parse().ok()?;
        let any = if remote.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(remote).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    REMOTE.iter().filter_map(source).collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// A range of ports that are free, or were a moment ago.
    fn range() -> PortRange {
        let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        PortRange { first: first.port(), last: first.port().saturating_add(2) }
    }

    #[test]
    fn first_free_port_is_taken_and_all_taken_is_an_error() {
        let (ports, addresses) = (range(), [Ipv4Addr::LOCALHOST.into()]);
        let mut all = Vec::new();
        let message = loop {
            match bind_first_free(&addresses, ports) {
                Ok(bound) => all.push(bound),
                Err(Failure::Input(lines)) => break lines.concat(),
                Err(other) => panic!("{other:?}"),
            }
        };
        assert!(!all.is_empty() && all.len() <= 3);
        let taken: BTreeSet<_> = all.iter().flat_map(|it| it.addresses.iter()).collect();
        assert_eq!(taken.len(), all.len());
        assert!(all[0].free.iter().all(|it| *it > all[0].addresses.iter().next().unwrap()));
        let expected = format!("no port of --transparent-ports {ports} is free at 127.0.0.1");
        assert!(message.contains(&expected), "{message}");
    }
}
