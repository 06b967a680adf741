//! HTTP/3 client on s2n-quic for the interoperability cases, whose names are those of quic-interop-runner.
//!
//! ```text
//! s2n-quic-client CASE ADDRESS AUTHORITY CONNECTIONS REQUESTS
//! ```
//!
//! It opens connections, sends requests on each, and prints `response STATUS LENGTH SHA256` for each response. The exit
//! code is 127 if s2n-quic cannot do the case.

use std::env;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs as provider};
use s2n_quic::client::Connect;
use s2n_quic::connection::Handle;
use s2n_quic::provider::limits::Limits;
use s2n_quic::provider::tls::rustls::Client as TlsClient;
use s2n_quic::stream::ReceiveStream;
use s2n_quic::{Client, Connection};
use tokio::task::JoinSet;

/// HTTP/3 on the wire, as far as the cases need it.
mod http3;

/// Name that the server's certificate has to have.
const NAME: &str = "localhost";
/// s2n-quic resumes sessions behind an unstable feature alone, and has no early data and no version but 1; applications
/// can neither update keys nor migrate.
const UNSUPPORTED_CASES: &[&str] =
    &["resumption", "zerortt", "versionnegotiation", "keyupdate", "connectionmigration"];
const UNSUPPORTED: u8 = 127;
/// Receive window of the case `transfer`, in bytes.
const SMALL_WINDOW: u64 = 32 * 1024;
const UPLOAD_BYTES: usize = 100_000;
/// Time limit of handshakes, and of silence.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.first().is_some_and(|case| UNSUPPORTED_CASES.contains(&case.as_str())) {
        return ExitCode::from(UNSUPPORTED);
    }
    match run(&arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("s2n-quic-client: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &[String]) -> Result<()> {
    let [case, address, authority, connections, requests] = arguments else {
        anyhow::bail!("usage: s2n-quic-client CASE ADDRESS AUTHORITY CONNECTIONS REQUESTS");
    };
    let (connections, requests) = (connections.parse()?, requests.parse()?);
    let case = InteropCase {
        server: address.parse()?,
        is_upload: case == "http3",
        requests,
        client: client(case, authority.as_ref())?,
    };
    let case = Arc::new(case);
    let mut running = JoinSet::new();
    for _ in 0..connections {
        let case = Arc::clone(&case);
        running.spawn(async move { case.run_connection().await });
    }
    wait_for_all(running).await
}

async fn wait_for_all(mut running: JoinSet<Result<()>>) -> Result<()> {
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(())
}

fn client(case: &str, authority: &Path) -> Result<Client> {
    let mut limits =
        Limits::new().with_max_handshake_duration(PATIENCE)?.with_max_idle_timeout(PATIENCE)?;
    if case == "transfer" {
        limits = limits
            .with_data_window(SMALL_WINDOW)?
            .with_bidirectional_local_data_window(SMALL_WINDOW)?;
    }
    Ok(Client::builder()
        .with_tls(TlsClient::from(tls_config(case, authority)?))?
        .with_limits(limits)?
        // Dual-stack.
        .with_io("[::]:0")?
        .start()?)
}

fn tls_config(case: &str, authority: &Path) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority)?)?;
    let mut provider = provider::default_provider();
    provider.cipher_suites = match case {
        "chacha20" => vec![provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256],
        _ => provider::DEFAULT_CIPHER_SUITES.to_vec(),
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h3".to_vec()];
    Ok(config)
}

/// One case: connections to one server.
struct InteropCase {
    client: Client,
    server: SocketAddr,
    /// Number of requests on each connection, all at once.
    requests: usize,
    is_upload: bool,
}

impl InteropCase {
    async fn run_connection(&self) -> Result<()> {
        let connect = Connect::new(self.server).with_server_name(NAME);
        let connection = self.client.connect(connect).await.context("no connection")?;
        let mut handle = accept_streams(connection);
        let mut control = handle.open_send_stream().await?;
        control.send(Bytes::from_static(http3::CONTROL_STREAM)).await?;
        let mut running = JoinSet::new();
        for _ in 0..self.requests {
            running.spawn(exchange(handle.clone(), self.is_upload));
        }
        wait_for_all(running).await?;
        // H3_NO_ERROR.
        handle.close(0x100_u32.into());
        Ok(())
    }
}

/// Reads the server's control stream and those of QPACK, which say nothing that these requests depend on.
fn accept_streams(connection: Connection) -> Handle {
    let (handle, mut acceptor) = connection.split();
    tokio::spawn(async move {
        while let Ok(Some(stream)) = acceptor.accept_receive_stream().await {
            tokio::spawn(read(stream));
        }
    });
    handle
}

async fn read(mut stream: ReceiveStream) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.receive().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Sends a request and prints its response.
async fn exchange(mut handle: Handle, is_upload: bool) -> Result<()> {
    let stream = handle.open_bidirectional_stream().await?;
    let (receive, mut send) = stream.split();
    let upload = vec![b'x'; if is_upload { UPLOAD_BYTES } else { 0 }];
    send.send(http3::request(NAME, &upload).into()).await?;
    send.finish()?;
    let (status_is_ok, body) = http3::response(&read(receive).await?)?;
    ensure!(status_is_ok, "the status is not 200");
    let sum: String =
        digest(&SHA256, &body).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("response 200 {} {sum}", body.len());
    Ok(())
}
