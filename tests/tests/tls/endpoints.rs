//! TLS to endpoints: verification of their certificates, server name, and our client certificate.

use anyhow::ensure;
use serde_json::{Value, json};
use tests::certificates::CertificateAuthority;
use tests::raw::RawServer;
use tests::tls::TlsFront;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Http1TestResponse, Result,
    SheaveProcess, http2, objects,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Returns the response to a GET, if this front is the only endpoint and is validated by
/// `validation` and this authority.
async fn get(
    front: &TlsFront,
    authority: &CertificateAuthority,
    validation: Value,
) -> Result<Http1TestResponse> {
    get_with(front, authority, validation, objects::gateway(), &[]).await
}

async fn get_with(
    front: &TlsFront,
    authority: &CertificateAuthority,
    validation: Value,
    gateway: Vec<Value>,
    more: &[Value],
) -> Result<Http1TestResponse> {
    let policy = objects::backend_tls_policy("app", validation);
    let more = [&[authority.config_map("ca"), policy], more].concat();
    let configuration = ConfigDirectory::with_gateway(gateway, &[front.address], &more)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    Ok(Http1TestClient::connect(sheave.address()).await?.get("/").await?)
}

fn check_refused(response: &Http1TestResponse) -> Result {
    let status = response.field("proxy-status").unwrap_or_default();
    ensure!(response.status() == 502, "{response:?}");
    ensure!(status.contains("error=tls_certificate_error"), "{status}");
    Ok(())
}

#[tokio::test]
async fn endpoint_certificate_is_verified_by_authority_and_name() -> Result {
    let authority = CertificateAuthority::new();
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let front = TlsFront::of(endpoint.address, &authority.issue(&["inner.test"]), &[]).await?;
    let response = get(&front, &authority, json!({ "hostname": "inner.test" })).await?;
    ensure!(response.text() == "ok", "{response:?}");
    let seen = front.handshakes();
    ensure!(seen[0].server_name.as_deref() == Some("inner.test"), "{seen:?}");
    ensure!(seen[0].client_certificates == 0, "{seen:?}");

    let stranger = CertificateAuthority::new();
    check_refused(&get(&front, &stranger, json!({ "hostname": "inner.test" })).await?)?;
    check_refused(&get(&front, &authority, json!({ "hostname": "other.test" })).await?)?;
    assert_eq!(endpoint.counts().requests, 1);
    Ok(())
}

#[tokio::test]
async fn expired_endpoint_certificate_is_refused() -> Result {
    let authority = CertificateAuthority::new();
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let expired = authority.issue_expired(&["inner.test"]);
    let front = TlsFront::of(endpoint.address, &expired, &[]).await?;
    check_refused(&get(&front, &authority, json!({ "hostname": "inner.test" })).await?)
}

/// With subject alternative names the hostname is only the server name; the certificate has to
/// match one of the names.
#[tokio::test]
async fn endpoint_certificate_is_verified_by_subject_alternative_names() -> Result {
    let authority = CertificateAuthority::new();
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let uri = "spiffe://cluster.test/app";
    let workload = TlsFront::of(endpoint.address, &authority.issue_for_uri(uri), &[]).await?;
    let host = TlsFront::of(endpoint.address, &authority.issue(&["pod.test"]), &[]).await?;
    let names = json!([
        { "type": "Hostname", "hostname": "pod.test" },
        { "type": "URI", "uri": uri },
    ]);
    let validation = json!({ "hostname": "inner.test", "subjectAltNames": names });
    for front in [&workload, &host] {
        let response = get(front, &authority, validation.clone()).await?;
        ensure!(response.status() == 200, "{response:?}");
        ensure!(front.handshakes()[0].server_name.as_deref() == Some("inner.test"));
    }
    let named = TlsFront::of(endpoint.address, &authority.issue(&["inner.test"]), &[]).await?;
    check_refused(&get(&named, &authority, validation).await?)
}

#[tokio::test]
async fn gateway_client_certificate_is_presented_to_endpoints() -> Result {
    let authority = CertificateAuthority::new();
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let identity = authority.issue(&["inner.test"]);
    let front =
        TlsFront::with_client_authority(endpoint.address, &identity, &[], &authority).await?;
    let validation = json!({ "hostname": "inner.test" });
    let response = get(&front, &authority, validation.clone()).await?;
    ensure!(response.status() == 502, "without a certificate: {response:?}");

    let mut gateway = objects::gateway();
    let reference = json!({ "group": "", "kind": "Secret", "name": "gateway" });
    gateway[1]["spec"]["tls"] = json!({ "backend": { "clientCertificateRef": reference } });
    let secret = authority.issue(&["gateway.test"]).secret("gateway");
    let response = get_with(&front, &authority, validation, gateway, &[secret]).await?;
    ensure!(response.status() == 200, "{response:?}");
    assert_eq!(front.handshakes()[0].client_certificates, 1);
    Ok(())
}

#[tokio::test]
async fn endpoint_without_tls_is_answered_502() -> Result {
    let authority = CertificateAuthority::new();
    let endpoint = RawServer::start(|mut stream| async move {
        stream.read_exact(&mut [0]).await?;
        Ok(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await?)
    })
    .await?;
    let policy = objects::backend_tls_policy("app", json!({ "hostname": "inner.test" }));
    let more = [authority.config_map("ca"), policy];
    let configuration = ConfigDirectory::for_endpoints_with(&[endpoint.address], &more)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let response = Http1TestClient::connect(sheave.address()).await?.get("/").await?;
    let status = response.field("proxy-status").unwrap_or_default();
    ensure!(response.status() == 502 && status.contains("error=tls_"), "{response:?}");
    Ok(())
}

#[tokio::test]
async fn http2_is_used_to_endpoints_over_tls() -> Result {
    let authority = CertificateAuthority::new();
    let endpoint = http2::Http2TestEndpoint::ok().await?;
    let front = TlsFront::of(endpoint.address, &authority.issue(&["inner.test"]), &["h2"]).await?;
    let h2 = objects::backend_policy("app", json!({ "protocol": "H2" }));
    let validation = json!({ "hostname": "inner.test" });
    let response = get_with(&front, &authority, validation, objects::gateway(), &[h2]).await?;
    ensure!(response.text() == "ok", "{response:?}");
    assert_eq!(front.handshakes()[0].protocol.as_deref(), Some("h2"));
    assert_eq!(endpoint.only_request().uri().scheme_str(), Some("https"));
    Ok(())
}
