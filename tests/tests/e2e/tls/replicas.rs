//! Sessions that are resumed at another replica.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, SupportedProtocolVersion};
use serde_json::json;
use tests::certificates::CertificateAuthority;
use tests::configuration::TempDirectory;
use tests::http3::Http3TestClient;
use tests::tls::TlsClientOptions;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess,
    eventually, objects,
};
use tokio::time::{Instant, sleep};

use crate::leased_slots::{loopback_addresses, metric, wait_for_peers};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// Time for which sessions are observed that are to be resumed nowhere else.
const OBSERVATION: Duration = Duration::from_secs(6);

/// Replicas that terminate TLS over TCP and QUIC for one name.
struct ReplicaFixture {
    authority: CertificateAuthority,
    configuration: ConfigDirectory,
    /// Certificates of the channel; `None`: it is not encrypted.
    channel: Option<TempDirectory>,
    members: Vec<SocketAddr>,
    replicas: Vec<SheaveProcess>,
    _endpoint: Endpoint,
}

impl ReplicaFixture {
    async fn start(channel: Option<TempDirectory>) -> Result<Self> {
        let authority = CertificateAuthority::new();
        let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
        let more = [
            authority.issue(&["test"]).secret("certificate"),
            objects::client_policy(json!({ "http3": { "enabled": true } })),
        ];
        let gateway = objects::https_gateway(&["certificate"]);
        let configuration = ConfigDirectory::with_gateway(gateway, &[endpoint.address], &more)?;
        let (members, replicas) = (loopback_addresses(2)?, Vec::new());
        let mut fixture =
            Self { authority, configuration, channel, members, replicas, _endpoint: endpoint };
        for replica in 0..2 {
            let replica = fixture.start_replica(replica).await?;
            fixture.replicas.push(replica);
        }
        for replica in &fixture.replicas {
            wait_for_peers(replica, 1.0).await?;
        }
        Ok(fixture)
    }

    async fn start_replica(&self, replica: usize) -> Result<SheaveProcess> {
        let list: Vec<_> = self.members.iter().map(ToString::to_string).collect();
        let (list, me) = (list.join(","), self.members[replica].to_string());
        let mut arguments = vec!["--workers", "2", "--lease-slots"];
        arguments.extend(["--replicas", &list, "--replica", &me]);
        let certificates = self.channel.as_ref().map(|it| it.path().display().to_string());
        if let Some(folder) = &certificates {
            arguments.extend(["--replica-certs", folder]);
        }
        SheaveProcess::serve_with(&self.configuration, &arguments).await
    }

    /// Returns a client that resumes sessions.
    fn client(&self, version: &'static SupportedProtocolVersion) -> TlsClientOptions {
        TlsClientOptions::with_versions(&[version], &self.authority).with_resumption()
    }

    /// Connects to a replica and gets a response; returns true if the session was resumed.
    async fn is_resumed(&self, replica: usize, client: &TlsClientOptions) -> Result<bool> {
        let stream = client.connect(self.replicas[replica].address(), "test").await?;
        let kind = stream.get_ref().1.handshake_kind();
        // The response arrives with the tickets.
        ensure!(Http1TestClient::over_tls(stream).get("/").await?.status() == 200);
        Ok(kind == Some(HandshakeKind::Resumed))
    }

    /// The same over QUIC.
    async fn is_resumed_over_quic(
        &self,
        replica: usize,
        client: &TlsClientOptions,
    ) -> Result<bool> {
        let resumed = || metric(&self.replicas[replica], "sheave_tls_handshakes_total", "resumed");
        let before = resumed().await?;
        let connection = Http3TestClient::connect(self.replicas[replica].address(), client).await?;
        ensure!(connection.get("/").await?.status() == 200);
        Ok(resumed().await? > before)
    }

    /// Waits until both replicas have the keys of one another.
    async fn wait_for_keys(&self) -> Result {
        let observe = async || {
            let mut are_resumed = true;
            for (from, to) in [(0, 1), (1, 0)] {
                let client = self.client(&TLS13);
                self.is_resumed(from, &client).await?;
                are_resumed &= self.is_resumed(to, &client).await?;
            }
            Ok(are_resumed)
        };
        eventually("sessions are resumed at the other replica", observe, |it| *it).await?;
        Ok(())
    }
}

/// Returns a folder with certificates of replicas.
fn channel_certificates() -> Result<TempDirectory> {
    let (authority, folder) = (CertificateAuthority::new(), TempDirectory::new()?);
    let certificate = authority.issue(&["replica.sheave.dev"]);
    fs::write(folder.path().join("tls.crt"), &certificate.certificate_pem)?;
    fs::write(folder.path().join("tls.key"), &certificate.key_pem)?;
    fs::write(folder.path().join("ca.crt"), &authority.pem)?;
    Ok(folder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_is_resumed_at_another_replica_and_after_a_restart() -> Result {
    let mut fixture = ReplicaFixture::start(Some(channel_certificates()?)).await?;
    fixture.wait_for_keys().await?;
    let clients = VERSIONS.map(|version| fixture.client(version));
    for client in &clients {
        ensure!(!fixture.is_resumed(0, client).await?, "a new client");
        for replica in [1, 0, 1] {
            ensure!(fixture.is_resumed(replica, client).await?, "at replica {replica}");
        }
    }
    let client = fixture.client(&TLS13);
    let observe = async || {
        fixture.is_resumed_over_quic(0, &client).await?;
        fixture.is_resumed_over_quic(1, &client).await
    };
    eventually("resumed over QUIC", observe, |it| *it).await?;

    // A replica that starts again learns the keys of the other one.
    fixture.replicas.remove(0);
    let restarted = fixture.start_replica(0).await?;
    fixture.replicas.insert(0, restarted);
    for client in &clients {
        // Each attempt gives the client a new ticket, so it has to begin at the other one.
        let observe = async || {
            fixture.is_resumed(1, client).await?;
            fixture.is_resumed(0, client).await
        };
        eventually("resumed at the replica that was restarted", observe, |it| *it).await?;
    }
    for replica in &fixture.replicas {
        let refused = metric(replica, "sheave_replica_refusals_total", "ticket_keys").await?;
        ensure!(refused == 0.0, "{refused} refused");
        ensure!(metric(replica, "sheave_replica_ticket_keys", "").await? >= 1.0);
    }
    Ok(())
}

/// Plaintext is for tests on one machine: keys are not sent over it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_is_not_resumed_elsewhere_without_an_encrypted_channel() -> Result {
    let fixture = ReplicaFixture::start(None).await?;
    let begin = Instant::now();
    while begin.elapsed() < OBSERVATION {
        for version in VERSIONS {
            let client = fixture.client(version);
            ensure!(!fixture.is_resumed(0, &client).await?, "a new client");
            ensure!(fixture.is_resumed(0, &client).await?, "at the same replica");
            ensure!(!fixture.is_resumed(1, &client).await?, "at another one");
        }
        sleep(Duration::from_millis(200)).await; // Part of the observation.
    }
    Ok(())
}
