//! Clients that show certificates, where the Gateway asks for one.

use std::net::SocketAddr;

use anyhow::ensure;
use rustls::version::{TLS12, TLS13};
use serde_json::json;
use tests::certificates::CertificateAuthority;
use tests::tls::TlsClientOptions;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess, objects,
};

/// A Gateway that asks for certificates of the authority in the ConfigMap `ca`.
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

    /// The same client by both versions of TLS, with these terms beyond.
    async fn is_served(
        &self,
        terms: impl Fn(TlsClientOptions) -> TlsClientOptions,
    ) -> Result<bool> {
        let mut served = Vec::new();
        for version in [&TLS12, &TLS13] {
            let terms = terms(TlsClientOptions::with_versions(&[version], &self.authority));
            served.push(
                status(self.sheave.address(), &terms).await.is_ok_and(|status| status == 200),
            );
        }
        ensure!(served[0] == served[1], "TLS 1.2 and 1.3 disagree: {served:?}");
        Ok(served[0])
    }
}

/// With TLS 1.3 a client learns with the first answer that its certificate was refused.
async fn status(address: SocketAddr, terms: &TlsClientOptions) -> Result<u16> {
    Ok(Http1TestClient::connect_tls(address, "test", terms).await?.get("/").await?.status())
}

#[tokio::test]
async fn required_client_certificate_must_be_present_and_valid() -> Result {
    let asking = ClientCertificateFixture::in_mode("AllowValidOnly").await?;
    let known = asking.authority.issue(&["client.test"]);
    let unknown = CertificateAuthority::new().issue(&["client.test"]);
    let expired = asking.authority.issue_expired(&["client.test"]);
    ensure!(
        asking.is_served(|terms| terms.with_client_certificate(&known)).await?,
        "a known client"
    );
    ensure!(!asking.is_served(|terms| terms).await?, "a client without a certificate");
    ensure!(
        !asking.is_served(|terms| terms.with_client_certificate(&unknown)).await?,
        "an unknown authority"
    );
    ensure!(
        !asking.is_served(|terms| terms.with_client_certificate(&expired)).await?,
        "an expired certificate"
    );
    assert_eq!(asking.endpoint.counts().requests, 2);
    Ok(())
}

#[tokio::test]
async fn optional_client_certificate_may_be_missing_or_invalid() -> Result {
    let asking = ClientCertificateFixture::in_mode("AllowInsecureFallback").await?;
    let known = asking.authority.issue(&["client.test"]);
    let unknown = CertificateAuthority::new().issue(&["client.test"]);
    ensure!(
        asking.is_served(|terms| terms.with_client_certificate(&known)).await?,
        "a known client"
    );
    ensure!(asking.is_served(|terms| terms).await?, "a client without a certificate");
    ensure!(
        asking.is_served(|terms| terms.with_client_certificate(&unknown)).await?,
        "an unknown authority"
    );
    Ok(())
}
