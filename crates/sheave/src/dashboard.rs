//! `sheave dashboard`: prints the address of the dashboard, and opens it. For a Sheave in a cluster it runs
//! `kubectl port-forward`, with the permissions of its user.

use std::env;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::Context;
use serde_json::Value;

use crate::admin;
use crate::check::print;
use crate::failure::Failure;
use crate::flags::DashboardFlags;

/// Port of the admin API in the chart.
const CLUSTER_PORT: u16 = 9900;

/// Prints the URL, and opens it in a browser if there is one.
pub(crate) fn run(flags: &DashboardFlags) -> Result<(), Failure> {
    let Some(target) = &flags.port_forward else {
        return show(flags.admin, flags).map_err(|reason| unreachable(flags.admin, &reason));
    };
    let mut forward = KubectlForward::start(flags, target)?;
    let address = forward.address()?;
    if let Err(reason) = show(address, flags) {
        forward.stop();
        return Err(Failure::input(format_args!(
            "{target} does not answer at port {CLUSTER_PORT}: {reason}: is it a Sheave with its admin API?"
        )));
    }
    print(&["Ctrl-C ends the port-forward.".to_owned()])?;
    let status = forward.child.wait().context("kubectl")?;
    match status.code() {
        Some(0) | None => Ok(()),
        Some(_) => Err(Failure::input("kubectl port-forward has ended: see its message above")),
    }
}

/// Prints the URL of the dashboard at this address, or returns the reason why there is none.
fn show(address: SocketAddr, flags: &DashboardFlags) -> Result<(), String> {
    admin::query::<Value>(address, "/api/v1/overview")?;
    let url = format!("http://{address}/dashboard/");
    print(std::slice::from_ref(&url)).map_err(|_failure| "standard output is closed".to_owned())?;
    open_in_browser(&url, flags.no_open);
    Ok(())
}

/// Opens the URL, unless it was only to be printed or there is no browser to see.
pub(crate) fn open_in_browser(url: &str, no_open: bool) {
    if !no_open && io::stdout().is_terminal() && has_display() {
        open(url);
    }
}

fn unreachable(admin: SocketAddr, reason: &str) -> Failure {
    Failure::Input(vec![
        format!(
            "sheave: cannot query {admin}: {reason}: is `sheave serve` running, with this address as --admin?"
        ),
        "sheave: for a Sheave in a cluster: sheave dashboard --port-forward deployment/sheave"
            .to_owned(),
    ])
}

fn has_display() -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| env::var_os(name).is_some())
}

/// Opens the URL. If there is no program for it, the printed URL has to do.
fn open(url: &str) {
    let mut command = Command::new("xdg-open");
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    drop(command.spawn());
}

/// A running `kubectl port-forward`.
struct KubectlForward {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl KubectlForward {
    fn start(flags: &DashboardFlags, target: &str) -> Result<Self, Failure> {
        let mut command = Command::new("kubectl");
        command.args(["port-forward", "--address", "127.0.0.1", "--namespace", &flags.namespace]);
        // The kernel chooses the local port. Errors, such as a missing permission, are kubectl's own sentences.
        command.args([target, &format!(":{CLUSTER_PORT}")]).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| {
            Failure::input(format_args!(
                "cannot run kubectl, which opens the port-forward: {error}: install it, or forward port {CLUSTER_PORT} \
                 in another way and name the local address with --admin"
            ))
        })?;
        let output = BufReader::new(child.stdout.take().context("standard output is a pipe")?);
        Ok(Self { child, output })
    }

    /// Returns the local address.
    fn address(&mut self) -> Result<SocketAddr, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("kubectl")?;
        match local_address(&line) {
            Some(address) => Ok(address),
            None => {
                self.stop();
                let target = "pods/portforward";
                Err(Failure::input(format_args!(
                    "kubectl port-forward does not begin: see its message above (it needs the permission to create {target})"
                )))
            }
        }
    }

    fn stop(&mut self) {
        // If it has ended by itself, there is nothing to stop.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the local address of kubectl's message `Forwarding from 127.0.0.1:41234 -> 9900`.
fn local_address(line: &str) -> Option<SocketAddr> {
    line.strip_prefix("Forwarding from ")?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_address_is_read_from_the_message_of_kubectl() {
        let address = local_address("Forwarding from 127.0.0.1:41234 -> 9900\n");
        assert_eq!(address, Some(([127, 0, 0, 1], 41234).into()));
        assert_eq!(local_address("error: pods \"sheave\" is forbidden\n"), None);
        assert_eq!(local_address(""), None);
    }
}
