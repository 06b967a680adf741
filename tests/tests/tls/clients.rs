//! Client certificates, if the Gateway requests them.

use std::net::SocketAddr;

use anyhow::ensure;
use rustls::version::{TLS12, TLS13};
use serde_json::json;
use tests::certificates::CertificateAuthority;
use tests::tls::TlsClientOptions;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess, objects,
};

/// A Gateway that requests certificates of the authority in the ConfigMap `ca`.
struct ClientCertificateFixture {
    sheave: SheaveProcess,
    authority: CertificateAuthority,
    endpoint: Endpoint,
    _configuration: ConfigDirectory,
}

impl ClientCertificateFixture {
    async fn in_mode(mode: &str) -> Result<Self> {
        let authority = CertificateAuthority::new();
        let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
        let mut gateway = objects::https_gateway(&["certificate"]);
        let roots = json!([{ "group": "", "kind": "ConfigMap", "name": "ca" }]);
        let validation = json!({ "caCertificateRefs": roots, "mode": mode });
        gateway[1]["spec"]["tls"] =
            json!({ "frontend": { "default": { "validation": validation } } });
        let more = [authority.issue(&["test"]).secret("certificate"), authority.config_map("ca")];
        let configuration = ConfigDirectory::with_gateway(gateway, &[endpoint.address], &more)?;
        let sheave = SheaveProcess::serve(&configuration).await?;
        Ok(Self { sheave, authority, endpoint, _configuration: configuration })
    }

    /// Returns true if a client with these options is served over both versions of TLS.
    async fn is_served(
        &self,
        options: impl Fn(TlsClientOptions) -> TlsClientOptions,
    ) -> Result<bool> {
        let mut served = Vec::new();
        for version in [&TLS12, &TLS13] {
            let options = options(TlsClientOptions::with_versions(&[version], &self.authority));
            served.push(
                status(self.sheave.address(), &options).await.is_ok_and(|status| status == 200),
            );
        }
        ensure!(served[0] == served[1], "TLS 1.2 and 1.3 disagree: {served:?}");
        Ok(served[0])
    }
}

/// With TLS 1.3 a client gets the error of a rejected certificate only with the first response.
async fn status(address: SocketAddr, options: &TlsClientOptions) -> Result<u16> {
    Ok(Http1TestClient::connect_tls(address, "test", options).await?.get("/").await?.status())
}

#[tokio::test]
async fn required_client_certificate_must_be_present_and_valid() -> Result {
    let site = ClientCertificateFixture::in_mode("AllowValidOnly").await?;
    let known = site.authority.issue(&["client.test"]);
    let unknown = CertificateAuthority::new().issue(&["client.test"]);
    let expired = site.authority.issue_expired(&["client.test"]);
    ensure!(
        site.is_served(|options| options.with_client_certificate(&known)).await?,
        "a known client"
    );
    ensure!(!site.is_served(|options| options).await?, "a client without a certificate");
    ensure!(
        !site.is_served(|options| options.with_client_certificate(&unknown)).await?,
        "an unknown authority"
    );
    ensure!(
        !site.is_served(|options| options.with_client_certificate(&expired)).await?,
        "an expired certificate"
    );
    assert_eq!(site.endpoint.counts().requests, 2);
    Ok(())
}

#[tokio::test]
async fn optional_client_certificate_may_be_missing_or_invalid() -> Result {
    let site = ClientCertificateFixture::in_mode("AllowInsecureFallback").await?;
    let known = site.authority.issue(&["client.test"]);
    let unknown = CertificateAuthority::new().issue(&["client.test"]);
    ensure!(
        site.is_served(|options| options.with_client_certificate(&known)).await?,
        "a known client"
    );
    ensure!(site.is_served(|options| options).await?, "a client without a certificate");
    ensure!(
        site.is_served(|options| options.with_client_certificate(&unknown)).await?,
        "an unknown authority"
    );
    Ok(())
}
