//! Next hops: the address of a session on this node, and the address of the other family on the same interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};

/// The next hop of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NextHops {
    pub(crate) v4: Option<Ipv4Addr>,
    pub(crate) v6: Option<Ipv6Addr>,
}

impl NextHops {
    /// Returns the next hops of a session that has this address on this node.
    pub(crate) fn of_session(local: IpAddr) -> Self {
        let interfaces: Vec<_> = getifaddrs().map(Iterator::collect).unwrap_or_default();
        let addresses: Vec<_> = interfaces.iter().filter_map(named_address).collect();
        Self::among(local, &addresses)
    }

    /// Returns the next hops, of the addresses of all interfaces.
    fn among(local: IpAddr, addresses: &[(&str, IpAddr)]) -> Self {
        let interface = addresses.iter().find(|(_, it)| *it == local).map(|(name, _)| *name);
        let others = addresses.iter().filter(|(name, _)| Some(*name) == interface);
        let mut found = Self::default();
        for address in [local].into_iter().chain(others.map(|(_, it)| *it)) {
            match address {
                IpAddr::V4(ip) => found.v4 = found.v4.or(Some(ip)),
                IpAddr::V6(ip) if ip.is_unicast_link_local() => {}
                IpAddr::V6(ip) => found.v6 = found.v6.or(Some(ip)),
            }
        }
        found
    }
}

/// Returns the address of an entry with the name of its interface. An address alone in its network is none of the link.
fn named_address(entry: &InterfaceAddress) -> Option<(&str, IpAddr)> {
    let (address, mask) = (entry.address?, entry.netmask?);
    let name = &*entry.interface_name;
    if let (Some(ip), Some(mask)) = (address.as_sockaddr_in(), mask.as_sockaddr_in()) {
        return (mask.ip().to_bits() != u32::MAX).then_some((name, IpAddr::V4(ip.ip())));
    }
    let (ip, mask) = (address.as_sockaddr_in6()?, mask.as_sockaddr_in6()?);
    (mask.ip().to_bits() != u128::MAX).then_some((name, IpAddr::V6(ip.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_hop_of_the_other_family_is_on_the_same_interface() {
        let addresses = [
            ("eth1", "fd00:1::1"),
            ("eth0", "10.0.0.1"),
            ("eth0", "fe80::1"),
            ("eth0", "fd00::1"),
            ("eth0", "10.0.0.2"),
        ];
        let addresses = addresses.map(|(name, text)| (name, text.parse().unwrap()));
        let found = NextHops::among("10.0.0.2".parse().unwrap(), &addresses);
        assert_eq!(found.v4, Some(Ipv4Addr::new(10, 0, 0, 2)));
        assert_eq!(found.v6, Some("fd00::1".parse().unwrap()));
        let found = NextHops::among("fd00:1::1".parse().unwrap(), &addresses);
        assert_eq!((found.v4, found.v6), (None, Some("fd00:1::1".parse().unwrap())));
    }
}
