//! An agent as a process of its own, which can be killed and stopped: this program again, with one of its tests.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, thread};

use intercept::{RuleTable, RuleTableConfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::network::{Machine, answer_as_proxy, listen, serve, services};
use crate::{PROXY_PORT, proxy_addresses};

/// Variable that makes the test below an agent.
const IS_AGENT: &str = "INTERCEPT_TEST_AGENT";
const READY: &str = "agent: ready";

/// A process that takes the connections of the test's Service.
pub(crate) struct AgentProcess(Child);

impl AgentProcess {
    pub(crate) fn start(node: &Machine) -> Self {
        let mut child = node.run(|| {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "agent::process", "--nocapture"]).env(IS_AGENT, "1");
            command.stdout(Stdio::piped()).spawn().unwrap()
        });
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains(READY)), "the agent starts");
        Self(child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn process() {
    if env::var_os(IS_AGENT).is_none() {
        return;
    }
    let mut table = RuleTable::open(RuleTableConfig::new(proxy_addresses())).unwrap();
    table.set_addresses(services()).unwrap();
    let listener = listen(PROXY_PORT);
    thread::spawn(move || serve(&listener, answer_as_proxy));
    let mut lease = table.open_lease().unwrap();
    lease.renew().unwrap();
    println!("{READY}");
    loop {
        // The interval of an agent's renewals.
        thread::sleep(Duration::from_millis(100));
        lease.renew().unwrap();
    }
}
