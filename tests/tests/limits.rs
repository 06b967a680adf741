//! How much an endpoint is given: what was learned of it, and what it says itself.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use tests::load::{Habit, Load};
use tests::patience::eventually;
use tests::{Behaviour, Client, Endpoint, Result, Scene, Step, objects};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const REFUSAL: &str = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n";

/// A server with so many workers, each with one request after the other.
fn workers(count: usize) -> Behaviour {
    let work = Step::Worker(Arc::new(Semaphore::new(count)), Duration::from_millis(20));
    vec![Step::ReadBody, work, Step::Answer].into()
}

async fn limits(scene: &Scene) -> Result<Vec<(String, f64)>> {
    scene.sheave.samples("sheave_endpoint_limit").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adaptive_limit_learns_the_worker_count_under_load() -> Result {
    let endpoints = vec![Endpoint::start(workers(3)).await?, Endpoint::start(workers(3)).await?];
    let policy = json!({ "maxInFlightPerEndpoint": "auto", "queue": { "timeout": "1h" } });
    let policies = [objects::backend_policy("app", policy)];
    let scene = Scene::with(endpoints, &policies, &["--workers", "2"]).await?;
    let load = Load::start(scene.sheave.address(), 16, Habit::GET);
    let learned = |limits: &Vec<(String, f64)>| {
        let is_close = |(labels, limit): &(String, f64)| {
            labels.contains("reason=\"knee\"") && (2.0..=4.0).contains(limit)
        };
        limits.len() == 2 && limits.iter().all(is_close)
    };
    eventually("limits of three", async || limits(&scene).await, learned).await?;
    load.stop().await.assert_all_served();
    Ok(())
}

/// Two endpoints, of which the first bears two requests at once.
async fn one_that_refuses(policy: Value, answer: &'static str) -> Result<Scene> {
    one_that_refuses_with(policy, answer, || Step::Wait(Duration::from_millis(30))).await
}

/// The same, with what they do for a request.
async fn one_that_refuses_with(
    policy: Value,
    answer: &'static str,
    work: fn() -> Step,
) -> Result<Scene> {
    let refusing = vec![Step::ReadBody, Step::RefuseBeyond(2, answer), work(), Step::Answer];
    let roomy = vec![Step::ReadBody, work(), Step::Answer];
    let endpoints = vec![Endpoint::start(refusing).await?, Endpoint::start(roomy).await?];
    Scene::with(endpoints, &[objects::backend_policy("app", policy)], &["--workers", "1"]).await
}

async fn together(scene: &Scene, requests: usize) -> Result<Vec<u16>> {
    let address = scene.sheave.address();
    let request = |_| async move {
        let response = Client::connect(address).await?.get("/").await?;
        Ok::<_, anyhow::Error>(response.status())
    };
    let requests: JoinSet<_> = (0..requests).map(request).collect();
    requests.join_all().await.into_iter().collect()
}

#[tokio::test]
async fn refusing_endpoint_is_avoided_while_others_have_capacity() -> Result {
    const LONG: &str =
        "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n";
    for cap in [json!({}), json!({ "maxInFlightPerEndpoint": 20 })] {
        let scene = one_that_refuses_with(cap, LONG, || Step::Gate).await?;
        // The two that it bears come first: of those that are sent at once one may overtake another, and whoever was
        // picked second may be refused.
        let mut held = Vec::new();
        while scene.endpoints[0].counts().in_flight < 2 {
            let mut client = scene.client().await?;
            client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
            held.push(client);
            let arrived = async || Ok(scene.endpoints.iter().map(|e| e.counts().in_flight).sum());
            eventually("all are there", arrived, |count: &usize| *count == held.len()).await?;
        }
        let refused = async {
            let refusals = async || scene.sheave.sum("sheave_endpoint_refusals_total").await;
            eventually("a refusal", refusals, |count| *count > 0.0).await?;
            let full = limits(&scene).await?;
            let full = full.iter().find(|(labels, _)| labels.contains("reason=\"full\""));
            ensure!(full.is_some_and(|(_, limit)| *limit == 2.0), "{full:?}");
            scene.endpoints.iter().for_each(|endpoint| endpoint.open_gate(1000));
            Ok(())
        };
        let (first, ()) = tokio::try_join!(together(&scene, 12), refused)?;
        ensure!(first.contains(&429), "{first:?}");
        for client in &mut held {
            ensure!(client.response("GET").await?.status() == 200);
        }
        for _ in 0..5 {
            let later = together(&scene, 12).await?;
            ensure!(later.iter().all(|status| *status == 200), "{later:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn full_endpoint_is_tried_without_a_queue_or_alternative() -> Result {
    let answer = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n";
    let refusing = vec![Step::ReadBody, Step::RefuseBeyond(0, answer), Step::Answer];
    let scene = Scene::of(Behaviour::from(refusing)).await?;
    for _ in 0..3 {
        // The endpoint's own answer, not one of Sheave's.
        let response = scene.client().await?.get("/").await?;
        ensure!(response.status() == 503 && response.field("retry-after").as_deref() == Some("30"));
    }
    ensure!(scene.endpoint().counts().requests == 3);
    Ok(())
}

#[tokio::test]
async fn refusal_expires_after_a_second_and_long_retry_after_is_cut() -> Result {
    let scene = one_that_refuses(json!({}), REFUSAL).await?;
    together(&scene, 12).await?;
    let over = |limits: &Vec<(String, f64)>| limits.is_empty();
    eventually("no limit", async || limits(&scene).await, over).await?;
    ensure!(scene.sheave.sum("sheave_endpoint_refusals_total").await? > 0.0);
    ensure!(scene.sheave.sum("sheave_endpoint_refusals_cut_total").await? == 0.0);

    const YEAR: &str =
        "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 31536000\r\nContent-Length: 0\r\n\r\n";
    let scene = one_that_refuses(json!({}), YEAR).await?;
    together(&scene, 12).await?;
    ensure!(scene.sheave.sum("sheave_endpoint_refusals_cut_total").await? > 0.0);
    Ok(())
}

#[tokio::test]
async fn refusals_are_ignored_by_policy() -> Result {
    let scene = one_that_refuses(json!({ "heedRefusals": false }), REFUSAL).await?;
    together(&scene, 12).await?;
    ensure!(limits(&scene).await?.is_empty());
    ensure!(scene.sheave.sum("sheave_endpoint_refusals_total").await? == 0.0);
    Ok(())
}

#[tokio::test]
async fn load_report_sets_the_limit_and_invalid_ones_are_counted() -> Result {
    let auto = json!({ "maxInFlightPerEndpoint": "auto" });
    let answer = |report: &str| {
        Behaviour::answering(&format!("HTTP/1.1 200 OK\r\n{report}Content-Length: 0\r\n\r\n"))
    };
    let field = "endpoint-load-metrics: TEXT named_metrics.sheave_max_in_flight=";
    let scene = Scene::governed(answer(&format!("{field}5\r\n")), auto.clone()).await?;
    let response = scene.client().await?.get("/").await?;
    ensure!(response.field("endpoint-load-metrics").is_some(), "it goes on to the client");
    let said = |limits: &Vec<(String, f64)>| {
        limits.iter().any(|(labels, limit)| labels.contains("\"said\"") && *limit == 5.0)
    };
    eventually("a limit of five", async || limits(&scene).await, said).await?;

    for (report, reason) in [
        (format!("{field}-1\r\n"), "out_of_range"),
        (format!("{field}5\r\n{field}6\r\n"), "several"),
        ("endpoint-load-metrics: five\r\n".to_owned(), "malformed"),
    ] {
        let scene = Scene::governed(answer(&report), auto.clone()).await?;
        scene.client().await?.get("/").await?;
        let ignored = "sheave_endpoint_load_reports_ignored_total";
        let counted = |samples: &Vec<(String, f64)>| {
            samples.iter().any(|(labels, count)| labels.contains(reason) && *count == 1.0)
        };
        eventually(reason, async || scene.sheave.samples(ignored).await, counted).await?;
    }
    Ok(())
}

#[tokio::test]
async fn adaptive_limit_is_toggled_while_requests_run() -> Result {
    let scene = Scene::of(Behaviour::gated()).await?;
    let address = scene.sheave.address();
    let runs = tokio::spawn(async move { Client::connect(address).await?.get("/").await });
    scene.endpoint().until("a request", |counts| counts.in_flight == 1).await?;
    for (spec, count) in [
        (json!({ "maxInFlightPerEndpoint": "auto", "autoLimit": { "start": 3 } }), 1),
        (json!({}), 0),
        (json!({ "maxInFlightPerEndpoint": 2 }), 1),
    ] {
        scene.configuration.write("policy.yaml", &[objects::backend_policy("app", spec)])?;
        let wanted = |limits: &Vec<(String, f64)>| limits.len() == count;
        eventually("the limits", async || limits(&scene).await, wanted).await?;
    }
    scene.endpoint().open_gate(1);
    ensure!(runs.await??.status() == 200);
    Ok(())
}
