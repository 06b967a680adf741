//! Pods on other nodes: direct server return on the segment and in VXLAN, full NAT, and packets from other nodes.

use l4::{DropReason, EndpointPlace, NodeWay, ProgramHook, TransportProtocol};

use crate::frame::NODE_MAC;
use crate::frame::{ACK, FIN, ParsedFrame, RST, SYN, TCP, TestFrame, UDP, address};
use crate::node::{
    NODE_ADDRESSES, PEER_ADDRESSES, PEER_MAC, ProgramVerdict, TUNNEL_MAC, TUNNEL_PEER_MAC,
    TestNode, endpoint, on_node,
};

const WORLDS: [[&str; 3]; 2] = [
    ["203.0.113.1:80", "10.0.2.7:8080", "198.51.100.9:40000"],
    ["[2001:db8::1]:80", "[fd00:2::7]:8080", "[2001:db8:9::9]:40000"],
];

fn serve_elsewhere(node: &mut TestNode, way: NodeWay) {
    node.set_way("b", way);
    for [vip, pod, _] in WORLDS {
        for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
            node.serve(vip, protocol, vec![endpoint(pod, EndpointPlace::Node("b".to_owned()))]);
        }
    }
}

#[test]
fn layer2_changes_the_frame_alone() {
    on_node(|node| {
        let way = node.layer2();
        serve_elsewhere(node, way);
        for [vip, _, client] in WORLDS {
            for protocol in [TCP, UDP] {
                let frame = TestFrame::new(client, vip, protocol);
                let (verdict, out) = node.run(&frame.bytes());
                assert_eq!(verdict, ProgramVerdict::Redirect);
                let expected = TestFrame { target_mac: PEER_MAC, source_mac: NODE_MAC, ..frame };
                assert_eq!(out, expected.bytes());
            }
        }
    });
}

#[test]
fn vxlan_changes_the_inner_frame_alone() {
    on_node(|node| {
        let way = node.vxlan();
        serve_elsewhere(node, way);
        for [vip, _, client] in WORLDS {
            let frame = TestFrame::tcp(client, vip);
            let (verdict, out) = node.run(&frame.bytes());
            assert_eq!(verdict, ProgramVerdict::Redirect);
            let expected =
                TestFrame { target_mac: TUNNEL_PEER_MAC, source_mac: TUNNEL_MAC, ..frame };
            assert_eq!(out, expected.bytes());
        }
    });
}

#[test]
fn packet_of_another_node_is_not_forwarded_again() {
    on_node(|node| {
        let way = node.layer2();
        serve_elsewhere(node, way);
        let addresses = PEER_ADDRESSES
            .map(|it| if it.contains(':') { format!("[{it}]:999") } else { format!("{it}:999") });
        for ([vip, _, client], own) in WORLDS.into_iter().zip(&addresses) {
            let frame = TestFrame { source_mac: PEER_MAC, ..TestFrame::tcp(client, vip) };
            node.assert_dropped(&frame.bytes(), DropReason::NotLocal);
            // The other node's own packets have not been balanced yet.
            let frame = TestFrame { source_mac: PEER_MAC, ..TestFrame::tcp(own, vip) };
            node.redirect(&frame);
            let (verdict, _) = node.run_on(
                ProgramHook::LbIn,
                "vx0",
                &tunnelled(&TestFrame::tcp(client, vip)).bytes(),
            );
            assert_eq!(verdict, ProgramVerdict::Drop, "from the tunnel");
        }
        for [vip, pod, client] in WORLDS {
            let place = node.local();
            node.serve(vip, TransportProtocol::Tcp, vec![endpoint(pod, place)]);
            let frame = TestFrame { source_mac: PEER_MAC, ..TestFrame::tcp(client, vip) };
            assert_eq!(node.redirect(&frame).target, address(pod));
        }
    });
}

#[test]
fn new_connection_of_another_node_goes_to_a_pod_here_if_its_own_is_unknown() {
    on_node(|node| {
        let way = node.layer2();
        node.set_way("b", way);
        let remote = EndpointPlace::Node("b".to_owned());
        let pods = [
            ("10.0.1.7:80", node.local()),
            ("10.0.2.7:80", remote.clone()),
            ("10.0.2.8:80", remote),
        ];
        let pods = pods.map(|(pod, place)| endpoint(pod, place));
        for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
            node.serve(WORLDS[0][0], protocol, pods.to_vec());
        }
        let before = node.dropped(DropReason::NotLocal);
        let mut others = 0;
        for port in 1..60 {
            let client = format!("198.51.100.9:{port}");
            let frame = TestFrame { source_mac: PEER_MAC, ..TestFrame::tcp(&client, WORLDS[0][0]) };
            // The middle of a connection is left to the node that has it.
            let is_dropped = node.run(&frame.bytes()).0 == ProgramVerdict::Drop;
            others += u64::from(is_dropped);
            for frame in [
                TestFrame { flags: SYN, ..frame.clone() },
                TestFrame { protocol: UDP, ..frame.clone() },
                frame,
            ] {
                assert_eq!(node.redirect(&frame).target, pods[0].address);
            }
        }
        assert!((20..60).contains(&others), "{others}");
        assert_eq!(node.dropped(DropReason::NotLocal) - before, others);
    });
}

fn tunnelled(frame: &TestFrame) -> TestFrame {
    TestFrame { target_mac: TUNNEL_MAC, source_mac: TUNNEL_PEER_MAC, ..frame.clone() }
}

#[test]
fn segment_size_leaves_room_for_the_tunnel() {
    on_node(|node| {
        for ([vip, pod, client], header) in WORLDS.into_iter().zip([40, 60]) {
            let place = node.local();
            node.serve(vip, TransportProtocol::Tcp, vec![endpoint(pod, place)]);
            // Straight to this node: the pod's offer stays.
            node.redirect(&TestFrame::syn(client, vip));
            assert_eq!(offered(node, pod, client, vec![2, 4, 0x05, 0xb4]), 1460);
            let syn = tunnelled(&TestFrame::syn(client, vip)).bytes();
            assert_eq!(node.run_on(ProgramHook::LbIn, "vx0", &syn).0, ProgramVerdict::Redirect);
            let limit = 1450 - header;
            assert_eq!(offered(node, pod, client, vec![2, 4, 0x05, 0xb4]), limit);
            // At an odd offset, after other options, and a small one.
            assert_eq!(offered(node, pod, client, vec![1, 2, 4, 0x05, 0xb4, 1, 1, 0]), limit);
            assert_eq!(
                offered(
                    node,
                    pod,
                    client,
                    vec![8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 4, 0x23, 0x28, 0]
                ),
                limit
            );
            assert_eq!(offered(node, pod, client, vec![2, 4, 0x02, 0x00]), 512);
            // Malformed options are left as they are; without the option there is no change.
            for options in [
                vec![2, 0, 0x05, 0xb4],
                vec![2, 3, 5, 1],
                vec![3, 1, 1, 1],
                vec![1, 1, 1, 2],
                vec![],
            ] {
                let reply = syn_ack(pod, client, options.clone());
                let (_, seen) = node.reply(&reply);
                assert!(seen.transport.ends_with(&options));
            }
        }
    });
}

fn syn_ack(pod: &str, client: &str, options: Vec<u8>) -> TestFrame {
    TestFrame { flags: SYN | 0x10, options, payload: Vec::new(), ..TestFrame::tcp(pod, client) }
}

/// Returns the segment size that a reply of the pod offers to the client.
fn offered(node: &mut TestNode, pod: &str, client: &str, options: Vec<u8>) -> u16 {
    let at = 20 + options.windows(2).position(|it| it == [2, 4]).unwrap() + 2;
    let (_, seen) = node.reply(&syn_ack(pod, client, options));
    u16::from_be_bytes([seen.transport[at], seen.transport[at + 1]])
}

#[test]
fn packet_that_does_not_fit_is_reported_to_the_client() {
    on_node(|node| {
        let way = node.vxlan();
        serve_elsewhere(node, way);
        for ([vip, _, client], header) in WORLDS.into_iter().zip([28, 48]) {
            let fits = TestFrame::udp(client, vip).with_payload(vec![7; 1450 - header]);
            assert_eq!(node.run(&fits.bytes()).0, ProgramVerdict::Redirect);
            let frame = TestFrame::udp(client, vip).with_payload(vec![7; 1451 - header]);
            let before = node.dropped(DropReason::TooBig);
            let (verdict, out) = node.run(&frame.bytes());
            assert_eq!(
                (verdict, node.dropped(DropReason::TooBig)),
                (ProgramVerdict::Redirect, before + 1)
            );
            let seen = ParsedFrame::new(&out);
            assert_eq!(
                (seen.source.ip(), seen.target.ip()),
                (address(vip).ip(), address(client).ip())
            );
            assert_eq!((seen.target_mac, seen.source_mac), (frame.source_mac, frame.target_mac));
            let kind = if header == 28 { [3, 4] } else { [2, 0] };
            assert_eq!(seen.transport[..2], kind);
            assert_eq!(seen.transport[4..8], 1450_u32.to_be_bytes());
            assert_eq!(seen.transport[8..], frame.packet()[..128]);
        }
        // What may be cut is cut by the tunnel; segments of a super-packet fit.
        let [vip, _, client] = WORLDS[0];
        let frame = TestFrame {
            dont_fragment: false,
            ..TestFrame::udp(client, vip).with_payload(vec![7; 1460])
        };
        assert_eq!(node.run(&frame.bytes()).0, ProgramVerdict::Redirect);
        let large = TestFrame::tcp(client, vip).with_payload(vec![7; 3000]).bytes();
        let (verdict, out) = node.run_with_gso(ProgramHook::LbIn, "up0", &large, Some((1410, 3)));
        assert_eq!((verdict, out.len()), (ProgramVerdict::Redirect, large.len()));
        let (verdict, out) = node.run_with_gso(ProgramHook::LbIn, "up0", &large, Some((1411, 3)));
        assert_eq!(
            (verdict, ParsedFrame::new(&out).transport[..2].to_vec()),
            (ProgramVerdict::Redirect, vec![3, 4])
        );
    });
}

#[test]
fn full_nat_comes_from_the_node_and_returns_to_the_client() {
    on_node(|node| {
        let way = node.full_nat();
        serve_elsewhere(node, way);
        for ([vip, pod, client], own) in WORLDS.into_iter().zip(NODE_ADDRESSES) {
            for protocol in [TCP, UDP] {
                let frame = TestFrame::new(client, vip, protocol);
                let seen = node.redirect(&frame);
                assert_eq!((seen.source.ip(), seen.target), (own.parse().unwrap(), address(pod)));
                assert!(seen.source.port() >= 61_000);
                assert_eq!(
                    node.redirect(&frame).source,
                    seen.source,
                    "the connection keeps its port"
                );
                let other =
                    TestFrame { source: address(&client.replace("40000", "40001")), ..frame };
                assert_ne!(node.redirect(&other).source, seen.source);

                let reply = TestFrame::new(pod, &seen.source.to_string(), protocol);
                let (verdict, out) = node.run(&reply.bytes());
                assert_eq!(verdict, ProgramVerdict::Pass);
                let seen = ParsedFrame::new(&out);
                assert_eq!((seen.source, seen.target), (address(vip), address(client)));
            }
        }
        assert_eq!(node.drops(), []);
    });
}

#[test]
fn full_nat_without_a_free_port_drops() {
    on_node(|node| {
        let way = node.full_nat();
        serve_elsewhere(node, way);
        (node.settings.nat_first_port, node.settings.nat_last_port) = (61_000, 61_001);
        node.data_path.set_settings(&node.settings).unwrap();
        let [vip, _, client] = WORLDS[0];
        let frame = |port: u32| TestFrame::tcp(&client.replace("40000", &port.to_string()), vip);
        let ports =
            [node.redirect(&frame(1)).source.port(), node.redirect(&frame(2)).source.port()];
        assert_ne!(ports[0], ports[1]);
        node.assert_dropped(&frame(3).bytes(), DropReason::NoNatPort);
    });
}

/// A node with one port for full NAT.
struct OnePort<'n> {
    node: &'n mut TestNode,
    port: String,
}

impl<'n> OnePort<'n> {
    fn new(node: &'n mut TestNode) -> Self {
        let way = node.full_nat();
        serve_elsewhere(node, way);
        (node.settings.nat_first_port, node.settings.nat_last_port) = (61_000, 61_000);
        node.data_path.set_settings(&node.settings).unwrap();
        let port = format!("{}:61000", NODE_ADDRESSES[0]);
        Self { node, port }
    }

    fn frame(&self, client: u16, protocol: u8, flags: u8) -> TestFrame {
        let [vip, _, address] = WORLDS[0];
        let client = address.replace("40000", &client.to_string());
        TestFrame { flags, ..TestFrame::new(&client, vip, protocol) }
    }

    fn send(&mut self, client: u16, protocol: u8, flags: u8) {
        let frame = self.frame(client, protocol, flags);
        assert_eq!(self.node.redirect(&frame).source, address(&self.port));
    }

    fn assert_in_use(&mut self, protocol: u8) {
        let frame = self.frame(9, protocol, SYN);
        self.node.assert_dropped(&frame.bytes(), DropReason::NoNatPort);
    }

    fn answer(&mut self, protocol: u8, flags: u8) {
        let reply = TestFrame { flags, ..TestFrame::new(WORLDS[0][1], &self.port, protocol) };
        assert_eq!(self.node.run(&reply.bytes()).0, ProgramVerdict::Pass);
    }
}

#[test]
fn full_nat_uses_the_port_of_a_closed_connection_again() {
    on_node(|node| {
        let mut nat = OnePort::new(node);
        nat.send(1, TCP, SYN);
        nat.assert_in_use(TCP);
        nat.answer(TCP, SYN | ACK);
        nat.send(1, TCP, ACK);
        nat.send(1, TCP, FIN | ACK);
        nat.node.age_replies(2);
        nat.assert_in_use(TCP);
        nat.answer(TCP, FIN | ACK);
        // The pod may repeat its last segments.
        nat.assert_in_use(TCP);
        // The client's port again, before another one gets it.
        nat.send(1, TCP, SYN);
        nat.answer(TCP, RST);
        nat.node.age_replies(2);
        nat.send(2, TCP, SYN);
        // A late packet of the first client finds no port, and takes none.
        let late = nat.frame(1, TCP, ACK);
        nat.node.assert_dropped(&late.bytes(), DropReason::NoNatPort);
        nat.send(2, TCP, ACK);
    });
}

/// Anyone can send a reset with the addresses of a client; the pod ignores it outside of its window.
#[test]
fn full_nat_believes_no_reset_that_the_pod_ignores() {
    on_node(|node| {
        let mut nat = OnePort::new(node);
        nat.send(1, TCP, SYN);
        nat.answer(TCP, SYN | ACK);
        nat.send(1, TCP, ACK);
        nat.send(1, TCP, RST);
        nat.answer(TCP, ACK);
        nat.node.age_replies(300);
        nat.assert_in_use(TCP);
        nat.answer(TCP, RST);
        nat.node.age_replies(2);
        nat.send(2, TCP, SYN);
    });
}

/// A pod that repeats its answer does not keep the port of a client that is not there.
#[test]
fn full_nat_is_not_kept_by_repeated_answers() {
    on_node(|node| {
        let mut nat = OnePort::new(node);
        nat.send(1, TCP, SYN);
        nat.answer(TCP, SYN | ACK);
        nat.node.age_replies(9);
        nat.answer(TCP, SYN | ACK);
        nat.node.age_replies(1);
        nat.send(2, TCP, SYN);
    });
}

#[test]
fn full_nat_forgets_silent_connections() {
    on_node(|node| {
        let mut nat = OnePort::new(node);
        let mut client = 100;
        let mut check = |protocol, seconds: u32, packets: &[(bool, u8)]| {
            client += 1;
            for &(is_from_pod, flags) in packets {
                match is_from_pod {
                    true => nat.answer(protocol, flags),
                    false => nat.send(client, protocol, flags),
                }
            }
            // The clock may have gone on.
            nat.node.age_replies(seconds - 3);
            nat.assert_in_use(protocol);
            nat.node.age_replies(3);
        };
        let opened = [(false, SYN), (true, SYN | ACK), (false, ACK)];
        let half_closed = [opened[0], opened[1], opened[2], (false, FIN | ACK)];
        check(TCP, 10, &opened[..1]);
        check(TCP, 10, &opened[..2]);
        check(TCP, 7440, &opened);
        check(TCP, 240, &half_closed);
        check(UDP, 10, &[(false, 0)]);
        check(UDP, 120, &[(false, 0), (true, 0), (false, 0)]);
        // Each has had the port of the one before; the last gives it back too.
        check(TCP, 10, &opened[..1]);
        check(UDP, 10, &[(false, 0)]);
    });
}

#[test]
fn tunnel_carries_nothing_else() {
    on_node(|node| {
        let before = node.dropped(DropReason::NotForTunnel);
        let mut frames = Vec::new();
        for [_, pod, client] in WORLDS {
            frames.push(tunnelled(&TestFrame::tcp(client, pod)).bytes());
            let broadcast = TestFrame { target_mac: [0xff; 6], ..TestFrame::udp(client, pod) };
            frames.push(broadcast.bytes());
        }
        // ARP, and what is no IP.
        for kind in [[8, 6], [0x88, 0xcc]] {
            let mut frame = frames[0].clone();
            frame[12..14].copy_from_slice(&kind);
            frames.push(frame);
        }
        for frame in &frames {
            assert_eq!(node.run_on(ProgramHook::LbIn, "vx0", frame).0, ProgramVerdict::Drop);
        }
        assert_eq!(node.dropped(DropReason::NotForTunnel) - before, frames.len() as u64);
    });
}
