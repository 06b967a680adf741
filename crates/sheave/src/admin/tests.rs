//! Tests of the admin API over a real connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;

use proxy::ProxySettings;
use proxy::observe::{MetricDescription, MetricKind, metrics};

use super::announcer::ANNOUNCER_METRICS;
use super::metrics::METRICS;
use super::*;
use crate::expect::expect_file;
use crate::failure::Failure;
use crate::l4_agent::metrics::{ENDPOINT_METRICS, L4_METRICS, SERVICE_METRICS};
use crate::replicas::REPLICA_METRICS;
use crate::transparent::TRANSPARENT_METRICS;
use crate::xds::{XDS_BACKEND_METRICS, XDS_LOAD_METRICS, XDS_METRICS};

async fn bind(address: SocketAddr) -> Result<BoundedListener, Failure> {
    BoundedListener::bind(address, "--admin", REQUEST_TIMEOUT, None).await
}

/// Returns the response to one request, up to the end of the connection.
fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Starts an admin API for a proxy without listeners, in the given phase, and sends these requests.
fn ask(phase: ProcessPhase, requests: &'static [&str]) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let settings = ProxySettings {
            workers: NonZeroUsize::MIN,
            access_log: None,
            exemplars: false,
            traces: None,
            memory_limit: None,
            max_descriptors: None,
            affinity_key: None,
            interceptor: None,
            leases_slots: false,
        };
        let proxy = Arc::new(Proxy::start(settings).unwrap());
        let (_sender, report) = watch::channel(ProcessReport { phase, ..ProcessReport::new() });
        let state = ApiState::new(proxy, report, Arc::default(), ComponentStatuses::default());
        let hosts = ServedHosts::new([]);
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address;
        serve(listener, hosts, state);
        let client =
            move || requests.iter().map(|request| exchange(address, request)).collect::<Vec<_>>();
        tokio::task::spawn_blocking(client).await.unwrap()
    })
}

#[test]
fn every_path_of_the_index_answers() {
    let answers = ask(
        ProcessPhase::Ready,
        &[
            "GET /",
            "GET /healthz",
            "GET /readyz",
            "GET /metrics",
            "GET /api/v1/listeners",
            "GET /api/v1/backends",
            "GET /api/v1/routes",
            "GET /api/v1/config",
        ],
    );
    for (answer, part) in answers.iter().zip([
        "/api/v1/config ",
        "ok\n",
        "ready\n",
        "sheave_build_info{",
        r#"{"listeners":[]}"#,
        r#"{"backends":[]}"#,
        r#"{"routes":[]}"#,
        r#""generation":0"#,
    ]) {
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains(part), "{answer}");
    }
    assert!(answers[3].contains("content-type: text/plain; version=0.0.4"), "{}", answers[3]);
}

#[test]
fn errors_404_and_405_are_json() {
    let answers = ask(ProcessPhase::Ready, &["GET /nowhere", "POST /metrics", "DELETE /"]);
    assert!(answers[0].starts_with("HTTP/1.1 404 "), "{}", answers[0]);
    assert!(answers[0].ends_with(r#"{"error":"no such path: see /"}"#), "{}", answers[0]);
    for answer in &answers[1..] {
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        assert!(answer.ends_with(r#"{"error":"only GET and HEAD"}"#), "{answer}");
    }
}

#[test]
fn readyz_fails_while_starting_and_draining() {
    for phase in [ProcessPhase::Starting, ProcessPhase::Leaving, ProcessPhase::Draining] {
        let answers = ask(phase, &["GET /readyz", "GET /healthz"]);
        assert!(answers[0].starts_with("HTTP/1.1 503 "), "{}", answers[0]);
        assert!(answers[1].starts_with("HTTP/1.1 200 "), "{}", answers[1]);
    }
}

#[test]
fn admin_address_in_use_gives_an_actionable_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let failure = runtime.block_on(bind(address)).err().unwrap();
    let Failure::Input(lines) = failure else { panic!("{failure:?}") };
    assert!(lines[0].starts_with(&format!("sheave: cannot listen on {address} (--admin): ")));
    assert!(lines[0].ends_with("another process listens there: stop it, or choose another port"));
}

#[test]
fn metrics_reference_page_is_fresh() {
    expect_file("docs/reference/metrics.md", &reference_page());
}

fn reference_page() -> String {
    let mut page = String::from(
        "# Metrics\n\n<!-- Made from the metrics themselves by `make gen`. -->\n\n\
         `GET /metrics` on the admin address answers in OpenMetrics 1.0 if the `Accept` field asks for it, as Prometheus does,\n\
         else in the older Prometheus text format. Series are bounded: labels name listeners, routes, backends and endpoints of\n\
         the configuration, or come from closed sets; never a path, a host or a client. A route is `namespace/route/rule`, a\n\
         backend `namespace/service:port`.\n\
         \n\
         With `sheave serve --exemplars` the buckets of `sheave_request_duration_seconds` carry the id of the last sampled\n\
         trace that fell into them, as the client's `traceparent` names it; OpenMetrics only.\n",
    );
    section(&mut page, "Requests and endpoints", metrics());
    section(&mut page, "Process and configuration", METRICS.iter().map(|row| &row.metric));
    let transparent = TRANSPARENT_METRICS.iter().map(|row| &row.metric);
    section(&mut page, "Transparent mode (`--transparent`)", transparent);
    let replicas = REPLICA_METRICS.iter().map(|row| &row.metric);
    section(&mut page, "Leases of slots (`--lease-slots`)", replicas);
    let xds = XDS_METRICS.iter().map(|row| &row.metric);
    let xds = xds.chain(XDS_LOAD_METRICS.iter().map(|row| &row.metric));
    let xds = xds.chain(XDS_BACKEND_METRICS.iter().map(|row| &row.metric));
    section(&mut page, "gRPC clients without a proxy (`--xds`)", xds);
    let of_node = L4_METRICS.iter().map(|row| &row.metric);
    let traffic = SERVICE_METRICS.iter().chain(ENDPOINT_METRICS).map(|row| &row.metric);
    section(&mut page, "Layer-4 data path (`sheave l4`)", of_node.chain(traffic));
    let announcer = ANNOUNCER_METRICS.iter().map(|row| &row.metric);
    section(&mut page, "BGP sessions (`sheave announce --metrics`)", announcer);
    page
}

fn section<'m>(
    page: &mut String,
    heading: &str,
    metrics: impl Iterator<Item = &'m MetricDescription>,
) {
    page.push_str(&format!(
        "\n## {heading}\n\n| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n"
    ));
    metrics.for_each(|metric| page.push_str(&row(metric)));
}

fn row(metric: &MetricDescription) -> String {
    let MetricDescription { name, help, kind, labels, .. } = metric;
    let (suffix, kind) = match kind {
        MetricKind::Counter => ("_total", "counter"),
        MetricKind::Gauge => ("", "gauge"),
        MetricKind::Histogram => ("", "histogram"),
    };
    let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
    format!("| `{name}{suffix}` | {kind} | {labels} | {help} |\n")
}
