//! A node with two pods, each a thread in a network namespace of its own, and kube-proxy's rules.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use std::{env, fs, io, thread};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{geteuid, gettid};
use socket2::{Domain, Socket, Type};

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, which ends with the thread, and that with the last clone.
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
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
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

    /// Runs a job in the namespace.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = channel();
        self.jobs.send(Box::new(move || drop(sender.send(job())))).unwrap();
        receiver.recv().unwrap()
    }

    pub(crate) fn ip(&self, words: &str) {
        self.command("ip", words, "");
    }

    /// Runs a program with this input, and returns what it prints.
    pub(crate) fn command(&self, program: &'static str, words: &str, input: &str) -> String {
        let words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
        let text = words.join(" ");
        let input = input.to_owned();
        let output = self.run(move || {
            let mut command = Command::new(program);
            command.args(&words).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
            io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
            child.wait_with_output().unwrap()
        });
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {text}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Connects, and returns what the other side says before it closes.
    pub(crate) fn ask(&self, address: SocketAddr) -> io::Result<String> {
        self.run(move || read_all(TcpStream::connect_timeout(&address, PATIENCE)?))
    }

    /// Connects with a socket that has been prepared, and returns what the other side says.
    pub(crate) fn ask_by(
        &self,
        address: SocketAddr,
        prepare: impl FnOnce(&Socket) + Send + 'static,
    ) -> io::Result<String> {
        self.run(move || {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
            prepare(&socket);
            socket.connect_timeout(&address.into(), PATIENCE)?;
            read_all(socket.into())
        })
    }

    /// Serves every connection to the port with what `answer` says, until the process ends.
    pub(crate) fn serve(&self, port: u16, answer: impl Fn(&TcpStream) -> String + Send + 'static) {
        let listener = self.run(move || listen(port));
        thread::spawn(move || serve(&listener, answer));
    }
}

/// Time limit of a connection: long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn listen(port: u16) -> TcpListener {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
    socket.set_only_v6(false).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from(([0_u16; 8], port)).into()).unwrap();
    socket.listen(128).unwrap();
    socket.into()
}

pub(crate) fn serve(listener: &TcpListener, answer: impl Fn(&TcpStream) -> String) {
    for connection in listener.incoming() {
        let mut connection = connection.unwrap();
        let answer = answer(&connection);
        // A client may have gone.
        drop(io::Write::write_all(&mut connection, answer.as_bytes()));
    }
}

pub(crate) fn peer(connection: &TcpStream) -> IpAddr {
    connection.peer_addr().unwrap().ip().to_canonical()
}

fn read_all(mut connection: TcpStream) -> io::Result<String> {
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    Ok(text)
}

fn set(name: &str, value: &str) {
    fs::write(format!("/proc/sys/net/{name}"), value)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// The way in which pods are connected to their node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PodNetwork {
    /// On a bridge of the node, as with flannel and most CNI plugins.
    Bridged,
    /// By a route for each pod, as with Calico and AWS VPC: the node's side has no IPv4 address.
    Routed,
}

/// The program whose rules serve connections that are not taken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProxyMode {
    Nftables,
    Iptables,
}

pub(crate) const NODE: [&str; 2] = ["10.77.0.1", "fd77::1"];
pub(crate) const CLIENT: [&str; 2] = ["10.78.0.2", "fd78::2"];
pub(crate) const SERVER: [&str; 2] = ["10.78.0.3", "fd78::3"];
/// A client that is not on the node.
pub(crate) const REMOTE: [&str; 2] = ["10.79.0.2", "fd79::2"];
pub(crate) const SERVICE: [&str; 2] = ["10.96.0.10", "fd96::10"];
pub(crate) const SERVICE_PORT: u16 = 80;
pub(crate) const POD_PORT: u16 = 8080;

pub(crate) fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

pub(crate) fn services() -> [SocketAddr; 2] {
    SERVICE.map(|ip| address(ip, SERVICE_PORT))
}

/// A node, and a pod that calls a Service of another pod there.
pub(crate) struct TestNode {
    pub(crate) node: Machine,
    pub(crate) client: Machine,
    pub(crate) server: Machine,
    pub(crate) network: PodNetwork,
}

impl TestNode {
    /// Returns a node with kube-proxy's rules; `None` if that is not permitted here.
    pub(crate) fn new(network: PodNetwork, mode: ProxyMode) -> Option<Self> {
        if !may_make_namespaces() {
            assert!(
                env::var_os("CONFORMANCE_ALL").is_none(),
                "CONFORMANCE_ALL is set, and network namespaces need root"
            );
            eprintln!("skipped: needs root and network namespaces");
            return None;
        }
        if network == PodNetwork::Bridged && !has_bridge_filtering() {
            eprintln!("skipped on a bridge: the kernel's module br_netfilter is not there");
            return None;
        }
        let [node, client, server] = [Machine::new(), Machine::new(), Machine::new()];
        let new = Self { node, client, server, network };
        new.configure_node();
        if network == PodNetwork::Bridged {
            new.node.ip("link add cni0 type bridge");
            new.node.ip("link set cni0 up");
            new.node.ip("address add 10.78.0.254/24 dev cni0");
            new.node.ip("address add fd78::fe/64 dev cni0 nodad");
            new.node.run(|| {
                set("bridge/bridge-nf-call-iptables", "1");
                set("bridge/bridge-nf-call-ip6tables", "1");
            });
        }
        for (name, pod, ips) in [("client", &new.client, CLIENT), ("server", &new.server, SERVER)] {
            new.node.ip(&format!("link add {name} type veth peer name eth0 netns {}", pod.id));
            new.node.ip(&format!("link set {name} up"));
            pod.ip("link set eth0 up");
            match network {
                PodNetwork::Bridged => new.connect_by_bridge(name, pod, ips),
                PodNetwork::Routed => new.connect_by_route(name, pod, ips),
            }
        }
        new.add_service(mode);
        new.server.serve(POD_PORT, |connection| format!("pod {}", peer(connection)));
        Some(new)
    }

    fn configure_node(&self) {
        self.node.run(|| {
            set("ipv4/ip_forward", "1");
            set("ipv6/conf/all/forwarding", "1");
            set("ipv4/conf/all/rp_filter", "1");
            set("ipv4/conf/default/rp_filter", "1");
        });
        let [ipv4, ipv6] = NODE;
        self.node.ip("link add eth0 type veth peer name uplink");
        self.node.ip("link set uplink up");
        self.node.ip("link set eth0 up");
        self.node.ip(&format!("address add {ipv4}/24 dev eth0"));
        self.node.ip(&format!("address add {ipv6}/64 dev eth0 nodad"));
        self.node.ip("route add default dev eth0");
        self.node.ip("-6 route add default dev eth0");
    }

    fn connect_by_bridge(&self, name: &str, pod: &Machine, [ipv4, ipv6]: [&str; 2]) {
        self.node.ip(&format!("link set {name} master cni0"));
        pod.ip(&format!("address add {ipv4}/24 dev eth0"));
        pod.ip(&format!("address add {ipv6}/64 dev eth0 nodad"));
        pod.ip("route add default via 10.78.0.254");
        pod.ip("-6 route add default via fd78::fe");
    }

    fn connect_by_route(&self, name: &str, pod: &Machine, [ipv4, ipv6]: [&str; 2]) {
        let proxy_arp = format!("ipv4/conf/{name}/proxy_arp");
        self.node.run(move || set(&proxy_arp, "1"));
        self.node.ip(&format!("address add fe80::1/64 dev {name} nodad"));
        self.node.ip(&format!("route add {ipv4}/32 dev {name}"));
        self.node.ip(&format!("-6 route add {ipv6}/128 dev {name}"));
        pod.ip(&format!("address add {ipv4}/32 dev eth0"));
        pod.ip(&format!("address add {ipv6}/128 dev eth0 nodad"));
        pod.ip("route add 169.254.1.1 dev eth0");
        pod.ip("route add default via 169.254.1.1");
        pod.ip("-6 route add default via fe80::1 dev eth0");
    }

    /// Adds a machine that reaches Services through the node, is in a network of the node, and has a link of its own to
    /// the pods' machine `server`, over which replies to its address would go.
    pub(crate) fn add_remote_client(&self) -> Machine {
        let remote = Machine::new();
        self.node.ip(&format!("link add lan type veth peer name eth0 netns {}", remote.id));
        self.server.ip(&format!("link add direct type veth peer name direct netns {}", remote.id));
        self.node.ip("link set lan up");
        self.server.ip("link set direct up");
        for name in ["eth0", "direct"] {
            remote.ip(&format!("link set {name} up"));
        }
        for (remote_ip, node_ip, length, family) in
            [(REMOTE[0], "10.79.0.1", 24, "-4"), (REMOTE[1], "fd79::1", 64, "-6")]
        {
            let nodad = if family == "-6" { " nodad" } else { "" };
            self.node.ip(&format!("address add {node_ip}/{length} dev lan{nodad}"));
            remote.ip(&format!("address add {remote_ip}/{length} dev eth0{nodad}"));
            remote.ip(&format!("{family} route add default via {node_ip}"));
            self.server.ip(&format!("{family} route add {remote_ip} dev direct"));
        }
        remote
    }

    /// Adds the rules by which kube-proxy sends connections to the Service to the pod.
    fn add_service(&self, mode: ProxyMode) {
        let [[service4, service6], [server4, server6]] = [SERVICE, SERVER];
        match mode {
            ProxyMode::Nftables => {
                let table = |family: &str, ip: &str, service: &str, server: &str| {
                    format!(
                        "table {family} kube-proxy {{
                           map service-ips {{ type {ip}_addr . inet_proto . inet_service : verdict
                             elements = {{ {service} . tcp . {SERVICE_PORT} : goto service }} }}
                           chain service {{ meta l4proto tcp dnat {family} to {server}; }};
                           chain services {{ {family} daddr . meta l4proto . th dport vmap @service-ips; }};
                           chain nat-prerouting {{ type nat hook prerouting priority dstnat; jump services; }};
                           chain nat-output {{ type nat hook output priority -100; jump services; }};
                         }}"
                    )
                };
                let server4 = address(server4, POD_PORT).to_string();
                let server6 = address(server6, POD_PORT).to_string();
                self.node.command("nft", "-f -", &table("ip", "ipv4", service4, &server4));
                self.node.command("nft", "-f -", &table("ip6", "ipv6", service6, &server6));
            }
            ProxyMode::Iptables => {
                let rules = |service: &str, server: SocketAddr| {
                    format!(
                        "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-1 - [0:0]\n\
                         -A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n\
                         -A KUBE-SERVICES -d {service} -p tcp --dport {SERVICE_PORT} -j KUBE-SVC-1\n\
                         -A KUBE-SVC-1 -p tcp -j DNAT --to-destination {server}\nCOMMIT\n"
                    )
                };
                let (rules4, rules6) = (
                    rules(service4, address(server4, POD_PORT)),
                    rules(service6, address(server6, POD_PORT)),
                );
                self.node.command("iptables-restore", "--noflush", &rules4);
                self.node.command("ip6tables-restore", "--noflush", &rules6);
            }
        }
    }
}

fn may_make_namespaces() -> bool {
    geteuid().is_root()
        && thread::spawn(|| unshare(CloneFlags::CLONE_NEWNET)).join().unwrap().is_ok()
}

/// True if bridged packets can pass the rules of IP, as every Kubernetes node has it.
fn has_bridge_filtering() -> bool {
    // It may be a module that is not loaded.
    drop(Command::new("modprobe").arg("br_netfilter").output());
    fs::exists("/proc/sys/net/bridge/bridge-nf-call-iptables").unwrap()
}

/// Answers as the proxy: with the address that the client wanted, and the client's.
pub(crate) fn answer_as_proxy(connection: &TcpStream) -> String {
    let destination = intercept::original_destination(&connection.as_fd()).unwrap();
    format!("proxy {destination} {}", peer(connection))
}
