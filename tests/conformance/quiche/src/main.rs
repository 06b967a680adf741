//! HTTP/3 client on quiche for the interoperability cases, whose names are those of quic-interop-runner.
//!
//! ```text
//! quiche-client CASE ADDRESS AUTHORITY CONNECTIONS REQUESTS
//! ```
//!
//! It opens connections, sends requests on each, and prints `response STATUS LENGTH SHA256` for each response. The exit
//! code is 127 if quiche cannot do the case.

use std::env;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quiche::Config;

/// A connection and its requests.
mod connection;
/// Requests and responses.
mod exchange;

use connection::ClientConnection;

/// quiche chooses its cipher suites itself, begins no key update, and neither marks datagrams nor reports marks.
const UNSUPPORTED_CASES: &[&str] = &["chacha20", "keyupdate", "ecn"];
const UNSUPPORTED: u8 = 127;
/// A version that no server has, so that the server says which it has (RFC 9000 §15).
const RESERVED_VERSION: u32 = 0x1a2a_3a4a;
/// Receive window of the case `transfer`, in bytes.
const SMALL_WINDOW: u64 = 32 * 1024;
/// Receive windows of other cases, in bytes.
const WINDOW: u64 = 1024 * 1024;
/// Number of streams of one kind that the server may open.
const STREAMS: u64 = 16;
/// Connection IDs that either side may keep for the other's addresses.
const CONNECTION_IDS: u64 = 4;
/// Round trip that is assumed before the first is measured. With the default of 333 ms a client gives up by the server's
/// time limit of handshakes, if the line loses several datagrams in a row.
const INITIAL_RTT: Duration = Duration::from_millis(100);
/// Time limit of silence.
const PATIENCE: Duration = Duration::from_secs(120);

/// One case: connections to one server.
pub(crate) struct InteropCase {
    name: String,
    server: SocketAddr,
    authority: String,
    /// Number of requests on each connection, all at once.
    requests: usize,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.first().is_some_and(|case| UNSUPPORTED_CASES.contains(&case.as_str())) {
        return ExitCode::from(UNSUPPORTED);
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quiche-client: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let [name, address, authority, connections, requests] = arguments else {
        bail!("usage: quiche-client CASE ADDRESS AUTHORITY CONNECTIONS REQUESTS");
    };
    let connections: usize = connections.parse()?;
    let case = InteropCase {
        name: name.clone(),
        server: address.parse()?,
        authority: authority.clone(),
        requests: requests.parse()?,
    };
    if case.resumes() {
        return run_one_after_another(&case, connections);
    }
    thread::scope(|scope| {
        let start = || scope.spawn(|| ClientConnection::connect(&case, None)?.run());
        let running: Vec<_> = (0..connections).map(|_| start()).collect();
        for thread in running {
            thread.join().ok().context("a connection panics")??;
        }
        Ok(())
    })
}

/// Each connection resumes the session of the one before.
fn run_one_after_another(case: &InteropCase, connections: usize) -> Result<()> {
    let mut session = None;
    for _ in 0..connections {
        session = ClientConnection::connect(case, session.as_deref())?.run()?;
    }
    Ok(())
}

impl InteropCase {
    fn resumes(&self) -> bool {
        matches!(self.name.as_str(), "resumption" | "zerortt")
    }

    fn is_upload(&self) -> bool {
        self.name == "http3"
    }

    fn migrates(&self) -> bool {
        self.name == "connectionmigration"
    }

    fn config(&self) -> Result<Config> {
        let version = match self.name.as_str() {
            "versionnegotiation" => RESERVED_VERSION,
            _ => quiche::PROTOCOL_VERSION,
        };
        let window = if self.name == "transfer" { SMALL_WINDOW } else { WINDOW };
        let mut config = Config::new(version)?;
        config.load_verify_locations_from_file(&self.authority)?;
        config.verify_peer(true);
        config.set_application_protos(quiche::h3::APPLICATION_PROTOCOL)?;
        config.set_initial_rtt(INITIAL_RTT);
        config.set_max_idle_timeout(u64::try_from(PATIENCE.as_millis())?);
        config.set_initial_max_data(window);
        config.set_max_connection_window(window);
        config.set_initial_max_stream_data_bidi_local(window);
        config.set_initial_max_stream_data_uni(window);
        config.set_max_stream_window(window);
        config.set_initial_max_streams_bidi(STREAMS);
        config.set_initial_max_streams_uni(STREAMS);
        config.set_active_connection_id_limit(CONNECTION_IDS);
        if self.name == "zerortt" {
            config.enable_early_data();
        }
        Ok(config)
    }
}
