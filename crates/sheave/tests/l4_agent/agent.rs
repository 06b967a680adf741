//! The agent as a child process in the namespaces of a node, and its configuration.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::network::{Machine, NODES, PATIENCE, POD_PORT, PODS, SERVICE_PORT, TestNetwork, VIPS};

/// Names of the nodes.
pub(crate) const NAMES: [&str; 2] = ["l4-test-1", "l4-test-2"];

/// Address of the admin API in the network namespace of a node.
pub(crate) const ADMIN: &str = "127.0.0.1:9904";

/// An endpoint: the number of its node, and its conditions.
pub(crate) type TestEndpoint = (usize, &'static str);

pub(crate) const READY: &str = "ready: true";
pub(crate) const TERMINATING: &str = "ready: false, serving: true, terminating: true";

/// Files of the configuration, and the folders of pins.
pub(crate) struct AgentFiles {
    configuration: TempDir,
    pins: [TempDir; 2],
}

impl AgentFiles {
    pub(crate) fn new(endpoints: &[TestEndpoint]) -> Self {
        let folder = || tempfile::tempdir().unwrap();
        let files = Self { configuration: folder(), pins: [folder(), folder()] };
        files.write("nodes.yaml", &nodes());
        files.write("service.yaml", &service());
        files.set_endpoints(endpoints);
        files
    }

    pub(crate) fn set_endpoints(&self, endpoints: &[TestEndpoint]) {
        let text = slices(endpoints);
        self.write("endpoints.yaml", &text);
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let unfinished = self.configuration.path().join(".unfinished");
        fs::write(&unfinished, text).unwrap();
        fs::rename(unfinished, self.configuration.path().join(name)).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.configuration.path().join(name)).unwrap();
    }

    pub(crate) fn pins(&self, node: usize) -> PathBuf {
        self.pins[node].path().join("l4")
    }

    /// Returns a command of the agent of a node.
    pub(crate) fn command(&self, node: usize, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sheave"));
        command.args(["l4", "--node", NAMES[node], "--vxlan-port", "8474", "--pin-folder"]);
        command.arg(self.pins(node)).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Returns a command that asks the agent of a node about a connection.
    pub(crate) fn explain(flow: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sheave"));
        command.args(["l4", "--admin", ADMIN, "--explain", flow]).stdin(Stdio::null());
        command
    }

    /// Returns a command that shows the traffic of the agent of a node.
    pub(crate) fn top() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sheave"));
        command.args(["top", "--admin", ADMIN, "--interval", "10ms", "--count", "1"]);
        command.stdin(Stdio::null());
        command
    }

    /// Starts the agent of a node. The first one announces the addresses.
    pub(crate) fn start(&self, network: &TestNetwork, node: usize, more: &[&str]) -> AgentProcess {
        let mut command = self.command(node, more);
        command.arg("--config").arg(self.configuration.path());
        if node == 0 {
            command.arg("--announce");
        }
        AgentProcess::start(&network.nodes[node], command, NAMES[node])
    }

    /// Starts the agents of both nodes.
    pub(crate) fn start_both(&self, network: &TestNetwork, more: &[&str]) -> [AgentProcess; 2] {
        [0, 1].map(|node| self.start(network, node, more))
    }
}

/// A running agent; it is killed when dropped.
pub(crate) struct AgentProcess {
    child: Child,
    lines: Receiver<String>,
}

impl AgentProcess {
    fn start(machine: &Machine, mut command: Command, name: &'static str) -> Self {
        let mut child = machine.run(move || command.spawn().unwrap());
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                eprintln!("{name}: {line}");
                drop(sender.send(line));
            }
        });
        Self { child, lines }
    }

    /// Waits for the next line of the log with this text.
    pub(crate) fn wait_for(&self, part: &str) {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("no line with {part:?}: {error}"));
            if line.contains(part) {
                return;
            }
        }
    }

    /// Waits until this number of endpoints is served, over all ports and IP versions.
    pub(crate) fn wait_for_endpoints(&self, count: usize) {
        self.wait_for(&format!("services=4 endpoints={count} "));
    }

    /// Kills it, and waits until it has gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it by a signal.
    pub(crate) fn terminate(mut self) {
        let id = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill(id, Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn nodes() -> String {
    let node = |(name, [ipv4, ipv6]): (&str, [&str; 2])| {
        format!(
            "---
apiVersion: v1
kind: Node
metadata: {{name: {name}}}
status: {{addresses: [{{type: InternalIP, address: {ipv4}}}, {{type: InternalIP, address: '{ipv6}'}}]}}
"
        )
    };
    NAMES.into_iter().zip(NODES).map(node).collect()
}

fn service() -> String {
    let [ipv4, ipv6] = VIPS;
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  type: LoadBalancer
  loadBalancerClass: sheave.dev/l4
  ipFamilies: [IPv4, IPv6]
  ports: [{{name: t, port: {SERVICE_PORT}}}, {{name: u, port: {SERVICE_PORT}, protocol: UDP}}]
status: {{loadBalancer: {{ingress: [{{ip: {ipv4}}}, {{ip: '{ipv6}'}}]}}}}
"
    )
}

fn slices(endpoints: &[TestEndpoint]) -> String {
    let slice = |version: usize| {
        let kind = ["IPv4", "IPv6"][version];
        let endpoint = |&(node, conditions): &TestEndpoint| {
            let (pod, name) = (PODS[node][version], NAMES[node]);
            format!("{{addresses: ['{pod}'], nodeName: {name}, conditions: {{{conditions}}}}}")
        };
        let endpoints: Vec<_> = endpoints.iter().map(endpoint).collect();
        format!(
            "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-{version}, labels: {{kubernetes.io/service-name: web}}}}
addressType: {kind}
ports: [{{name: t, port: {POD_PORT}}}, {{name: u, port: {POD_PORT}, protocol: UDP}}]
endpoints: [{}]
",
            endpoints.join(", ")
        )
    };
    slice(0) + &slice(1)
}

/// True if the folder of pins has the programs, in the namespaces of a node.
pub(crate) fn has_pins(machine: &Machine, folder: &Path) -> bool {
    let folder = folder.join("v3");
    machine.run(move || folder.exists())
}
