//! Traces of requests: their spans as a collector gets them, the context that endpoints get, and a collector that is
//! away.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::certificates::CertificateAuthority;
use tests::collector::{ReceivedSpan, TraceCollector, hex};
use tests::configuration::{SERVICE, TempDirectory};
use tests::fixture::{addresses, start_endpoints};
use tests::http2::Http2TestEndpoint;
use tests::sheave::{binary, run};
use tests::tls::TlsFront;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, HttpFixture, Result, ServeStep, SheaveProcess,
    eventually, objects, within,
};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
/// Limit of traces that no test reaches.
const UNLIMITED: &str = "100000";

fn sampled() -> String {
    format!("00-{TRACE}-{SPAN}-01")
}

fn not_sampled() -> String {
    format!("00-{TRACE}-{SPAN}-00")
}

/// Starts Sheave with these endpoints and policies, whose traces go to this collector.
async fn traced(
    collector: &TraceCollector,
    endpoints: Vec<Endpoint>,
    policies: &[Value],
    arguments: &[&str],
) -> Result<HttpFixture> {
    let url = collector.url();
    let own = ["--otlp-endpoint", &url, "--workers", "1", "--trace-limit", UNLIMITED];
    HttpFixture::with(endpoints, policies, &[&own, arguments].concat()).await
}

/// Returns the only span of this kind.
fn only(spans: &[ReceivedSpan], kind: i32) -> Result<&ReceivedSpan> {
    let mut found = spans.iter().filter(|span| span.kind == kind);
    let span = found.next().context("a span")?;
    ensure!(found.next().is_none(), "more than one: {spans:#?}");
    Ok(span)
}

fn traceparents(endpoints: &[Endpoint]) -> Vec<Option<String>> {
    let requests = endpoints.iter().flat_map(Endpoint::requests);
    requests.map(|request| request.head.field("traceparent")).collect()
}

#[tokio::test]
async fn request_has_spans_of_itself_and_its_attempt() -> Result {
    let collector = TraceCollector::start().await?;
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let fixture = traced(&collector, endpoints, &[], &["--trace-share", "0"]).await?;
    let mut client = fixture.client().await?;
    let fields = [
        ("traceparent", sampled()),
        ("tracestate", "vendor=1".to_owned()),
        ("baggage", "user=7".to_owned()),
    ];
    let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
    client.exchange("GET", "/cart?secret=1", &fields, b"").await?;

    let spans = collector.wait_for_spans(2).await?;
    let (server, attempt) =
        (only(&spans, ReceivedSpan::SERVER)?, only(&spans, ReceivedSpan::CLIENT)?);
    ensure!(hex(&server.trace_id) == TRACE && hex(&server.parent_span_id) == SPAN, "{server:?}");
    ensure!(server.flags == 0x301 && server.trace_state == "vendor=1", "{server:?}");
    ensure!(server.name == "GET default/app/0", "{server:?}");
    ensure!(attempt.parent_span_id == server.span_id && attempt.name == "GET", "{attempt:?}");
    let endpoint = fixture.endpoint().address.to_string();
    for (span, key, value) in [
        (server, "http.request.method", "GET"),
        (server, "url.path", "/cart"),
        (server, "url.scheme", "http"),
        (server, "client.address", "127.0.0.1"),
        (server, "http.response.status_code", "200"),
        (server, "network.protocol.version", "1.1"),
        (server, "sheave.route", "default/app/0"),
        (server, "sheave.endpoint", &endpoint),
        (server, "sheave.attempts", "1"),
        (server, "sheave.sampled_by", "parent"),
        (attempt, "server.address", "127.0.0.1"),
        (attempt, "http.response.status_code", "200"),
        (attempt, "network.protocol.version", "1.1"),
        (attempt, "sheave.endpoint", &endpoint),
    ] {
        ensure!(span.attribute(key).as_deref() == Some(value), "{key}: {span:#?}");
    }
    ensure!(server.start_time_unix_nano <= attempt.start_time_unix_nano, "{spans:#?}");
    ensure!(attempt.start_time_unix_nano < attempt.end_time_unix_nano, "{spans:#?}");
    ensure!(attempt.end_time_unix_nano <= server.end_time_unix_nano, "{spans:#?}");

    // The endpoint's spans become children of the attempt.
    let request = fixture.endpoint().only_request();
    ensure!(request.head.field_values("traceparent") == [attempt.as_parent()], "{request:?}");
    ensure!(request.head.field("tracestate").as_deref() == Some("vendor=1"), "{request:?}");
    ensure!(request.head.field("baggage").as_deref() == Some("user=7"), "{request:?}");
    let export = &collector.exports()[0];
    ensure!(export.target == "/v1/traces", "{export:?}");
    ensure!(export.content_type == "application/x-protobuf", "{export:?}");
    ensure!(export.resource("service.name").as_deref() == Some("sheave"), "{export:?}");
    fixture.sheave.wait_for_sum("sheave_spans_exported_total", &[], 2.0).await?;
    fixture.sheave.wait_for_sum("sheave_traces_total", &["reason=\"parent\""], 1.0).await
}

#[tokio::test]
async fn decision_of_the_client_is_followed_and_else_the_share() -> Result {
    let collector = TraceCollector::start().await?;
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let fixture = traced(&collector, endpoints, &[], &[]).await?;
    let mut client = fixture.client().await?;
    client.exchange("GET", "/1", &[("traceparent", &not_sampled())], b"").await?;
    client.get("/2").await?;
    let spans = collector.wait_for_spans(2).await?;
    let server = only(&spans, ReceivedSpan::SERVER)?;
    ensure!(server.attribute("url.path").as_deref() == Some("/2"), "{spans:#?}");
    ensure!(server.parent_span_id.is_empty() && server.trace_id != [0; 16], "{server:?}");
    let attempt = only(&spans, ReceivedSpan::CLIENT)?;
    let expected = [Some(not_sampled()), Some(attempt.as_parent())];
    ensure!(traceparents(&fixture.endpoints) == expected, "unsampled contexts stay as they are");
    Ok(())
}

#[tokio::test]
async fn malformed_contexts_begin_a_new_trace() -> Result {
    let collector = TraceCollector::start().await?;
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let fixture = traced(&collector, endpoints, &[], &[]).await?;
    let mut client = fixture.client().await?;
    let long = "f".repeat(8000);
    let repeated = sampled();
    for fields in [
        &[("traceparent", "00-0-0-01"), ("tracestate", "vendor=1")][..],
        &[("traceparent", &long)],
        &[("traceparent", &repeated), ("traceparent", &repeated)],
        &[("b3", "1-2-3-4-5-6")],
        &[("x-b3-traceid", TRACE), ("x-b3-spanid", "no")],
    ] {
        ensure!(client.exchange("GET", "/", fields, b"").await?.status() == 200, "{fields:?}");
    }
    let spans = collector.wait_for_spans(10).await?;
    for span in spans.iter().filter(|span| span.kind == ReceivedSpan::SERVER) {
        ensure!(span.parent_span_id.is_empty() && span.trace_state.is_empty(), "{span:?}");
        ensure!(hex(&span.trace_id) != TRACE, "{span:?}");
    }
    for request in fixture.endpoint().requests() {
        ensure!(request.head.field_values("traceparent").len() == 1, "{request:?}");
        ensure!(!request.head.has_field("tracestate"), "{request:?}");
    }
    Ok(())
}

#[tokio::test]
async fn b3_contexts_are_continued_in_their_form() -> Result {
    let collector = TraceCollector::start().await?;
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let fixture = traced(&collector, endpoints, &[], &["--trace-share", "0"]).await?;
    let mut client = fixture.client().await?;
    let single = format!("{TRACE}-{SPAN}-1");
    let several = [("X-B3-TraceId", TRACE), ("X-B3-SpanId", SPAN), ("X-B3-Sampled", "1")];
    client.exchange("GET", "/", &[("b3", &single)], b"").await?;
    client.exchange("GET", "/", &several, b"").await?;
    let spans = collector.wait_for_spans(4).await?;
    ensure!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "{spans:#?}");
    let attempts: Vec<_> = spans.iter().filter(|span| span.kind == ReceivedSpan::CLIENT).collect();
    let requests = fixture.endpoint().requests();
    let [first, second] = &requests[..] else { anyhow::bail!("{requests:?}") };
    let (span, parent) = (hex(&attempts[0].span_id), hex(&attempts[0].parent_span_id));
    let expected = format!("{TRACE}-{span}-1-{parent}");
    ensure!(first.head.field("b3").as_deref() == Some(&*expected), "{first:?}");
    let span = hex(&attempts[1].span_id);
    ensure!(second.head.field_values("x-b3-spanid") == [span.as_str()], "{second:?}");
    ensure!(second.head.field_values("x-b3-traceid") == [TRACE], "{second:?}");
    Ok(())
}

/// Requests of a test, so many that each endpoint is the first of some.
const REQUESTS: usize = 12;

/// An endpoint that closes, one that says 503, and one that answers: each attempt has a span of its own, whose ID its
/// endpoint gets.
#[tokio::test]
async fn each_attempt_has_a_span() -> Result {
    let collector = TraceCollector::start().await?;
    let closing = vec![ServeStep::ReadBody, ServeStep::Close];
    let failing = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    let endpoints = vec![
        Endpoint::start(closing).await?,
        Endpoint::start(EndpointBehaviour::answering(failing)).await?,
        Endpoint::start(EndpointBehaviour::ok()).await?,
    ];
    let policy = json!({
        "algorithm": "RoundRobin",
        "retry": { "attempts": 3, "statuses": [503], "backoffBase": "1ms", "budgetFloorPerSecond": 1000 },
        "health": { "passive": { "ejectOn": "Nothing" } },
    });
    let policies = [objects::backend_policy("app", policy)];
    let fixture = traced(&collector, endpoints, &policies, &["--trace-share", "0"]).await?;
    let mut client = fixture.client().await?;
    // By turns, requests begin at each of the endpoints.
    for _ in 0..REQUESTS {
        client.exchange("GET", "/", &[("traceparent", &sampled())], b"").await?;
    }
    let is_server = |span: &&ReceivedSpan| span.kind == ReceivedSpan::SERVER;
    let spans = eventually(
        "spans",
        async || Ok(collector.spans()),
        |spans| spans.iter().filter(is_server).count() == REQUESTS,
    );
    let spans = spans.await?;
    let sent = traceparents(&fixture.endpoints);
    let mut kinds = BTreeSet::new();
    for server in spans.iter().filter(is_server) {
        let attempts: Vec<_> = spans
            .iter()
            .filter(|it| it.parent_span_id == server.span_id && it.kind == ReceivedSpan::CLIENT)
            .collect();
        let count = attempts.len().to_string();
        ensure!(server.attribute("sheave.attempts") == Some(count), "{server:?}: {attempts:#?}");
        for (number, attempt) in attempts.iter().enumerate() {
            let is_last = number + 1 == attempts.len();
            let kind = attempt.attribute("error.type");
            ensure!((kind.is_none(), attempt.is_error()) == (is_last, !is_last), "{attempts:#?}");
            kinds.extend(kind);
            let resends = (number > 0).then(|| number.to_string());
            ensure!(attempt.attribute("http.request.resend_count") == resends, "{attempts:#?}");
            // Every endpoint has the span of its own attempt.
            let expected = Some(attempt.as_parent());
            let received = sent.iter().filter(|it| **it == expected).count();
            ensure!(received == 1, "{sent:?}: {attempt:?}");
        }
    }
    ensure!(kinds.iter().eq(["503", "endpoint_closed"]), "{kinds:?}");
    Ok(())
}

#[tokio::test]
async fn attempts_over_http2_have_spans() -> Result {
    let collector = TraceCollector::start().await?;
    let endpoint = Http2TestEndpoint::ok().await?;
    let configuration = ConfigDirectory::empty()?;
    let service = objects::with_app_protocol("kubernetes.io/h2c", objects::service(SERVICE));
    let mut objects = objects::gateway();
    objects.extend([objects::route(SERVICE), service]);
    configuration.write("main.yaml", &objects)?;
    configuration.set_endpoints(&[endpoint.address])?;
    let arguments = ["--otlp-endpoint", &collector.url()];
    let sheave = SheaveProcess::serve_with(&configuration, &arguments).await?;
    let mut client = tests::Http1TestClient::connect(sheave.address()).await?;
    ensure!(client.get("/").await?.status() == 200);
    let spans = collector.wait_for_spans(2).await?;
    let attempt = only(&spans, ReceivedSpan::CLIENT)?;
    ensure!(attempt.attribute("network.protocol.version").as_deref() == Some("2"), "{attempt:?}");
    let request = endpoint.only_request();
    let parent = request.headers().get("traceparent").context("a parent")?.to_str()?;
    ensure!(parent == attempt.as_parent(), "{parent}");
    Ok(())
}

#[tokio::test]
async fn wait_in_the_queue_is_a_span() -> Result {
    let collector = TraceCollector::start().await?;
    let endpoints = vec![Endpoint::start(EndpointBehaviour::gated()).await?];
    let policy =
        json!({ "maxInFlightPerEndpoint": 1, "queue": { "maxRequests": 1, "timeout": "20s" } });
    let policies = [objects::backend_policy("app", policy)];
    let fixture = traced(&collector, endpoints, &policies, &["--trace-share", "0"]).await?;
    let (mut first, mut second, mut third) =
        (fixture.client().await?, fixture.client().await?, fixture.client().await?);
    let parent = sampled();
    let fields = [("traceparent", parent.as_str())];
    let served = async { first.get("/first").await };
    let waited = async {
        fixture
            .endpoint()
            .wait_for_counts("the first request", |counts| counts.in_flight == 1)
            .await?;
        Ok::<_, anyhow::Error>(second.exchange("GET", "/second", &fields, b"").await?)
    };
    let refused = async {
        fixture.sheave.wait_for_queue_length(1).await?;
        let response = third.get("/third").await?;
        fixture.endpoint().open_gate(2);
        Ok::<_, anyhow::Error>(response)
    };
    let (served, waited, refused) = tokio::join!(served, waited, refused);
    ensure!((served?.status(), waited?.status(), refused?.status()) == (200, 200, 429));
    // The refused request is traced because it failed.
    let spans = collector.wait_for_spans(4).await?;
    let queue = only(&spans, ReceivedSpan::INTERNAL)?;
    let attempt = only(&spans, ReceivedSpan::CLIENT)?;
    ensure!(queue.name == "sheave.queue" && hex(&queue.trace_id) == TRACE, "{spans:#?}");
    ensure!(queue.start_time_unix_nano < queue.end_time_unix_nano, "{queue:?}");
    let gap = attempt.start_time_unix_nano.abs_diff(queue.end_time_unix_nano);
    ensure!(Duration::from_nanos(gap) < Duration::from_millis(500), "{spans:#?}");
    ensure!(queue.attribute("sheave.queue_position").as_deref() == Some("1"), "{queue:?}");
    let refused = spans.iter().find(|span| hex(&span.trace_id) != TRACE).context("a span")?;
    for (key, value) in [
        ("error.type", "queue_full"),
        ("http.response.status_code", "429"),
        ("sheave.sampled_by", "failed"),
    ] {
        ensure!(refused.attribute(key).as_deref() == Some(value), "{key}: {refused:#?}");
    }
    ensure!(refused.is_error(), "{refused:#?}");
    Ok(())
}

/// Requests whose clients do not sample their traces are traced if they fail or are slow.
#[tokio::test]
async fn failed_and_slow_requests_are_traced_in_any_case() -> Result {
    let collector = TraceCollector::start().await?;
    let steps = vec![
        ServeStep::ReadBody,
        ServeStep::CloseFor("/closed"),
        ServeStep::AnswerFor("/quick", "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
        ServeStep::Wait(Duration::from_millis(300)),
        ServeStep::Answer,
    ];
    let endpoints = vec![Endpoint::start(steps).await?];
    let arguments = ["--trace-share", "0", "--trace-slow", "250ms"];
    let fixture = traced(&collector, endpoints, &[], &arguments).await?;
    let mut client = fixture.client().await?;
    let parent = not_sampled();
    for (path, status) in [("/quick", 404), ("/closed", 502), ("/slow", 200)] {
        let response = client.exchange("GET", path, &[("traceparent", &parent)], b"").await?;
        ensure!(response.status() == status, "{path}: {response:?}");
    }
    let spans = eventually(
        "spans",
        async || Ok(collector.spans()),
        |spans| spans.iter().filter(|span| span.kind == ReceivedSpan::SERVER).count() == 2,
    );
    let spans = spans.await?;
    ensure!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "{spans:#?}");
    let of = |reason: &str| {
        let mut servers = spans.iter().filter(|span| span.kind == ReceivedSpan::SERVER);
        servers.find(|span| span.attribute("sheave.sampled_by").as_deref() == Some(reason))
    };
    let (failed, slow) = (of("failed").context("failed")?, of("slow").context("slow")?);
    ensure!(failed.attribute("url.path").as_deref() == Some("/closed"), "{failed:?}");
    ensure!(failed.attribute("error.type").as_deref() == Some("endpoint_closed"), "{failed:?}");
    ensure!(failed.is_error() && !slow.is_error(), "{spans:#?}");
    ensure!(slow.attribute("url.path").as_deref() == Some("/slow"), "{slow:?}");
    let sent = traceparents(&fixture.endpoints);
    ensure!(sent.iter().all(|it| *it == Some(parent.clone())), "{sent:?}");
    Ok(())
}

/// A request that Sheave answers itself is traced too: a redirect, and one without a route.
#[tokio::test]
async fn local_answers_are_traced() -> Result {
    let collector = TraceCollector::start().await?;
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let rules = json!({ "rules": [{ "filters": [{
        "type": "RequestRedirect",
        "requestRedirect": { "hostname": "other.test", "statusCode": 302 },
    }] }], "hostnames": ["moved.test"] });
    let policies = [objects::route_with("moved", rules)];
    let fixture = traced(&collector, endpoints, &policies, &[]).await?;
    let mut client = fixture.client().await?;
    let response = client.exchange("GET", "/", &[("Host", "moved.test")], b"").await?;
    ensure!(response.status() == 302, "{response:?}");
    let spans = collector.wait_for_spans(1).await?;
    let server = only(&spans, ReceivedSpan::SERVER)?;
    ensure!(server.name == "GET default/moved/0", "{server:?}");
    ensure!(server.attribute("sheave.sampled_by").as_deref() == Some("share"), "{server:?}");
    Ok(())
}

#[tokio::test]
async fn clients_cannot_cause_more_traces_than_the_limit() -> Result {
    let collector = TraceCollector::start().await?;
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let configuration = ConfigDirectory::for_endpoints_with(&addresses(&endpoints), &[])?;
    let url = collector.url();
    let arguments = ["--otlp-endpoint", &url, "--workers", "1", "--trace-limit", "1"];
    let sheave = SheaveProcess::serve_with(&configuration, &arguments).await?;
    let mut client = tests::Http1TestClient::connect(sheave.address()).await?;
    let began = tokio::time::Instant::now();
    for _ in 0..50 {
        client.exchange("GET", "/", &[("traceparent", &sampled())], b"").await?;
    }
    let most = 2.0 + began.elapsed().as_secs_f64();
    let traced = sheave.metric_sum("sheave_traces_total").await?;
    let limited = sheave.metric_sum("sheave_traces_limited_total").await?;
    ensure!(traced >= 1.0 && traced <= most && traced + limited == 50.0, "{traced} {limited}");
    Ok(())
}

/// A collector that refuses connections, hangs, answers with garbage, or rejects everything: requests are served, spans
/// are dropped and counted, and the process ends in time.
#[tokio::test]
async fn collector_that_is_away_costs_spans_and_no_request() -> Result {
    let refusing = format!("http://{}", tests::endpoint::refusing_address().await?);
    let unresolvable = "http://collector.invalid:4318".to_owned();
    let garbage = TraceCollector::answering("no HTTP at all\r\n\r\n").await?;
    let rejecting =
        TraceCollector::answering("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await?;
    let hanging = TraceCollector::answering("").await?;
    for (url, dropped) in [
        (refusing, Some("undelivered")),
        (unresolvable, Some("undelivered")),
        (garbage.url(), Some("undelivered")),
        (rejecting.url(), Some("rejected")),
        (hanging.url(), None),
    ] {
        let endpoints = start_endpoints(1, &EndpointBehaviour::ok()).await?;
        let configuration = ConfigDirectory::for_endpoints_with(&addresses(&endpoints), &[])?;
        let arguments = ["--otlp-endpoint", &url, "--workers", "1", "--trace-limit", UNLIMITED];
        let mut sheave = SheaveProcess::serve_with(&configuration, &arguments).await?;
        let mut client = tests::Http1TestClient::connect(sheave.address()).await?;
        for _ in 0..20 {
            ensure!(client.get("/").await?.status() == 200, "{url}");
        }
        if let Some(reason) = dropped {
            let label = format!("reason=\"{reason}\"");
            sheave.wait_for_sum("sheave_spans_dropped_total", &[&label], 40.0).await?;
            sheave.wait_for_log(0, "collector").await?;
        }
        ensure!(sheave.metric_sum("sheave_spans_exported_total").await? == 0.0, "{url}");
        drop(client);
        sheave.signal(Signal::TERM)?;
        ensure!(sheave.wait_for_exit().await?.success(), "{url}: {}", sheave.log());
    }
    Ok(())
}

/// More spans than may wait for a collector that hangs are dropped.
#[tokio::test]
async fn spans_that_wait_for_the_collector_are_bounded() -> Result {
    let hanging = TraceCollector::answering("").await?;
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let fixture = traced(&hanging, endpoints, &[], &[]).await?;
    let mut client = fixture.client().await?;
    // Two spans each; 512 are on their way, and 4,096 may wait.
    for _ in 0..2500 {
        client.get("/").await?;
    }
    let dropped = async || fixture.sheave.metric_sum("sheave_spans_dropped_total").await;
    let dropped = eventually("dropped spans", dropped, |dropped| *dropped > 0.0).await?;
    ensure!(dropped < 1000.0, "{dropped}");
    Ok(())
}

#[tokio::test]
async fn last_spans_are_sent_at_the_end_of_the_process() -> Result {
    let collector = TraceCollector::start().await?;
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let mut fixture = traced(&collector, endpoints, &[], &[]).await?;
    let mut client = fixture.client().await?;
    client.get("/").await?;
    drop(client);
    fixture.sheave.signal(Signal::TERM)?;
    ensure!(fixture.sheave.wait_for_exit().await?.success());
    ensure!(collector.spans().len() == 2, "{:?}", collector.spans());
    Ok(())
}

#[tokio::test]
async fn collector_is_verified_by_its_authority() -> Result {
    let collector = TraceCollector::start().await?;
    let (authority, other) = (CertificateAuthority::new(), CertificateAuthority::new());
    let identity = authority.issue(&["localhost"]);
    let front = TlsFront::of(collector.address, &identity, &[]).await?;
    let files = TempDirectory::new()?;
    let url = format!("https://localhost:{}", front.address.port());
    for (authority, is_trusted) in [(&authority, true), (&other, false)] {
        let file = files.path().join("ca.crt");
        std::fs::write(&file, &authority.pem)?;
        let file = file.to_str().context("a path")?;
        let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
        let configuration = ConfigDirectory::for_endpoints_with(&addresses(&endpoints), &[])?;
        let arguments = ["--otlp-endpoint", &url, "--otlp-ca", file];
        let sheave = SheaveProcess::serve_with(&configuration, &arguments).await?;
        tests::Http1TestClient::connect(sheave.address()).await?.get("/").await?;
        if is_trusted {
            collector.wait_for_spans(2).await?;
        } else {
            sheave.wait_for_log(0, "TLS: ").await?;
        }
    }
    ensure!(collector.spans().len() == 2, "{:?}", collector.spans());
    Ok(())
}

#[tokio::test]
async fn invalid_settings_of_traces_are_errors() -> Result {
    let files = TempDirectory::new()?;
    let empty = files.path().join("empty.crt");
    std::fs::write(&empty, "")?;
    let empty = empty.to_str().context("a path")?;
    let serve = ["serve", "--listen", "http://127.0.0.1:0", "--to", "127.0.0.1:1"];
    for (arguments, part) in [
        (&["--otlp-endpoint", "collector:4317"][..], "http://collector:4318"),
        (&["--otlp-endpoint", "https://c:1", "--otlp-ca", empty], "there is no certificate"),
        (&["--otlp-endpoint", "https://c:1", "--otlp-ca", "/absent"], "/absent"),
        (&["--trace-share", "2"], "share from 0 to 1"),
        (&["--trace-limit", "0"], "--trace-limit"),
    ] {
        let output = run(serve.iter().chain(arguments)).await?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && text.contains(part), "{arguments:?}: {text}");
    }
    Ok(())
}

/// Variables of the environment may be meant for other programs: alone they stop nothing.
#[tokio::test]
async fn invalid_variables_alone_do_not_stop_the_start() -> Result {
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/absent"),
    ] {
        let mut command = Command::new(binary()?);
        command.args(["serve", "--listen", "http://127.0.0.1:0", "--to", "127.0.0.1:1"]);
        command.args(["--workers", "1", "--admin", "127.0.0.1:0"]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1").env(name, value);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn()?;
        let mut lines = BufReader::new(child.stderr.take().context("a pipe")?).lines();
        let mut log = String::new();
        while !log.contains("sheave starts") {
            let line = within("a line of the log", lines.next_line()).await??;
            let line = line.with_context(|| format!("{name}: sheave ended: {log}"))?;
            log.push_str(&line);
        }
        ensure!(log.contains("no traces") && log.contains(name), "{log}");
    }
    Ok(())
}
