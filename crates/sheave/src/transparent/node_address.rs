//! The addresses of this node at which its agent accepts connections that the rules take. Pure: the caller asks the
//! kernel.

use std::net::IpAddr;

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterfaceAddress {
    pub(super) address: IpAddr,
    /// True if the interface is up, and neither loopback nor one without a link layer: the interfaces that hold
    /// addresses of Services (kube-ipvs0) or of a cache of DNS have none.
    pub(super) is_on_link: bool,
}

/// Returns one address of each IP version: the one from which the node connects to others (`sources`), else the first
/// of an interface.
pub(super) fn choose(interfaces: &[InterfaceAddress], sources: &[IpAddr]) -> Vec<IpAddr> {
    let is_own = |address: &IpAddr| {
        interfaces.iter().any(|it| it.address == *address && it.is_on_link) && is_usable(*address)
    };
    let of_version = |is_ipv4: bool| {
        let of_interfaces = interfaces.iter().map(|it| it.address);
        let mut candidates = sources.iter().copied().chain(of_interfaces);
        candidates.find(|it| it.is_ipv4() == is_ipv4 && is_own(it))
    };
    [true, false].into_iter().filter_map(of_version).collect()
}

/// Returns the error in the addresses of `--transparent-addresses`.
pub(super) fn check(addresses: &[IpAddr], interfaces: &[InterfaceAddress]) -> Result<(), String> {
    for address in addresses {
        if !is_usable(*address) {
            return Err(format!(
                "{address} is a loopback, link-local or unspecified address: pods cannot reach it"
            ));
        }
        if !interfaces.iter().any(|it| it.address == *address) {
            return Err(format!("{address} is no address of this node: see `ip address`"));
        }
    }
    for (name, is_ipv4) in [("IPv4", true), ("IPv6", false)] {
        if addresses.iter().filter(|it| it.is_ipv4() == is_ipv4).count() > 1 {
            return Err(format!("more than one address is of {name}: name one"));
        }
    }
    Ok(())
}

/// True if pods can reach an address at which the kernel translates connections to it.
fn is_usable(address: IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
    };
    !is_local && !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_link(address: &str) -> InterfaceAddress {
        InterfaceAddress { address: address.parse().unwrap(), is_on_link: true }
    }

    fn chosen(interfaces: &[InterfaceAddress], sources: &[&str]) -> Vec<String> {
        let sources: Vec<_> = sources.iter().map(|it| it.parse().unwrap()).collect();
        choose(interfaces, &sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn address_of_the_default_route_is_preferred() {
        let node = [
            on_link("10.244.0.1"),
            on_link("192.0.2.7"),
            on_link("fe80::1"),
            on_link("2001:db8::7"),
        ];
        assert_eq!(chosen(&node, &["192.0.2.7"]), ["192.0.2.7", "2001:db8::7"]);
        assert_eq!(chosen(&node, &[]), ["10.244.0.1", "2001:db8::7"]);
        // The source of a route need not be an address that pods reach.
        assert_eq!(
            chosen(&node, &["127.0.0.1", "fe80::1", "198.51.100.1"]),
            ["10.244.0.1", "2001:db8::7"]
        );
    }

    #[test]
    fn addresses_of_services_on_an_interface_are_not_chosen() {
        let ipvs = InterfaceAddress { is_on_link: false, ..on_link("10.96.0.1") };
        assert_eq!(chosen(&[ipvs, on_link("192.0.2.7")], &["10.96.0.1"]), ["192.0.2.7"]);
        assert!(chosen(&[ipvs, on_link("127.0.0.1"), on_link("169.254.1.1")], &[]).is_empty());
    }

    #[test]
    fn addresses_of_the_flag_are_checked() {
        let node = [on_link("192.0.2.7"), on_link("192.0.2.8"), on_link("127.0.0.1")];
        let check = |text: &[&str]| {
            let addresses: Vec<_> = text.iter().map(|it| it.parse().unwrap()).collect();
            check(&addresses, &node)
        };
        assert_eq!(check(&["192.0.2.7"]), Ok(()));
        assert!(check(&["127.0.0.1"]).unwrap_err().contains("pods cannot reach it"));
        assert!(check(&["192.0.2.9"]).unwrap_err().contains("no address of this node"));
        assert!(check(&["192.0.2.7", "192.0.2.8"]).unwrap_err().contains("more than one"));
    }
}
