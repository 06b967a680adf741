//! Tests of the threads of the rules and of their lease against the real kernel, each in a network namespace of its own:
//! they need root, and are skipped without. The data plane is a socket and counts that the test sets.

use std::env;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::thread;

use intercept::{MarkRange, ProxyAddresses, RuleTableConfig};
use proxy::{ConnectionInterceptor, InterceptionCounts};
use rustix::process::geteuid;
use rustix::thread::UnshareFlags;

use super::super::interceptor::NodeInterceptor;
use super::super::lease_thread::LeaseThread;
use super::*;

const NODE: &str = "10.9.0.1";
const SERVICE: &str = "10.96.0.1:80";
/// A pod of the node, and the network of others.
const CLIENT: &str = "10.244.0.7";
const POD_RANGE: &str = "10.245.0.0/24";
/// Time limit of a connection that nothing serves.
const SHORT: Duration = Duration::from_millis(100);

/// A node with an agent whose data plane is this test.
struct Node {
    control: ControlThread,
    lease: LeaseThread,
    parts: AgentParts,
    listener: TcpListener,
    /// Ticks of the only worker, and connections accepted.
    ticks: Arc<AtomicU64>,
    accepted: Arc<AtomicU64>,
}

/// Runs a test on a node, in a thread of its own with a network namespace of its own.
fn on_node(test: fn(Node)) {
    thread::spawn(move || {
        #[expect(
            deprecated,
            reason = "network namespaces, unlike tables of files, are safe to leave"
        )]
        let has_namespace =
            geteuid().is_root() && rustix::thread::unshare(UnshareFlags::NEWNET).is_ok();
        if !has_namespace {
            assert!(env::var_os("CONFORMANCE_ALL").is_none(), "network namespaces need root");
            eprintln!("skipped: needs root and network namespaces");
            return;
        }
        ip("link set lo up");
        ip("link add eth0 type veth peer name uplink");
        ip("link set eth0 up");
        ip("link set uplink up");
        ip(&format!("address add {NODE}/24 dev eth0"));
        ip("route add default dev eth0");
        test(Node::new());
    })
    .join()
    .unwrap();
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

impl Node {
    fn new() -> Self {
        let listener = TcpListener::bind((NODE, 0)).unwrap();
        let SocketAddr::V4(address) = listener.local_addr().unwrap() else { unreachable!() };
        let proxy = ProxyAddresses { ipv4: Some(address), ipv6: None };
        let table = RuleTable::open(RuleTableConfig::new(proxy)).unwrap();
        let lease = table.open_lease().unwrap();
        let parts = AgentParts {
            queue: Arc::default(),
            clients: Arc::new(Mutex::new(ClientMarks::new(MarkRange::default()))),
            local: Arc::default(),
            status: Arc::default(),
            node: "n1".to_owned(),
            events: EventRecorder::default(),
        };
        parts.local.set([CLIENT.parse().unwrap()].into(), vec![POD_RANGE.parse().unwrap()]);
        let (ticks, accepted) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
        let (ticked, arrived) = (Arc::clone(&ticks), Arc::clone(&accepted));
        let counts = move || InterceptionCounts {
            accepted: arrived.load(Ordering::Relaxed),
            unknown: 0,
            worker_ticks: vec![ticked.load(Ordering::Relaxed)],
        };
        let control = ControlThread::new(table, parts.clone());
        let lease = LeaseThread::new(lease, parts.clone(), Box::new(counts));
        Self { control, lease, parts, listener, ticks, accepted }
    }

    /// Makes a pass of each thread.
    fn pass(&mut self, limit: Duration) {
        self.control.pass(limit);
        self.lease.pass();
    }

    fn set_services(&self, addresses: &[&str]) -> u64 {
        let addresses = addresses.iter().map(|it| it.parse().unwrap()).collect();
        self.parts.queue.set_services(TakenServices { addresses, ..TakenServices::default() })
    }

    /// Makes passes for this time, in which the worker ticks.
    fn pass_for(&mut self, time: Duration) {
        let end = clock::now() + time;
        while clock::now() < end {
            self.ticks.fetch_add(1, Ordering::Relaxed);
            self.pass(PASS_INTERVAL);
        }
    }

    /// True if a connection to the Service arrives at the agent.
    fn is_taken(&self) -> bool {
        let service: SocketAddr = SERVICE.parse().unwrap();
        let Ok(client) = TcpStream::connect_timeout(&service, SHORT) else { return false };
        let (connection, peer) = self.listener.accept().unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        assert_eq!(intercept::original_destination(&connection).unwrap(), service);
        true
    }
}

#[test]
fn addresses_are_taken_and_given_up() {
    on_node(|mut node| {
        node.pass(Duration::ZERO);
        assert!(node.parts.status.is_in_force(clock::now()), "ready before there are Services");
        assert!(!node.is_taken());
        let generation = node.set_services(&[SERVICE]);
        node.pass(Duration::ZERO);
        assert!(node.parts.queue.wait_until_applied(generation, Duration::ZERO));
        assert!(node.is_taken());
        assert_eq!(node.parts.status.addresses.load(Ordering::Relaxed), 1);
        node.set_services(&[]);
        node.pass(Duration::ZERO);
        assert!(!node.is_taken());
    });
}

#[test]
fn lease_is_not_renewed_for_a_worker_that_hangs() {
    on_node(|mut node| {
        node.set_services(&[SERVICE]);
        node.pass(Duration::ZERO);
        let renewed = node.parts.status.renewed_at.load(Ordering::Relaxed);
        assert!(renewed > 0);
        let end = clock::now() + 2 * intercept::LEASE_TIMEOUT;
        while clock::now() < end && node.parts.status.is_in_force(clock::now()) {
            node.pass(PASS_INTERVAL);
        }
        assert!(!node.parts.status.is_in_force(clock::now()));
        assert_eq!(node.parts.status.renewed_at.load(Ordering::Relaxed), renewed);
        assert!(!node.is_taken(), "the kernel says the same");
        node.ticks.fetch_add(1, Ordering::Relaxed);
        node.pass(Duration::ZERO);
        assert!(node.is_taken());
    });
}

#[test]
fn lease_is_kept_while_the_thread_of_the_rules_waits() {
    on_node(|mut node| {
        node.set_services(&[SERVICE]);
        node.pass(Duration::ZERO);
        let Node { control, mut lease, parts, listener, ticks, accepted } = node;
        let control = thread::spawn(move || control.run());
        // Like a change that waits for the kernel's lock: the thread waits for this one.
        let clients = lock(&parts.clients);
        let (reply, mut answer) = tokio::sync::oneshot::channel();
        parts.queue.ask(ClientRequest { client: CLIENT.parse().unwrap(), reply });
        let end = clock::now() + 2 * intercept::LEASE_TIMEOUT;
        while clock::now() < end {
            ticks.fetch_add(1, Ordering::Relaxed);
            lease.pass();
            let service = SERVICE.parse().unwrap();
            TcpStream::connect_timeout(&service, SHORT).expect("it is taken");
            listener.accept().unwrap();
            accepted.fetch_add(1, Ordering::Relaxed);
        }
        assert!(answer.try_recv().is_err(), "the thread of the rules waits");
        let now = clock::now();
        let status = &parts.status;
        assert!(status.is_in_force(now) && status.wedged_reason(now).is_none());
        drop(clients);
        assert!(answer.blocking_recv().unwrap().is_some());
        parts.queue.enter(AgentStage::Ended);
        control.join().unwrap();
    });
}

#[test]
fn nothing_is_renewed_from_the_request_of_a_withdrawal_until_it_is_done() {
    on_node(|mut node| {
        node.set_services(&[SERVICE]);
        node.pass(Duration::ZERO);
        let queue = Arc::clone(&node.parts.queue);
        assert_eq!(queue.renew_unless_withdrawn(|| 1), Some(1));
        queue.request_withdrawal();
        assert_eq!(queue.renew_unless_withdrawn(|| 1), None);
        assert!(node.is_taken(), "the thread of the rules has not been there yet");
        node.control.pass(Duration::ZERO);
        assert!(!node.is_taken());
        assert_eq!(queue.renew_unless_withdrawn(|| 1), Some(1));
        assert!(!queue.wait_until_left(Duration::ZERO));
        queue.enter(AgentStage::Withdrawn);
        assert_eq!(queue.renew_unless_withdrawn(|| 1), None);
        node.control.pass(Duration::ZERO);
        assert!(queue.wait_until_left(Duration::ZERO));
    });
}

#[test]
fn rules_are_withdrawn_if_nothing_arrives() {
    on_node(|mut node| {
        node.set_services(&[SERVICE]);
        node.pass_for(SHORT);
        assert!(node.is_taken());
        node.accepted.fetch_add(1, Ordering::Relaxed);
        node.pass_for(SHORT);
        // Like a firewall: the workers see no connection.
        assert!(node.is_taken());
        let limit = clock::now() + Duration::from_secs(20);
        while !node.parts.status.is_withdrawn.load(Ordering::Relaxed) && clock::now() < limit {
            node.pass_for(SHORT);
        }
        // The thread of the rules does what the other one has asked for.
        node.pass(Duration::ZERO);
        let status = &node.parts.status;
        assert_eq!(status.withdrawals.load(Ordering::Relaxed), 1);
        assert!(status.unready_reason(clock::now()).is_none(), "withdrawn by choice");
        assert!(status.details().node_conditions.contains_key("RulesWithdrawn"));
        assert!(!node.is_taken());
    });
}

#[test]
fn clients_get_marks_from_the_kernel() {
    on_node(|mut node| {
        let interceptor = NodeInterceptor {
            marks: MarkRange::default(),
            clients: Arc::clone(&node.parts.clients),
            queue: Arc::clone(&node.parts.queue),
        };
        node.set_services(&[SERVICE]);
        let client = CLIENT.parse().unwrap();
        let wait = |mark| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(mark)
        };
        let asked = interceptor.client_mark(client);
        node.pass(Duration::ZERO);
        let mark = wait(asked).unwrap();
        assert_eq!(mark.address, client);
        assert_ne!(mark.value, interceptor.own_mark());
        // At once from now on, also for IPv4 in IPv6.
        let mapped = "::ffff:10.244.0.7".parse().unwrap();
        assert_eq!(wait(interceptor.client_mark(mapped)).unwrap().value, mark.value);
        // Of a pod that has just started, and of the node.
        for local in ["10.245.0.3", NODE] {
            let asked = interceptor.client_mark(local.parse().unwrap());
            node.pass(Duration::ZERO);
            assert_eq!(wait(asked).unwrap().address.to_string(), local);
        }
        // Replies to a machine in the node's network, and to one behind a router, do not come back.
        for remote in ["10.9.0.2", "192.0.2.9"] {
            let asked = interceptor.client_mark(remote.parse().unwrap());
            node.pass(Duration::ZERO);
            assert!(wait(asked).is_none(), "{remote}");
        }
        assert_eq!(node.parts.status.remote_clients.load(Ordering::Relaxed), 2);
        // A process of a node in IPVS mode calls a ClusterIP from this ClusterIP.
        assert!(wait(interceptor.client_mark("10.96.0.1".parse().unwrap())).is_none());
        // After the end, no caller waits.
        node.parts.queue.record_end();
        assert!(wait(interceptor.client_mark("10.244.0.8".parse().unwrap())).is_none());
    });
}

#[test]
fn shutdown_withdraws_first_and_removes_the_table_last() {
    on_node(|mut node| {
        node.set_services(&[SERVICE]);
        node.pass(Duration::ZERO);
        assert!(node.is_taken());
        node.parts.queue.enter(AgentStage::Withdrawn);
        node.pass_for(SHORT);
        assert!(!node.is_taken());
        // Clients still get marks: requests in flight may need connections.
        let (reply, answer) = tokio::sync::oneshot::channel();
        node.parts.queue.ask(ClientRequest { client: CLIENT.parse().unwrap(), reply });
        node.pass(Duration::ZERO);
        assert!(answer.blocking_recv().unwrap().is_some());
        let SocketAddr::V4(address) = node.listener.local_addr().unwrap() else { unreachable!() };
        let proxy = ProxyAddresses { ipv4: Some(address), ipv6: None };
        node.parts.queue.enter(AgentStage::Ended);
        node.control.run();
        assert!(node.parts.queue.wait_until_ended(Duration::ZERO));
        drop(RuleTable::open(RuleTableConfig::new(proxy)).unwrap());
    });
}
