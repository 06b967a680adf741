//! Demand as an autoscaler sees it: through KEDA's external scaler interface, and through metrics.

use std::time::Duration;

use anyhow::{bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::keda::KedaClient;
use tests::load::{ClientPattern, LoadGenerator};
use tests::machine::CpuWaitMeter;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result,
    SheaveProcess, eventually, objects,
};
use tokio::time::Instant;
use tonic::Code;

const SCALER: [&str; 2] = ["--scaler", "127.0.0.1:0"];

/// Maximum time from the first queued request until an autoscaler is notified.
const MAX_PUSH_DELAY: Duration = Duration::from_millis(100);

/// Returns a fixture without endpoints, and with a BackendPolicy of this `spec`.
async fn fixture_without_endpoints(spec: Value) -> Result<HttpFixture> {
    HttpFixture::with(Vec::new(), &[objects::backend_policy("app", spec)], &SCALER).await
}

/// Returns a fixture with one gated endpoint, and with a BackendPolicy of this `spec`.
async fn gated_fixture(spec: Value) -> Result<HttpFixture> {
    let endpoint = Endpoint::start(EndpointBehaviour::gated()).await?;
    HttpFixture::with(vec![endpoint], &[objects::backend_policy("app", spec)], &SCALER).await
}

/// Returns a client that has sent a request and has no response yet.
async fn begin_request(fixture: &HttpFixture) -> Result<Http1TestClient> {
    let mut client = fixture.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    Ok(client)
}

/// Returns the request-seconds of the Service: in flight, queued and rejected.
async fn request_seconds(fixture: &HttpFixture) -> Result<[f64; 3]> {
    let samples = fixture.sheave.metric_samples("sheave_backend_request_seconds_total").await?;
    let of = |kind: &str| samples.iter().find(|(labels, _)| labels.contains(kind));
    let kinds = ["in_flight", "queued", "rejected"].map(of);
    let [Some(in_flight), Some(queued), Some(rejected)] = kinds else {
        bail!("a kind is missing: {samples:?}")
    };
    Ok([in_flight.1, queued.1, rejected.1])
}

async fn wait_for_demand(keda: &mut KedaClient, expected: f64) -> Result {
    let near = |seen: &f64| (seen - expected).abs() < 1e-6;
    eventually("demand", async || Ok(keda.demand().await?), near).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scale_from_zero_activates_and_serves_the_first_request() -> Result {
    let fixture =
        fixture_without_endpoints(json!({ "queue": { "maxRequests": 8, "timeout": "60s" } }))
            .await?;
    let mut keda =
        KedaClient::connect(&fixture.sheave, &[("service", "app"), ("target", "4")]).await?;
    let mut streams = [keda.activity_stream().await?, keda.activity_stream().await?];
    for stream in &mut streams {
        ensure!(!stream.next().await??, "active without any request");
    }
    ensure!(!keda.is_active().await? && keda.demand().await? == 0.0);

    let meter = CpuWaitMeter::start(&fixture.sheave)?;
    let sent = Instant::now();
    let mut client = begin_request(&fixture).await?;
    for stream in &mut streams {
        ensure!(stream.next().await??, "inactive though a request is queued");
    }
    let took = sent.elapsed();
    let starved = meter.waited()?;
    eprintln!("notified after {took:?}; threads waited {starved:?} for a CPU");
    ensure!(
        took <= MAX_PUSH_DELAY + starved,
        "notified after {took:?}, of which {starved:?} waiting for a CPU"
    );
    ensure!(keda.is_active().await? && keda.demand().await? > 0.0);
    fixture.sheave.wait_for_queue_length(1).await?;
    // KEDA may not have been able to start a pod: it is told again while there is none.
    ensure!(streams[0].next().await??, "inactive though a request is queued");

    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    fixture.configuration.set_endpoints(&[endpoint.address])?;
    ensure!(client.response("GET").await?.status() == 200);
    ensure!(endpoint.requests().len() == 1, "the request was not sent exactly once");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scale_from_zero_is_activated_by_a_refused_request() -> Result {
    let fixture = fixture_without_endpoints(json!({ "queue": { "maxRequests": 0 } })).await?;
    let mut keda = KedaClient::connect(&fixture.sheave, &[("service", "default/app")]).await?;
    let mut stream = keda.activity_stream().await?;
    ensure!(!stream.next().await??);
    ensure!(fixture.client().await?.get("/").await?.status() == 503);
    ensure!(stream.next().await??, "a refused request does not count as demand");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demand_is_the_average_of_in_flight_and_queued_requests() -> Result {
    let fixture = gated_fixture(
        json!({ "maxInFlightPerEndpoint": 4, "queue": { "maxRequests": 8 , "timeout": "60s" } }),
    );
    let fixture = fixture.await?;
    let metadata = [("service", "app"), ("port", "80"), ("window", "1s")];
    let mut keda = KedaClient::connect(&fixture.sheave, &metadata).await?;
    let mut stream = keda.activity_stream().await?;
    ensure!(!stream.next().await??);
    ensure!(
        keda.target().await? == 4.0 && keda.streamed_target().await? == 4.0,
        "the target is not the cap"
    );
    let mut half = metadata.to_vec();
    half.push(("target", "2.8"));
    ensure!(KedaClient::connect(&fixture.sheave, &half).await?.target().await? == 2.8);

    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(begin_request(&fixture).await?);
    }
    fixture.sheave.wait_for_queue_length(2).await?;
    ensure!(stream.next().await??);
    wait_for_demand(&mut keda, 6.0).await?;
    // The threshold is compared with averages alone.
    let mut busy = metadata.to_vec();
    busy.push(("activationDemand", "5.5"));
    ensure!(KedaClient::connect(&fixture.sheave, &busy).await?.is_active().await?);
    busy.push(("activationDemand", "6.5"));
    ensure!(!KedaClient::connect(&fixture.sheave, &busy).await?.is_active().await?);

    // The average over 15 seconds is lower. It equals the increase of request-seconds in the
    // metrics, divided by the time.
    let seconds @ [in_flight, queued, rejected] = request_seconds(&fixture).await?;
    ensure!((in_flight / queued - 2.0).abs() < 0.5 && rejected == 0.0, "{seconds:?}");
    ensure!(fixture.sheave.metric_sum("sheave_backend_demand").await? > 0.0);
    fixture.endpoint().open_gate(6);
    for client in &mut clients {
        ensure!(client.response("GET").await?.status() == 200);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn activity_ends_when_the_window_has_no_demand() -> Result {
    let fixture = gated_fixture(json!({ "maxInFlightPerEndpoint": 4 })).await?;
    let metadata = [("service", "app"), ("window", "1s")];
    let mut keda = KedaClient::connect(&fixture.sheave, &metadata).await?;
    let mut stream = keda.activity_stream().await?;
    ensure!(!stream.next().await??);
    let mut client = begin_request(&fixture).await?;
    ensure!(stream.next().await??);
    fixture.endpoint().open_gate(1);
    ensure!(client.response("GET").await?.status() == 200);
    ensure!(!stream.next().await??, "active though there has been no demand for a while");
    wait_for_demand(&mut keda, 0.0).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_clients_that_retry_count_once_each() -> Result {
    const CLIENTS: usize = 36;
    let fixture =
        gated_fixture(json!({ "maxInFlightPerEndpoint": 1, "queue": { "maxRequests": 0 } }))
            .await?;
    let _first = begin_request(&fixture).await?;
    fixture.endpoint().wait_for_counts("the slot is taken", |counts| counts.in_flight == 1).await?;

    let load = LoadGenerator::start(fixture.sheave.address(), CLIENTS, ClientPattern::GET);
    let seconds = async || request_seconds(&fixture).await;
    let all = CLIENTS as f64;
    let before = eventually("all are refused", seconds, |[.., rejected]| *rejected > all).await?;
    // The request in flight is a clock: it takes a second per second.
    let after = eventually("a second", seconds, |[running, ..]| *running > before[0] + 1.0).await?;
    let refused = load.stop().await;
    let [running, _, rejected] = [0, 1, 2].map(|kind| after[kind] - before[kind]);
    let demand = rejected / running;
    eprintln!("{} refusals of {CLIENTS} clients were a demand of {demand:.2}", refused.requests());
    ensure!(
        (0.75..=1.02).contains(&(demand / all)),
        "{demand}, with {} refusals",
        refused.requests()
    );
    ensure!(refused.answered.keys().eq(&[429]) && refused.failed.is_empty(), "{refused:?}");
    let counted = async || fixture.sheave.metric_sum("sheave_backend_refused_total").await;
    eventually("refusals", counted, |counted| *counted == refused.requests() as f64).await?;
    Ok(())
}

#[tokio::test]
async fn refused_clients_without_retry_count_for_a_service_time() -> Result {
    let fixture =
        gated_fixture(json!({ "maxInFlightPerEndpoint": 1, "queue": { "maxRequests": 0 } }))
            .await?;
    let _first = begin_request(&fixture).await?;
    fixture.endpoint().wait_for_counts("the slot is taken", |counts| counts.in_flight == 1).await?;
    for _ in 0..20 {
        ensure!(fixture.client().await?.get("/").await?.status() == 429);
    }
    // Nothing has been served yet, so a service time of one second is assumed for each.
    let seconds = async || request_seconds(&fixture).await;
    let wanted = |[.., rejected]: &[f64; 3]| (rejected - 20.0).abs() < 1e-6;
    eventually("request-seconds", seconds, wanted).await?;
    Ok(())
}

#[tokio::test]
async fn invalid_scaler_metadata_is_reported() -> Result {
    let fixture =
        HttpFixture::with(vec![Endpoint::start(EndpointBehaviour::ok()).await?], &[], &SCALER);
    let fixture = fixture.await?;
    for (metadata, code, message) in [
        (
            vec![("service", "shop")],
            Code::NotFound,
            "Service default/shop: no route refers to this Service",
        ),
        (
            vec![("service", "shop/app")],
            Code::NotFound,
            "Service shop/app: no route refers to this Service",
        ),
        (
            vec![("service", "app"), ("port", "81")],
            Code::NotFound,
            "Service default/app:81: no route refers to this port, only to 80",
        ),
        (vec![], Code::InvalidArgument, "service: required, NAME or NAMESPACE/NAME"),
        (
            vec![("service", "app"), ("targetSize", "4")],
            Code::InvalidArgument,
            "targetSize: unknown key; known keys: service, port, target, activationDemand, window",
        ),
        (
            vec![("service", "app"), ("target", "four")],
            Code::InvalidArgument,
            "target: \"four\" is not a number above 0 up to 1e9",
        ),
    ] {
        let mut keda = KedaClient::connect(&fixture.sheave, &metadata).await?;
        for status in [
            keda.is_active().await.map(|_| ()),
            keda.demand().await.map(|_| ()),
            keda.target().await.map(|_| ()),
            keda.streamed_target().await.map(|_| ()),
            keda.activity_stream().await.map(|_| ()),
        ] {
            let status = status.expect_err("the metadata is invalid");
            ensure!((status.code(), status.message()) == (code, message), "{status:?}");
        }
    }
    let mut keda = KedaClient::connect(&fixture.sheave, &[("service", "app")]).await?;
    let status = keda.target().await.expect_err("there is no cap");
    ensure!(status.code() == Code::InvalidArgument, "{status:?}");
    ensure!(
        status.message().starts_with(
            "target: required (concurrent requests per replica), because the Service has no "
        ),
        "{status:?}"
    );
    let status = keda.metric_value("rps").await.expect_err("there is no such metric");
    ensure!(status.message() == "metricName: there is no \"rps\", only \"demand\"", "{status:?}");
    Ok(())
}

#[tokio::test]
async fn demand_is_per_service_and_its_stream_ends_with_the_service() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::gated()).await?;
    let configuration = ConfigDirectory::for_endpoints(&[endpoint.address])?;
    let other = [
        objects::host_route("other.test", "other"),
        objects::service("other"),
        objects::backend_policy(
            "other",
            json!({ "queue": { "maxRequests": 4, "timeout": "60s" } }),
        ),
    ];
    configuration.write("other.yaml", &other)?;
    let sheave = SheaveProcess::serve_with(&configuration, &SCALER).await?;
    let mut app =
        KedaClient::connect(&sheave, &[("service", "app")]).await?.activity_stream().await?;
    let mut other = KedaClient::connect(&sheave, &[("service", "other")]).await?;
    let mut stream = other.activity_stream().await?;
    ensure!(!app.next().await?? && !stream.next().await??);

    let mut client = Http1TestClient::connect(sheave.address()).await?;
    client.send("GET / HTTP/1.1\r\nHost: other.test\r\n\r\n").await?;
    ensure!(stream.next().await??);
    ensure!(!KedaClient::connect(&sheave, &[("service", "app")]).await?.is_active().await?);

    configuration.remove("other.yaml")?;
    let status = loop {
        // While it has no endpoint, it is told again that it is active.
        if let Err(status) = stream.next().await? {
            break status;
        }
    };
    ensure!(status.code() == Code::NotFound, "{status:?}");
    let named = "Service default/other: no route refers to this Service";
    ensure!(status.message() == named, "{status:?}");
    ensure!(other.is_active().await.expect_err("the Service is removed").message() == named);
    Ok(())
}

#[tokio::test]
async fn drain_ends_scaler_streams_without_an_error() -> Result {
    let mut fixture = gated_fixture(json!({ "maxInFlightPerEndpoint": 1 })).await?;
    let mut client = begin_request(&fixture).await?;
    fixture.endpoint().wait_for_counts("the slot is taken", |counts| counts.in_flight == 1).await?;
    let mut keda = KedaClient::connect(&fixture.sheave, &[("service", "app")]).await?;
    let mut stream = keda.activity_stream().await?;
    ensure!(stream.next().await??);
    fixture.sheave.signal(Signal::TERM)?;
    let status = stream.next().await?.expect_err("the stream ends");
    ensure!(status.code() == Code::Ok, "{status:?}");
    fixture.endpoint().open_gate(1);
    ensure!(client.response("GET").await?.status() == 200);
    // An idle connection would be kept for the grace of the drain.
    drop(client);
    ensure!(fixture.sheave.wait_for_exit().await?.success());
    Ok(())
}
