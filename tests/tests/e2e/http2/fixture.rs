//! Sheave in front of HTTP/1.1 or HTTP/2 endpoints.

use std::net::SocketAddr;

use serde_json::Value;
use tests::{ConfigDirectory, Result, SheaveProcess, http2, objects};

/// Sheave with one cleartext listener, and the Service `app` behind it.
pub(crate) struct Http2Fixture {
    pub(crate) sheave: SheaveProcess,
    _configuration: ConfigDirectory,
}

impl Http2Fixture {
    /// Returns a fixture with HTTP/1.1 endpoints and these policies.
    pub(crate) async fn of(endpoints: &[SocketAddr], policies: &[Value]) -> Result<Self> {
        Self::with(endpoints, objects::service("app"), policies).await
    }

    /// Returns a fixture with HTTP/2 endpoints and these policies.
    pub(crate) async fn of_http2(endpoints: &[SocketAddr], policies: &[Value]) -> Result<Self> {
        let service = objects::with_app_protocol("kubernetes.io/h2c", objects::service("app"));
        Self::with(endpoints, service, policies).await
    }

    /// Returns a fixture with HTTP/2 endpoints and these additional arguments.
    pub(crate) async fn of_http2_with(
        endpoints: &[SocketAddr],
        arguments: &[&str],
    ) -> Result<Self> {
        let service = objects::with_app_protocol("kubernetes.io/h2c", objects::service("app"));
        Self::start(endpoints, service, &[], arguments).await
    }

    async fn with(endpoints: &[SocketAddr], service: Value, policies: &[Value]) -> Result<Self> {
        Self::start(endpoints, service, policies, &[]).await
    }

    async fn start(
        endpoints: &[SocketAddr],
        service: Value,
        policies: &[Value],
        arguments: &[&str],
    ) -> Result<Self> {
        let configuration = ConfigDirectory::empty()?;
        let mut all = objects::gateway();
        all.extend([objects::route("app"), service]);
        all.extend(objects::slices("app", endpoints));
        all.extend_from_slice(policies);
        configuration.write("site.yaml", &all)?;
        let arguments = [&["--workers", "2"], arguments].concat();
        let sheave = SheaveProcess::serve_with(&configuration, &arguments).await?;
        Ok(Self { sheave, _configuration: configuration })
    }

    pub(crate) async fn client(&self) -> Result<http2::Http2TestClient> {
        http2::Http2TestClient::connect(self.sheave.address()).await
    }
}
