//! A client, two nodes and a pod on each: threads in network namespaces of their own, on one switch.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use std::{env, fs, thread};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{geteuid, gettid};

type Job = Box<dyn FnOnce() + Send>;

/// Time limit of a connection: long enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A thread in namespaces of its own, which end with the thread, and that with the last clone.
#[derive(Clone)]
pub(crate) struct Machine {
    jobs: Sender<Job>,
    id: String,
}

impl Machine {
    fn new() -> Self {
        let (jobs, to_do) = channel::<Job>();
        let (sender, receiver) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
            let no: Option<&str> = None;
            mount(no, "/", no, MsFlags::MS_PRIVATE | MsFlags::MS_REC, no).unwrap();
            // Without duplicate address detection: addresses can be used at once.
            set("ipv6/conf/all/accept_dad", "0");
            set("ipv6/conf/default/accept_dad", "0");
            sender.send(gettid().to_string()).unwrap();
            to_do.iter().for_each(|job| job());
        });
        let machine = Self { jobs, id: receiver.recv().unwrap() };
        machine.ip("link set lo up");
        machine
    }

    /// Runs a job in the namespaces.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = channel();
        self.jobs.send(Box::new(move || drop(sender.send(job())))).unwrap();
        receiver.recv().unwrap()
    }

    pub(crate) fn ip(&self, words: &str) {
        self.command("ip", words);
    }

    fn command(&self, program: &'static str, words: &str) {
        let words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
        let text = words.join(" ");
        let run = move || Command::new(program).args(&words).stdin(Stdio::null()).output();
        let output = self.run(run).unwrap_or_else(|error| panic!("{program}: {error}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {text}: {errors}");
    }

    /// Connects to a service.
    pub(crate) fn connect(&self, service: SocketAddr) -> io::Result<EchoClient> {
        let tcp = self.run(move || TcpStream::connect_timeout(&service, PATIENCE))?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        Ok(EchoClient::Tcp(tcp))
    }

    /// Makes a UDP socket that speaks with a service.
    pub(crate) fn connect_udp(&self, service: SocketAddr) -> io::Result<EchoClient> {
        let own = if service.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let udp = self.run(move || UdpSocket::bind(own))?;
        udp.connect(service)?;
        udp.set_read_timeout(Some(PATIENCE))?;
        Ok(EchoClient::Udp(udp))
    }

    /// Answers each message on a port, of TCP and of UDP, with a name and the other side's address.
    pub(crate) fn serve(&self, name: &'static str, port: u16) {
        let (tcp, udp) = self.run(move || {
            // The wildcard address of IPv6 is that of IPv4 too.
            let address = SocketAddr::from(([0_u16; 8], port));
            (TcpListener::bind(address).unwrap(), UdpSocket::bind(address).unwrap())
        });
        thread::spawn(move || {
            for connection in tcp.incoming() {
                thread::spawn(move || answer(connection.unwrap(), name));
            }
        });
        thread::spawn(move || {
            let mut message = [0; 4096];
            while let Ok((count, client)) = udp.recv_from(&mut message) {
                let greeting = greeting(name, client);
                let reply =
                    if message[..count] == *b"?" { greeting.as_bytes() } else { &message[..count] };
                drop(udp.send_to(reply, client));
            }
        });
    }
}

fn greeting(name: &str, client: SocketAddr) -> String {
    format!("{name} {}", client.ip().to_canonical())
}

/// Answers `?` with a greeting, and everything else with itself, until the client goes.
fn answer(mut connection: TcpStream, name: &str) {
    let client = connection.peer_addr().unwrap();
    let mut bytes = vec![0; 65_536];
    while let Ok(count @ 1..) = connection.read(&mut bytes) {
        let greeting = greeting(name, client);
        let reply = if bytes[..count] == *b"?" { greeting.as_bytes() } else { &bytes[..count] };
        if connection.write_all(reply).is_err() {
            return;
        }
    }
}

/// A connection, or a UDP socket.
pub(crate) enum EchoClient {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl EchoClient {
    /// Asks for the greeting.
    pub(crate) fn ask(&mut self) -> io::Result<String> {
        let mut bytes = [0; 200];
        let count = match self {
            Self::Tcp(tcp) => {
                tcp.write_all(b"?")?;
                tcp.read(&mut bytes)?
            }
            Self::Udp(udp) => {
                udp.send(b"?")?;
                udp.recv(&mut bytes)?
            }
        };
        Ok(String::from_utf8_lossy(&bytes[..count]).into_owned())
    }

    /// Sends a megabyte and reads it again: large packets, whose checksums the kernel leaves to later.
    pub(crate) fn exchange_megabyte(&mut self) {
        let Self::Tcp(tcp) = self else { return };
        let sent: Vec<u8> = (0..1_048_576_u32).map(|it| (it % 251) as u8).collect();
        let (mut writer, bytes) = (tcp.try_clone().unwrap(), sent.clone());
        let writing = thread::spawn(move || writer.write_all(&bytes).unwrap());
        let mut received = vec![0; sent.len()];
        tcp.read_exact(&mut received).unwrap();
        writing.join().unwrap();
        assert!(received == sent);
    }
}

impl EchoClient {
    /// Sends a datagram that is larger than a packet and reads it again. The first ones may tell the client what fits.
    pub(crate) fn exchange_fragments(&mut self) {
        let Self::Udp(udp) = self else { return };
        let sent: Vec<u8> = (0..3000_u32).map(|it| (it % 251) as u8).collect();
        let mut received = vec![0; 4096];
        udp.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let is_answered = (0..PATIENCE.as_secs()).any(|_| {
            // An error is one that the client was told about.
            udp.send(&sent).is_ok()
                && udp.recv(&mut received).is_ok_and(|count| received[..count] == sent)
        });
        assert!(is_answered, "{:?} to {:?}", udp.local_addr(), udp.peer_addr());
        udp.set_read_timeout(Some(PATIENCE)).unwrap();
    }
}

fn set(name: &str, value: &str) {
    fs::write(format!("/proc/sys/net/{name}"), value)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
}

pub(crate) const CLIENT: [&str; 2] = ["10.90.0.10", "fd90::10"];
pub(crate) const NODES: [[&str; 2]; 2] = [["10.90.0.1", "fd90::1"], ["10.90.0.2", "fd90::2"]];
pub(crate) const PODS: [[&str; 2]; 2] = [["10.91.1.2", "fd91:1::2"], ["10.91.2.2", "fd91:2::2"]];
const GATEWAYS: [[&str; 2]; 2] = [["10.91.1.1", "fd91:1::1"], ["10.91.2.1", "fd91:2::1"]];
pub(crate) const VIPS: [&str; 2] = ["10.90.0.100", "fd90::100"];
pub(crate) const SERVICE_PORT: u16 = 80;
pub(crate) const POD_PORT: u16 = 8080;

/// MAC addresses of a node's uplink, tunnel and gateway of its pod, and of the pod.
pub(crate) fn mac(node: usize, interface: u8) -> [u8; 6] {
    [2, 0, 0, 0, node as u8 + 1, interface]
}

pub(crate) const UPLINK: u8 = 1;
pub(crate) const TUNNEL: u8 = 2;
pub(crate) const GATEWAY: u8 = 3;
pub(crate) const POD: u8 = 4;

fn mac_text(node: usize, interface: u8) -> String {
    mac(node, interface).map(|byte| format!("{byte:02x}")).join(":")
}

/// Client, nodes and pods.
pub(crate) struct TestNetwork {
    pub(crate) client: Machine,
    pub(crate) nodes: [Machine; 2],
    /// The pods and the switch, which end with this.
    _others: Vec<Machine>,
}

impl TestNetwork {
    /// Builds the network; `None` without the rights.
    pub(crate) fn new() -> Option<Self> {
        if !geteuid().is_root() {
            assert!(env::var_os("CI").is_none(), "CI runs as root");
            eprintln!("skipped: needs root");
            return None;
        }
        let [client, switch] = [Machine::new(), Machine::new()];
        let nodes = [Machine::new(), Machine::new()];
        let pods = [Machine::new(), Machine::new()];
        switch.ip("link add br0 type bridge");
        switch.ip("link set br0 up");
        plug(&client, &switch, "c", "02:00:00:00:00:10");
        add_addresses(&client, "up0", CLIENT, ["24", "64"]);
        for (number, (node, pod)) in nodes.iter().zip(&pods).enumerate() {
            plug(node, &switch, &format!("n{number}"), &mac_text(number, UPLINK));
            add_addresses(node, "up0", NODES[number], ["24", "64"]);
            node.run(|| {
                set("ipv4/ip_forward", "1");
                set("ipv6/conf/all/forwarding", "1");
            });
            // The node finishes checksums that were left to the network card: wrong ones show.
            node.command("ethtool", "-K up0 tx off");
            add_pod(number, node, pod);
            let tunnel = mac_text(number, TUNNEL);
            node.ip(&format!("link add vx0 address {tunnel} type vxlan external dstport 8473"));
            node.ip("link set vx0 up");
        }
        // The way of full NAT: each node has a route to the other's pods.
        for (number, node) in nodes.iter().enumerate() {
            let other = 1 - number;
            for (gateway, pod) in NODES[other].iter().zip(PODS[other]) {
                node.ip(&format!("route add {pod} via {gateway}"));
            }
        }
        pods[0].serve("a", POD_PORT);
        pods[1].serve("b", POD_PORT);
        let others = pods.into_iter().chain([switch]).collect();
        Some(Self { client, nodes, _others: others })
    }
}

/// Connects a machine's `up0` with the switch.
fn plug(machine: &Machine, switch: &Machine, port: &str, mac: &str) {
    let id = &switch.id;
    machine.ip(&format!("link add up0 address {mac} type veth peer name {port} netns {id}"));
    machine.ip("link set up0 up");
    switch.ip(&format!("link set {port} master br0 up"));
}

fn add_pod(number: usize, node: &Machine, pod: &Machine) {
    let (gateway_mac, pod_mac, id) = (mac_text(number, GATEWAY), mac_text(number, POD), &pod.id);
    node.ip(&format!(
        "link add pod0 address {gateway_mac} type veth peer name eth0 address {pod_mac} netns {id}"
    ));
    node.ip("link set pod0 up");
    pod.ip("link set eth0 up");
    add_addresses(node, "pod0", GATEWAYS[number], ["24", "64"]);
    add_addresses(pod, "eth0", PODS[number], ["24", "64"]);
    for gateway in GATEWAYS[number] {
        pod.ip(&format!("route add default via {gateway}"));
    }
}

fn add_addresses(machine: &Machine, interface: &str, addresses: [&str; 2], lengths: [&str; 2]) {
    for (address, length) in addresses.iter().zip(lengths) {
        machine.ip(&format!("address add {address}/{length} dev {interface}"));
    }
}

pub(crate) fn services() -> [SocketAddr; 2] {
    VIPS.map(|vip| SocketAddr::new(vip.parse::<IpAddr>().unwrap(), SERVICE_PORT))
}

/// Opens a conversation of each protocol with each virtual address; returns each with the index of its IP version.
pub(crate) fn converse(network: &TestNetwork) -> Vec<(EchoClient, usize)> {
    let mut all = Vec::new();
    for (version, service) in services().into_iter().enumerate() {
        all.push((network.client.connect(service).unwrap(), version));
        all.push((network.client.connect_udp(service).unwrap(), version));
    }
    all
}

/// Index of an interface of the calling thread's namespace.
pub(crate) fn ifindex(name: &str) -> u32 {
    nix::net::if_::if_nametoindex(name).unwrap()
}
