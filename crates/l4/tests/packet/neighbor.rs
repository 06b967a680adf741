//! ARP and neighbor discovery for virtual addresses, and echo requests to them.

use l4::{DropReason, VipAnnouncement};

use crate::frame::{ICMPV6, MacAddress, NODE_MAC, ParsedFrame, ROUTER_MAC, TestFrame, address};
use crate::node::{ProgramVerdict, TestNode, VIPS, on_node};

fn arp(target: [u8; 4], operation: u8) -> Vec<u8> {
    let mut frame = [[0xff; 6], ROUTER_MAC].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(ROUTER_MAC);
    frame.extend([203, 0, 113, 254]);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
}

const VIP: [u8; 4] = [203, 0, 113, 1];

#[test]
fn arp_is_answered_for_announced_addresses() {
    on_node(|node| {
        let (verdict, out) = node.run(&arp(VIP, 1));
        assert_eq!(verdict, ProgramVerdict::Redirect);
        let mut expected = [ROUTER_MAC, NODE_MAC].concat();
        expected.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        expected.extend(NODE_MAC);
        expected.extend(VIP);
        expected.extend(ROUTER_MAC);
        expected.extend([203, 0, 113, 254]);
        assert_eq!(out, expected);

        for other in [arp([203, 0, 113, 2], 1), arp(VIP, 2), arp(VIP, 1)[..40].to_vec()] {
            assert_eq!(node.run(&other), (ProgramVerdict::Next, other));
        }
        let mut odd = arp(VIP, 1);
        odd[18] = 8;
        assert_eq!(node.run(&odd), (ProgramVerdict::Next, odd));
        silence(node);
        assert_eq!(node.run(&arp(VIP, 1)), (ProgramVerdict::Next, arp(VIP, 1)));
    });
}

fn silence(node: &mut TestNode) {
    for announcement in node.desired.vips.values_mut() {
        *announcement = VipAnnouncement::Silent;
    }
    node.update();
}

/// Returns a neighbor solicitation (RFC 4861) for `target`.
fn solicitation(source: &str, target: &str, mac: MacAddress) -> TestFrame {
    let std::net::IpAddr::V6(ip) = target.parse().unwrap() else { unreachable!() };
    let mut body = ip.octets().to_vec();
    body.extend([1, 1]);
    body.extend(ROUTER_MAC);
    let frame = TestFrame::icmp(&format!("[{source}]:0"), "[ff02::1:ff00:1]:0", 135, 0, 0, &body);
    TestFrame { target_mac: mac, ..frame }
}

const GROUP: MacAddress = [0x33, 0x33, 0xff, 0, 0, 1];

#[test]
fn neighbor_solicitation_is_answered_for_announced_addresses() {
    on_node(|node| {
        let (verdict, out) = node.run(&solicitation("fe80::9", VIPS[1], GROUP).bytes());
        assert_eq!(verdict, ProgramVerdict::Redirect);
        let seen = ParsedFrame::new(&out);
        assert_eq!((seen.source_mac, seen.target_mac), (NODE_MAC, ROUTER_MAC));
        assert_eq!(
            (seen.source, seen.target),
            (address("[2001:db8::1]:0"), address("[fe80::9]:0"))
        );
        assert_eq!(seen.transport[..2], [136, 0]);
        assert_eq!(seen.transport[4..8], [0x60, 0, 0, 0], "solicited, override");
        assert_eq!(
            seen.transport[8..24],
            "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets()
        );
        assert_eq!(seen.transport[24..], [[2, 1].as_slice(), &NODE_MAC].concat());

        // Duplicate address detection has no address to answer to.
        let (verdict, out) = node.run(&solicitation("::", VIPS[1], GROUP).bytes());
        let seen = ParsedFrame::new(&out);
        assert_eq!((verdict, seen.target), (ProgramVerdict::Redirect, address("[ff02::1]:0")));
        assert_eq!((seen.target_mac, seen.transport[4]), ([0x33, 0x33, 0, 0, 0, 1], 0x20));

        let mut options = solicitation("fe80::9", VIPS[1], GROUP);
        options.payload.extend([14, 1, 0, 0, 0, 0, 0, 0]);
        let (verdict, out) = node.run(&options.bytes());
        assert_eq!(
            (verdict, ParsedFrame::new(&out).transport.len()),
            (ProgramVerdict::Redirect, 32)
        );

        let other = solicitation("fe80::9", "2001:db8::2", GROUP).bytes();
        assert_eq!(node.run(&other).0, ProgramVerdict::Next);
        let short =
            TestFrame::icmp("[fe80::9]:0", "[ff02::1:ff00:1]:0", 135, 0, 0, &[1; 8]).bytes();
        assert_eq!(node.run(&short).0, ProgramVerdict::Next);
        silence(node);
        assert_eq!(
            node.run(&solicitation("fe80::9", VIPS[1], GROUP).bytes()).0,
            ProgramVerdict::Next
        );
    });
}

#[test]
fn echo_is_answered() {
    on_node(|node| {
        for (vip, client, kinds) in [
            ("203.0.113.1:0", "198.51.100.9:0", [8, 0]),
            ("[2001:db8::1]:0", "[2001:db8:9::9]:0", [128, 129]),
        ] {
            for length in [0, 1, 56, 1001] {
                let frame =
                    TestFrame::icmp(client, vip, kinds[0], 0, 0x1234_0001, &vec![0x5a; length]);
                let seen = node.redirect(&TestFrame { ttl: 3, ..frame.clone() });
                assert_eq!((seen.source, seen.target), (address(vip), address(client)));
                assert_eq!((seen.source_mac, seen.target_mac), (NODE_MAC, ROUTER_MAC));
                assert_eq!((seen.transport[0], seen.ttl), (kinds[1], 64));
                assert_eq!(seen.transport[4..], frame.payload[4..]);
            }
            let other = TestFrame::icmp(client, vip, 42, 0, 0, &[]);
            node.assert_dropped(&other.bytes(), DropReason::Protocol);
            let cut = TestFrame::icmp(client, vip, kinds[0], 0, 0, &[]).bytes();
            node.assert_dropped(&cut[..cut.len() - 1], DropReason::Malformed);
        }
        let router = TestFrame::new("[fe80::9]:0", "[2001:db8::77]:0", ICMPV6)
            .with_payload([128, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(node.run(&router.bytes()).0, ProgramVerdict::Next);
    });
}
