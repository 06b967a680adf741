//! Limits of endpoints: learned, and reported by the endpoint.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use tests::load::{ClientPattern, LoadGenerator};
use tests::waiting::eventually;
use tests::{
    Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result, ServeStep, objects,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const REFUSAL: &str =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";
const QUOTA: &str =
    "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n";

/// Returns the behaviour of a server with this number of workers, each of which serves one request
/// at a time.
fn worker_behaviour(count: usize) -> EndpointBehaviour {
    let work = ServeStep::WaitForWorker(Arc::new(Semaphore::new(count)), Duration::from_millis(20));
    vec![ServeStep::ReadBody, work, ServeStep::Answer].into()
}

async fn limits(fixture: &HttpFixture) -> Result<Vec<(String, f64)>> {
    fixture.sheave.metric_samples("sheave_endpoint_limit").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adaptive_limit_learns_the_worker_count_under_load() -> Result {
    let endpoints = vec![
        Endpoint::start(worker_behaviour(3)).await?,
        Endpoint::start(worker_behaviour(3)).await?,
    ];
    let policy = json!({ "maxInFlightPerEndpoint": "auto", "queue": { "timeout": "1h" } });
    let policies = [objects::backend_policy("app", policy)];
    let fixture = HttpFixture::with(endpoints, &policies, &["--workers", "2"]).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), 16, ClientPattern::GET);
    let learned = |limits: &Vec<(String, f64)>| {
        let is_close = |(labels, limit): &(String, f64)| {
            labels.contains("reason=\"saturation\"") && (2.0..=4.0).contains(limit)
        };
        limits.len() == 2 && limits.iter().all(is_close)
    };
    eventually("limits of three", async || limits(&fixture).await, learned).await?;
    load.stop().await.assert_all_served();
    Ok(())
}

/// Returns two endpoints, the first of which accepts two concurrent requests.
async fn refusing_endpoint_fixture(policy: Value, answer: &'static str) -> Result<HttpFixture> {
    refusing_endpoint_fixture_with(policy, answer, || ServeStep::Wait(Duration::from_millis(30)))
        .await
}

/// The same, with this work for a request.
async fn refusing_endpoint_fixture_with(
    policy: Value,
    answer: &'static str,
    work: fn() -> ServeStep,
) -> Result<HttpFixture> {
    let refusing =
        vec![ServeStep::ReadBody, ServeStep::RefuseBeyond(2, answer), work(), ServeStep::Answer];
    let roomy = vec![ServeStep::ReadBody, work(), ServeStep::Answer];
    let endpoints = vec![Endpoint::start(refusing).await?, Endpoint::start(roomy).await?];
    HttpFixture::with(endpoints, &[objects::backend_policy("app", policy)], &["--workers", "1"])
        .await
}

async fn send_concurrently(fixture: &HttpFixture, requests: usize) -> Result<Vec<u16>> {
    let address = fixture.sheave.address();
    let request = |_| async move {
        let response = Http1TestClient::connect(address).await?.get("/").await?;
        Ok::<_, anyhow::Error>(response.status())
    };
    let requests: JoinSet<_> = (0..requests).map(request).collect();
    requests.join_all().await.into_iter().collect()
}

#[tokio::test]
async fn refusing_endpoint_is_avoided_while_others_have_capacity() -> Result {
    const LONG: &str =
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n";
    for cap in [json!({}), json!({ "maxInFlightPerEndpoint": 20 })] {
        let fixture = refusing_endpoint_fixture_with(cap, LONG, || ServeStep::WaitForGate).await?;
        // The two requests that it accepts come first, one by one: if all were sent at once, one
        // could overtake another, and the second one picked could be refused.
        let mut held = Vec::new();
        while fixture.endpoints[0].counts().in_flight < 2 {
            let mut client = fixture.client().await?;
            client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
            held.push(client);
            let arrived = async || Ok(fixture.endpoints.iter().map(|e| e.counts().in_flight).sum());
            eventually("all requests arrive", arrived, |count: &usize| *count == held.len())
                .await?;
        }
        let refused = async {
            let refusals =
                async || fixture.sheave.metric_sum("sheave_endpoint_refusals_total").await;
            eventually("a refusal", refusals, |count| *count > 0.0).await?;
            let full = limits(&fixture).await?;
            let full = full.iter().find(|(labels, _)| labels.contains("reason=\"full\""));
            ensure!(full.is_some_and(|(_, limit)| *limit == 2.0), "{full:?}");
            fixture.endpoints.iter().for_each(|endpoint| endpoint.open_gate(1000));
            Ok(())
        };
        let (first, ()) = tokio::try_join!(send_concurrently(&fixture, 12), refused)?;
        ensure!(first.contains(&503), "{first:?}");
        for client in &mut held {
            ensure!(client.response("GET").await?.status() == 200);
        }
        for _ in 0..5 {
            let later = send_concurrently(&fixture, 12).await?;
            ensure!(later.iter().all(|status| *status == 200), "{later:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn full_endpoint_is_tried_without_a_queue_or_alternative() -> Result {
    let answer = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n";
    let refusing = vec![ServeStep::ReadBody, ServeStep::RefuseBeyond(0, answer), ServeStep::Answer];
    let fixture = HttpFixture::of(EndpointBehaviour::from(refusing)).await?;
    for _ in 0..3 {
        // This is the endpoint's own response, not one of Sheave's.
        let response = fixture.client().await?.get("/").await?;
        ensure!(response.status() == 503 && response.field("retry-after").as_deref() == Some("30"));
    }
    ensure!(fixture.endpoint().counts().requests == 3);
    Ok(())
}

#[tokio::test]
async fn refusal_expires_after_a_second_and_long_retry_after_is_cut() -> Result {
    let fixture = refusing_endpoint_fixture(json!({}), REFUSAL).await?;
    send_concurrently(&fixture, 12).await?;
    let over = |limits: &Vec<(String, f64)>| limits.is_empty();
    eventually("no limit", async || limits(&fixture).await, over).await?;
    ensure!(fixture.sheave.metric_sum("sheave_endpoint_refusals_total").await? > 0.0);
    ensure!(fixture.sheave.metric_sum("sheave_endpoint_refusals_cut_total").await? == 0.0);

    const YEAR: &str =
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 31536000\r\nContent-Length: 0\r\n\r\n";
    let fixture = refusing_endpoint_fixture(json!({}), YEAR).await?;
    send_concurrently(&fixture, 12).await?;
    ensure!(fixture.sheave.metric_sum("sheave_endpoint_refusals_cut_total").await? > 0.0);
    Ok(())
}

#[tokio::test]
async fn refusals_are_ignored_by_policy() -> Result {
    let fixture = refusing_endpoint_fixture(json!({ "heedRefusals": "None" }), REFUSAL).await?;
    send_concurrently(&fixture, 12).await?;
    ensure!(limits(&fixture).await?.is_empty());
    ensure!(fixture.sheave.metric_sum("sheave_endpoint_refusals_total").await? == 0.0);
    Ok(())
}

/// Two requests of one client that is above its quota must not lower the limit for the others.
#[tokio::test]
async fn quota_of_one_client_leaves_the_limit_to_all_others() -> Result {
    let of_quota: EndpointBehaviour = vec![
        ServeStep::ReadBody,
        ServeStep::AnswerFor("/quota", QUOTA),
        ServeStep::WaitForGate,
        ServeStep::Answer,
    ]
    .into();
    for (mut policy, all) in [
        (json!({ "maxInFlightPerEndpoint": 8 }), 8.0),
        (json!({ "maxInFlightPerEndpoint": "auto" }), 8.0),
        (json!({ "maxInFlightPerEndpoint": 8, "heedRefusals": "All" }), 1.0),
    ] {
        policy["queue"] = json!({ "timeout": "1h" });
        let fixture = HttpFixture::with_backend_policy(of_quota.clone(), policy).await?;
        for _ in 0..2 {
            ensure!(fixture.client().await?.get("/quota").await?.status() == 429);
        }
        let limit = limits(&fixture).await?;
        ensure!(limit.iter().all(|(_, limit)| *limit == all) && limit.len() == 1, "{limit:?}");
        let (address, endpoint) = (fixture.sheave.address(), fixture.endpoint());
        let mut held = JoinSet::new();
        for _ in 0..8 {
            held.spawn(async move { Http1TestClient::connect(address).await?.get("/").await });
        }
        let in_flight = all as usize;
        endpoint.wait_for_counts("the limit", |counts| counts.in_flight == in_flight).await?;
        endpoint.open_gate(8);
        while let Some(response) = held.join_next().await {
            ensure!(response??.status() == 200);
        }
    }
    Ok(())
}

#[tokio::test]
async fn load_report_sets_the_limit_and_invalid_ones_are_counted() -> Result {
    let auto = json!({ "maxInFlightPerEndpoint": "auto" });
    let answer = |report: &str| {
        EndpointBehaviour::answering(&format!(
            "HTTP/1.1 200 OK\r\n{report}Content-Length: 0\r\n\r\n"
        ))
    };
    let field = "endpoint-load-metrics: TEXT named_metrics.sheave_max_in_flight=";
    let fixture =
        HttpFixture::with_backend_policy(answer(&format!("{field}5\r\n")), auto.clone()).await?;
    let response = fixture.client().await?.get("/").await?;
    ensure!(
        response.field("endpoint-load-metrics").is_some(),
        "the report is not forwarded to the client"
    );
    let reported = |limits: &Vec<(String, f64)>| {
        limits.iter().any(|(labels, limit)| labels.contains("\"reported\"") && *limit == 5.0)
    };
    eventually("a limit of five", async || limits(&fixture).await, reported).await?;

    for (report, reason) in [
        (format!("{field}-1\r\n"), "out_of_range"),
        (format!("{field}5\r\n{field}6\r\n"), "several"),
        ("endpoint-load-metrics: five\r\n".to_owned(), "malformed"),
    ] {
        let fixture = HttpFixture::with_backend_policy(answer(&report), auto.clone()).await?;
        fixture.client().await?.get("/").await?;
        let ignored = "sheave_endpoint_load_reports_ignored_total";
        let counted = |samples: &Vec<(String, f64)>| {
            samples.iter().any(|(labels, count)| labels.contains(reason) && *count == 1.0)
        };
        eventually(reason, async || fixture.sheave.metric_samples(ignored).await, counted).await?;
    }
    Ok(())
}

#[tokio::test]
async fn adaptive_limit_is_toggled_while_requests_run() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::gated()).await?;
    let address = fixture.sheave.address();
    let runs = tokio::spawn(async move { Http1TestClient::connect(address).await?.get("/").await });
    fixture.endpoint().wait_for_counts("a request", |counts| counts.in_flight == 1).await?;
    for (spec, count) in [
        (json!({ "maxInFlightPerEndpoint": "auto", "autoLimit": { "start": 3 } }), 1),
        (json!({}), 0),
        (json!({ "maxInFlightPerEndpoint": 2 }), 1),
    ] {
        fixture.configuration.write("policy.yaml", &[objects::backend_policy("app", spec)])?;
        let expected = |limits: &Vec<(String, f64)>| limits.len() == count;
        eventually("the limits", async || limits(&fixture).await, expected).await?;
    }
    fixture.endpoint().open_gate(1);
    ensure!(runs.await??.status() == 200);
    Ok(())
}
