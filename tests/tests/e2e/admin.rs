//! The admin address: health, metrics and state, to be read by machines and people.

use anyhow::{Context, ensure};
use serde_json::Value;
use tests::{Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result, eventually};

#[tokio::test]
async fn admin_paths_answer_and_unknown_paths_give_404() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    for path in ["/", "/healthz", "/readyz", "/metrics"] {
        let response = fixture.sheave.admin_get(path).await?;
        ensure!(response.status() == 200, "{path}: {response:?}");
    }
    let index = fixture.sheave.admin_get("/").await?.text();
    for path in ["/api/v1/listeners", "/api/v1/backends", "/api/v1/routes", "/api/v1/config"] {
        ensure!(index.contains(path), "{path} is not in the index");
        let response = fixture.sheave.admin_get(path).await?;
        ensure!(response.status() == 200, "{path}: {response:?}");
        serde_json::from_slice::<Value>(&response.body).context(path)?;
    }
    let response = fixture.sheave.admin_get("/nowhere").await?;
    ensure!(response.status() == 404);
    serde_json::from_slice::<Value>(&response.body)?;
    let mut client = Http1TestClient::connect(fixture.sheave.admin).await?;
    ensure!(
        client.post("/api/v1/config", b"{}").await?.status() == 405,
        "the admin API is read-only"
    );
    Ok(())
}

#[tokio::test]
async fn metrics_are_valid_open_metrics_with_correct_counts() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut client = fixture.client().await?;
    for _ in 0..7 {
        client.post("/", b"hello").await?;
    }
    let text = open_metrics(&fixture).await?;
    ensure!(text.ends_with("# EOF\n"), "{text}");
    let counters = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for counter in counters.filter_map(|line| line.strip_suffix(" counter")) {
        let sample = format!("\n{counter}_total");
        ensure!(text.contains(&sample) || !text.contains(&format!("\n{counter}")), "{counter}");
    }

    let sums = [
        ("sheave_requests_total", 7.0),
        ("sheave_request_duration_seconds_count", 7.0),
        ("sheave_listener_connections_total", 1.0),
        ("sheave_listener_connections_open", 1.0),
        ("sheave_listener_received_bytes_total", 35.0),
        ("sheave_listener_sent_bytes_total", 14.0),
        ("sheave_endpoint_attempts_total", 7.0),
        ("sheave_endpoint_failures_total", 0.0),
        ("sheave_endpoint_in_flight", 0.0),
        ("sheave_worker_requests_total", 7.0),
    ];
    for (metric, sum) in sums {
        // The client may receive its response before the request is counted.
        let counted = async || fixture.sheave.metric_sum(metric).await;
        eventually(metric, counted, |counted| (counted - sum).abs() < 0.5).await?;
    }
    Ok(())
}

/// Returns the metrics in the format that Prometheus asks for.
async fn open_metrics(fixture: &HttpFixture) -> Result<String> {
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    let mut client = Http1TestClient::connect(fixture.sheave.admin).await?;
    let response = client.exchange("GET", "/metrics", &[("Accept", accept)], b"").await?;
    let kind = response.field("content-type").unwrap_or_default();
    ensure!(kind.starts_with("application/openmetrics-text; version=1.0.0"), "{kind}");
    Ok(response.text())
}

#[tokio::test]
async fn exemplars_name_sampled_traces_when_switched_on() -> Result {
    const SAMPLED: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const DROPPED: &str = "1234567890abcdef1234567890abcdef";
    for (arguments, expected) in [(&["--exemplars"][..], 1), (&[], 0)] {
        let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
        let fixture = HttpFixture::with(endpoints, &[], arguments).await?;
        let mut client = fixture.client().await?;
        for (trace, flags) in [(SAMPLED, "01"), (DROPPED, "00")] {
            let parent = format!("00-{trace}-00f067aa0ba902b7-{flags}");
            client.exchange("GET", "/", &[("traceparent", &parent)], b"").await?;
        }
        let text = open_metrics(&fixture).await?;
        let exemplar = format!("# {{trace_id=\"{SAMPLED}\"}} ");
        let lines = text.lines().filter(|line| line.contains(&exemplar)).count();
        ensure!(lines == expected && !text.contains(DROPPED), "{arguments:?}: {text}");
    }
    Ok(())
}

/// Label values are bounded by the configuration: clients cannot create metric series.
#[tokio::test]
async fn clients_cannot_create_metric_series() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut client = fixture.client().await?;
    client.get("/").await?;
    let before = fixture.sheave.admin_get("/metrics").await?.text().lines().count();
    for number in 0..50 {
        let (path, host) = (format!("/{number}"), format!("{number}.test"));
        client.exchange("GET", &path, &[("Host", &host)], b"").await?;
    }
    let after = fixture.sheave.admin_get("/metrics").await?.text().lines().count();
    assert_eq!(before, after);
    Ok(())
}
