//! Frames that announce an address on the link or probe for it, byte for byte: ARP (RFC 826, RFC 5227) for IPv4,
//! Neighbor Discovery (RFC 4861) for IPv6.
//!
//! Pure: bytes in, bytes out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An Ethernet address.
pub(super) type MacAddress = [u8; 6];

const BROADCAST_MAC: MacAddress = [0xff; 6];
const UNKNOWN_MAC: MacAddress = [0; 6];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// Hardware type Ethernet and protocol type IPv4, with the lengths of their addresses.
const ARP_KIND: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flag of an advertisement that overrides cached entries.
const OVERRIDE: u8 = 0x20;
const TARGET_LINK_ADDRESS: u8 = 2;
/// Receivers ignore messages with a lower value, because they have passed a router.
const HOP_LIMIT: u8 = 255;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Returns the frames that announce to all hosts on the link that the address is at `mac` now. Some hosts accept an ARP
/// request and some an ARP reply, so both are sent.
pub(super) fn announcement(address: IpAddr, mac: MacAddress) -> Vec<Vec<u8>> {
    match address {
        IpAddr::V4(ip) => {
            let request = arp(REQUEST, (mac, ip), (UNKNOWN_MAC, ip));
            vec![request, arp(REPLY, (mac, ip), (BROADCAST_MAC, ip))]
        }
        IpAddr::V6(ip) => {
            let option = [&[TARGET_LINK_ADDRESS, 1], &mac[..]].concat();
            vec![neighbor(ADVERTISEMENT, OVERRIDE, ip, (mac, ip), ALL_NODES, &option)]
        }
    }
}

/// Returns the frame that probes all hosts on the link for the address without claiming it: an ARP probe (RFC 5227
/// §2.1.1), or duplicate address detection (RFC 4862 §5.4.2).
pub(super) fn probe(address: IpAddr, mac: MacAddress) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => arp(REQUEST, (mac, Ipv4Addr::UNSPECIFIED), (UNKNOWN_MAC, ip)),
        IpAddr::V6(ip) => {
            let to = solicited_node(ip);
            neighbor(SOLICITATION, 0, ip, (mac, Ipv6Addr::UNSPECIFIED), to, &[])
        }
    }
}

/// Returns the sender of an ARP frame that claims the IPv4 address.
pub(super) fn claimant(frame: &[u8], address: Ipv4Addr) -> Option<MacAddress> {
    let message = frame.get(14..42)?;
    let is_arp = frame[12..14] == ETHERTYPE_ARP && message[..6] == ARP_KIND;
    let is_claimed = message[14..18] == address.octets();
    (is_arp && is_claimed).then(|| message[8..14].try_into().ok()).flatten()
}

/// True if an ICMPv6 message is an advertisement of the IPv6 address.
pub(super) fn advertises(message: &[u8], address: Ipv6Addr) -> bool {
    message.first() == Some(&ADVERTISEMENT) && message.get(8..24) == Some(&address.octets())
}

fn arp(operation: u8, sender: (MacAddress, Ipv4Addr), target: (MacAddress, Ipv4Addr)) -> Vec<u8> {
    let mut frame = ethernet(BROADCAST_MAC, sender.0, ETHERTYPE_ARP);
    frame.extend(ARP_KIND);
    frame.extend([0, operation]);
    for (mac, ip) in [sender, target] {
        frame.extend(mac);
        frame.extend(ip.octets());
    }
    frame
}

/// Builds a Neighbor Discovery message about an address, sent to a multicast group.
fn neighbor(
    kind: u8,
    flags: u8,
    about: Ipv6Addr,
    (mac, from): (MacAddress, Ipv6Addr),
    to: Ipv6Addr,
    option: &[u8],
) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend(about.octets());
    message.extend(option);
    let sum = checksum(from, to, &message);
    message[2..4].copy_from_slice(&sum);
    let [.., a, b, c, d] = to.octets();
    let mut frame = ethernet([0x33, 0x33, a, b, c, d], mac, ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length(&message).to_be_bytes());
    frame.extend([ICMPV6, HOP_LIMIT]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(message);
    frame
}

fn ethernet(to: MacAddress, from: MacAddress, kind: [u8; 2]) -> Vec<u8> {
    [&to[..], &from, &kind].concat()
}

/// Returns the solicited-node multicast address (RFC 4291 §2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (high & 0xff), low)
}

/// Computes the checksum of a message and the pseudo-header (RFC 8200 §8.1).
fn checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> [u8; 2] {
    let [high, low] = length(message).to_be_bytes();
    let (from, to) = (from.octets(), to.octets());
    let covered = [&from[..], &to, &[0, 0, high, low, 0, 0, 0, ICMPV6], message].concat();
    let words = covered.chunks(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        _ => u32::from(pair[0]) << 8,
    });
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    [!(folded >> 8) as u8, !folded as u8]
}

fn length(message: &[u8]) -> u16 {
    u16::try_from(message.len()).expect("the message is a few octets long")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddress = [0x02, 0, 0, 0, 0, 0x0b];

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn an_ipv4_address_is_announced_by_a_request_and_a_reply() {
        let frames = announcement("192.0.2.7".parse().unwrap(), MAC);
        let frames: Vec<_> = frames.iter().map(|frame| hex(frame)).collect();
        assert_eq!(
            frames,
            [
                "ffffffffffff02000000000b0806000108000604000102000000000bc0000207000000000000c0000207",
                "ffffffffffff02000000000b0806000108000604000202000000000bc0000207ffffffffffffc0000207",
            ]
        );
    }

    #[test]
    fn arp_probe_claims_no_address() {
        let frame = probe("192.0.2.7".parse().unwrap(), MAC);
        assert_eq!(claimant(&frame, "192.0.2.7".parse().unwrap()), None);
        assert_eq!(hex(&frame[28..32]), "00000000");
        assert_eq!(hex(&frame[38..42]), "c0000207");
    }

    #[test]
    fn arp_announcement_reveals_the_claimant() {
        let address = "192.0.2.7".parse().unwrap();
        for frame in announcement(IpAddr::V4(address), MAC) {
            assert_eq!(claimant(&frame, address), Some(MAC));
            assert_eq!(claimant(&frame, "192.0.2.8".parse().unwrap()), None);
            assert_eq!(claimant(&frame[..41], address), None);
        }
    }

    /// True if the checksum is valid: the sum over all of the message, including the checksum, is
    /// all ones.
    fn verifies(frame: &[u8]) -> bool {
        let (from, to): ([u8; 16], [u8; 16]) =
            (frame[22..38].try_into().unwrap(), frame[38..54].try_into().unwrap());
        checksum(from.into(), to.into(), &frame[54..]) == [0, 0]
    }

    #[test]
    fn an_ipv6_address_is_announced_to_all_nodes() {
        let address: Ipv6Addr = "2001:db8::7".parse().unwrap();
        let frames = announcement(IpAddr::V6(address), MAC);
        let [frame] = &frames[..] else { panic!("{frames:?}") };
        assert!(hex(frame).starts_with("33330000000102000000000b86dd6000000000203aff2001"));
        assert!(hex(frame).ends_with("20010db8000000000000000000000007020102000000000b"));
        assert!(verifies(frame));
        assert!(advertises(&frame[54..], address));
        assert!(!advertises(&frame[54..], ALL_NODES));
    }

    #[test]
    fn ipv6_probe_goes_to_the_solicited_node_multicast_address() {
        let frame = probe("2001:db8::a1:b2c3".parse().unwrap(), MAC);
        assert!(hex(&frame).starts_with("3333ffa1b2c3"));
        assert_eq!(hex(&frame[22..38]), "0".repeat(32));
        assert_eq!(hex(&frame[38..54]), "ff0200000000000000000001ffa1b2c3");
        assert!(verifies(&frame));
    }
}
