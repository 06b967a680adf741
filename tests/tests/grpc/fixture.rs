//! Sheave in front of gRPC servers.

use serde_json::{Value, json};
use tests::http2::Http2TestEndpoint;
use tests::{ConfigDirectory, Result, SheaveProcess, http2, objects};

/// A method that exists.
pub(crate) const METHOD: &str = "/test.Echo/Say";

/// Sheave with one cleartext listener and one GRPCRoute that sends every call to the Service `app`.
pub(crate) struct GrpcFixture {
    pub(crate) sheave: SheaveProcess,
    _configuration: ConfigDirectory,
}

impl GrpcFixture {
    pub(crate) async fn of(endpoints: &[&Http2TestEndpoint], policies: &[Value]) -> Result<Self> {
        let rules = json!([{ "backendRefs": [{ "name": "app", "port": 80 }] }]);
        Self::with(rules, &[("app", endpoints)], policies).await
    }

    /// Returns a fixture with these rules and these Services.
    pub(crate) async fn with(
        rules: Value,
        services: &[(&str, &[&Http2TestEndpoint])],
        policies: &[Value],
    ) -> Result<Self> {
        let mut all = objects::gateway();
        all.push(objects::grpc_route_with("calls", rules));
        for (name, endpoints) in services {
            let addresses: Vec<_> = endpoints.iter().map(|endpoint| endpoint.address).collect();
            all.push(objects::service(name));
            all.extend(objects::slices(name, &addresses));
        }
        all.extend_from_slice(policies);
        let configuration = ConfigDirectory::empty()?;
        configuration.write("site.yaml", &all)?;
        let sheave = SheaveProcess::serve_with(&configuration, &["--workers", "2"]).await?;
        Ok(Self { sheave, _configuration: configuration })
    }

    pub(crate) async fn client(&self) -> Result<http2::Http2TestClient> {
        http2::Http2TestClient::connect(self.sheave.address()).await
    }
}
