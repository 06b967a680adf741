//! Sheave with one listener that serves HTTP/3 too.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tests::certificates::CertificateAuthority;
use tests::tls::TlsClientOptions;
use tests::{ConfigDirectory, Result, SheaveProcess, http3, objects};

/// Sheave with one listener, and the Service `app` behind it.
pub(crate) struct Http3Fixture {
    pub(crate) sheave: SheaveProcess,
    pub(crate) configuration: ConfigDirectory,
    /// Those of a client that trusts it.
    pub(crate) tls_options: TlsClientOptions,
}

impl Http3Fixture {
    /// Endpoints that speak HTTP/1.1.
    pub(crate) async fn of(endpoints: &[SocketAddr]) -> Result<Self> {
        Self::with_client_policy(endpoints, json!({})).await
    }

    /// The same, with a ClientPolicy that says this too.
    pub(crate) async fn with_client_policy(
        endpoints: &[SocketAddr],
        policy: Value,
    ) -> Result<Self> {
        Self::with(endpoints, objects::service("app"), policy).await
    }

    /// Endpoints that speak HTTP/2.
    pub(crate) async fn of_http2(endpoints: &[SocketAddr]) -> Result<Self> {
        let service = objects::with_app_protocol("kubernetes.io/h2c", objects::service("app"));
        Self::with(endpoints, service, json!({})).await
    }

    async fn with(endpoints: &[SocketAddr], service: Value, policy: Value) -> Result<Self> {
        let authority = CertificateAuthority::new();
        let configuration = ConfigDirectory::empty()?;
        let mut all = objects::https_gateway(&["certificate"]);
        all.push(authority.issue(&["test"]).secret("certificate"));
        all.extend([objects::route("app"), service]);
        all.extend(objects::slices("app", endpoints));
        configuration.write("site.yaml", &all)?;
        configuration.write("policy.yaml", &[http3_policy(policy)])?;
        let arguments = ["--workers", "2", "--access-log", "on"];
        let sheave = SheaveProcess::serve_with(&configuration, &arguments).await?;
        Ok(Self { sheave, configuration, tls_options: TlsClientOptions::trusting(&authority) })
    }

    pub(crate) async fn client(&self) -> Result<http3::Http3TestClient> {
        http3::Http3TestClient::connect(self.sheave.address(), &self.tls_options).await
    }

    pub(crate) async fn raw_connection(&self) -> Result<http3::RawHttp3Connection> {
        http3::RawHttp3Connection::connect(self.sheave.address(), &self.tls_options).await
    }

    /// Waits until the metric, for this reason, has counted something.
    pub(crate) async fn wait_for_metric(&self, metric: &str, reason: &str) -> Result {
        let label = format!("\"{reason}\"");
        let samples = async || self.sheave.metric_samples(metric).await;
        let wanted = |(labels, count): &(String, f64)| labels.contains(&label) && *count > 0.0;
        tests::eventually(reason, samples, |samples| samples.iter().any(wanted)).await?;
        Ok(())
    }
}

/// A ClientPolicy that turns HTTP/3 on, and says this too.
pub(crate) fn http3_policy(mut policy: Value) -> Value {
    policy["http3"]["enabled"] = true.into();
    objects::client_policy(policy)
}
