//! The handshake of client and listener: version, protocol, certificate, and session resumption.

use anyhow::ensure;
use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, SupportedProtocolVersion};
use serde_json::json;
use tests::certificates::CertificateAuthority;
use tests::tls::TlsClientOptions;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result,
    SheaveProcess, http2, objects,
};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

async fn start_fixture(authority: &CertificateAuthority) -> Result<HttpFixture> {
    HttpFixture::with_tls(EndpointBehaviour::ok(), &authority.issue(&["test"]), &["--workers", "2"])
        .await
}

#[tokio::test]
async fn tls12_and_tls13_are_supported() -> Result {
    let authority = CertificateAuthority::new();
    let fixture = start_fixture(&authority).await?;
    for version in VERSIONS {
        let options = TlsClientOptions::with_versions(&[version], &authority);
        let stream = options.connect(fixture.sheave.address(), "test").await?;
        ensure!(stream.get_ref().1.protocol_version() == Some(version.version));
        ensure!(Http1TestClient::over_tls(stream).get("/").await?.text() == "ok");
    }
    let scheme = fixture.endpoint().requests()[0].head.field("x-forwarded-proto");
    ensure!(scheme.as_deref() == Some("https"), "{scheme:?}");
    Ok(())
}

#[tokio::test]
async fn protocol_is_negotiated_by_alpn() -> Result {
    let authority = CertificateAuthority::new();
    let fixture = start_fixture(&authority).await?;
    let address = fixture.sheave.address();
    let cases: [(&[&str], Option<&str>); 4] = [
        (&["h2", "http/1.1"], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&["h2"], Some("h2")),
        (&[], None),
    ];
    for (offered, agreed) in cases {
        let stream = TlsClientOptions::trusting(&authority)
            .with_alpn(offered)
            .connect(address, "test")
            .await?;
        let protocol = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        ensure!(protocol.as_deref() == agreed.map(str::as_bytes), "{offered:?}: {protocol:?}");
        if agreed == Some("h2") {
            let client = http2::Http2TestClient::over(stream, &h2::client::Builder::new()).await?;
            ensure!(client.get("/").await?.text() == "ok");
        } else {
            ensure!(Http1TestClient::over_tls(stream).get("/").await?.text() == "ok");
        }
    }
    let unsupported = TlsClientOptions::trusting(&authority).with_alpn(&["spdy/3"]);
    ensure!(
        unsupported.connect(address, "test").await.is_err(),
        "the handshake succeeds without a common protocol"
    );
    Ok(())
}

/// The client gets the certificate that matches its server name, or else the first one.
#[tokio::test]
async fn certificate_is_selected_by_server_name() -> Result {
    let authority = CertificateAuthority::new();
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let gateway = objects::https_gateway(&["first", "wildcard", "exact"]);
    let secrets = [
        authority.issue(&["first.test"]).secret("first"),
        authority.issue(&["*.b.test"]).secret("wildcard"),
        authority.issue(&["a.test", "a.b.test"]).secret("exact"),
    ];
    let configuration = ConfigDirectory::with_gateway(gateway, &[endpoint.address], &secrets)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let options = TlsClientOptions::trusting(&authority);
    // The client itself checks that the certificate matches the host.
    for host in ["first.test", "a.test", "x.b.test", "a.b.test"] {
        let mut client = Http1TestClient::connect_tls(sheave.address(), host, &options).await?;
        ensure!(client.get("/").await?.status() == 200, "{host}");
    }
    for host in ["c.test", "x.y.b.test"] {
        ensure!(
            options.connect(sheave.address(), host).await.is_err(),
            "{host} has no certificate here"
        );
    }
    let without_name = options.without_server_name();
    let mut client =
        Http1TestClient::connect_tls(sheave.address(), "first.test", &without_name).await?;
    ensure!(client.get("/").await?.status() == 200);
    Ok(())
}

/// Listeners that share an address are selected by the server name. A name of none of them is
/// refused.
#[tokio::test]
async fn listeners_share_an_address_by_server_name() -> Result {
    let authority = CertificateAuthority::new();
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let listener = |name: &str, host: &str| {
        json!({
            "name": name, "protocol": "HTTPS", "port": 0, "hostname": host,
            "tls": { "certificateRefs": [{ "name": name }] },
        })
    };
    let gateway = objects::gateway_with(json!([
        listener("exact", "a.test"),
        listener("wildcard", "*.b.test"),
    ]));
    let secrets = [
        authority.issue(&["a.test"]).secret("exact"),
        authority.issue(&["*.b.test"]).secret("wildcard"),
    ];
    let configuration = ConfigDirectory::with_gateway(gateway, &[endpoint.address], &secrets)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let address = sheave.listeners[0].1;
    let options = TlsClientOptions::trusting(&authority);
    for host in ["a.test", "x.b.test"] {
        let mut client = Http1TestClient::connect_tls(address, host, &options).await?;
        ensure!(client.exchange("GET", "/", &[("Host", host)], b"").await?.status() == 200);
    }
    ensure!(options.connect(address, "c.test").await.is_err());
    Ok(())
}

/// Session tickets are made with keys that all workers share.
#[tokio::test]
async fn sessions_are_resumed_by_any_worker() -> Result {
    let authority = CertificateAuthority::new();
    let fixture = start_fixture(&authority).await?;
    for version in VERSIONS {
        let options = TlsClientOptions::with_versions(&[version], &authority).with_resumption();
        let mut clients = Vec::new();
        for number in 0..8 {
            let stream = options.connect(fixture.sheave.address(), "test").await?;
            let kind = stream.get_ref().1.handshake_kind();
            let resumed = kind == Some(HandshakeKind::Resumed);
            ensure!(resumed == (number > 0), "{version:?}, connection {number}: {kind:?}");
            // Kept open, so that connections are spread over the workers. The response arrives with
            // the tickets.
            let mut client = Http1TestClient::over_tls(stream);
            ensure!(client.get("/").await?.status() == 200);
            clients.push(client);
        }
    }
    let workers = fixture.sheave.metric_samples("sheave_worker_requests_total").await?;
    ensure!(workers.iter().all(|(_, requests)| *requests > 0.0), "{workers:?}");
    Ok(())
}
