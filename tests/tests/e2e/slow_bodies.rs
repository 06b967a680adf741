//! Request bodies that arrive slowly, at a backend with a cap: they hold no slot before they have arrived, keep a
//! minimum rate after that, and have a bounded part of the slots for each client.

use anyhow::ensure;
use serde_json::{Value, json};
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, eventually, objects};

/// Clients of HTTP/1.1.
mod http1;
/// Requests that are streams of one connection: HTTP/2, HTTP/3 and gRPC.
mod streams;
/// Limits for each client address.
mod addresses;

/// Requests in flight at the endpoint at most.
const CAP: u64 = 4;
/// More than what is kept for a retry.
const LONG: usize = 100_000;

/// Sheave in front of one endpoint with a cap.
struct CappedFixture {
    fixture: HttpFixture,
}

impl CappedFixture {
    /// Returns a fixture with these further fields in the policies.
    async fn with(
        behaviour: impl Into<EndpointBehaviour>,
        client_policy: Value,
        mut backend_policy: Value,
    ) -> Result<Self> {
        backend_policy["maxInFlightPerEndpoint"] = CAP.into();
        let policies =
            [objects::client_policy(client_policy), objects::backend_policy("app", backend_policy)];
        let endpoints = vec![Endpoint::start(behaviour).await?];
        let fixture = HttpFixture::with(endpoints, &policies, &["--workers", "2"]).await?;
        Ok(Self { fixture })
    }

    /// Returns a fixture with the default limits of clients.
    async fn new() -> Result<Self> {
        Self::with(EndpointBehaviour::ok(), json!({}), json!({})).await
    }

    /// Checks that other clients are served, and that not more than `held` slots are held.
    async fn check_others_are_served(&self, held: u64) -> Result {
        let response = self.fixture.client().await?.get("/").await?;
        ensure!(response.status() == 200, "{response:?}");
        let active = async || self.fixture.sheave.active_requests().await;
        // The slot of the response above may be given back a moment after its last byte.
        eventually("slots and queue places", active, |active| *active <= held).await?;
        Ok(())
    }

    /// Waits until this many requests have failed for this reason.
    async fn wait_for_failures(&self, reason: &str, wanted: f64) -> Result {
        let label = format!("\"{reason}\"");
        let failures = async || self.fixture.sheave.metric_samples("sheave_failures_total").await;
        let count = |samples: &Vec<(String, f64)>| {
            samples
                .iter()
                .filter(|(labels, _)| labels.contains(&label))
                .map(|(_, n)| n)
                .sum::<f64>()
        };
        eventually(reason, failures, |samples| count(samples) >= wanted).await?;
        Ok(())
    }
}

/// Returns a BackendPolicy with the cap.
fn capped_policy() -> Value {
    objects::backend_policy("app", json!({ "maxInFlightPerEndpoint": CAP }))
}

/// Returns the head of an upload of this length.
fn post(length: usize) -> String {
    format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n")
}
