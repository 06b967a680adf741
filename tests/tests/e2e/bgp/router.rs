//! A router that runs BIRD.

use std::fmt::Debug;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tests::configuration::TempDirectory;
use tests::waiting::PATIENCE;
use tokio::time::Instant;

use super::network::{Machine, Network};

/// Hold time of the sessions in seconds: the least that BGP allows.
pub(crate) const HOLD_TIME: u16 = 3;

/// Options of the router.
#[derive(Clone, Copy, Default)]
pub(crate) struct RouterOptions {
    /// Password of all sessions.
    pub(crate) password: Option<&'static str>,
}

/// A router with BIRD, which is killed when dropped.
pub(crate) struct Router {
    machine: Machine,
    nodes: usize,
    process: Child,
    directory: TempDirectory,
}

impl Router {
    pub(crate) fn start(network: &Network, options: RouterOptions) -> Result<Self> {
        let (machine, nodes) = (network.router.clone(), network.nodes.len());
        let directory = TempDirectory::new()?;
        let path = directory.path().to_owned();
        fs::write(path.join("bird.conf"), configuration(&path, nodes, options, ""))?;
        let mut command = Command::new("bird");
        command.arg("-f").arg("-c").arg(path.join("bird.conf")).arg("-s").arg(path.join("socket"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = machine.run(move || command.spawn())??;
        let router = Self { machine, nodes, process, directory };
        router.wait("BIRD", || Ok(router.show("show status").is_ok()), |is_up| *is_up)?;
        Ok(router)
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Returns the answer of BIRD to a command.
    pub(crate) fn show(&self, command: &str) -> Result<String> {
        let output =
            Command::new("birdc").arg("-s").arg(self.socket()).args(command.split(' ')).output()?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(output.status.success(), "birdc {command}: {text}");
        Ok(text)
    }

    /// Returns what BIRD says of the session with a node.
    pub(crate) fn session(&self, node: usize) -> Result<String> {
        self.show(&format!("show protocols all n{node}"))
    }

    pub(crate) fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.directory.path().join("bird.log"))?)
    }

    /// Makes BIRD check the hop limit of nodes, and send with the highest.
    pub(crate) fn check_hop_limits(&self) -> Result<()> {
        let path = self.directory.path();
        let text = configuration(path, self.nodes, RouterOptions::default(), "ttl security on;");
        fs::write(path.join("bird.conf"), text)?;
        self.show("configure").map(drop)
    }

    /// Waits until the kernel of the router has a route to an address by these next hops.
    pub(crate) fn wait_for_next_hops(&self, address: &str, wanted: &[&str]) -> Result<()> {
        let family = if address.contains(':') { "-6" } else { "-4" };
        let what = format!("route to {address} by {wanted:?}");
        let next_hops = || {
            let text = self.machine.ip(&format!("{family} route show {address}"))?;
            let words: Vec<_> = text.split_whitespace().collect();
            let mut found: Vec<_> = words
                .windows(2)
                .filter(|pair| pair[0] == "via")
                .map(|pair| pair[1].to_owned())
                .collect();
            found.sort();
            Ok(found)
        };
        self.wait(&what, next_hops, |found| found == wanted).map(drop)
    }

    /// Opens a connection from the router.
    pub(crate) fn connect(&self, address: SocketAddr) -> Result<TcpStream> {
        Ok(self.machine.run(move || TcpStream::connect_timeout(&address, PATIENCE))??)
    }

    /// Waits for a state; the error has the log of BIRD.
    pub(crate) fn wait<T: Debug>(
        &self,
        what: &str,
        observe: impl FnMut() -> Result<T>,
        wanted: impl Fn(&T) -> bool,
    ) -> Result<T> {
        wait(what, observe, wanted).map_err(|error| {
            let log = self.log().unwrap_or_default();
            let lines: Vec<_> = log.lines().rev().take(30).collect();
            error.context(lines.join("\n"))
        })
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Observes until the observation is as wanted.
pub(crate) fn wait<T: Debug>(
    what: &str,
    mut observe: impl FnMut() -> Result<T>,
    wanted: impl Fn(&T) -> bool,
) -> Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        let seen = observe()?;
        if wanted(&seen) {
            return Ok(seen);
        }
        if Instant::now() > end {
            bail!("{what}: not true after {PATIENCE:?}; last seen: {seen:?}");
        }
        sleep(Duration::from_millis(10)); // The interval of observations.
    }
}

/// Returns the configuration of BIRD for so many nodes.
fn configuration(
    directory: &Path,
    nodes: usize,
    RouterOptions { password }: RouterOptions,
    more: &str,
) -> String {
    let log = directory.join("bird.log");
    let password = password.map(|it| format!("password \"{it}\";")).unwrap_or_default();
    let mut text = format!(
        "log \"{}\" all;
router id 10.9.0.254;
protocol device {{ scan time 1; }}
protocol kernel {{ ipv4 {{ import none; export all; }}; merge paths on limit 8; }}
protocol kernel {{ ipv6 {{ import none; export all; }}; merge paths on limit 8; }}
template bgp nodes {{
  local 10.9.0.254 as 65001;
  passive on;
  direct;
  hold time {HOLD_TIME};
  error wait time 1, 1;
  {password}
  {more}
  ipv4 {{ import all; export none; }};
  ipv6 {{ import all; export none; next hop address fd00:9::fe; }};
}}
",
        log.display()
    );
    for number in 1..=nodes {
        text += &format!(
            "protocol bgp n{number} from nodes {{ neighbor 10.9.0.{number} as 65010; }}\n"
        );
    }
    text
}
