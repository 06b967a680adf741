//! Client certificates that one host of a port asks for, and another does not.

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::Request;
use rustls::version::{TLS12, TLS13};
use serde_json::{Value, json};
use tests::certificates::{CertificateAuthority, IssuedCertificate};
use tests::tls::TlsClientOptions;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Http1TestResponse, Result,
    SheaveProcess, eventually, http2, http3, objects,
};

use crate::http3::fixture::http3_policy;

/// The host that asks for certificates of the authority in the Secret `ca`.
const GUARDED: &str = "test";
/// The host that asks for none.
const OPEN: &str = "open.test";

struct HostFixture {
    sheave: SheaveProcess,
    authority: CertificateAuthority,
    endpoint: Endpoint,
    configuration: ConfigDirectory,
}

fn authority_secret(authority: &CertificateAuthority) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": "ca" },
        "stringData": { "ca.crt": authority.pem },
    })
}

impl HostFixture {
    /// Returns a fixture whose guarded host has this `clientCertificate`.
    async fn with(access: Value) -> Result<Self> {
        let authority = CertificateAuthority::new();
        let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
        let listener = |name: &str, host: &str, options: Value| {
            json!({
                "name": name, "hostname": host, "protocol": "HTTPS", "port": 0,
                "tls": { "certificateRefs": [{ "name": "certificate" }], "options": options },
            })
        };
        let options = json!({
            "sheave.dev/client-ca": "ca",
            "sheave.dev/client-certificate": "Requested",
            "sheave.dev/client-verify-depth": "1",
        });
        let listeners =
            json!([listener("guarded", GUARDED, options), listener("open", OPEN, json!({}))]);
        let policy = json!({
            "apiVersion": "sheave.dev/v1alpha1",
            "kind": "SecurityPolicy",
            "metadata": { "name": "certificates" },
            "spec": {
                "targetRefs": [{ "kind": "Gateway", "name": "edge", "sectionName": "guarded" }],
                "clientCertificate": access,
            },
        });
        let more = [authority.issue(&[GUARDED, OPEN]).secret("certificate"), policy];
        let gateway = objects::gateway_with(listeners);
        let configuration = ConfigDirectory::with_gateway(gateway, &[endpoint.address], &more)?;
        configuration.write("ca.yaml", &[authority_secret(&authority)])?;
        configuration.write("policy.yaml", &[http3_policy(json!({}))])?;
        let sheave = SheaveProcess::serve(&configuration).await?;
        Ok(Self { sheave, authority, endpoint, configuration })
    }

    fn options(&self, identity: Option<&IssuedCertificate>) -> TlsClientOptions {
        let options = TlsClientOptions::trusting(&self.authority);
        match identity {
            Some(identity) => options.with_client_certificate(identity),
            None => options,
        }
    }

    /// Sends a request for the guarded host on a connection to it.
    async fn get(&self, options: &TlsClientOptions) -> Result<Http1TestResponse> {
        let address = self.sheave.address();
        let mut client = Http1TestClient::connect_tls(address, GUARDED, options).await?;
        let forged = [
            ("Host", GUARDED),
            ("X-Forwarded-Client-Cert", "Hash=forged"),
            ("X_Forwarded_Client_Cert", "Hash=forged"),
            ("ssl-client-verify", "SUCCESS"),
            ("ssl_client_subject_dn", "CN=forged"),
        ];
        Ok(client.exchange("GET", "/", &forged, b"").await?)
    }

    /// Returns the values of a field of the last request that the endpoint got.
    fn seen(&self, name: &str) -> Vec<String> {
        let request = self.endpoint.requests().pop();
        let fields = request.into_iter().flat_map(|it| it.head.fields);
        let is_it = |found: &str| found.replace('_', "-").eq_ignore_ascii_case(name);
        fields.filter(|(found, _)| is_it(found)).map(|(_, value)| value).collect()
    }
}

fn all_details() -> Value {
    json!({
        "forward": { "details": ["Hash", "Subject", "URI", "DNS", "Cert"] },
        "sslClientFields": "NamesAndCertificate",
    })
}

#[tokio::test]
async fn a_valid_certificate_is_passed_on_over_every_version() -> Result {
    let fixture = HostFixture::with(all_details()).await?;
    let identity = fixture.authority.issue(&["client.test"]);
    for version in [&TLS12, &TLS13] {
        let options = TlsClientOptions::with_versions(&[version], &fixture.authority);
        let response = fixture.get(&options.with_client_certificate(&identity)).await?;
        ensure!(response.status() == 200, "{response:?}");
        check_fields(&fixture)?;
    }
    let request = |target: &str| Request::builder().uri(target).body(()).context("a request");
    let options = fixture.options(Some(&identity));
    let client = http3::Http3TestClient::connect(fixture.sheave.address(), &options).await?;
    let answer = client.exchange(request("https://test/")?, Bytes::new()).await?;
    ensure!(answer.status() == 200, "{answer:?}");
    check_fields(&fixture)?;
    // Another host of the connection is not served, though the server's certificate has it.
    let answer = client.exchange(request("https://open.test/")?, Bytes::new()).await?;
    ensure!(answer.status() == 421, "{answer:?}");
    let stream = options.with_alpn(&["h2"]).connect(fixture.sheave.address(), GUARDED).await?;
    let client = http2::Http2TestClient::over(stream, &h2::client::Builder::new()).await?;
    let answer = client.exchange(request("https://test/")?, Bytes::new()).await?;
    ensure!(answer.status() == 200, "{answer:?}");
    check_fields(&fixture)?;
    ensure!(client.exchange(request("https://open.test/")?, Bytes::new()).await?.status() == 421);
    ensure!(fixture.endpoint.counts().requests == 4);
    Ok(())
}

/// Checks the fields of a client whose certificate is for `client.test`.
fn check_fields(fixture: &HostFixture) -> Result {
    let forwarded = fixture.seen("x-forwarded-client-cert");
    ensure!(forwarded.len() == 1, "{forwarded:?}");
    let parts: Vec<&str> = forwarded[0].split(';').collect();
    let [hash, subject, dns, certificate] = parts[..] else {
        anyhow::bail!("{forwarded:?}");
    };
    ensure!(hash.strip_prefix("Hash=").is_some_and(|it| it.len() == 64), "{hash}");
    ensure!(subject.starts_with("Subject=\"CN="), "{subject}");
    ensure!(dns == "DNS=client.test", "{dns}");
    ensure!(certificate.starts_with("Cert=\"-----BEGIN%20CERTIFICATE-----%0AMI"), "{certificate}");
    ensure!(fixture.seen("ssl-client-verify") == ["SUCCESS"]);
    let subject = fixture.seen("ssl-client-subject-dn");
    ensure!(subject.len() == 1 && subject[0].starts_with("CN="), "{subject:?}");
    ensure!(fixture.seen("ssl-client-issuer-dn").len() == 1);
    ensure!(fixture.seen("ssl-client-cert").len() == 1);
    Ok(())
}

#[tokio::test]
async fn other_clients_are_rejected_with_the_reason() -> Result {
    let fixture = HostFixture::with(all_details()).await?;
    let unknown = CertificateAuthority::new().issue(&["client.test"]);
    let expired = fixture.authority.issue_expired(&["client.test"]);
    for identity in [None, Some(&unknown), Some(&expired)] {
        let response = fixture.get(&fixture.options(identity)).await?;
        ensure!(response.status() == 400, "{response:?}");
        let status = response.field("proxy-status").unwrap_or_default();
        ensure!(status.contains("a valid client certificate is required"), "{status}");
    }
    ensure!(fixture.endpoint.counts().requests == 0);
    let reason = ["\"client_certificate\""];
    fixture.sheave.wait_for_sum("sheave_failures_total", &reason, 3.0).await?;
    let page = json!({ "errorPage": "https://help.test/certificates" });
    let fixture = HostFixture::with(page).await?;
    let response = fixture.get(&fixture.options(None)).await?;
    ensure!(response.status() == 302, "{response:?}");
    let location = response.field("location");
    ensure!(location.as_deref() == Some("https://help.test/certificates"), "{response:?}");
    Ok(())
}

#[tokio::test]
async fn endpoints_can_judge_certificates_themselves() -> Result {
    let access = json!({ "mode": "Any", "forward": {}, "sslClientFields": "Names" });
    let fixture = HostFixture::with(access).await?;
    let unknown = CertificateAuthority::new().issue(&["client.test"]);
    for (identity, verified) in
        [(None, "NONE"), (Some(&unknown), "FAILED:unable to get local issuer certificate")]
    {
        let response = fixture.get(&fixture.options(identity)).await?;
        ensure!(response.status() == 200, "{response:?}");
        ensure!(fixture.seen("ssl-client-verify") == [verified], "{identity:?}");
        ensure!(fixture.seen("x-forwarded-client-cert").is_empty());
        ensure!(fixture.seen("ssl-client-subject-dn").len() == usize::from(identity.is_some()));
    }
    let fixture = HostFixture::with(json!({ "mode": "ValidIfPresent" })).await?;
    for (identity, status) in [(None, 200), (Some(&unknown), 400)] {
        ensure!(fixture.get(&fixture.options(identity)).await?.status() == status, "{identity:?}");
    }
    Ok(())
}

/// Neither a connection of another host, nor a session of it, reaches the guarded host without a certificate.
#[tokio::test]
async fn a_connection_of_another_host_is_misdirected() -> Result {
    let fixture = HostFixture::with(json!({})).await?;
    let identity = fixture.authority.issue(&["client.test"]);
    let address = fixture.sheave.address();
    let options = fixture.options(Some(&identity)).with_resumption();
    for _ in 0..2 {
        let mut client = Http1TestClient::connect_tls(address, OPEN, &options).await?;
        let response = client.exchange("GET", "/", &[("Host", OPEN)], b"").await?;
        ensure!(response.status() == 200, "{response:?}");
        let response = client.exchange("GET", "/", &[("Host", GUARDED)], b"").await?;
        ensure!(response.status() == 421, "{response:?}");
    }
    // A resumed session still has the certificate, which is verified again.
    for _ in 0..2 {
        ensure!(fixture.get(&options).await?.status() == 200);
    }
    let handshakes = "sheave_tls_handshakes_total";
    fixture.sheave.wait_for_sum(handshakes, &["\"resumed\""], 2.0).await?;
    Ok(())
}

/// Handshakes do not depend on the certificate, so revocation is a matter of the policy.
#[tokio::test]
async fn a_revoked_certificate_is_not_valid() -> Result {
    let access = json!({ "mode": "Any", "sslClientFields": "Names" });
    let fixture = HostFixture::with(access).await?;
    let [kept, gone] = ["kept.test", "gone.test"].map(|name| fixture.authority.issue(&[name]));
    let list = fixture.authority.revocation_list("revoked", &[&gone]);
    let lists = json!([{ "kind": "ConfigMap", "name": "revoked" }]);
    let policy = http3_policy(json!({ "revocation": { "crlRefs": lists } }));
    fixture.configuration.write("policy.yaml", &[policy, list])?;
    let options = fixture.options(Some(&gone)).with_resumption();
    let verified = async || {
        fixture.get(&options).await?;
        Ok(fixture.seen("ssl-client-verify"))
    };
    let revoked = |seen: &Vec<String>| *seen == ["FAILED:certificate revoked"];
    eventually("the list is loaded", verified, revoked).await?;
    ensure!(fixture.get(&fixture.options(Some(&kept))).await?.status() == 200);
    ensure!(fixture.seen("ssl-client-verify") == ["SUCCESS"]);
    Ok(())
}

/// A connection whose certificate was verified with authorities that no longer count is not served.
#[tokio::test]
async fn a_replaced_authority_ends_the_validity_of_connections() -> Result {
    let fixture = HostFixture::with(json!({})).await?;
    let identity = fixture.authority.issue(&["client.test"]);
    let options = fixture.options(Some(&identity)).with_resumption();
    let address = fixture.sheave.address();
    let mut client = Http1TestClient::connect_tls(address, GUARDED, &options).await?;
    ensure!(client.exchange("GET", "/", &[("Host", GUARDED)], b"").await?.status() == 200);
    let other = CertificateAuthority::new();
    fixture.configuration.write("ca.yaml", &[authority_secret(&other)])?;
    let status = async || Ok(fixture.get(&options).await?.status());
    eventually("the new authority", status, |status| *status == 400).await?;
    let response = client.exchange("GET", "/", &[("Host", GUARDED)], b"").await?;
    ensure!(response.status() == 421, "{response:?}");
    let theirs = fixture.options(Some(&other.issue(&["client.test"])));
    ensure!(fixture.get(&theirs).await?.status() == 200);
    Ok(())
}
