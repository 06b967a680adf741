//! The process that loads the data path of a node, which can be killed: this program again, with one of its tests.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use l4::{
    AttachMethod, DataPath, DataPathConfig, DesiredState, EndpointPlace, EndpointSpec, L4Table,
    NodeSettings, NodeSpec, NodeWay, PodLink, ProgramHook, ServiceSpec, TransportProtocol,
    VipAnnouncement,
};

use crate::network::{
    GATEWAY, Machine, NODES, POD, POD_PORT, PODS, TUNNEL, UPLINK, VIPS, ifindex, mac, services,
};

/// Variables that make the test below a loader.
const FOLDER: &str = "L4_TEST_FOLDER";
const NODE: &str = "L4_TEST_NODE";
const MODE: &str = "L4_TEST_MODE";
const METHOD: &str = "L4_TEST_METHOD";
const READY: &str = "loader: ready";

/// How the first node delivers packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DeliveryCase {
    Local,
    Layer2,
    Vxlan,
    FullNat,
}

impl DeliveryCase {
    pub(crate) const ALL: [Self; 4] = [Self::Local, Self::Layer2, Self::Vxlan, Self::FullNat];

    /// Number of the node that has the pod.
    pub(crate) fn pod_node(self) -> usize {
        if self == Self::Local { 0 } else { 1 }
    }
}

/// A process that has loaded the data path of a node.
pub(crate) struct LoaderProcess(Child);

impl LoaderProcess {
    pub(crate) fn start(
        machine: &Machine,
        node: usize,
        mode: DeliveryCase,
        method: Option<AttachMethod>,
        folder: &Path,
    ) -> Self {
        let folder = folder.to_owned();
        let mut child = machine.run(move || {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "loader::process", "--nocapture"]);
            command.env(FOLDER, folder).env(NODE, node.to_string());
            command.env(MODE, format!("{mode:?}")).env(METHOD, format!("{method:?}"));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
        });
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains(READY)), "the loader starts");
        Self(child)
    }

    /// Kills it, and waits until it has gone.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn process() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    let node: usize = env::var(NODE).unwrap().parse().unwrap();
    let mode = DeliveryCase::ALL
        .into_iter()
        .find(|it| format!("{it:?}") == env::var(MODE).unwrap())
        .unwrap();
    let methods = [AttachMethod::Tcx, AttachMethod::Clsact];
    let method =
        methods.into_iter().find(|&it| format!("{:?}", Some(it)) == env::var(METHOD).unwrap());
    let _data_path = load(node, mode, method, folder.into());
    println!("{READY}");
    loop {
        // Until it is killed.
        thread::sleep(Duration::from_secs(3600));
    }
}

/// Loads the data path of a node, and brings the maps to the desired state.
pub(crate) fn load(
    node: usize,
    mode: DeliveryCase,
    method: Option<AttachMethod>,
    folder: PathBuf,
) -> DataPath {
    let config =
        DataPathConfig { connections: 4096, attach_method: method, ..DataPathConfig::new(folder) };
    let mut data_path = DataPath::open(&config).unwrap();
    let mut settings = NodeSettings::default();
    settings.tunnel_ifindex = ifindex("vx0");
    settings.nat_source = NODES[node].map(|it| it.parse::<IpAddr>().unwrap().into());
    data_path.set_settings(&settings).unwrap();
    let mut table = L4Table::new(data_path.contents().unwrap());
    data_path.apply(&table.update(&desired(node, mode)).unwrap()).unwrap();
    for (interface, hook) in [
        ("up0", ProgramHook::LbIn),
        ("up0", ProgramHook::NodeOut),
        ("vx0", ProgramHook::LbIn),
        ("pod0", ProgramHook::PodOut),
    ] {
        let attached = data_path.attach(interface, hook).unwrap();
        assert_eq!(attached, method.unwrap_or(attached));
    }
    data_path
}

/// Returns what a node is to serve. The first one announces the addresses.
pub(crate) fn desired(node: usize, mode: DeliveryCase) -> DesiredState {
    let announcement = if node == 0 {
        VipAnnouncement::Announced(mac(0, UPLINK))
    } else {
        VipAnnouncement::Silent
    };
    let vips = VIPS.map(|vip| (vip.parse().unwrap(), announcement));
    let other = 1 - node;
    let addresses = NODES[other].map(|it| it.parse().unwrap()).to_vec();
    let (pod_node, remote) = (mode.pod_node(), NODES[other][0].parse().unwrap());
    let way = match mode {
        DeliveryCase::Local | DeliveryCase::Layer2 => NodeWay::Layer2 {
            ifindex: ifindex("up0"),
            source_mac: mac(node, UPLINK),
            mac: mac(other, UPLINK),
        },
        DeliveryCase::Vxlan => {
            let (source_mac, mac) = (mac(node, TUNNEL), mac(other, TUNNEL));
            NodeWay::Vxlan { ifindex: ifindex("vx0"), source_mac, mac, remote, mtu: 1450 }
        }
        DeliveryCase::FullNat => NodeWay::FullNat { ifindex: ifindex("up0") },
    };
    let link =
        PodLink { ifindex: ifindex("pod0"), pod_mac: mac(node, POD), node_mac: mac(node, GATEWAY) };
    let place = if pod_node == node {
        EndpointPlace::Local(link)
    } else {
        EndpointPlace::Node("other".to_owned())
    };
    let mut desired = DesiredState {
        vips: vips.into_iter().collect(),
        nodes: BTreeMap::from([("other".to_owned(), NodeSpec { addresses, way })]),
        services: Vec::new(),
    };
    for (vip, pod) in services().into_iter().zip(PODS[pod_node]) {
        let address = SocketAddr::new(pod.parse().unwrap(), POD_PORT);
        let endpoint =
            EndpointSpec { address, weight: 1, is_draining: false, place: place.clone() };
        for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
            desired.services.push(ServiceSpec {
                address: vip,
                protocol,
                has_client_affinity: false,
                quic_server_id_length: None,
                source_ranges: None,
                endpoints: vec![endpoint.clone()],
            });
        }
    }
    desired
}
