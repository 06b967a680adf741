//! Sheave with one listener that serves HTTP/3 too.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tests::certificates::Authority;
use tests::tls::Terms;
use tests::{Configuration, Result, Sheave, http3, objects};

/// Sheave with one listener, and the Service `app` behind it.
pub(crate) struct Site {
    pub(crate) sheave: Sheave,
    pub(crate) configuration: Configuration,
    /// Those of a client that trusts it.
    pub(crate) terms: Terms,
}

impl Site {
    /// Endpoints that speak HTTP/1.1.
    pub(crate) async fn of(endpoints: &[SocketAddr]) -> Result<Self> {
        Self::guarded(endpoints, json!({})).await
    }

    /// The same, with a ClientPolicy that says this too.
    pub(crate) async fn guarded(endpoints: &[SocketAddr], policy: Value) -> Result<Self> {
        Self::with(endpoints, objects::service("app"), policy).await
    }

    /// Endpoints that speak HTTP/2.
    pub(crate) async fn of_http2(endpoints: &[SocketAddr]) -> Result<Self> {
        let service = objects::speaking("kubernetes.io/h2c", objects::service("app"));
        Self::with(endpoints, service, json!({})).await
    }

    async fn with(endpoints: &[SocketAddr], service: Value, policy: Value) -> Result<Self> {
        let authority = Authority::new();
        let configuration = Configuration::empty()?;
        let mut all = objects::https_gateway(&["certificate"]);
        all.push(authority.vouch(&["test"]).secret("certificate"));
        all.extend([objects::route("app"), service]);
        all.extend(objects::slices("app", endpoints));
        configuration.write("site.yaml", &all)?;
        configuration.write("policy.yaml", &[served_over_http3(policy)])?;
        let arguments = ["--workers", "2", "--access-log", "on"];
        let sheave = Sheave::serve_with(&configuration, &arguments).await?;
        Ok(Self { sheave, configuration, terms: Terms::trusting(&authority) })
    }

    pub(crate) async fn client(&self) -> Result<http3::Client> {
        http3::Client::connect(self.sheave.address(), &self.terms).await
    }

    pub(crate) async fn wire(&self) -> Result<http3::Wire> {
        http3::Wire::connect(self.sheave.address(), &self.terms).await
    }

    /// Waits until the metric, for this reason, has counted something.
    pub(crate) async fn counted(&self, metric: &str, reason: &str) -> Result {
        let label = format!("\"{reason}\"");
        let samples = async || self.sheave.samples(metric).await;
        let wanted = |(labels, count): &(String, f64)| labels.contains(&label) && *count > 0.0;
        tests::eventually(reason, samples, |samples| samples.iter().any(wanted)).await?;
        Ok(())
    }
}

/// A ClientPolicy that turns HTTP/3 on, and says this too.
pub(crate) fn served_over_http3(mut policy: Value) -> Value {
    policy["http3"]["enabled"] = true.into();
    objects::client_policy(policy)
}
