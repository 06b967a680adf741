//! Transparent mode against the real kernel, in network namespaces: needs root and nft, and is skipped without.

#![expect(clippy::unwrap_used, reason = "all of it is a test")]
#![expect(clippy::disallowed_methods, reason = "tests measure time")]

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use intercept::{
    Conntrack, InterceptError, LeaseAction, LeaseKeeper, MarkRange, NodeFinding, NodeObservation,
    ProxyAddresses, RuleTable, RuleTableConfig, TableLease, mark_socket, node_findings,
};
use nix::sys::signal::Signal;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// The network of the tests.
mod network;
/// An agent as a process.
mod agent;
/// Clients on the node, and elsewhere.
mod remote_clients;

use agent::AgentProcess;
use network::{
    CLIENT, NODE, POD_PORT, PodNetwork, ProxyMode, SERVER, TestNode, address, answer_as_proxy,
    services,
};

const PROXY_PORT: u16 = 15_001;

fn proxy_addresses() -> ProxyAddresses {
    let [ipv4, ipv6] = NODE.map(|ip| address(ip, PROXY_PORT));
    let (SocketAddr::V4(ipv4), SocketAddr::V6(ipv6)) = (ipv4, ipv6) else { unreachable!() };
    ProxyAddresses { ipv4: Some(ipv4), ipv6: Some(ipv6) }
}

fn open(node: &TestNode) -> RuleTable {
    let config = RuleTableConfig::new(proxy_addresses());
    node.node.run(|| RuleTable::open(config)).unwrap()
}

fn open_with_lease(node: &TestNode) -> (RuleTable, TableLease) {
    open_at(node, proxy_addresses())
}

fn open_at(node: &TestNode, proxy: ProxyAddresses) -> (RuleTable, TableLease) {
    let config = RuleTableConfig::new(proxy);
    node.node.run(|| {
        let table = RuleTable::open(config).unwrap();
        let lease = table.open_lease().unwrap();
        (table, lease)
    })
}

/// A table in force, and the proxy.
struct RunningAgent {
    table: RuleTable,
    end: Sender<()>,
    renewals: JoinHandle<TableLease>,
}

impl RunningAgent {
    fn start(node: &TestNode) -> Self {
        node.node.serve(PROXY_PORT, answer_as_proxy);
        let (mut table, mut lease) = open_with_lease(node);
        table.set_addresses(services().into_iter().chain(other_services())).unwrap();
        lease.renew().unwrap();
        let (end, ended) = channel();
        let renewals = thread::spawn(move || {
            let interval = Duration::from_millis(100);
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                lease.renew().unwrap();
            }
            lease
        });
        Self { table, end, renewals }
    }

    fn stop(self) -> (RuleTable, TableLease) {
        self.end.send(()).unwrap();
        (self.table, self.renewals.join().unwrap())
    }
}

/// Calls `check` on nodes of every kind.
fn on_every_node(check: impl Fn(&TestNode)) {
    for (network, mode) in [
        (PodNetwork::Bridged, ProxyMode::Nftables),
        (PodNetwork::Routed, ProxyMode::Iptables),
        (PodNetwork::Bridged, ProxyMode::Iptables),
        (PodNetwork::Routed, ProxyMode::Nftables),
    ] {
        let Some(node) = TestNode::new(network, mode) else { continue };
        eprintln!("{network:?} pods, kube-proxy with {mode:?}");
        check(&node);
    }
}

fn a_node() -> Option<TestNode> {
    TestNode::new(PodNetwork::Routed, ProxyMode::Nftables)
}

#[test]
fn taken_connection_reaches_the_proxy_with_its_destination() {
    on_every_node(|node| {
        for service in services() {
            assert!(node.client.ask(service).unwrap().starts_with("pod "));
        }
        let agent = RunningAgent::start(node);
        for (service, (client, host)) in services().into_iter().zip(CLIENT.into_iter().zip(NODE)) {
            let taken = node.client.ask(service).unwrap();
            assert_eq!(taken, format!("proxy {service} {client}"), "from a pod");
            let taken = node.node.ask(service).unwrap();
            assert_eq!(taken, format!("proxy {service} {host}"), "from the node");
        }
        let (mut table, mut lease) = agent.stop();
        assert_eq!(lease.taken().unwrap(), 4);
        table.withdraw().unwrap();
        assert!(!lease.is_in_force().unwrap());
        for service in services() {
            assert!(node.client.ask(service).unwrap().starts_with("pod "), "withdrawn");
        }
        lease.renew().unwrap();
        assert!(node.client.ask(services()[0]).unwrap().starts_with("proxy "), "back");
        table.set_addresses([]).unwrap();
        assert!(node.client.ask(services()[0]).unwrap().starts_with("pod "), "not annotated");
    });
}

#[test]
fn connections_that_are_not_translated_are_reset() {
    on_every_node(|node| {
        let agent = RunningAgent::start(node);
        for ip in NODE {
            for machine in [&node.client, &node.node] {
                let error = machine.ask(address(ip, PROXY_PORT)).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            }
        }
        let (_table, mut lease) = agent.stop();
        assert_eq!((lease.refused().unwrap(), lease.taken().unwrap()), (4, 0));
    });
}

#[test]
fn own_packets_are_not_taken() {
    on_every_node(|node| {
        let _agent = RunningAgent::start(node);
        let marks = MarkRange::default();
        for mark in [marks.own(), marks.client(7).unwrap()] {
            for service in services() {
                let mark = move |socket: &socket2::Socket| mark_socket(socket, mark).unwrap();
                assert!(node.node.ask_by(service, mark).unwrap().starts_with("pod "));
            }
        }
    });
}

#[test]
fn endpoint_sees_the_address_of_the_client() {
    on_every_node(|node| {
        let mut table = open(node);
        let mark = MarkRange::default().client(3).unwrap();
        for (client, server) in CLIENT.into_iter().zip(SERVER) {
            let ask = || {
                let mark = move |socket: &socket2::Socket| mark_socket(socket, mark).unwrap();
                node.node.ask_by(address(server, POD_PORT), mark).unwrap()
            };
            let without = ask();
            assert_ne!(without, format!("pod {client}"));
            let ip: IpAddr = client.parse().unwrap();
            table.add_client(mark, ip).unwrap();
            table.add_client(mark, ip).unwrap();
            assert_eq!(ask(), format!("pod {client}"));
            table.remove_client(mark, ip).unwrap();
            table.remove_client(mark, ip).unwrap();
            assert_eq!(ask(), without);
        }
    });
}

#[test]
fn killed_agent_lets_connections_go_at_once() {
    on_every_node(|node| {
        let agent = AgentProcess::start(&node.node);
        for service in services() {
            assert!(node.client.ask(service).unwrap().starts_with("proxy "));
        }
        // Kills it, and waits until it has gone.
        drop(agent);
        for service in services() {
            assert!(node.client.ask(service).unwrap().starts_with("pod "));
            assert!(node.node.ask(service).unwrap().starts_with("pod "));
        }
    });
}

#[test]
fn stopped_agent_lets_connections_go_when_its_lease_ends() {
    let Some(node) = TestNode::new(PodNetwork::Routed, ProxyMode::Iptables) else { return };
    let agent = AgentProcess::start(&node.node);
    agent.signal(Signal::SIGSTOP);
    let begun = Instant::now();
    let is_let_go = || {
        node.client.run(|| {
            let wait = Duration::from_millis(100);
            let mut text = String::new();
            let mut connection = TcpStream::connect_timeout(&services()[0], wait)?;
            connection.set_read_timeout(Some(wait))?;
            connection.read_to_string(&mut text).map(|_| text.starts_with("pod "))
        })
    };
    while !is_let_go().unwrap_or(false) {
        assert!(begun.elapsed() < Duration::from_secs(20), "connections hang");
    }
    let elapsed = begun.elapsed();
    eprintln!("kube-proxy's way {elapsed:?} after SIGSTOP");
    assert!(elapsed < Duration::from_millis(3500), "{elapsed:?}");
    agent.signal(Signal::SIGCONT);
    let begun = Instant::now();
    while !node.client.ask(services()[0]).unwrap().starts_with("proxy ") {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing is taken after SIGCONT");
    }
}

#[test]
fn upgrade_leaves_no_gap() {
    let Some(node) = a_node() else { return };
    let old = RunningAgent::start(&node);
    let mut proxy = proxy_addresses();
    proxy.ipv4.as_mut().unwrap().set_port(PROXY_PORT + 1);
    proxy.ipv6.as_mut().unwrap().set_port(PROXY_PORT + 1);
    node.node.serve(PROXY_PORT + 1, |connection| format!("new {}", answer_as_proxy(connection)));
    let (mut new, mut lease) = open_at(&node, proxy);
    new.set_addresses(services()).unwrap();
    lease.renew().unwrap();
    for service in services() {
        assert!(node.client.ask(service).unwrap().starts_with("new "), "the newer table is first");
        new.withdraw().unwrap();
        assert!(node.client.ask(service).unwrap().starts_with("proxy "), "leases are separate");
        lease.renew().unwrap();
    }
    drop(old.stop());
    for service in services() {
        assert!(node.client.ask(service).unwrap().starts_with("new "));
    }
}

#[test]
fn firewall_that_hangs_clients_ends_the_lease() {
    let Some(node) = a_node() else { return };
    let firewall = format!(
        "table inet filter {{ chain input {{ type filter hook input priority 10;
           tcp dport {PROXY_PORT} drop; }}; }}"
    );
    node.node.command("nft", "-f -", &firewall);
    let (mut table, mut lease) = open_with_lease(&node);
    table.set_addresses(services()).unwrap();
    lease.renew().unwrap();
    let TestNode { node: _host, client, server: _pod, network: _ } = node;
    let answer = thread::spawn(move || client.ask(services()[0]));
    let mut keeper = LeaseKeeper::default();
    let begun = Instant::now();
    for ticks in 1.. {
        let taken = lease.taken().unwrap();
        let observation = NodeObservation { worker_ticks: &[ticks], taken, accepted: 0 };
        match keeper.next_action(begun.elapsed(), &observation) {
            LeaseAction::Renew => lease.renew().unwrap(),
            // The interval of an agent's observations.
            LeaseAction::Wait => thread::sleep(Duration::from_millis(20)),
            LeaseAction::Withdraw(_) => break,
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{taken} taken, and no end");
    }
    table.withdraw().unwrap();
    // The client sends its SYN again.
    assert!(answer.join().unwrap().unwrap().starts_with("pod "));
}

#[test]
fn process_without_the_capability_says_so() {
    let Some(node) = a_node() else { return };
    node.client.run(|| {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW);
        set_capabilities(None, sets).unwrap();
        let config = || RuleTableConfig::new(proxy_addresses());
        let error = RuleTable::open(config()).err().unwrap();
        assert!(matches!(error, InterceptError::MissingCapability), "{error}");
        assert!(matches!(Conntrack::open().err().unwrap(), InterceptError::MissingCapability));
        // With which marks can be set.
        sets.effective.insert(CapabilitySet::NET_RAW);
        set_capabilities(None, sets).unwrap();
        let error = RuleTable::open(config()).err().unwrap();
        assert!(matches!(error, InterceptError::MissingCapability), "{error}");
    });
}

#[test]
fn thousand_addresses_change_in_milliseconds() {
    let Some(node) = a_node() else { return };
    let (mut table, mut lease) = open_with_lease(&node);
    let addresses = |first: u32, count: u32| {
        (first..first + count).map(|it| SocketAddr::from((it.to_be_bytes(), 80)))
    };
    let first = 10 << 24 | 96 << 16;
    let fastest = |table: &mut RuleTable, count: u32| {
        let durations = (0..6).map(|round| {
            let begun = Instant::now();
            table.set_addresses(addresses(first + round * count, count)).unwrap();
            begun.elapsed()
        });
        // The first adds, the others replace.
        durations.skip(1).min().unwrap()
    };
    let thousand = fastest(&mut table, 1000);
    let one = {
        let begun = Instant::now();
        table.set_addresses(addresses(first + 5000, 1001)).unwrap();
        begun.elapsed()
    };
    let begun = Instant::now();
    lease.renew().unwrap();
    let renewal = begun.elapsed();
    let many = fastest(&mut table, 10_000);
    eprintln!("1,000 addresses {thousand:?}, one more {one:?}, 10,000 {many:?}, lease {renewal:?}");
    assert!(thousand < Duration::from_millis(50), "{thousand:?}");
    assert_eq!(table.addresses().len(), 10_000);
    let listed = node.node.command("nft", "list set inet sheave_15001 services4", "");
    assert_eq!(listed.matches(" . 80").count(), 10_000);

    let error = table.set_addresses(addresses(first, 65_537)).unwrap_err();
    assert!(matches!(error, InterceptError::TooMany { count: 65_537, .. }));
    assert_eq!(table.addresses().len(), 10_000, "nothing has changed");
}

#[test]
fn table_is_as_documented() {
    let Some(node) = a_node() else { return };
    let mut table = open(&node);
    table.set_addresses(services()).unwrap();
    let listed = node.node.command("nft", "list table inet sheave_15001", "");
    // Some versions of nft name the program.
    let listed: Vec<_> = listed.lines().map(|line| line.split(" # ").next().unwrap()).collect();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel/table.txt");
    if !node.node.command("nft", "--version", "").contains("v1.0.6") {
        eprintln!("skipped: other versions of nft than 1.0.6 print the same rules otherwise");
    } else if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(file, listed.join("\n") + "\n").unwrap();
    } else {
        assert_eq!(listed.join("\n").trim(), std::fs::read_to_string(file).unwrap().trim());
    }
    drop(table);
    assert!(!node.node.command("nft", "list tables", "").contains("sheave"), "it goes");
}

#[test]
fn foreign_table_is_left_alone() {
    let Some(node) = a_node() else { return };
    let cannot = || {
        let config = RuleTableConfig::new(proxy_addresses());
        node.node.run(|| RuleTable::open(config)).err().unwrap()
    };
    let foreign = "table inet sheave_15001 { chain input { type filter hook input priority 1; }; }";
    node.node.command("nft", "-f -", foreign);
    let before = node.node.command("nft", "list ruleset", "");
    assert!(matches!(cannot(), InterceptError::ForeignTable { .. }));
    assert_eq!(node.node.command("nft", "list ruleset", ""), before);
    node.node.command("nft", "delete table inet sheave_15001", "");

    let owner = open(&node);
    let before = node.node.command("nft", "list ruleset", "");
    let error = cannot();
    assert!(matches!(error, InterceptError::ForeignTable { .. }), "{error}");
    assert_eq!(node.node.command("nft", "list ruleset", ""), before);
    node.node.command("nft", "flush ruleset", "");
    assert!(node.node.command("nft", "list tables", "").contains("sheave_15001"), "ours stays");
    drop(owner);
    open(&node);
}

#[test]
fn bypassing_connection_is_counted_and_reset() {
    on_every_node(|node| {
        let old: Vec<_> = other_services().map(|service| connect_to_other(node, service)).into();
        let mut conntrack = node.node.run(Conntrack::open).unwrap();
        let _agent = RunningAgent::start(node);
        let services = BTreeSet::from(services());
        let proxies: BTreeSet<_> = proxy_addresses().iter().collect();
        for service in &services {
            assert!(node.client.ask(*service).unwrap().starts_with("proxy "));
        }
        let others = BTreeSet::from(other_services());
        assert_eq!(conntrack.count_bypassing(&services, &proxies).unwrap(), 0);
        assert_eq!(conntrack.count_bypassing(&others, &proxies).unwrap(), 2);
        let first = conntrack.delete_bypassing(&others, &proxies, 1).unwrap();
        assert_eq!((first.count, first.has_more), (1, true));
        let second = conntrack.delete_bypassing(&others, &proxies, 5).unwrap();
        assert_eq!((second.count, second.has_more), (1, false));
        assert_eq!(conntrack.count_bypassing(&others, &proxies).unwrap(), 0);
        drop(old);

        // Late packets make new entries, of which there are few.
        let deleted = std::iter::repeat_with(|| {
            conntrack.delete_to_dead_proxies(&proxies, 100).unwrap().count
        });
        let deleted: usize = deleted.take_while(|count| *count > 0).sum();
        assert!(deleted >= 2, "the connections to the proxy, closed or not");
    });
}

/// The Service's addresses with another port, for which kube-proxy has no rules.
fn other_services() -> [SocketAddr; 2] {
    services().map(|service| SocketAddr::new(service.ip(), 81))
}

/// Connects from the client's pod to the other pod, by a rule of the test.
fn connect_to_other(node: &TestNode, service: SocketAddr) -> TcpStream {
    let target = address(SERVER[usize::from(service.is_ipv6())], POD_PORT);
    let family = if service.is_ipv4() { "ip" } else { "ip6" };
    let rules = format!(
        "table {family} other {{ chain prerouting {{ type nat hook prerouting priority -100;
           {family} daddr {} tcp dport {} dnat to {target}; }}; }}",
        service.ip(),
        service.port()
    );
    node.node.command("nft", "-f -", &rules);
    node.client.run(move || TcpStream::connect_timeout(&service, Duration::from_secs(10)).unwrap())
}

#[test]
fn client_of_a_deleted_connection_is_reset() {
    let Some(node) = TestNode::new(PodNetwork::Routed, ProxyMode::Nftables) else { return };
    // The pod keeps this connection: the proxy is not there yet.
    let service = services()[0];
    node.server.serve(POD_PORT + 1, |connection| {
        let mut connection: &TcpStream = connection;
        // Until the client ends it.
        drop(connection.read(&mut [0; 16]));
        String::new()
    });
    let to = address(SERVER[0], POD_PORT + 1);
    let rules = format!(
        "table ip early {{ chain prerouting {{ type nat hook prerouting priority -105;
           ip daddr {} tcp dport {} dnat to {to}; }}; }}",
        service.ip(),
        service.port()
    );
    node.node.command("nft", "-f -", &rules);
    let mut connection = node.client.run(move || TcpStream::connect(service).unwrap());
    let _agent = RunningAgent::start(&node);
    let proxies: BTreeSet<_> = proxy_addresses().iter().collect();
    let mut conntrack = node.node.run(Conntrack::open).unwrap();
    let deleted = conntrack.delete_bypassing(&BTreeSet::from([service]), &proxies, 5).unwrap();
    assert_eq!(deleted.count, 1);
    connection.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    connection.write_all(b"GET").unwrap();
    let error = connection.read(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(node.client.ask(service).unwrap().starts_with("proxy "), "the client connects anew");
}

#[test]
fn firewall_and_other_agents_are_found() {
    let Some(node) = a_node() else { return };
    let find = || node.node.run(|| node_findings("sheave_15001")).unwrap();
    let _own = open(&node);
    assert_eq!(find(), []);
    let firewall =
        "table inet filter { chain input { type filter hook input priority 0; policy drop; }; }
                    table inet sheave_1 { }";
    node.node.command("nft", "-f -", firewall);
    let names = |name: &str| name.to_owned();
    let expected = [
        NodeFinding::InputFirewall { table: names("filter"), chain: names("input") },
        NodeFinding::AnotherAgent { table: names("sheave_1") },
    ];
    assert_eq!(find(), expected);
    assert!(expected[0].to_string().contains("chain input of table filter"));
}
