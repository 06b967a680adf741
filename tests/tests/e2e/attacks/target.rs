//! Sheave under attack, and a well-behaved client.

use anyhow::ensure;
use serde_json::{Value, json};
use tests::frames::RawHttp2Connection;
use tests::{
    Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result, eventually, objects, within,
};

/// Memory that an attack may cost: far more than it does, far less than it asks for.
const MAX_MEMORY_GROWTH: u64 = 24 << 20;

/// Sheave with one HTTP/1.1 endpoint that answers at once.
pub(crate) struct AttackTarget {
    pub(crate) fixture: HttpFixture,
    memory: u64,
}

impl AttackTarget {
    pub(crate) async fn new() -> Result<Self> {
        Self::with_client_policy(json!({})).await
    }

    /// Returns a target with a ClientPolicy of this `spec`.
    pub(crate) async fn with_client_policy(spec: Value) -> Result<Self> {
        Self::with_behaviour(EndpointBehaviour::ok(), spec).await
    }

    /// Returns a target with an endpoint of this behaviour.
    pub(crate) async fn with_behaviour(
        behaviour: impl Into<EndpointBehaviour>,
        spec: Value,
    ) -> Result<Self> {
        let endpoints = vec![Endpoint::start(behaviour).await?];
        let fixture =
            HttpFixture::with(endpoints, &[objects::client_policy(spec)], &["--workers", "2"])
                .await?;
        // The memory needed to serve at all is not a cost of the attack.
        Http1TestClient::connect(fixture.sheave.address()).await?.get("/").await?;
        let memory = fixture.sheave.memory_bytes()?;
        Ok(Self { fixture, memory })
    }

    pub(crate) async fn connect(&self) -> Result<RawHttp2Connection> {
        RawHttp2Connection::connect(self.fixture.sheave.address(), &[]).await
    }

    /// Checks that the attack has cost little memory and that other clients are served.
    pub(crate) async fn check_health(&self) -> Result {
        let growth = self.fixture.sheave.memory_bytes()?.saturating_sub(self.memory);
        ensure!(growth < MAX_MEMORY_GROWTH, "{growth} bytes more");
        let response =
            within("a well-behaved client", self.fixture.client().await?.get("/")).await??;
        ensure!(response.status() == 200, "{response:?}");
        Ok(())
    }

    /// Waits until exactly this number of streams has been refused.
    pub(crate) async fn wait_for_refused_streams(&self, streams: u64) -> Result {
        let refused =
            async || self.fixture.sheave.metric_sum("sheave_http2_streams_refused_total").await;
        eventually("streams refused", refused, |refused| *refused == streams as f64).await?;
        Ok(())
    }

    /// Waits until the metric has counted at least one event for this reason.
    pub(crate) async fn wait_for_metric(&self, metric: &str, reason: &str) -> Result {
        let label = format!("\"{reason}\"");
        let samples = async || self.fixture.sheave.metric_samples(metric).await;
        let is_counted = |(labels, count): &(String, f64)| labels.contains(&label) && *count > 0.0;
        eventually(reason, samples, |samples| samples.iter().any(is_counted)).await?;
        Ok(())
    }
}
