//! Machines on one link: threads in network namespaces of their own.

use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, unshare};
use rustix::process::geteuid;
use rustix::thread::gettid;

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, which ends with the thread, and that with the last clone.
#[derive(Clone)]
pub(crate) struct Machine {
    jobs: Sender<Job>,
    id: String,
}

/// A router, and nodes with the addresses 10.9.0.N and fd00:9::N on the same link.
pub(crate) struct Network {
    pub(crate) router: Machine,
    pub(crate) nodes: Vec<Machine>,
}

impl Machine {
    fn new() -> Result<Self> {
        let (jobs, to_do) = channel::<Job>();
        let (sender, receiver) = channel();
        thread::spawn(move || {
            drop(sender.send(isolate()));
            to_do.iter().for_each(|job| job());
        });
        let machine = Self { jobs, id: receiver.recv()?? };
        machine.ip("link set lo up")?;
        Ok(machine)
    }

    /// Runs a job in the namespace.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = channel();
        self.jobs
            .send(Box::new(move || drop(sender.send(job()))))
            .ok()
            .context("the machine ended")?;
        receiver.recv().context("the job panicked")
    }

    pub(crate) fn ip(&self, words: &str) -> Result<String> {
        self.command("ip", words)
    }

    /// Runs a program, and returns what it prints.
    pub(crate) fn command(&self, program: &'static str, words: &str) -> Result<String> {
        let arguments: Vec<_> = words.split(' ').map(str::to_owned).collect();
        let output = self.run(move || Command::new(program).args(arguments).output())??;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program} {words}: {errors}");
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// Moves this thread to a network namespace of its own; returns the thread's id.
fn isolate() -> Result<String> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    // Without duplicate address detection, addresses can be used at once.
    for of in ["all", "default"] {
        fs::write(format!("/proc/sys/net/ipv6/conf/{of}/accept_dad"), "0")?;
    }
    // Both tuples of ports decide which next hop a connection takes.
    for family in ["ipv4", "ipv6"] {
        fs::write(format!("/proc/sys/net/{family}/fib_multipath_hash_policy"), "1")?;
    }
    Ok(gettid().as_raw_nonzero().to_string())
}

impl Network {
    /// Returns a network of so many nodes; `None` where a test may not have one, or BIRD is missing.
    pub(crate) fn of(nodes: usize) -> Result<Option<Self>> {
        let has_bird = Command::new("bird").arg("--version").output().is_ok();
        if !geteuid().is_root() || !has_bird {
            eprintln!("skipped: needs root, and bird2 of Debian");
            return Ok(None);
        }
        let router = Machine::new()?;
        router.ip("link add bridge type bridge")?;
        router.ip("link set bridge up")?;
        router.ip("address add 10.9.0.254/24 dev bridge")?;
        router.ip("address add fd00:9::fe/64 dev bridge nodad")?;
        let mut machines = Vec::new();
        for number in 1..=nodes {
            let node = Machine::new()?;
            let id = &node.id;
            router.ip(&format!("link add n{number} type veth peer name eth0 netns {id}"))?;
            router.ip(&format!("link set n{number} master bridge up"))?;
            node.ip("link set eth0 up")?;
            node.ip(&format!("address add 10.9.0.{number}/24 dev eth0"))?;
            node.ip(&format!("address add fd00:9::{number}/64 dev eth0 nodad"))?;
            machines.push(node);
        }
        Ok(Some(Self { router, nodes: machines }))
    }
}
