//! Standard fixture: endpoints, their configuration, and the binary in front of them.

use std::net::SocketAddr;

use anyhow::Result;
use serde_json::Value;

use crate::certificates::IssuedCertificate;
use crate::configuration::SERVICE;
use crate::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, SheaveProcess, objects,
};

/// Sheave with one listener, in front of one Service.
pub struct HttpFixture {
    pub sheave: SheaveProcess,
    pub configuration: ConfigDirectory,
    pub endpoints: Vec<Endpoint>,
}

impl HttpFixture {
    /// Starts one endpoint with this behaviour, without a policy.
    pub async fn of(behaviour: impl Into<EndpointBehaviour>) -> Result<Self> {
        Self::with(vec![Endpoint::start(behaviour).await?], &[], &[]).await
    }

    /// Starts one endpoint with this behaviour, and a BackendPolicy with this `spec`.
    pub async fn with_backend_policy(
        behaviour: impl Into<EndpointBehaviour>,
        spec: Value,
    ) -> Result<Self> {
        let policies = [objects::backend_policy(SERVICE, spec)];
        Self::with(vec![Endpoint::start(behaviour).await?], &policies, &[]).await
    }

    /// Starts one endpoint with this behaviour, and a ClientPolicy with this `spec`.
    pub async fn with_client_policy(
        behaviour: impl Into<EndpointBehaviour>,
        spec: Value,
    ) -> Result<Self> {
        let policies = [objects::client_policy(spec)];
        Self::with(vec![Endpoint::start(behaviour).await?], &policies, &[]).await
    }

    /// Starts Sheave with these endpoints, policies and arguments of `serve`.
    pub async fn with(
        endpoints: Vec<Endpoint>,
        policies: &[Value],
        arguments: &[&str],
    ) -> Result<Self> {
        let configuration = ConfigDirectory::for_endpoints_with(&addresses(&endpoints), policies)?;
        let sheave = SheaveProcess::serve_with(&configuration, arguments).await?;
        Ok(Self { sheave, configuration, endpoints })
    }

    /// Starts one endpoint with this behaviour, behind a listener that terminates TLS. The
    /// certificate has a file of its own, `certificate.yaml`.
    pub async fn with_tls(
        behaviour: impl Into<EndpointBehaviour>,
        identity: &IssuedCertificate,
        arguments: &[&str],
    ) -> Result<Self> {
        let endpoints = vec![Endpoint::start(behaviour).await?];
        let gateway = objects::https_gateway(&["certificate"]);
        let configuration = ConfigDirectory::with_gateway(gateway, &addresses(&endpoints), &[])?;
        configuration.write("certificate.yaml", &[identity.secret("certificate")])?;
        let sheave = SheaveProcess::serve_with(&configuration, arguments).await?;
        Ok(Self { sheave, configuration, endpoints })
    }

    pub async fn client(&self) -> Result<Http1TestClient> {
        Ok(Http1TestClient::connect(self.sheave.address()).await?)
    }

    /// Returns the only endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        assert_eq!(self.endpoints.len(), 1, "there is one endpoint");
        &self.endpoints[0]
    }
}

pub fn addresses(endpoints: &[Endpoint]) -> Vec<SocketAddr> {
    endpoints.iter().map(|endpoint| endpoint.address).collect()
}

/// Starts `count` endpoints with the same behaviour.
pub async fn start_endpoints(count: usize, behaviour: &EndpointBehaviour) -> Result<Vec<Endpoint>> {
    let mut endpoints = Vec::new();
    for _ in 0..count {
        endpoints.push(Endpoint::start(behaviour.clone()).await?);
    }
    Ok(endpoints)
}
