//! One route in front of some Services.

use serde_json::{Value, json};
use tests::{ConfigDirectory, Endpoint, Http1TestClient, Result, SheaveProcess, objects};

/// Sheave with one listener and one route.
pub(crate) struct RouteFixture {
    pub(crate) sheave: SheaveProcess,
    _configuration: ConfigDirectory,
}

impl RouteFixture {
    /// Returns a fixture with these rules, and each Service with its only endpoint.
    pub(crate) async fn of(rules: Value, services: &[(&str, &Endpoint)]) -> Result<Self> {
        Self::with(rules, services, &[]).await
    }

    /// Returns a fixture with these rules, Services and policies.
    pub(crate) async fn with(
        rules: Value,
        services: &[(&str, &Endpoint)],
        policies: &[Value],
    ) -> Result<Self> {
        let mut all = objects::gateway();
        all.push(objects::route_with("site", json!({ "rules": rules })));
        for (name, endpoint) in services {
            all.push(objects::service(name));
            all.extend(objects::slices(name, &[endpoint.address]));
        }
        all.extend_from_slice(policies);
        let configuration = ConfigDirectory::empty()?;
        configuration.write("site.yaml", &all)?;
        let sheave = SheaveProcess::serve_with(&configuration, &["--workers", "1"]).await?;
        Ok(Self { sheave, _configuration: configuration })
    }

    pub(crate) async fn client(&self) -> Result<Http1TestClient> {
        Ok(Http1TestClient::connect(self.sheave.address()).await?)
    }
}

/// Returns the only rule: every request goes to the Service `app` through these filters.
pub(crate) fn rules_with_filters(filters: Value) -> Value {
    json!([{ "filters": filters, "backendRefs": [backend_ref("app")] }])
}

/// Returns a reference to this Service with the default weight.
pub(crate) fn backend_ref(service: &str) -> Value {
    json!({ "name": service, "port": 80 })
}
