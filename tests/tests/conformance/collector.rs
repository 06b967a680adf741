//! The OpenTelemetry Collector: it takes our traces over HTTP, and understands each span.

use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::configuration::TempDirectory;
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, ServeStep, eventually, objects};
use tokio::net::TcpStream;

use crate::tools;

/// Trace of the client, and its span.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
/// The number of requests.
const REQUESTS: usize = 4;

/// The spans that the collector has written, one JSON object each.
fn spans(text: &str) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for line in text.lines() {
        let batch: Value = serde_json::from_str(line)?;
        for resource in batch["resourceSpans"].as_array().into_iter().flatten() {
            for scope in resource["scopeSpans"].as_array().into_iter().flatten() {
                all.extend(scope["spans"].as_array().into_iter().flatten().cloned());
            }
        }
    }
    Ok(all)
}

fn attribute<'s>(span: &'s Value, key: &str) -> Option<&'s Value> {
    let attributes = span["attributes"].as_array()?;
    let found = attributes.iter().find(|attribute| attribute["key"] == key)?;
    found["value"].as_object()?.values().next()
}

#[tokio::test]
#[ignore = "needs the programs of `make conformance`"]
async fn collector_understands_every_span() -> Result {
    let files = TempDirectory::new()?;
    let (output, configuration) =
        (files.path().join("traces.json"), files.path().join("collector.yaml"));
    // The collector does not report its address, so it gets a port that was free just now.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let settings = json!({
        "receivers": { "otlp": { "protocols": { "http": { "endpoint": address.to_string() } } } },
        "exporters": { "file": { "path": output, "flush_interval": "100ms" } },
        "service": {
            "pipelines": { "traces": { "receivers": ["otlp"], "exporters": ["file"] } },
            "telemetry": { "metrics": { "level": "none" } },
        },
    });
    fs::write(&configuration, settings.to_string())?;
    let mut command = tools::program("collector")?;
    command.arg("--config").arg(&configuration);
    let _running = command.spawn()?;
    let connected = async || Ok(TcpStream::connect(address).await.is_ok());
    eventually("the collector", connected, |connected| *connected).await?;

    let closing = vec![ServeStep::ReadBody, ServeStep::CloseFor("/closed"), ServeStep::Answer];
    let endpoints =
        vec![Endpoint::start(closing).await?, Endpoint::start(EndpointBehaviour::ok()).await?];
    let policies = [objects::backend_policy("app", json!({ "algorithm": "RoundRobin" }))];
    let url = format!("http://{address}");
    let fixture = HttpFixture::with(endpoints, &policies, &["--otlp-endpoint", &url]).await?;
    let mut client = fixture.client().await?;
    let parent = format!("00-{TRACE}-{SPAN}-01");
    // By turns, so that one of them is closed at least.
    for _ in 0..REQUESTS {
        let response = client.exchange("GET", "/closed", &[("traceparent", &parent)], b"").await?;
        ensure!(response.status() == 200, "{response:?}");
    }

    let read = async || spans(&fs::read_to_string(&output).unwrap_or_default());
    let spans = eventually("spans", read, |spans| is_complete(spans)).await?;
    ensure!(spans.iter().all(|span| span["traceId"] == TRACE), "{spans:#?}");
    let of_kind = |kind: u64| spans.iter().filter(move |span| span["kind"] == kind);
    ensure!(of_kind(2).count() + of_kind(3).count() == spans.len(), "{spans:#?}");
    for server in of_kind(2) {
        ensure!(server["parentSpanId"] == SPAN, "{server:#}");
        ensure!(server["name"] == "GET default/app/0", "{server:#}");
        ensure!(
            attribute(server, "sheave.backend") == Some(&json!("default/app:80")),
            "{server:#}"
        );
    }
    let failed = of_kind(3).find(|span| span["status"]["code"] == 2).context("a failed attempt")?;
    ensure!(attribute(failed, "error.type") == Some(&json!("endpoint_closed")), "{failed:#}");
    let servers: Vec<_> = of_kind(2).map(|server| &server["spanId"]).collect();
    ensure!(of_kind(3).all(|span| servers.contains(&&span["parentSpanId"])), "{spans:#?}");
    let nanoseconds = |span: &Value, key: &str| span[key].as_str()?.parse::<u64>().ok();
    for span in &spans {
        let times =
            nanoseconds(span, "startTimeUnixNano").zip(nanoseconds(span, "endTimeUnixNano"));
        let (started, ended) = times.context("times")?;
        let took = Duration::from_nanos(ended.checked_sub(started).context("an order")?);
        ensure!(took < Duration::from_secs(20), "{span:#}");
    }
    // The collector has answered each message with success.
    fixture.sheave.wait_for_sum("sheave_spans_exported_total", &[], spans.len() as f64).await
}

/// True if all requests are there, each with as many attempts as it says.
fn is_complete(spans: &[Value]) -> bool {
    let of_kind = |kind: u64| spans.iter().filter(move |span| span["kind"] == kind);
    let attempts = of_kind(2)
        .filter_map(|server| attribute(server, "sheave.attempts")?.as_str()?.parse::<usize>().ok());
    of_kind(2).count() == REQUESTS && of_kind(3).count() == attempts.sum::<usize>()
}
