//! Client certificates, if the Gateway requests them.

use std::net::SocketAddr;

use anyhow::ensure;
use rustls::version::{TLS12, TLS13};
use serde_json::{Value, json};
use tests::certificates::{CertificateAuthority, IssuedCertificate};
use tests::http3::Http3TestClient;
use tests::tls::TlsClientOptions;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess,
    eventually, objects,
};

/// A Gateway that requests certificates of the authority in the ConfigMap `ca`.
struct ClientCertificateFixture {
    sheave: SheaveProcess,
    authority: CertificateAuthority,
    endpoint: Endpoint,
    configuration: ConfigDirectory,
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
        Ok(Self { sheave, authority, endpoint, configuration })
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

/// Returns a ClientPolicy that checks client certificates against the ConfigMap `revoked`.
fn revocation_policy() -> Value {
    let lists = json!([{ "kind": "ConfigMap", "name": "revoked" }]);
    let http3 = json!({ "enabled": true });
    objects::client_policy(json!({ "revocation": { "crlRefs": lists }, "http3": http3 }))
}

async fn is_served_over_tcp(address: SocketAddr, options: &TlsClientOptions) -> Result<bool> {
    Ok(status(address, options).await.is_ok_and(|status| status == 200))
}

async fn is_served_over_quic(address: SocketAddr, options: &TlsClientOptions) -> Result<bool> {
    match Http3TestClient::connect(address, options).await {
        Ok(client) => Ok(client.get("/").await.is_ok_and(|it| it.head.status() == 200)),
        Err(_) => Ok(false),
    }
}

/// A session that was begun before the revocation is not resumed after it, over either transport.
#[tokio::test]
async fn revoked_client_certificate_is_rejected_once_its_list_is_loaded() -> Result {
    let site = ClientCertificateFixture::in_mode("AllowValidOnly").await?;
    let address = site.sheave.address();
    let [kept, gone] = ["kept.test", "gone.test"].map(|name| site.authority.issue(&[name]));
    let options = |identity| {
        let options = TlsClientOptions::trusting(&site.authority).with_client_certificate(identity);
        // Sessions of QUIC are for TLS 1.3 alone, so each transport has its own.
        (options.clone().with_resumption(), options.with_resumption())
    };
    let (kept, revoked) = (options(&kept), options(&gone));
    let write = |revoked: &[&IssuedCertificate]| {
        let list = site.authority.revocation_list("revoked", revoked);
        site.configuration.write("revocation.yaml", &[revocation_policy(), list])
    };
    write(&[])?;
    let served = async || is_served_over_quic(address, &kept.1).await;
    eventually("the policy is loaded", served, |served| *served).await?;
    for (tcp, quic) in [&kept, &revoked] {
        // Twice, so that there is a session to resume.
        for _ in 0..2 {
            ensure!(is_served_over_tcp(address, tcp).await?, "TCP before the revocation");
            ensure!(is_served_over_quic(address, quic).await?, "QUIC before the revocation");
        }
    }
    let resumed = site.sheave.metric_samples("sheave_tls_handshakes_total").await?;
    let is_resumed = |labels: &str| labels.contains("resumed");
    ensure!(resumed.iter().any(|(labels, count)| is_resumed(labels) && *count > 0.0));

    write(&[&gone])?;
    let served = async || is_served_over_tcp(address, &revoked.0).await;
    eventually("the list is loaded", served, |served| !served).await?;
    ensure!(!is_served_over_quic(address, &revoked.1).await?, "QUIC after the revocation");
    for (tcp, quic) in [&kept] {
        ensure!(is_served_over_tcp(address, tcp).await?, "another certificate over TCP");
        ensure!(is_served_over_quic(address, quic).await?, "another certificate over QUIC");
    }
    Ok(())
}

/// The last good list stays in force while the next one is missing or broken.
#[tokio::test]
async fn broken_revocation_list_changes_nothing() -> Result {
    let site = ClientCertificateFixture::in_mode("AllowValidOnly").await?;
    let address = site.sheave.address();
    let gone = site.authority.issue(&["gone.test"]);
    let list = site.authority.revocation_list("revoked", &[&gone]);
    site.configuration.write("revocation.yaml", &[revocation_policy(), list.clone()])?;
    let options = TlsClientOptions::trusting(&site.authority).with_client_certificate(&gone);
    let served = async || is_served_over_tcp(address, &options).await;
    eventually("the list is loaded", served, |served| !served).await?;
    let mut broken = list;
    broken["data"]["ca.crl"] = json!("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n");
    let lines = site.sheave.log_line_count();
    site.configuration.write("revocation.yaml", &[revocation_policy(), broken])?;
    let lines = site.sheave.wait_for_log(lines, "spec.revocation.crlRefs[0]").await?;
    site.configuration.write("revocation.yaml", &[revocation_policy()])?;
    site.sheave.wait_for_log(lines, "there is no ConfigMap default/revoked").await?;
    ensure!(!is_served_over_tcp(address, &options).await?, "the revoked certificate");
    Ok(())
}
