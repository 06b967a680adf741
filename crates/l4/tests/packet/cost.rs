//! Cost of the programs: for the verifier, and in nanoseconds for one packet. Run the latter by hand:
//! `cargo test -p l4 --test packet cost -- --ignored --nocapture`.

use aya::programs::{TestRun, TestRunOptions};
use l4::{EndpointPlace, ProgramHook, TransportProtocol};

use crate::frame::TestFrame;
use crate::node::{TestNode, endpoint, on_node};

const REPEATS: u32 = 1_000_000;

/// Runs a program so often on a packet, and prints the mean. The packet is that of the last run each time.
fn measure(node: &mut TestNode, name: &str, hook: ProgramHook, frame: &[u8]) {
    let least = (0..5).map(|_| {
        let context = node.context("up0", None);
        let options = TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(&context),
            repeat: REPEATS,
            ..TestRunOptions::new()
        };
        node.data_path.program(hook).test_run(options).unwrap().duration
    });
    eprintln!("{name}: {:?}", least.min().unwrap());
}

#[test]
#[ignore = "measures"]
fn cost_of_a_packet() {
    on_node(|node| {
        let way = node.layer2();
        node.set_way("b", way);
        let pods: Vec<_> = (1..=8)
            .map(|it| endpoint(&format!("10.0.2.{it}:80"), EndpointPlace::Node("b".to_owned())))
            .collect();
        for count in [1, 1000, 10_000] {
            let mut service =
                crate::node::service("203.0.113.1:1", TransportProtocol::Udp, pods.clone());
            service.quic_server_id_length = Some(3);
            node.desired.services = (1..=count)
                .map(|port| {
                    let mut service = service.clone();
                    service.address.set_port(port);
                    // One table is enough to be looked up.
                    service.endpoints.truncate(if port == 1 { 8 } else { 1 });
                    service
                })
                .collect();
            node.update();
            let vip = "203.0.113.1:1";
            let known =
                TestFrame::udp("198.51.100.9:9", vip).with_payload([0xc0, 0, 0, 0, 1, 0]).bytes();
            measure(
                node,
                &format!("{count} Services, known connection"),
                ProgramHook::LbIn,
                &known,
            );
            let quic = TestFrame::udp("198.51.100.9:9", vip)
                .with_payload([0x40, 0, 0, 2, 3, 9, 9, 9, 9])
                .bytes();
            measure(node, &format!("{count} Services, server ID"), ProgramHook::LbIn, &quic);
        }
        let other = TestFrame::tcp("198.51.100.9:9", "10.9.9.9:80").bytes();
        measure(node, "other packet", ProgramHook::LbIn, &other);
        measure(node, "other packet of a pod", ProgramHook::PodOut, &other);
    });
}

#[test]
fn programs_are_far_from_the_limit_of_the_verifier() {
    on_node(|node| {
        for hook in [ProgramHook::LbIn, ProgramHook::PodOut, ProgramHook::NodeOut] {
            let info = node.data_path.program(hook).info().unwrap();
            let count = info.verified_instruction_count().unwrap();
            eprintln!("{}: {count} instructions", hook.program());
            // The limit is 1,000,000, and other kernels and compilers need more or less than these.
            assert!(count < 100_000, "{count}");
        }
    });
}
