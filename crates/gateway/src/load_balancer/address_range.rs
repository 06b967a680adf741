//! Ranges of addresses as numbers, so that what cannot be assigned is left out without looking at each address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::address_pool::IpFamily;

/// The addresses from the first to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AddressRange {
    pub(super) family: IpFamily,
    pub(super) first: u128,
    pub(super) last: u128,
}

impl AddressRange {
    /// Returns all addresses of a network.
    pub(super) fn of(network: &IpNet) -> Self {
        let family = IpFamily::of(network.addr());
        let (first, last) = (number(network.network()), number(network.broadcast()));
        Self { family, first, last }
    }

    /// Returns the addresses of a network that hosts can have, which are neither the network address, nor the broadcast
    /// address, nor the subnet-router anycast address (RFC 4291 §2.6.1).
    pub(super) fn hosts(network: &IpNet) -> Self {
        let Self { family, first, last } = Self::of(network);
        match network {
            IpNet::V4(it) if it.prefix_len() < 31 => {
                Self { family, first: first + 1, last: last - 1 }
            }
            IpNet::V6(it) if it.prefix_len() < 127 => Self { family, first: first + 1, last },
            IpNet::V4(_) | IpNet::V6(_) => Self { family, first, last },
        }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.family == IpFamily::of(address) && (self.first..=self.last).contains(&number(address))
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.family == other.family && self.first <= other.last && other.first <= self.last
    }

    /// Returns the parts that another range does not have.
    pub(super) fn without(self, other: &Self) -> impl Iterator<Item = Self> {
        let parts = if self.overlaps(other) {
            let before = (self.first < other.first).then(|| Self { last: other.first - 1, ..self });
            let after = (other.last < self.last).then(|| Self { first: other.last + 1, ..self });
            [before, after]
        } else {
            [Some(self), None]
        };
        parts.into_iter().flatten()
    }

    /// Returns the address with this number.
    pub(super) fn address(&self, number: u128) -> IpAddr {
        match self.family {
            IpFamily::V4 => {
                let number = u32::try_from(number).expect("the range is one of IPv4 addresses");
                IpAddr::V4(Ipv4Addr::from_bits(number))
            }
            IpFamily::V6 => IpAddr::V6(Ipv6Addr::from_bits(number)),
        }
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(network: &str) -> AddressRange {
        AddressRange::of(&network.parse().unwrap())
    }

    #[test]
    fn a_hole_leaves_both_sides() {
        let whole = range("192.0.2.0/29");
        let text = |it: AddressRange| format!("{}-{}", it.address(it.first), it.address(it.last));
        let rest = |hole: &str| whole.without(&range(hole)).map(text).collect::<Vec<_>>();
        assert_eq!(rest("192.0.2.2/31"), ["192.0.2.0-192.0.2.1", "192.0.2.4-192.0.2.7"]);
        assert_eq!(rest("192.0.2.0/30"), ["192.0.2.4-192.0.2.7"]);
        assert_eq!(rest("192.0.0.0/16"), [""; 0]);
        assert_eq!(rest("198.51.100.0/24"), ["192.0.2.0-192.0.2.7"]);
        assert_eq!(rest("::/0"), ["192.0.2.0-192.0.2.7"]);
    }

    #[test]
    fn special_addresses_of_a_network_are_not_for_hosts() {
        let hosts = |network: &str| {
            let it = AddressRange::hosts(&network.parse().unwrap());
            (it.address(it.first).to_string(), it.address(it.last).to_string())
        };
        let pair = |first: &str, last: &str| (first.to_owned(), last.to_owned());
        assert_eq!(hosts("192.0.2.0/30"), pair("192.0.2.1", "192.0.2.2"));
        assert_eq!(hosts("192.0.2.0/31"), pair("192.0.2.0", "192.0.2.1"));
        assert_eq!(hosts("192.0.2.9/32"), pair("192.0.2.9", "192.0.2.9"));
        assert_eq!(hosts("fd00::/126"), pair("fd00::1", "fd00::3"));
        assert_eq!(hosts("::/0").1, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
    }
}
