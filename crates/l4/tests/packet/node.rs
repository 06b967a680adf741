//! The data path without a network: packet in, verdict and packet out.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use aya::maps::{HashMap, Map, MapData};
use aya::programs::{TestRun, TestRunOptions};
use l4::{
    DataPath, DataPathConfig, DesiredState, DropReason, EndpointPlace, EndpointSpec, FlowKey,
    L4Table, NodeSettings, NodeSpec, NodeWay, PodLink, ProgramHook, ReplyValue, ServiceSpec,
    TransportProtocol, VipAnnouncement,
};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

use crate::frame::{MacAddress, NODE_MAC, ParsedFrame, TestFrame, address};

/// Offsets in `struct __sk_buff`.
const SKB_LENGTH: usize = 192;
const SKB_IFINDEX: usize = 40;
const SKB_GSO_SEGMENTS: usize = 164;
const SKB_GSO_SIZE: usize = 176;

pub(crate) const POD_MAC: MacAddress = [2, 0, 0, 0, 1, 1];
pub(crate) const GATEWAY_MAC: MacAddress = [2, 0, 0, 0, 1, 0];
pub(crate) const PEER_MAC: MacAddress = [2, 0, 0, 0, 0, 2];
pub(crate) const TUNNEL_MAC: MacAddress = [2, 0, 0, 0, 9, 1];
pub(crate) const TUNNEL_PEER_MAC: MacAddress = [2, 0, 0, 0, 9, 2];
pub(crate) const VIPS: [&str; 2] = ["203.0.113.1", "2001:db8::1"];
pub(crate) const PEER_ADDRESSES: [&str; 2] = ["192.0.2.2", "fd00::2"];
pub(crate) const NODE_ADDRESSES: [&str; 2] = ["192.0.2.1", "fd00::1"];

/// Return value of a program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ProgramVerdict {
    /// Left to the next program, or to the node's stack.
    Next,
    /// Left to the node's stack.
    Pass,
    Drop,
    Redirect,
}

impl From<u32> for ProgramVerdict {
    fn from(value: u32) -> Self {
        match value as i32 {
            -1 => Self::Next,
            0 => Self::Pass,
            2 => Self::Drop,
            7 => Self::Redirect,
            other => panic!("verdict {other}"),
        }
    }
}

/// Runs a test on a node of its own, if the process may.
pub(crate) fn on_node(test: impl FnOnce(&mut TestNode) + Send + 'static) {
    if !geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "CI runs as root");
        eprintln!("skipped: needs root");
        return;
    }
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
        let no: Option<&str> = None;
        mount(no, "/", no, MsFlags::MS_PRIVATE | MsFlags::MS_REC, no).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut node = TestNode::new(folder.path().join("bpf"), 1024);
        test(&mut node);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A node with an uplink, a tunnel and a pod.
pub(crate) struct TestNode {
    pub(crate) data_path: DataPath,
    pub(crate) table: L4Table,
    pub(crate) desired: DesiredState,
    pub(crate) settings: NodeSettings,
    folder: PathBuf,
    interfaces: BTreeMap<&'static str, u32>,
}

impl TestNode {
    fn new(folder: PathBuf, connections: u32) -> Self {
        let mut interfaces = BTreeMap::new();
        for (name, mac) in [("up0", NODE_MAC), ("vx0", TUNNEL_MAC), ("pod0", GATEWAY_MAC)] {
            let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
            ip(&format!("link add {name} address {mac} type veth peer name peer_{name}"));
            ip(&format!("link set {name} up"));
            interfaces.insert(name, nix::net::if_::if_nametoindex(name).unwrap());
        }
        let config = DataPathConfig { connections, ..DataPathConfig::new(&folder) };
        let data_path = DataPath::open(&config).unwrap();
        let mut node = Self {
            data_path,
            table: L4Table::default(),
            desired: DesiredState::default(),
            settings: NodeSettings::default(),
            folder,
            interfaces,
        };
        for vip in VIPS {
            node.desired.vips.insert(vip.parse().unwrap(), VipAnnouncement::Announced(NODE_MAC));
        }
        node.settings.tunnel_ifindex = node.interfaces["vx0"];
        node.settings.nat_source = NODE_ADDRESSES.map(|it| it.parse::<IpAddr>().unwrap().into());
        node.data_path.set_settings(&node.settings).unwrap();
        node.update();
        node
    }

    /// Gives the other node a way, and a service per address one endpoint there.
    pub(crate) fn set_way(&mut self, name: &str, way: NodeWay) {
        let addresses = PEER_ADDRESSES.map(|it| it.parse().unwrap()).to_vec();
        self.desired.nodes.insert(name.to_owned(), NodeSpec { addresses, way });
    }

    pub(crate) fn layer2(&self) -> NodeWay {
        NodeWay::Layer2 { ifindex: self.interfaces["up0"], source_mac: NODE_MAC, mac: PEER_MAC }
    }

    pub(crate) fn vxlan(&self) -> NodeWay {
        NodeWay::Vxlan {
            ifindex: self.interfaces["vx0"],
            source_mac: TUNNEL_MAC,
            mac: TUNNEL_PEER_MAC,
            remote: PEER_ADDRESSES[0].parse().unwrap(),
            mtu: 1450,
        }
    }

    pub(crate) fn full_nat(&self) -> NodeWay {
        NodeWay::FullNat { ifindex: self.interfaces["up0"] }
    }

    pub(crate) fn local(&self) -> EndpointPlace {
        let (pod_mac, node_mac) = (POD_MAC, GATEWAY_MAC);
        EndpointPlace::Local(PodLink { ifindex: self.interfaces["pod0"], pod_mac, node_mac })
    }

    /// Adds a service, or replaces the one with this address and protocol.
    pub(crate) fn serve(
        &mut self,
        vip: &str,
        protocol: TransportProtocol,
        endpoints: Vec<EndpointSpec>,
    ) {
        self.serve_as(service(vip, protocol, endpoints));
    }

    pub(crate) fn serve_as(&mut self, service: ServiceSpec) {
        self.desired
            .services
            .retain(|it| (it.address, it.protocol) != (service.address, service.protocol));
        self.desired.services.push(service);
        self.update();
    }

    pub(crate) fn update(&mut self) {
        let changes = self.table.update(&self.desired).unwrap();
        self.data_path.apply(&changes).unwrap();
    }

    /// Sends a frame through a program, and returns the verdict and the frame after it.
    pub(crate) fn run_on(
        &mut self,
        hook: ProgramHook,
        interface: &str,
        frame: &[u8],
    ) -> (ProgramVerdict, Vec<u8>) {
        self.run_with_gso(hook, interface, frame, None)
    }

    /// Returns the `struct __sk_buff` that a program is given.
    pub(crate) fn context(&self, interface: &str, gso: Option<(u32, u32)>) -> Vec<u8> {
        let mut context = vec![0; SKB_LENGTH];
        let mut put =
            |at: usize, value: u32| context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        put(SKB_IFINDEX, self.interfaces[interface]);
        if let Some((size, segments)) = gso {
            put(SKB_GSO_SIZE, size);
            put(SKB_GSO_SEGMENTS, segments);
        }
        context
    }

    pub(crate) fn run_with_gso(
        &mut self,
        hook: ProgramHook,
        interface: &str,
        frame: &[u8],
        gso: Option<(u32, u32)>,
    ) -> (ProgramVerdict, Vec<u8>) {
        let context = self.context(interface, gso);
        let mut out = vec![0; frame.len() + 256];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ..TestRunOptions::new()
        };
        let result = self.data_path.program(hook).test_run(options).unwrap();
        out.truncate(result.data_size_out as usize);
        (result.return_value.into(), out)
    }

    pub(crate) fn run(&mut self, frame: &[u8]) -> (ProgramVerdict, Vec<u8>) {
        self.run_on(ProgramHook::LbIn, "up0", frame)
    }

    /// Delivers a frame, and returns what it has become.
    pub(crate) fn redirect(&mut self, frame: &TestFrame) -> ParsedFrame {
        let (verdict, out) = self.run(&frame.bytes());
        assert_eq!(verdict, ProgramVerdict::Redirect, "{:?}: {frame:?}", self.drops());
        ParsedFrame::new(&out)
    }

    /// Sends a reply of a pod.
    pub(crate) fn reply(&mut self, frame: &TestFrame) -> (ProgramVerdict, ParsedFrame) {
        let (verdict, out) = self.run_on(ProgramHook::PodOut, "pod0", &from_pod(frame).bytes());
        (verdict, ParsedFrame::new(&out))
    }

    /// Makes all translations of replies older.
    pub(crate) fn age_replies(&self, seconds: u32) {
        let version = fs::read_dir(&self.folder).unwrap().next().unwrap().unwrap().path();
        let map = Map::LruHashMap(MapData::from_pin(version.join("replies")).unwrap());
        let mut replies: HashMap<MapData, FlowKey, ReplyValue> = map.try_into().unwrap();
        let entries: Vec<_> = replies.iter().map(Result::unwrap).collect();
        for (flow, mut reply) in entries {
            reply.seen_seconds = reply.seen_seconds.wrapping_sub(seconds);
            replies.insert(flow, reply, 0).unwrap();
        }
    }

    /// Asserts that a frame is dropped for a reason, and counted.
    pub(crate) fn assert_dropped(&mut self, frame: &[u8], reason: DropReason) {
        let before = self.dropped(reason);
        let (verdict, _) = self.run(frame);
        assert_eq!(
            (verdict, self.dropped(reason) - before),
            (ProgramVerdict::Drop, 1),
            "{:?}",
            self.drops()
        );
    }

    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.data_path.drops().unwrap().into_iter().find(|it| it.0 == reason).unwrap().1
    }

    pub(crate) fn drops(&self) -> Vec<(DropReason, u64)> {
        self.data_path.drops().unwrap().into_iter().filter(|it| it.1 > 0).collect()
    }
}

pub(crate) fn from_pod(frame: &TestFrame) -> TestFrame {
    TestFrame { target_mac: GATEWAY_MAC, source_mac: POD_MAC, ..frame.clone() }
}

pub(crate) fn service(
    vip: &str,
    protocol: TransportProtocol,
    endpoints: Vec<EndpointSpec>,
) -> ServiceSpec {
    ServiceSpec {
        address: address(vip),
        protocol,
        has_client_affinity: false,
        quic_server_id_length: None,
        source_ranges: None,
        endpoints,
    }
}

pub(crate) fn endpoint(text: &str, place: EndpointPlace) -> EndpointSpec {
    EndpointSpec { address: address(text), weight: 1, is_draining: false, place }
}

pub(crate) fn ip(words: &str) {
    let output = Command::new("ip").args(words.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}
