//! Tests with two nodes on one link, each a thread in a network namespace of its own, against the real kernel.

use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{geteuid, gettid};
use tokio::runtime;

use super::*;

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, which ends with the thread.
struct Node {
    jobs: Sender<Job>,
    id: String,
}

impl Node {
    fn new() -> Self {
        let (jobs, to_do) = channel::<Job>();
        let (sender, receiver) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            sender.send(gettid().to_string()).unwrap();
            to_do.iter().for_each(|job| job());
        });
        Self { jobs, id: receiver.recv().unwrap() }
    }

    /// Runs a job in the namespace.
    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = channel();
        self.jobs.send(Box::new(move || drop(sender.send(job())))).unwrap();
        receiver.recv().unwrap()
    }

    fn ip(&self, words: &str) {
        let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
        let done = self.run(move || Command::new("ip").args(&words).output().unwrap());
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    fn ask(&self, link: &EthernetInterface, address: IpAddr) -> bool {
        let link = link.clone();
        self.run(move || wait(async { link.probe(address).await.unwrap() }))
    }

    /// True if the kernel has the address.
    fn has(&self, address: IpAddr) -> bool {
        self.run(move || std::net::UdpSocket::bind((address, 0)).is_ok())
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Returns two nodes with a network between them; `None` if that is not permitted.
fn nodes() -> Option<[(Node, EthernetInterface); 2]> {
    let may = geteuid().is_root()
        && thread::spawn(|| unshare(CloneFlags::CLONE_NEWNET)).join().unwrap().is_ok();
    if !may {
        eprintln!("skipped: needs root and network namespaces");
        return None;
    }
    let nodes = [Node::new(), Node::new()];
    nodes[0].ip(&format!("link add eth0 type veth peer name eth0 netns {}", nodes[1].id));
    for (n, node) in (1..).zip(&nodes) {
        node.ip("link set lo up");
        node.ip("link set eth0 up");
        node.ip(&format!("address add 10.9.0.{n}/24 dev eth0"));
        node.ip(&format!("address add fd00:9::{n}/64 dev eth0 nodad"));
    }
    let with_link = |node: Node| {
        let link = node.run(|| EthernetInterface::find(V4.parse().unwrap(), None).unwrap());
        assert_eq!(link.name, "eth0");
        (node, link)
    };
    Some(nodes.map(with_link))
}

const V4: &str = "10.9.0.100";
const V6: &str = "fd00:9::100";

#[test]
fn probe_detects_an_address_in_use_on_the_link() {
    let Some([(here, near), (there, far)]) = nodes() else { return };
    for address in [V4, V6].map(|text| text.parse().unwrap()) {
        assert!(!here.ask(&near, address), "no node has {address}");
        let link = far.clone();
        there.run(move || link.install_address(address, 3).unwrap());
        assert!(there.has(address), "at once");
        assert!(here.ask(&near, address), "the other node has {address}");
        assert!(!there.ask(&far, address), "a node does not receive its own frames");
        let link = far.clone();
        there.run(move || {
            (link.remove_address(address).unwrap(), link.remove_address(address).unwrap())
        });
        assert!(!there.has(address) && !here.ask(&near, address), "{address} has gone");
    }
}

#[test]
fn announcement_reaches_all_nodes_on_the_link() {
    let Some([(here, near), (there, far)]) = nodes() else { return };
    let address = V4.parse().unwrap();
    let listening = here.run(move || near.frame_socket(ETHERTYPE_ARP).unwrap());
    let mac = far.mac;
    there.run(move || far.announce(address).unwrap());
    let heard = here.run(move || {
        wait(async {
            let listening = UdpSocket::from_std(listening.into()).unwrap();
            let mut heard = Vec::new();
            while heard.len() < 2 {
                let mut buffer = [0; MAX_FRAME_BYTES];
                let read = listening.recv(&mut buffer).await.unwrap();
                heard.push(buffer[..read].to_vec());
            }
            heard
        })
    });
    assert_eq!(heard, frame::announcement(address, mac));
}

#[test]
fn unsuitable_interface_gives_a_clear_error() {
    let Some([(here, _), _]) = nodes() else { return };
    let cannot = |address: &str, name: Option<&'static str>| {
        let address = address.parse().unwrap();
        here.run(move || EthernetInterface::find(address, name).unwrap_err())
    };
    assert!(cannot("192.0.2.1", None).contains("no interface is on the network of 192.0.2.1"));
    assert_eq!(cannot(V4, Some("eth7")), "there is no interface eth7");
    assert_eq!(cannot(V4, Some("lo")), "lo is not an Ethernet interface");
}
