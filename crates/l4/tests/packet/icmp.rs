//! ICMP errors: those about what a service sent reach its pod, those that a pod sends come from the virtual address.

use l4::{DropReason, EndpointPlace, TransportProtocol};

use crate::frame::{ParsedFrame, TCP, TestFrame, UDP, address};
use crate::node::{PEER_MAC, POD_MAC, ProgramVerdict, TestNode, endpoint, on_node};

const WORLDS: [[&str; 4]; 2] = [
    ["203.0.113.1:80", "10.0.1.7:8080", "198.51.100.9:40000", "192.0.2.77:0"],
    ["[2001:db8::1]:80", "[fd00:1::7]:8080", "[2001:db8:9::9]:40000", "[2001:db8:7::7]:0"],
];

/// Returns what a router says about a packet: it does not fit.
fn too_big(router: &str, target: &str, about: &[u8]) -> TestFrame {
    let target = format!("{}:0", target.rsplit_once(':').unwrap().0);
    let (kind, code) = if router.starts_with('[') { (2, 0) } else { (3, 4) };
    TestFrame::icmp(router, &target, kind, code, 1280, about)
}

fn serve(node: &mut TestNode, place: &EndpointPlace) {
    for [vip, pod, ..] in WORLDS {
        for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
            node.serve(vip, protocol, vec![endpoint(pod, place.clone())]);
        }
    }
}

#[test]
fn error_reaches_the_pod_about_its_own_packet() {
    on_node(|node| {
        let place = node.local();
        serve(node, &place);
        for [vip, pod, client, router] in WORLDS {
            for protocol in [TCP, UDP] {
                node.redirect(&TestFrame::new(client, vip, protocol));
                let sent =
                    TestFrame::new(vip, client, protocol).with_payload(vec![1; 600]).packet();
                // A router quotes all or as little as eight bytes of the transport.
                let header = if vip.starts_with('[') { 40 } else { 20 };
                for length in [sent.len().min(500), header + 8] {
                    let seen = node.redirect(&too_big(router, vip, &sent[..length]));
                    assert_eq!(
                        (seen.source.ip(), seen.target.ip()),
                        (address(router).ip(), address(pod).ip())
                    );
                    assert_eq!(
                        (seen.target_mac, seen.transport[4..8].to_vec()),
                        (POD_MAC, vec![0, 0, 5, 0])
                    );
                    let quoted = ParsedFrame::of_quoted(&seen.transport[8..]);
                    assert_eq!((quoted.source, quoted.target), (address(pod), address(client)));
                }
            }
        }
        assert_eq!(node.drops(), []);
    });
}

#[test]
fn error_follows_the_table_without_a_known_connection() {
    on_node(|node| {
        let place = node.local();
        let [vip, _, client, router] = WORLDS[0];
        let pods: Vec<_> =
            (1..5).map(|it| endpoint(&format!("10.0.1.{it}:8080"), place.clone())).collect();
        node.serve(vip, TransportProtocol::Tcp, pods);
        for port in 1..50 {
            let client = client.replace("40000", &port.to_string());
            let sent = TestFrame::tcp(vip, &client).packet();
            let by_error = node.redirect(&too_big(router, vip, &sent)).target.ip();
            assert_eq!(node.redirect(&TestFrame::tcp(&client, vip)).target.ip(), by_error);
        }
    });
}

#[test]
fn error_goes_on_to_the_node_of_the_pod_once() {
    on_node(|node| {
        for way in [node.layer2(), node.vxlan()] {
            node.set_way("b", way);
            serve(node, &EndpointPlace::Node("b".to_owned()));
            for [vip, _, client, router] in WORLDS {
                let error = too_big(router, vip, &TestFrame::tcp(vip, client).packet());
                let (verdict, out) = node.run(&error.bytes());
                assert_eq!((verdict, &out[12..]), (ProgramVerdict::Redirect, &error.bytes()[12..]));
            }
        }
        let way = node.layer2();
        node.set_way("b", way);
        node.update();
        let [vip, _, client, router] = WORLDS[0];
        let error = too_big(router, vip, &TestFrame::tcp(vip, client).packet());
        node.assert_dropped(
            &TestFrame { source_mac: PEER_MAC, ..error }.bytes(),
            DropReason::NotLocal,
        );
    });
}

#[test]
fn error_about_nothing_of_ours_is_dropped() {
    on_node(|node| {
        let place = node.local();
        serve(node, &place);
        for [vip, _, client, router] in WORLDS {
            let other = TestFrame::tcp(&vip.replace(":80", ":81"), client).packet();
            let icmp = TestFrame::icmp(&vip.replace(":80", ":0"), client, 8, 0, 0, &[]).packet();
            let sctp = TestFrame::new(vip, client, 132).packet();
            let cut = TestFrame::tcp(vip, client).packet()[..24].to_vec();
            let later =
                TestFrame { fragment: Some((1480, false)), ..TestFrame::udp(vip, client) }.packet();
            for about in [other, icmp, sctp, cut, later, Vec::new()] {
                node.assert_dropped(
                    &too_big(router, vip, &about).bytes(),
                    DropReason::IcmpUnmatched,
                );
            }
        }
    });
}

#[test]
fn error_of_a_pod_comes_from_the_virtual_address() {
    on_node(|node| {
        let place = node.local();
        serve(node, &place);
        for [vip, pod, client, _] in WORLDS {
            node.redirect(&TestFrame::udp(client, vip));
            // What the pod has received.
            let received = TestFrame::udp(client, pod).packet();
            let (kind, code) = if vip.starts_with('[') { (1, 4) } else { (3, 3) };
            let error = TestFrame::icmp(pod, client, kind, code, 0, &received);
            let (verdict, seen) = node.reply(&error);
            assert_eq!(verdict, ProgramVerdict::Pass);
            assert_eq!(
                (seen.source.ip(), seen.target.ip()),
                (address(vip).ip(), address(client).ip())
            );
            let quoted = ParsedFrame::of_quoted(&seen.transport[8..]);
            assert_eq!((quoted.source, quoted.target), (address(client), address(vip)));
        }
    });
}
