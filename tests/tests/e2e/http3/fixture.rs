//! Sheave with one listener that also serves HTTP/3.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tests::certificates::CertificateAuthority;
use tests::tls::TlsClientOptions;
use tests::{ConfigDirectory, Result, SheaveProcess, http3, objects};

/// Sheave with one listener, and the Service `app` behind it.
pub(crate) struct Http3Fixture {
    pub(crate) sheave: SheaveProcess,
    pub(crate) configuration: ConfigDirectory,
    /// TLS options of a client that trusts the listener's certificate.
    pub(crate) tls_options: TlsClientOptions,
}

impl Http3Fixture {
    /// Returns a fixture with HTTP/1.1 endpoints.
    pub(crate) async fn of(endpoints: &[SocketAddr]) -> Result<Self> {
        Self::with_client_policy(endpoints, json!({})).await
    }

    /// Returns a fixture with HTTP/1.1 endpoints and these further fields in the ClientPolicy.
    pub(crate) async fn with_client_policy(
        endpoints: &[SocketAddr],
        policy: Value,
    ) -> Result<Self> {
        Self::with(endpoints, objects::service("app"), policy, &[]).await
    }

    /// Returns a fixture with HTTP/2 endpoints.
    pub(crate) async fn of_http2(endpoints: &[SocketAddr]) -> Result<Self> {
        let service = objects::with_app_protocol("kubernetes.io/h2c", objects::service("app"));
        Self::with(endpoints, service, json!({}), &[]).await
    }

    /// Returns a fixture with HTTP/1.1 endpoints and these further policies.
    pub(crate) async fn with_policies(endpoints: &[SocketAddr], more: &[Value]) -> Result<Self> {
        Self::with(endpoints, objects::service("app"), json!({}), more).await
    }

    async fn with(
        endpoints: &[SocketAddr],
        service: Value,
        policy: Value,
        more: &[Value],
    ) -> Result<Self> {
        let authority = CertificateAuthority::new();
        let configuration = ConfigDirectory::empty()?;
        let mut all = objects::https_gateway(&["certificate"]);
        all.push(authority.issue(&["test"]).secret("certificate"));
        all.extend([objects::route("app"), service]);
        all.extend(objects::slices("app", endpoints));
        all.extend_from_slice(more);
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

    /// Waits until the metric has counted at least one event for this reason.
    pub(crate) async fn wait_for_metric(&self, metric: &str, reason: &str) -> Result {
        let label = format!("\"{reason}\"");
        let samples = async || self.sheave.metric_samples(metric).await;
        let is_counted = |(labels, count): &(String, f64)| labels.contains(&label) && *count > 0.0;
        tests::eventually(reason, samples, |samples| samples.iter().any(is_counted)).await?;
        Ok(())
    }
}

/// Returns a ClientPolicy that enables HTTP/3, with these further fields.
pub(crate) fn http3_policy(mut policy: Value) -> Value {
    policy["http3"]["enabled"] = true.into();
    objects::client_policy(policy)
}
