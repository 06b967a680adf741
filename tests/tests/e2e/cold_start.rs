//! Services without endpoints: what a request that wakes them sees, and which requests wake nothing.

use anyhow::ensure;
use serde_json::{Value, json};
use tests::keda::KedaClient;
use tests::{
    Endpoint, EndpointBehaviour, Http1TestClient, Http1TestResponse, HttpFixture, Result, objects,
};

const FLAGS: [&str; 4] = ["--scaler", "127.0.0.1:0", "--access-log", "on"];

/// Returns a fixture without endpoints, whose requests wait in a queue of this size.
async fn fixture(max_requests: u32) -> Result<HttpFixture> {
    let spec = json!({ "queue": { "maxRequests": max_requests, "timeout": "1h" } });
    HttpFixture::with(Vec::new(), &[objects::backend_policy("app", spec)], &FLAGS).await
}

async fn begin_request(fixture: &HttpFixture) -> Result<Http1TestClient> {
    let mut client = fixture.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    Ok(client)
}

/// Returns the seconds of `Retry-After`.
fn retry_after(response: &Http1TestResponse) -> Result<u64> {
    let field = response.field("retry-after");
    let field = field.ok_or_else(|| anyhow::anyhow!("no Retry-After: {response:?}"))?;
    Ok(field.parse()?)
}

#[tokio::test]
async fn cold_start_and_places_in_the_queue_are_visible() -> Result {
    let fixture = fixture(2).await?;
    let sheave = &fixture.sheave;
    ensure!(sheave.metric_sum("sheave_backend_cold_starts_total").await? == 0.0);
    let mut waiting = Vec::new();
    for length in 1..=2 {
        waiting.push(begin_request(&fixture).await?);
        sheave.wait_for_queue_length(length).await?;
    }
    // The queue is full. There has been no cold start yet, so the policy's time is the answer.
    let refused = fixture.client().await?.get("/").await?;
    ensure!((refused.status(), retry_after(&refused)?) == (429, 1), "{refused:?}");

    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    fixture.configuration.set_endpoints(&[endpoint.address])?;
    for client in &mut waiting {
        ensure!(client.response("GET").await?.status() == 200);
    }
    ensure!(sheave.metric_sum("sheave_backend_cold_starts_total").await? == 1.0);
    let took = sheave.metric_sum("sheave_backend_last_cold_start_seconds").await?;
    ensure!(took > 0.0, "{took}");
    let lines = sheave.wait_for_access_log(3).await?;
    let mut places: Vec<&Value> = lines.iter().map(|line| &line["sheave.queue_position"]).collect();
    places.sort_by_key(|place| place.as_u64());
    assert_eq!(places, [&Value::Null, &json!(1), &json!(2)]);
    let waits = |line: &&Value| line["sheave.queue_seconds"].as_f64() > Some(0.0);
    ensure!(lines.iter().filter(waits).count() == 2, "{lines:?}");
    Ok(())
}

#[tokio::test]
async fn request_that_gives_up_without_an_endpoint_gets_retry_after() -> Result {
    let spec = json!({
        "queue": { "maxRequests": 2, "timeout": "50ms" },
        "overload": { "retryAfter": "7s" },
    });
    let policies = [objects::backend_policy("app", spec)];
    let fixture = HttpFixture::with(Vec::new(), &policies, &FLAGS).await?;
    let response = fixture.client().await?.get("/").await?;
    ensure!((response.status(), retry_after(&response)?) == (503, 7), "{response:?}");
    let lines = fixture.sheave.wait_for_access_log(1).await?;
    ensure!(lines[0]["error.type"] == "no_endpoint", "{lines:?}");
    ensure!(lines[0]["sheave.queue_seconds"].as_f64() >= Some(0.05), "{lines:?}");
    let samples = fixture.sheave.metric_samples("sheave_backend_refused_total").await?;
    let given_up = samples.iter().find(|(labels, _)| labels.contains("no_endpoint"));
    ensure!(given_up.is_some_and(|(_, count)| *count == 1.0), "{samples:?}");
    Ok(())
}

#[tokio::test]
async fn health_checks_wake_no_service() -> Result {
    let fixture = fixture(8).await?;
    let mut keda =
        KedaClient::connect(&fixture.sheave, &[("service", "app"), ("target", "1")]).await?;
    let mut stream = keda.activity_stream().await?;
    ensure!(!stream.next().await??);
    let mut client = fixture.client().await?;
    let heads = [
        "GET / HTTP/1.1\r\nHost: test\r\nUser-Agent: kube-probe/1.36\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: test\r\nUser-Agent: GoogleHC/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: test\r\nUser-Agent: ELB-HealthChecker/2.0\r\n\r\n",
        "POST /grpc.health.v1.Health/Check HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n",
    ];
    for head in heads {
        client.send(head).await?;
        let response = client.response("GET").await?;
        ensure!(response.status() == 503, "{head}: {response:?}");
    }
    ensure!(!keda.is_active().await? && keda.demand().await? == 0.0, "a health check is demand");
    ensure!(fixture.sheave.metric_sum("sheave_backend_queue_length").await? == 0.0);

    // A request does.
    let _waiting = begin_request(&fixture).await?;
    ensure!(stream.next().await??);
    Ok(())
}
