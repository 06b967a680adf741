//! `sheave probe`: an exec probe of Kubernetes, in an image that has no shell.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::admin;
use crate::failure::Failure;
use crate::flags::{ProbeFlags, ProbeQuestion};
use crate::ready;

/// Asks the process whose file it is.
pub(crate) fn run(flags: &ProbeFlags) -> Result<(), Failure> {
    let path = flags.ready_file.display();
    let addresses = ready::read(&flags.ready_file)
        .map_err(|error| Failure::input(format_args!("not ready yet: {path}: {error}")))?;
    let Some(address) = addresses.probes.or(addresses.admin) else {
        return Err(Failure::input(format_args!("{path} has no address of --probes or --admin")));
    };
    let path = match flags.question {
        ProbeQuestion::Live => "/healthz",
        ProbeQuestion::Ready => "/readyz",
    };
    match admin::failure(reachable(address), path) {
        None => Ok(()),
        Some(reason) => Err(Failure::input(reason)),
    }
}

/// Returns an address at which a server is reached that listens on all addresses.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the message of a probe with this content of the file.
    fn message(content: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let ready_file = folder.path().join("ready.json");
        fs::write(&ready_file, content).unwrap();
        let flags = ProbeFlags { question: ProbeQuestion::Live, ready_file };
        match run(&flags) {
            Err(Failure::Input(lines)) => lines.concat(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn probe_without_an_answer_fails_with_the_reason() {
        assert!(message("{").contains("not ready yet"));
        let off = r#"{"admin":null,"probes":null,"scaler":null,"listeners":[]}"#;
        assert!(message(off).contains("no address of --probes"));
        // A port that no process listens on.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let gone = format!(r#"{{"admin":null,"probes":"127.0.0.1:{port}","scaler":null}}"#);
        assert!(message(&gone).contains("does not answer"));
        assert_eq!(reachable("[::]:5".parse().unwrap()), "[::1]:5".parse().unwrap());
    }
}
