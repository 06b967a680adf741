//! A pod on this node: target and checksums, replies, counters.

use l4::{DropReason, FlowKey, ProgramHook, TransportProtocol};

use crate::frame::{ParsedFrame, TestFrame, UDP, address};
use crate::node::{GATEWAY_MAC, POD_MAC, ProgramVerdict, TestNode, endpoint, on_node};

/// Virtual address, pod and client, of both IP versions.
const WORLDS: [[&str; 3]; 2] = [
    ["203.0.113.1:80", "10.0.1.7:8080", "198.51.100.9:40000"],
    ["[2001:db8::1]:80", "[fd00:1::7]:8080", "[2001:db8:9::9]:40000"],
];

fn serve_locally(node: &mut TestNode) {
    for [vip, pod, _] in WORLDS {
        for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
            let place = node.local();
            node.serve(vip, protocol, vec![endpoint(pod, place)]);
        }
    }
}

#[test]
fn packet_gets_the_pods_address_and_its_reply_the_virtual_one() {
    on_node(|node| {
        serve_locally(node);
        for [vip, pod, client] in WORLDS {
            for protocol in [6, UDP] {
                for length in [0, 1, 5, 6, 1001] {
                    let payload = vec![0xa5; length];
                    let frame = TestFrame::new(client, vip, protocol).with_payload(payload.clone());
                    let seen = node.redirect(&frame);
                    assert_eq!((seen.source, seen.target), (address(client), address(pod)));
                    assert_eq!((seen.target_mac, seen.source_mac), (POD_MAC, GATEWAY_MAC));
                    assert!(seen.transport.ends_with(&payload));

                    let (verdict, seen) =
                        node.reply(&TestFrame::new(pod, client, protocol).with_payload(payload));
                    // There is no route to the client.
                    assert_eq!(verdict, ProgramVerdict::Pass);
                    assert_eq!((seen.source, seen.target), (address(vip), address(client)));
                }
            }
        }
        assert_eq!(node.drops(), []);
    });
}

#[test]
fn udp_without_a_checksum_stays_without() {
    on_node(|node| {
        serve_locally(node);
        let [vip, pod, client] = WORLDS[0];
        let frame = TestFrame { without_checksum: true, ..TestFrame::udp(client, vip) };
        assert_eq!(node.redirect(&frame).udp_checksum(), [0, 0]);
        let reply = TestFrame { without_checksum: true, ..TestFrame::udp(pod, client) };
        assert_eq!(node.reply(&reply).1.udp_checksum(), [0, 0]);
    });
}

#[test]
fn packets_and_connections_are_counted() {
    on_node(|node| {
        serve_locally(node);
        let [vip, pod, client] = WORLDS[0];
        let frame = TestFrame::tcp(client, vip);
        let length = frame.bytes().len() as u64;
        node.redirect(&TestFrame::syn(client, vip).with_payload("hello"));
        node.redirect(&frame);
        node.reply(&TestFrame::tcp(pod, client));
        let service = node.table.service(address(vip), TransportProtocol::Tcp).unwrap().id;
        let traffic = node.data_path.service_traffic(service).unwrap();
        assert_eq!((traffic.packets, traffic.bytes, traffic.connections), (3, 3 * length, 1));
        let pod = node.table.endpoint(address(pod)).unwrap();
        assert_eq!(node.data_path.endpoint_traffic(pod).unwrap(), traffic);
        let key = FlowKey::new(address(client), address(vip), TransportProtocol::Tcp);
        assert_eq!(node.data_path.connection(&key).unwrap().unwrap().endpoint, pod);
    });
}

#[test]
fn other_packets_are_left_alone() {
    on_node(|node| {
        serve_locally(node);
        for [vip, pod, client] in WORLDS {
            for frame in [TestFrame::tcp(client, pod), TestFrame::udp(vip, client)] {
                let (verdict, out) = node.run(&frame.bytes());
                assert_eq!((verdict, out), (ProgramVerdict::Next, frame.bytes()));
            }
            let from_pod = crate::node::from_pod(&TestFrame::tcp(pod, client)).bytes();
            let (verdict, out) = node.run_on(ProgramHook::PodOut, "pod0", &from_pod);
            assert_eq!(
                (verdict, out),
                (ProgramVerdict::Next, from_pod),
                "a connection that is not ours"
            );
        }
        // For the machine of another address.
        let [vip, _, client] = WORLDS[0];
        let frame =
            TestFrame { target_mac: [2, 9, 9, 9, 9, 9], ..TestFrame::tcp(client, vip) }.bytes();
        assert_eq!(node.run(&frame), (ProgramVerdict::Next, frame));
        // The IPv4-mapped form of an IPv4 address.
        for (source, target) in
            [("[fd00::9]:1", "[::ffff:203.0.113.1]:80"), ("[::ffff:1.2.3.4]:1", WORLDS[1][0])]
        {
            let frame = TestFrame::tcp(source, target).bytes();
            assert_eq!(node.run(&frame), (ProgramVerdict::Next, frame));
        }
        // A VLAN's device has its own program; LLDP is not IP.
        let mut vlan = TestFrame::tcp(client, vip).bytes();
        vlan.splice(12..12, [0x81, 0, 0, 100]);
        assert_eq!(node.run(&vlan).0, ProgramVerdict::Next);
        let mut other = TestFrame::tcp(client, vip).bytes();
        other[12..14].copy_from_slice(&[0x88, 0xcc]);
        assert_eq!(node.run(&other), (ProgramVerdict::Next, other));
        assert_eq!(node.drops(), []);
    });
}

#[test]
fn options_and_extension_headers_are_stepped_over() {
    on_node(|node| {
        serve_locally(node);
        let [vip, pod, client] = WORLDS[0];
        for words in [1, 2, 10] {
            let frame = TestFrame { ip_options: vec![1; words * 4], ..TestFrame::tcp(client, vip) };
            assert_eq!(node.redirect(&frame).target, address(pod));
        }
        let [vip, pod, client] = WORLDS[1];
        let padding = |kind: u8, bytes: usize| {
            (kind, [vec![1, bytes as u8 - 4], vec![0; bytes - 4]].concat())
        };
        for extensions in [
            vec![padding(0, 8)],
            vec![padding(60, 24)],
            vec![padding(0, 8), padding(60, 16), padding(60, 8)],
        ] {
            let frame = TestFrame { extensions, ..TestFrame::tcp(client, vip) };
            assert_eq!(node.redirect(&frame).target, address(pod));
            assert_eq!(node.redirect(&TestFrame { protocol: UDP, ..frame }).target, address(pod));
        }
        let frame =
            TestFrame { extensions: vec![padding(60, 8); 9], ..TestFrame::tcp(client, vip) };
        node.assert_dropped(&frame.bytes(), DropReason::Malformed);
    });
}

#[test]
fn cut_packets_are_dropped() {
    on_node(|node| {
        serve_locally(node);
        for [vip, _, client] in WORLDS {
            for protocol in [6, UDP] {
                let frame = TestFrame::new(client, vip, protocol).bytes();
                // The kernel does not run a program on less than an IP header.
                let header = if vip.starts_with('[') { 54 } else { 34 };
                for length in header..frame.len() {
                    let (verdict, out) = node.run(&frame[..length]);
                    assert_eq!(verdict, ProgramVerdict::Drop, "{length} bytes");
                    assert_eq!(out, frame[..length]);
                }
            }
        }
        let [vip, _, client] = WORLDS[0];
        let whole = TestFrame::tcp(client, vip).bytes();
        // A header of 16 bytes; another version; a packet that is shorter than its headers.
        for (at, byte) in [(14, 0x44), (14, 0x55), (17, 19), (17, 30), (17, 255)] {
            let mut frame = whole.clone();
            frame[at] = byte;
            node.assert_dropped(&frame, DropReason::Malformed);
        }
        assert_eq!(node.drops().len(), 1);
    });
}

#[test]
fn ports_and_protocols_without_a_service_are_dropped() {
    on_node(|node| {
        serve_locally(node);
        for [vip, _, client] in WORLDS {
            let other = vip.replace(":80", ":81");
            node.assert_dropped(&TestFrame::tcp(client, &other).bytes(), DropReason::NoService);
            // SCTP.
            node.assert_dropped(&TestFrame::new(client, vip, 132).bytes(), DropReason::Protocol);
            node.serve(vip, TransportProtocol::Tcp, vec![]);
            node.assert_dropped(&TestFrame::tcp(client, vip).bytes(), DropReason::NoEndpoint);
        }
    });
}

#[test]
fn pod_does_not_receive_its_own_packet() {
    on_node(|node| {
        serve_locally(node);
        let [vip, _, _] = WORLDS[0];
        node.assert_dropped(&TestFrame::tcp("10.0.1.7:999", vip).bytes(), DropReason::Hairpin);
    });
}

#[test]
fn pod_reaches_a_service_from_its_own_node() {
    on_node(|node| {
        serve_locally(node);
        for [vip, pod, client] in WORLDS {
            let (verdict, seen) = node.reply(&TestFrame::syn(client, vip));
            assert_eq!((verdict, seen.target), (ProgramVerdict::Redirect, address(pod)));
        }
    });
}

#[test]
fn reply_of_the_nodes_own_namespace_is_translated_at_the_uplink() {
    on_node(|node| {
        for [vip, pod, client] in WORLDS {
            node.serve(
                vip,
                TransportProtocol::Tcp,
                vec![endpoint(pod, l4::EndpointPlace::HostNetwork)],
            );
            let (verdict, out) = node.run(&TestFrame::syn(client, vip).bytes());
            assert_eq!(
                (verdict, ParsedFrame::new(&out).target),
                (ProgramVerdict::Pass, address(pod))
            );
            let (verdict, out) =
                node.run_on(ProgramHook::NodeOut, "up0", &TestFrame::tcp(pod, client).bytes());
            assert_eq!(
                (verdict, ParsedFrame::new(&out).source),
                (ProgramVerdict::Next, address(vip))
            );
        }
    });
}
