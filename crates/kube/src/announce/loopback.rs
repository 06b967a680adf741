//! Addresses on the loopback interface: the node accepts packets for them, and announces them on no link.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_route::address::AddressScope;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};

use super::interface::{AddressPlace, install_address, remove_address};

const LOOPBACK: &str = "lo";

/// Installs an address on the loopback interface for this number of seconds, independent of this process.
///
/// # Errors
/// If the kernel rejects it.
pub fn install_loopback_address(address: IpAddr, seconds: u32) -> io::Result<()> {
    install_address(place()?, address, seconds)
}

/// Removes an address from the loopback interface, if it is installed.
///
/// # Errors
/// If the kernel does not remove it.
pub fn remove_loopback_address(address: IpAddr) -> io::Result<()> {
    remove_address(place()?, address)
}

fn place() -> io::Result<AddressPlace> {
    // The kernel chooses no address of this scope as the source of a connection to another machine.
    Ok(AddressPlace { interface: if_nametoindex(LOOPBACK)?, scope: AddressScope::Host })
}

/// Returns the lowest IPv4 address of the node that is in a network of more than one address; `None`: there is none.
#[must_use]
pub fn lowest_link_address() -> Option<Ipv4Addr> {
    let addresses = getifaddrs().ok()?.filter(|it| {
        !it.flags.contains(InterfaceFlags::IFF_LOOPBACK)
            && it.flags.contains(InterfaceFlags::IFF_UP)
    });
    let on_link = addresses.filter_map(|it| {
        let mask = it.netmask?.as_sockaddr_in()?.ip();
        let address = it.address?.as_sockaddr_in()?.ip();
        (mask.to_bits() != u32::MAX && !address.is_link_local()).then_some(address)
    });
    on_link.min()
}
