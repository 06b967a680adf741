//! TLSRoute: connections are routed by server name, and passed through or terminated.

use std::net::SocketAddr;

use anyhow::ensure;
use serde_json::{Value, json};
use tests::certificates::CertificateAuthority;
use tests::tls::{TlsClientOptions, TlsFront};
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess,
    eventually, objects,
};

/// Starts a Gateway with one listener of this mode, in front of these Services by host, each with
/// one endpoint.
async fn start_with_tls_routes(
    mode: Value,
    services: &[(&str, &str, SocketAddr)],
    more: &[Value],
) -> Result<(SheaveProcess, ConfigDirectory)> {
    let listener = json!({ "name": "tls", "protocol": "TLS", "port": 0, "tls": mode });
    let mut all = objects::gateway_with(json!([listener]));
    for (host, service, endpoint) in services {
        all.extend([objects::tls_route(host, service), objects::service(service)]);
        all.extend(objects::slices(service, &[*endpoint]));
    }
    all.extend_from_slice(more);
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    Ok((sheave, configuration))
}

#[tokio::test]
async fn tls_connections_are_passed_through_by_server_name() -> Result {
    let authority = CertificateAuthority::new();
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let exact = TlsFront::of(endpoint.address, &authority.issue(&["a.test"]), &["h2"]).await?;
    let wildcard = TlsFront::of(endpoint.address, &authority.issue(&["*.b.test"]), &[]).await?;
    let services = [("a.test", "exact", exact.address), ("*.b.test", "wildcard", wildcard.address)];
    let (sheave, _configuration) =
        start_with_tls_routes(json!({ "mode": "Passthrough" }), &services, &[]).await?;
    let address = sheave.address();

    // Protocol and certificate are the endpoint's: Sheave has neither.
    let options = TlsClientOptions::trusting(&authority);
    let stream = options.clone().with_alpn(&["h2"]).connect(address, "a.test").await?;
    ensure!(stream.get_ref().1.alpn_protocol() == Some(b"h2".as_slice()));
    ensure!(Http1TestClient::over_tls(stream).get("/").await?.text() == "ok");
    let mut client = Http1TestClient::connect_tls(address, "x.b.test", &options).await?;
    ensure!(client.get("/").await?.text() == "ok");
    assert_eq!((exact.handshakes().len(), wildcard.handshakes().len()), (1, 1));

    ensure!(
        options.connect(address, "c.test").await.is_err(),
        "a server name without a route is accepted"
    );
    ensure!(
        options.without_server_name().connect(address, "a.test").await.is_err(),
        "a client without a server name is accepted"
    );
    assert_eq!(endpoint.counts().requests, 2);
    Ok(())
}

#[tokio::test]
async fn tls_connections_are_terminated_and_proxied_as_tcp() -> Result {
    let authority = CertificateAuthority::new();
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let mode = json!({ "mode": "Terminate", "certificateRefs": [{ "name": "certificate" }] });
    let secret = authority.issue(&["a.test"]).secret("certificate");
    let services = [("a.test", "app", endpoint.address)];
    let (sheave, _configuration) = start_with_tls_routes(mode, &services, &[secret]).await?;
    let mut client = Http1TestClient::connect_tls(
        sheave.address(),
        "a.test",
        &TlsClientOptions::trusting(&authority),
    )
    .await?;
    ensure!(client.get("/as/it/is").await?.text() == "ok");
    // The decrypted data is not parsed, and nothing is added to it.
    let head = endpoint.only_request().head;
    ensure!(
        head.start == "GET /as/it/is HTTP/1.1" && !head.has_field("x-forwarded-for"),
        "{head:?}"
    );

    client.finish_sending().await?;
    let open = async || sheave.metric_sum("sheave_listener_connections_open").await;
    eventually("the end of the connection", open, |open| *open == 0.0).await?;
    Ok(())
}
