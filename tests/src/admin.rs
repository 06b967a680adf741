//! Client of the binary's admin API.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::configuration::SERVICE;
use crate::waiting::eventually;
use crate::{Http1TestClient, Http1TestResponse, SheaveProcess};

/// A backend with its endpoints, as `/api/v1/backends` shows it.
#[derive(Clone, Debug)]
pub struct AdminBackend {
    pub service: String,
    pub max_in_flight_per_endpoint: Option<u64>,
    pub waiting: u64,
    pub endpoints: Vec<AdminEndpoint>,
}

#[derive(Clone, Debug)]
pub struct AdminEndpoint {
    pub address: String,
    pub in_flight: u64,
}

impl SheaveProcess {
    pub async fn admin_get(&self, path: &str) -> Result<Http1TestResponse> {
        Ok(Http1TestClient::connect(self.admin).await?.get(path).await?)
    }

    /// Returns an answer in JSON.
    pub async fn admin_json(&self, path: &str) -> Result<Value> {
        let response = self.admin_get(path).await?;
        ensure!(response.status() == 200, "{path}: {response:?}");
        Ok(serde_json::from_slice(&response.body)?)
    }

    pub async fn backends(&self) -> Result<Vec<AdminBackend>> {
        let views = self.admin_json("/api/v1/backends").await?;
        let views = views["backends"].as_array().context("backends")?;
        views.iter().map(backend).collect()
    }

    /// Returns the number of requests in flight and queued, over all backends.
    pub async fn active_requests(&self) -> Result<u64> {
        let backends = self.backends().await?;
        let endpoints = backends.iter().flat_map(|backend| &backend.endpoints);
        let in_flight: u64 = endpoints.map(|endpoint| endpoint.in_flight).sum();
        Ok(in_flight + backends.iter().map(|backend| backend.waiting).sum::<u64>())
    }

    /// Waits until the requests of the Service `app` go to these endpoints.
    pub async fn wait_for_endpoints(&self, endpoints: &[SocketAddr]) -> Result<()> {
        let mut wanted: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
        wanted.sort();
        let observe = async || {
            let backends = self.backends().await?.into_iter();
            let of_service = backends.filter(|backend| backend.service == SERVICE);
            let endpoints = of_service.flat_map(|backend| backend.endpoints);
            let mut used: Vec<String> = endpoints.map(|endpoint| endpoint.address).collect();
            used.sort();
            Ok(used)
        };
        eventually("endpoints in use", observe, |used| *used == wanted).await?;
        Ok(())
    }

    /// Waits until no request is in flight or queued.
    pub async fn wait_until_idle(&self) -> Result<()> {
        eventually(
            "no request in flight or queued",
            async || self.active_requests().await,
            |busy| *busy == 0,
        )
        .await?;
        Ok(())
    }

    /// Waits until this many requests are queued for a slot, over all backends.
    pub async fn wait_for_queue_length(&self, requests: u64) -> Result<()> {
        let observe = async || {
            let backends = self.backends().await?;
            Ok(backends.iter().map(|backend| backend.waiting).sum::<u64>())
        };
        eventually("queued requests", observe, |waiting| *waiting == requests).await?;
        Ok(())
    }

    /// Returns every sample of a metric: its labels as they are written, and its value.
    pub async fn metric_samples(&self, metric: &str) -> Result<Vec<(String, f64)>> {
        let text = self.admin_get("/metrics").await?.text();
        text.lines().filter_map(|line| sample(line, metric)).collect()
    }

    /// Waits until the sum of a metric over all samples with these labels has a value: the response may come before it
    /// is counted.
    pub async fn wait_for_sum(&self, metric: &str, labels: &[&str], wanted: f64) -> Result<()> {
        let sum = async || {
            let samples = self.metric_samples(metric).await?;
            let is_meant = |text: &str| labels.iter().all(|label| text.contains(label));
            let of_labels = samples.iter().filter(|(text, _)| is_meant(text));
            Ok(of_labels.map(|(_, value)| value).sum::<f64>())
        };
        eventually(metric, sum, |sum| (sum - wanted).abs() < 0.5).await?;
        Ok(())
    }

    /// Returns the sum of a metric over all its labels.
    pub async fn metric_sum(&self, metric: &str) -> Result<f64> {
        Ok(self.metric_samples(metric).await?.iter().map(|(_, value)| value).sum())
    }
}

fn backend(view: &Value) -> Result<AdminBackend> {
    let endpoints = view["endpoints"].as_array().context("endpoints")?;
    let endpoints = endpoints.iter().map(endpoint).collect::<Result<_>>()?;
    let max_in_flight_per_endpoint = view["max_in_flight_per_endpoint"].as_u64();
    let service = view["service"].as_str().context("service")?.to_owned();
    Ok(AdminBackend {
        service,
        max_in_flight_per_endpoint,
        waiting: number(view, "queue_length")?,
        endpoints,
    })
}

fn endpoint(view: &Value) -> Result<AdminEndpoint> {
    let address = view["address"].as_str().context("address")?.to_owned();
    Ok(AdminEndpoint { address, in_flight: number(view, "in_flight")? })
}

fn number(view: &Value, field: &str) -> Result<u64> {
    view[field].as_u64().with_context(|| format!("{field} in {view}"))
}

fn sample(line: &str, metric: &str) -> Option<Result<(String, f64)>> {
    let rest = line.strip_prefix(metric)?;
    if !rest.starts_with(['{', ' ']) {
        return None;
    }
    let (labels, value) = rest.rsplit_once(' ')?;
    let value = value.parse().with_context(|| line.to_owned());
    Some(value.map(|value| (labels.to_owned(), value)))
}
