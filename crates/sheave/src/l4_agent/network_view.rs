//! The links, addresses and neighbours of this node as they were read, and where an address is among them. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use l4::{EndpointPlace, MacAddress, PodLink};

/// Links, addresses and neighbours of this node.
#[derive(Clone, Debug, Default)]
pub(super) struct NetworkView {
    /// Links by index.
    pub(super) links: BTreeMap<u32, NodeLink>,
    pub(super) addresses: Vec<NodeInterfaceAddress>,
    /// MAC addresses of neighbours, by interface and address.
    pub(super) neighbours: BTreeMap<(u32, IpAddr), MacAddress>,
    /// Ports of bridges, by bridge and the MAC address behind the port.
    pub(super) ports: BTreeMap<(u32, MacAddress), u32>,
    /// Names of the interfaces with a default route.
    pub(super) default_interfaces: Vec<String>,
}

/// A link.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct NodeLink {
    pub(super) name: String,
    pub(super) mac: Option<MacAddress>,
    pub(super) mtu: u32,
    pub(super) kind: NodeLinkKind,
    /// Index of the bridge whose port it is.
    pub(super) controller: Option<u32>,
    pub(super) is_up: bool,
    pub(super) is_ethernet: bool,
}

/// Kind of a link, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum NodeLinkKind {
    Veth,
    Bridge,
    Vxlan,
    #[default]
    Other,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct NodeInterfaceAddress {
    pub(super) address: IpAddr,
    pub(super) prefix_length: u8,
    pub(super) ifindex: u32,
}

/// The route to an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct RouteToAddress {
    pub(super) ifindex: u32,
    pub(super) has_gateway: bool,
}

/// Result of a search for the place of an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum PlaceLookup<T> {
    Found(T),
    /// The link must be asked; until it answers, what was known before is used.
    Unresolved {
        ifindex: u32,
        known: Option<T>,
    },
    /// It has no place, for this reason.
    Absent(String),
}

impl NetworkView {
    /// Returns the place of a pod of this node. `known` is its link as it was found before.
    pub(super) fn pod_place(
        &self,
        address: IpAddr,
        route: Option<RouteToAddress>,
        known: Option<PodLink>,
    ) -> PlaceLookup<EndpointPlace> {
        if self.addresses.iter().any(|it| it.address == address) {
            return PlaceLookup::Found(EndpointPlace::HostNetwork);
        }
        let Some(route) = route else {
            return PlaceLookup::Absent("this node has no route to it".to_owned());
        };
        let Some(link) = self.links.get(&route.ifindex).filter(|_| !route.has_gateway) else {
            return PlaceLookup::Absent("the route to it leads to another machine".to_owned());
        };
        let ifindex = route.ifindex;
        let known = known.filter(|it| self.is_still(it, ifindex));
        let unresolved =
            || PlaceLookup::Unresolved { ifindex, known: known.map(EndpointPlace::Local) };
        let (Some(node_mac), true) = (link.mac, link.is_up) else {
            return PlaceLookup::Absent(format!("its interface {} is down", link.name));
        };
        let Some(&pod_mac) = self.neighbours.get(&(ifindex, address)) else { return unresolved() };
        let port = match link.kind {
            NodeLinkKind::Veth => ifindex,
            NodeLinkKind::Bridge => match self.ports.get(&(ifindex, pod_mac)) {
                Some(port) => *port,
                // A bridge forgets a pod whose packets do not pass it.
                None if known.is_some_and(|it| it.pod_mac == pod_mac) => return unresolved(),
                None => return PlaceLookup::Unresolved { ifindex, known: None },
            },
            NodeLinkKind::Vxlan | NodeLinkKind::Other => {
                return PlaceLookup::Absent(format!("its interface {} is no veth", link.name));
            }
        };
        match self.links.get(&port) {
            Some(it) if it.kind == NodeLinkKind::Veth && it.is_up => {
                let link = PodLink { ifindex: port, pod_mac, node_mac };
                PlaceLookup::Found(EndpointPlace::Local(link))
            }
            Some(it) => {
                PlaceLookup::Absent(format!("its interface {} is no veth that is up", it.name))
            }
            None => unresolved(),
        }
    }

    /// True if a link that was found before is still there, and belongs to the interface of the route.
    fn is_still(&self, known: &PodLink, route: u32) -> bool {
        self.links.get(&known.ifindex).is_some_and(|it| {
            let is_there = known.ifindex == route || it.controller == Some(route);
            it.kind == NodeLinkKind::Veth && it.is_up && is_there
        })
    }

    /// Returns the MAC address of another node on the segment of an interface.
    pub(super) fn peer_mac(
        &self,
        ifindex: u32,
        address: IpAddr,
        known: Option<MacAddress>,
    ) -> PlaceLookup<MacAddress> {
        match self.neighbours.get(&(ifindex, address)) {
            Some(mac) => PlaceLookup::Found(*mac),
            None => PlaceLookup::Unresolved { ifindex, known },
        }
    }

    /// Returns the index of the link with this name.
    pub(super) fn index_of(&self, name: &str) -> Option<u32> {
        self.links.iter().find(|(_, link)| link.name == name).map(|(index, _)| *index)
    }

    /// Returns the uplinks: those that are named, else the interfaces of default routes, and of the node's addresses.
    pub(super) fn uplinks(&self, named: &[String], own: &[IpAddr]) -> Vec<(u32, &NodeLink)> {
        let is_uplink = |index: u32, link: &NodeLink| {
            if !named.is_empty() {
                return named.contains(&link.name);
            }
            let mut of_link = self.addresses.iter().filter(|it| it.ifindex == index);
            self.default_interfaces.contains(&link.name)
                || of_link.any(|it| own.contains(&it.address))
        };
        let links = self.links.iter().map(|(index, link)| (*index, link));
        links.filter(|(index, link)| link.is_ethernet && is_uplink(*index, link)).collect()
    }

    /// True if an address is in a network of an interface.
    pub(super) fn is_on_network(&self, ifindex: u32, address: IpAddr) -> bool {
        let of_link = self.addresses.iter().filter(|it| it.ifindex == ifindex);
        of_link.into_iter().any(|it| it.has_in_network(address))
    }

    /// Returns the addresses that the node has for itself: those with a network. An address alone may be a virtual one
    /// that this node carries.
    pub(super) fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let with_network = self.addresses.iter().filter(|it| it.prefix_length < it.full_length());
        with_network.map(|it| it.address)
    }
}

impl NodeInterfaceAddress {
    fn full_length(&self) -> u8 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }

    fn has_in_network(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let shift = 32_u32.saturating_sub(self.prefix_length.into());
                (u64::from(own.to_bits() ^ other.to_bits()) >> shift) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differing = own.to_bits() ^ other.to_bits();
                differing.leading_zeros() >= self.prefix_length.into()
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests;
