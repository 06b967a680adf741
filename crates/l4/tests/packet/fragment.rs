//! Fragments: the later ones follow the first.

use l4::{DropReason, EndpointPlace, TransportProtocol};

use crate::frame::{ParsedFrame, TestFrame, address};
use crate::node::{NODE_ADDRESSES, PEER_MAC, ProgramVerdict, TestNode, endpoint, on_node};

const WORLDS: [[&str; 3]; 2] = [
    ["203.0.113.1:53", "10.0.1.7:5353", "198.51.100.9:40000"],
    ["[2001:db8::1]:53", "[fd00:1::7]:5353", "[2001:db8:9::9]:40000"],
];

/// Returns the fragments of a datagram.
fn fragments(source: &str, target: &str) -> [TestFrame; 3] {
    let part = |offset: u16, more: bool| {
        let payload = vec![offset as u8; 64];
        let frame = TestFrame {
            fragment: Some((offset, more)),
            dont_fragment: false,
            ..TestFrame::udp(source, target)
        };
        // The checksum is that of the whole, and so none that can be checked here.
        frame.with_payload(payload)
    };
    [part(0, true), part(72, true), part(136, false)]
}

fn serve(node: &mut TestNode, place: &EndpointPlace) {
    for [vip, pod, _] in WORLDS {
        node.serve(vip, TransportProtocol::Udp, vec![endpoint(pod, place.clone())]);
    }
}

#[test]
fn later_fragments_follow_the_first() {
    on_node(|node| {
        let place = node.local();
        serve(node, &place);
        for [vip, pod, client] in WORLDS {
            let [first, second, third] = fragments(client, vip);
            node.assert_dropped(&second.bytes(), DropReason::NoFirstFragment);
            assert_eq!(node.redirect(&first).target, address(pod));
            for frame in [second, third] {
                let seen = node.redirect(&frame);
                assert_eq!(
                    (seen.source.ip(), seen.target.ip()),
                    (address(client).ip(), address(pod).ip())
                );
                assert_eq!(seen.transport, frame.payload);
            }
            let [first, second, third] = fragments(pod, client);
            let (verdict, seen) = node.reply(&first);
            assert_eq!((verdict, seen.source), (ProgramVerdict::Pass, address(vip)));
            for frame in [second, third] {
                let (verdict, seen) = node.reply(&frame);
                assert_eq!((verdict, seen.source.ip()), (ProgramVerdict::Pass, address(vip).ip()));
                assert_eq!(seen.transport, frame.payload);
            }
        }
    });
}

#[test]
fn fragments_go_to_other_nodes_as_whole_packets_do() {
    on_node(|node| {
        let ways = [node.layer2(), node.vxlan(), node.full_nat()];
        for way in ways {
            node.set_way("b", way);
            serve(node, &EndpointPlace::Node("b".to_owned()));
            for ([vip, pod, client], own) in WORLDS.into_iter().zip(NODE_ADDRESSES) {
                let [first, second, _] = fragments(client, vip);
                let whole = node.redirect(&first);
                let seen = node.redirect(&second);
                assert_eq!(
                    (seen.source.ip(), seen.target.ip()),
                    (whole.source.ip(), whole.target.ip())
                );
                if matches!(way, l4::NodeWay::FullNat { .. }) {
                    assert_eq!(
                        (seen.source.ip(), seen.target.ip()),
                        (own.parse().unwrap(), address(pod).ip())
                    );
                } else {
                    assert_eq!(
                        (seen.source_mac, seen.target_mac),
                        (whole.source_mac, whole.target_mac)
                    );
                }
            }
        }
    });
}

#[test]
fn fragments_of_another_node_are_not_forwarded_again() {
    on_node(|node| {
        let way = node.layer2();
        node.set_way("b", way);
        serve(node, &EndpointPlace::Node("b".to_owned()));
        let [vip, _, client] = WORLDS[0];
        let [first, second, _] = fragments(client, vip);
        node.redirect(&first);
        node.assert_dropped(
            &TestFrame { source_mac: PEER_MAC, ..second }.bytes(),
            DropReason::NotLocal,
        );
    });
}

#[test]
fn fragments_of_a_pods_other_packets_are_left_alone() {
    on_node(|node| {
        let place = node.local();
        serve(node, &place);
        for [_, pod, client] in WORLDS {
            for frame in fragments(pod, client) {
                let (verdict, seen) = node.reply(&frame);
                assert_eq!((verdict, seen.source.ip()), (ProgramVerdict::Next, address(pod).ip()));
                assert_eq!(seen, ParsedFrame::new(&crate::node::from_pod(&frame).bytes()));
            }
        }
    });
}
