//! Clients that show certificates, where the Gateway asks for one.

use std::net::SocketAddr;

use anyhow::ensure;
use rustls::version::{TLS12, TLS13};
use serde_json::json;
use tests::certificates::Authority;
use tests::tls::Terms;
use tests::{Behaviour, Client, Configuration, Endpoint, Result, Sheave, objects};

/// A Gateway that asks for certificates of the authority in the ConfigMap `ca`.
struct Asking {
    sheave: Sheave,
    authority: Authority,
    endpoint: Endpoint,
    _configuration: Configuration,
}

impl Asking {
    async fn in_mode(mode: &str) -> Result<Self> {
        let authority = Authority::new();
        let endpoint = Endpoint::start(Behaviour::ok()).await?;
        let mut gateway = objects::https_gateway(&["certificate"]);
        let roots = json!([{ "group": "", "kind": "ConfigMap", "name": "ca" }]);
        let validation = json!({ "caCertificateRefs": roots, "mode": mode });
        gateway[1]["spec"]["tls"] =
            json!({ "frontend": { "default": { "validation": validation } } });
        let more = [authority.vouch(&["test"]).secret("certificate"), authority.config_map("ca")];
        let configuration = Configuration::behind(gateway, &[endpoint.address], &more)?;
        let sheave = Sheave::serve(&configuration).await?;
        Ok(Self { sheave, authority, endpoint, _configuration: configuration })
    }

    /// The same client by both versions of TLS, with these terms beyond.
    async fn serves(&self, terms: impl Fn(Terms) -> Terms) -> Result<bool> {
        let mut served = Vec::new();
        for version in [&TLS12, &TLS13] {
            let terms = terms(Terms::speaking(&[version], &self.authority));
            served.push(
                status(self.sheave.address(), &terms).await.is_ok_and(|status| status == 200),
            );
        }
        ensure!(served[0] == served[1], "TLS 1.2 and 1.3 disagree: {served:?}");
        Ok(served[0])
    }
}

/// With TLS 1.3 a client learns with the first answer that its certificate was refused.
async fn status(address: SocketAddr, terms: &Terms) -> Result<u16> {
    Ok(Client::connect_tls(address, "test", terms).await?.get("/").await?.status())
}

#[tokio::test]
async fn required_client_certificate_must_be_present_and_valid() -> Result {
    let asking = Asking::in_mode("AllowValidOnly").await?;
    let known = asking.authority.vouch(&["client.test"]);
    let unknown = Authority::new().vouch(&["client.test"]);
    let expired = asking.authority.vouch_in_the_past(&["client.test"]);
    ensure!(asking.serves(|terms| terms.showing(&known)).await?, "a known client");
    ensure!(!asking.serves(|terms| terms).await?, "a client without a certificate");
    ensure!(!asking.serves(|terms| terms.showing(&unknown)).await?, "an unknown authority");
    ensure!(!asking.serves(|terms| terms.showing(&expired)).await?, "an expired certificate");
    assert_eq!(asking.endpoint.counts().requests, 2);
    Ok(())
}

#[tokio::test]
async fn optional_client_certificate_may_be_missing_or_invalid() -> Result {
    let asking = Asking::in_mode("AllowInsecureFallback").await?;
    let known = asking.authority.vouch(&["client.test"]);
    let unknown = Authority::new().vouch(&["client.test"]);
    ensure!(asking.serves(|terms| terms.showing(&known)).await?, "a known client");
    ensure!(asking.serves(|terms| terms).await?, "a client without a certificate");
    ensure!(asking.serves(|terms| terms.showing(&unknown)).await?, "an unknown authority");
    Ok(())
}
