//! Addresses that objects of a cluster must not name as endpoints.
//!
//! An author of a Service or an EndpointSlice would otherwise reach, through a route, what only the machine of Sheave
//! can reach: its loopback, its admin API, the metadata service of a cloud (server-side request forgery). Files and
//! flags belong to the operator; their addresses are not filtered. The filter decides about addresses only; it does
//! not know where they come from.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use thiserror::Error;

/// Metadata services of clouds at addresses that are not link-local: Amazon (IPv6), Azure, Alibaba, Oracle.
const METADATA_SERVICES: [IpAddr; 4] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

/// The rule for the addresses of endpoints that a cluster names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressFilter {
    /// Addresses of this process and of the other replicas.
    own: BTreeSet<IpAddr>,
    /// Addresses of Gateways, at which Sheave itself accepts connections.
    gateways: BTreeSet<IpAddr>,
    /// Ports of the admin API and of the scaler.
    private_ports: BTreeSet<u16>,
    /// Networks that names in DNS may resolve to. If the list is empty, they may resolve to none.
    networks: Vec<IpNet>,
}

/// The reason why an address is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AddressRejection {
    /// An address of the machine itself, by RFC 1122 §3.2.1.3 and RFC 4291 §2.5.3.
    #[error("is a loopback address")]
    Loopback,
    /// No address: `0.0.0.0/8` (RFC 1122 §3.2.1.3) or `::`. Linux connects to the machine itself.
    #[error("is an unspecified address")]
    Unspecified,
    /// An address of one link: RFC 3927, RFC 4291 §2.5.6. Metadata services of clouds have such addresses.
    #[error("is a link-local address")]
    LinkLocal,
    /// A group of machines.
    #[error("is a multicast address")]
    Multicast,
    /// All machines of a link.
    #[error("is the broadcast address")]
    Broadcast,
    /// A metadata service of a cloud at another address.
    #[error("is an address of a metadata service")]
    MetadataService,
    /// An address of Sheave.
    #[error("is an address of Sheave")]
    OwnAddress,
    /// Outside the networks that names may resolve to.
    #[error("is in no network of --external-names")]
    OutsideNetworks,
}

impl AddressFilter {
    /// Returns a filter that lets names in DNS resolve to these networks.
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self { networks, ..Self::default() }
    }

    /// Adds addresses of this process and of other replicas.
    pub fn add_own(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.own.extend(addresses.into_iter().map(plain));
    }

    /// Adds addresses at which Gateways accept connections.
    pub fn add_gateways(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        let addresses = addresses.into_iter().map(plain);
        self.gateways.extend(addresses.filter(|address| !address.is_unspecified()));
    }

    /// Adds a port of the admin API or of the scaler.
    pub fn add_private_port(&mut self, port: u16) {
        self.private_ports.insert(port);
    }

    /// True if names in DNS may be endpoints at all.
    pub const fn allows_names(&self) -> bool {
        !self.networks.is_empty()
    }

    /// Checks an endpoint of an EndpointSlice. A pod on the network of the node may have the address of Sheave, so an
    /// own address is rejected only with a port of the admin API or of the scaler.
    ///
    /// # Errors
    /// The reason why the endpoint must not be used.
    pub fn check_slice(&self, endpoint: SocketAddr) -> Result<(), AddressRejection> {
        let address = plain(endpoint.ip());
        check_range(address)?;
        self.check_private(address, endpoint.port())?;
        if self.gateways.contains(&address) {
            return Err(AddressRejection::OwnAddress);
        }
        Ok(())
    }

    /// Checks that an address in its plain form is not the admin API or the scaler.
    fn check_private(&self, address: IpAddr, port: u16) -> Result<(), AddressRejection> {
        let is_private = self.own.contains(&address) && self.private_ports.contains(&port);
        if is_private { Err(AddressRejection::OwnAddress) } else { Ok(()) }
    }

    /// Checks the address of a server that Sheave itself asks, such as for the keys of an issuer. A private address must
    /// be in a network of names in DNS. The server may be behind a Gateway: such a request leads to no loop, and its
    /// answer goes to no client.
    ///
    /// # Errors
    /// The reason why the server must not be asked.
    pub fn check_server(&self, server: SocketAddr) -> Result<(), AddressRejection> {
        let address = plain(server.ip());
        check_range(address)?;
        self.check_private(address, server.port())?;
        match is_private(address) {
            true => self.check_network(address),
            false => Ok(()),
        }
    }

    /// Checks an address that a name in DNS resolves to.
    ///
    /// # Errors
    /// The reason why the address must not be used.
    pub fn check_name(&self, address: IpAddr) -> Result<(), AddressRejection> {
        let address = plain(address);
        check_range(address)?;
        if self.own.contains(&address) || self.gateways.contains(&address) {
            return Err(AddressRejection::OwnAddress);
        }
        self.check_network(address)
    }

    fn check_network(&self, address: IpAddr) -> Result<(), AddressRejection> {
        if self.networks.iter().any(|network| network.contains(&address)) {
            return Ok(());
        }
        Err(AddressRejection::OutsideNetworks)
    }
}

/// Checks the range of an address in its plain form.
fn check_range(address: IpAddr) -> Result<(), AddressRejection> {
    let rejection = match address {
        IpAddr::V4(v4) if v4.is_loopback() => AddressRejection::Loopback,
        IpAddr::V4(v4) if v4.octets()[0] == 0 => AddressRejection::Unspecified,
        IpAddr::V4(v4) if v4.is_link_local() => AddressRejection::LinkLocal,
        IpAddr::V4(v4) if v4.is_multicast() => AddressRejection::Multicast,
        IpAddr::V4(v4) if v4.is_broadcast() => AddressRejection::Broadcast,
        IpAddr::V6(v6) if v6.is_loopback() => AddressRejection::Loopback,
        IpAddr::V6(v6) if v6.is_unspecified() => AddressRejection::Unspecified,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => AddressRejection::LinkLocal,
        IpAddr::V6(v6) if v6.is_multicast() => AddressRejection::Multicast,
        _ if METADATA_SERVICES.contains(&address) => AddressRejection::MetadataService,
        IpAddr::V4(_) | IpAddr::V6(_) => return Ok(()),
    };
    Err(rejection)
}

/// True for an address, in its plain form, that the internet does not route: RFC 1918, RFC 4193, and the addresses that
/// carriers share (RFC 6598).
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            v4.is_private() || (a == 100 && (64..128).contains(&b))
        }
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

/// Returns an address in its plain form. IPv6 has several notations for an IPv4 address: mapped (RFC 4291 §2.5.5.2),
/// compatible (§2.5.5.1), and translated by NAT64 (RFC 6052 §2.1). They reach the same machine.
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let [front @ .., a, b, c, d] = v6.octets();
    let embeds = match front {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] => true,
        [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0] => true,
        // `::` and `::1` are addresses of IPv6.
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => [a, b, c] != [0, 0, 0] || d > 1,
        _ => false,
    };
    if embeds { IpAddr::V4(Ipv4Addr::new(a, b, c, d)) } else { address }
}
