//! Laws of the address filter: no notation of a forbidden address passes, and ordinary addresses do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use gateway::{AddressFilter, AddressRejection};
use proptest::prelude::*;

fn everything() -> AddressFilter {
    AddressFilter::new(["0.0.0.0/0", "::/0"].map(|it| it.parse().expect("a network")).to_vec())
}

/// Returns every notation of an IPv4 address: its own, mapped, and by NAT64.
fn notations(v4: Ipv4Addr) -> [IpAddr; 3] {
    let [a, b, c, d] = v4.octets();
    let nat64 = [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d];
    [IpAddr::V4(v4), IpAddr::V6(v4.to_ipv6_mapped()), IpAddr::V6(nat64.into())]
}

/// Returns the rejection by name, by slice and as a server, which agree unless networks or own addresses decide.
fn check(filter: &AddressFilter, address: IpAddr) -> Result<(), AddressRejection> {
    let (name, slice) =
        (filter.check_name(address), filter.check_slice(SocketAddr::new(address, 80)));
    assert_eq!(name, slice, "{address}");
    assert_eq!(filter.check_server(SocketAddr::new(address, 80)), slice, "{address}");
    name
}

proptest! {
    #[test]
    fn forbidden_ipv4_ranges_are_rejected_in_any_notation(bits in any::<u32>(), range in 0..5_usize) {
        let (prefix, length, rejection) = [
            (0x7f00_0000, 8, AddressRejection::Loopback),
            (0x0000_0000, 8, AddressRejection::Unspecified),
            (0xa9fe_0000, 16, AddressRejection::LinkLocal),
            (0xe000_0000, 4, AddressRejection::Multicast),
            (0xffff_ffff, 32, AddressRejection::Broadcast),
        ][range];
        let mask = u32::MAX.checked_shr(length).unwrap_or(0);
        for address in notations(Ipv4Addr::from_bits(prefix | (bits & mask))) {
            prop_assert_eq!(check(&everything(), address), Err(rejection), "{}", address);
        }
    }

    #[test]
    fn forbidden_ipv6_ranges_are_rejected(bits in any::<u128>()) {
        let link_local = Ipv6Addr::from_bits((0xfe80 << 112) | (bits >> 10));
        prop_assert_eq!(check(&everything(), link_local.into()), Err(AddressRejection::LinkLocal));
        let multicast = Ipv6Addr::from_bits((0xff << 120) | (bits >> 8));
        prop_assert_eq!(check(&everything(), multicast.into()), Err(AddressRejection::Multicast));
    }

    #[test]
    fn ordinary_addresses_pass_only_in_allowed_networks(bits in any::<u32>()) {
        let ours: IpAddr = Ipv4Addr::from_bits(0x0a00_0000 | (bits >> 8)).into();
        prop_assert_eq!(check(&everything(), ours), Ok(()));
        let filter = AddressFilter::new(vec!["192.0.2.0/24".parse().expect("a network")]);
        prop_assert_eq!(filter.check_name(ours), Err(AddressRejection::OutsideNetworks));
        prop_assert_eq!(filter.check_slice(SocketAddr::new(ours, 80)), Ok(()));
        let server = |address| filter.check_server(SocketAddr::new(address, 443));
        prop_assert_eq!(server(ours), Err(AddressRejection::OutsideNetworks));
        let public: IpAddr = Ipv4Addr::from_bits(0x0800_0000 | (bits >> 8)).into();
        prop_assert_eq!(server(public), Ok(()));
        prop_assert_eq!(
            AddressFilter::default().check_name(ours), Err(AddressRejection::OutsideNetworks)
        );
    }

    #[test]
    fn own_addresses_are_rejected_in_any_notation(bits in any::<u32>(), written in 0..3_usize, asked in 0..3_usize) {
        let own = notations(Ipv4Addr::from_bits(0x0a00_0000 | (bits >> 8)));
        let mut filter = everything();
        filter.add_own([own[written]]);
        filter.add_private_port(9900);
        prop_assert_eq!(filter.check_name(own[asked]), Err(AddressRejection::OwnAddress));
        let slice = |port| filter.check_slice(SocketAddr::new(own[asked], port));
        prop_assert_eq!(slice(9900), Err(AddressRejection::OwnAddress));
        prop_assert_eq!(slice(8080), Ok(()));
        let server = |port| filter.check_server(SocketAddr::new(own[asked], port));
        prop_assert_eq!(server(9900), Err(AddressRejection::OwnAddress));
        filter.add_gateways([own[written]]);
        let server = |port| filter.check_server(SocketAddr::new(own[asked], port));
        prop_assert_eq!(server(8080), Ok(()));
        prop_assert_eq!(filter.check_slice(SocketAddr::new(own[asked], 8080)), Err(AddressRejection::OwnAddress));
    }
}

#[test]
fn single_forbidden_addresses_are_rejected() {
    for (text, rejection) in [
        ("::1", AddressRejection::Loopback),
        ("::", AddressRejection::Unspecified),
        ("::127.0.0.1", AddressRejection::Loopback),
        ("::169.254.169.254", AddressRejection::LinkLocal),
        ("fd00:ec2::254", AddressRejection::MetadataService),
        ("168.63.129.16", AddressRejection::MetadataService),
        ("::ffff:100.100.100.200", AddressRejection::MetadataService),
    ] {
        let address = text.parse().expect("an address");
        assert_eq!(check(&everything(), address), Err(rejection), "{text}");
    }
    // Listeners on every address are no address of a Gateway.
    let mut filter = everything();
    filter.add_gateways([IpAddr::V6(Ipv6Addr::UNSPECIFIED)]);
    assert_eq!(filter.check_name([10, 0, 0, 1].into()), Ok(()));
}
