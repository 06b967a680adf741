//! Cleartext on a TLS port.

use anyhow::ensure;
use tests::certificates::CertificateAuthority;
use tests::tls::TlsClientOptions;
use tests::{EndpointBehaviour, Http1TestClient, HttpFixture, Result};

#[tokio::test]
async fn plain_http_on_a_tls_port_is_answered_400() -> Result {
    let authority = CertificateAuthority::new();
    let fixture =
        HttpFixture::with_tls(EndpointBehaviour::ok(), &authority.issue(&["test"]), &[]).await?;
    let mut client = fixture.client().await?;
    let response = client.get("/").await?;
    ensure!(response.status() == 400 && response.closes(), "{response:?}");
    ensure!(response.text().contains("TLS"), "{response:?}");
    client.expect_end().await?;
    assert_eq!(fixture.endpoint().counts().requests, 0);
    Ok(())
}

#[tokio::test]
async fn non_tls_bytes_get_no_http_response() -> Result {
    let authority = CertificateAuthority::new();
    let fixture =
        HttpFixture::with_tls(EndpointBehaviour::ok(), &authority.issue(&["test"]), &[]).await?;
    let mut client = fixture.client().await?;
    client.send([0_u8; 64]).await?;
    ensure!(client.response("GET").await.is_err());
    assert_eq!(fixture.endpoint().counts().requests, 0);
    Ok(())
}

#[tokio::test]
async fn http1_after_negotiating_http2_is_answered_505() -> Result {
    let authority = CertificateAuthority::new();
    let fixture =
        HttpFixture::with_tls(EndpointBehaviour::ok(), &authority.issue(&["test"]), &[]).await?;
    let options = TlsClientOptions::trusting(&authority).with_alpn(&["h2"]);
    let mut client =
        Http1TestClient::connect_tls(fixture.sheave.address(), "test", &options).await?;
    let response = client.get("/").await?;
    ensure!(response.status() == 505 && response.closes(), "{response:?}");
    ensure!(response.text().contains("HTTP/2"), "{response:?}");
    assert_eq!(fixture.endpoint().counts().requests, 0);
    Ok(())
}
