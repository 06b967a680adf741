//! What the admin API answers, over a real connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;

use proxy::Settings;
use proxy::observe::{Kind, Metric, Sample, Value};

use super::metrics::{Gathered, METRICS};
use super::*;
use crate::expect::expect_file;

/// The answer to one request, up to the end of the connection.
fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// An admin API of a proxy that serves nothing, in the given phase, asked these things.
fn ask(phase: Phase, requests: &'static [&str]) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let settings = Settings { workers: NonZeroUsize::MIN, access_log: None };
        let proxy = Arc::new(Proxy::start(settings).unwrap());
        let (_sender, report) = watch::channel(Report { phase, ..Report::new() });
        let address = start("127.0.0.1:0".parse().unwrap(), proxy, report).await.unwrap();
        let client =
            move || requests.iter().map(|request| exchange(address, request)).collect::<Vec<_>>();
        tokio::task::spawn_blocking(client).await.unwrap()
    })
}

#[test]
fn every_path_of_the_index_answers() {
    let answers = ask(
        Phase::Ready,
        &[
            "GET /",
            "GET /healthz",
            "GET /readyz",
            "GET /metrics",
            "GET /api/v1/listeners",
            "GET /api/v1/backends",
            "GET /api/v1/config",
        ],
    );
    for (answer, part) in answers.iter().zip([
        "/api/v1/config ",
        "ok\n",
        "ready\n",
        "# EOF\n",
        r#"{"listeners":[]}"#,
        r#"{"backends":[]}"#,
        r#""generation":0"#,
    ]) {
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains(part), "{answer}");
    }
    assert!(answers[3].contains("content-type: application/openmetrics-text; version=1.0.0"));
}

#[test]
fn what_is_not_there_or_not_allowed_is_said_in_json() {
    let answers = ask(Phase::Ready, &["GET /nowhere", "POST /metrics", "DELETE /"]);
    assert!(answers[0].starts_with("HTTP/1.1 404 "), "{}", answers[0]);
    assert!(answers[0].ends_with(r#"{"error":"no such path: see /"}"#), "{}", answers[0]);
    for answer in &answers[1..] {
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        assert!(answer.ends_with(r#"{"error":"only GET and HEAD"}"#), "{answer}");
    }
}

#[test]
fn not_ready_before_all_is_served_and_while_draining() {
    for phase in [Phase::Starting, Phase::Draining] {
        let answers = ask(phase, &["GET /readyz", "GET /healthz"]);
        assert!(answers[0].starts_with("HTTP/1.1 503 "), "{}", answers[0]);
        assert!(answers[1].starts_with("HTTP/1.1 200 "), "{}", answers[1]);
    }
}

#[test]
fn address_in_use_is_refused_with_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let failure = runtime.block_on(async {
        let settings = Settings { workers: NonZeroUsize::MIN, access_log: None };
        let proxy = Arc::new(Proxy::start(settings).unwrap());
        start(address, proxy, watch::channel(Report::new()).1).await.unwrap_err()
    });
    let Failure::Input(lines) = failure else { panic!("{failure:?}") };
    assert!(lines[0].starts_with(&format!("sheave: cannot listen on {address} (--admin): ")));
    assert!(lines[0].ends_with("another process listens there: stop it, or choose another port"));
}

#[test]
fn samples_of_a_metric_stand_together_in_open_metrics_text() {
    let [build, start, .., reloads] = METRICS else { panic!("too few metrics") };
    let mut gathered = Gathered::of([build, start, &WAITED, reloads].into_iter());
    let mut add = |metric, labels: &[&str], value| gathered.add(&Sample { metric, labels, value });
    add(reloads, &["applied"], Value::Count(3));
    add(start, &[], Value::Gauge(1.5));
    let counts = &[4, 0, 1];
    add(&WAITED, &["a\"b\n"], Value::Histogram { bounds: &[0.1, 1.0], counts, sum: 7.25 });
    add(reloads, &["refused"], Value::Count(1));
    assert_eq!(
        gathered.encode(),
        r#"# HELP sheave_build_info Always 1; the label is the version.
# TYPE sheave_build_info gauge
# HELP process_start_time_seconds When the process started, in seconds since 1970.
# TYPE process_start_time_seconds gauge
# UNIT process_start_time_seconds seconds
process_start_time_seconds 1.5
# HELP waited_seconds How long.
# TYPE waited_seconds histogram
# UNIT waited_seconds seconds
waited_seconds_sum{who="a\"b\n"} 7.25
waited_seconds_count{who="a\"b\n"} 5
waited_seconds_bucket{le="0.1",who="a\"b\n"} 4
waited_seconds_bucket{le="1.0",who="a\"b\n"} 4
waited_seconds_bucket{le="+Inf",who="a\"b\n"} 5
# HELP sheave_config_reloads Configurations read since the start, by what became of them.
# TYPE sheave_config_reloads counter
sheave_config_reloads_total{result="applied"} 3
sheave_config_reloads_total{result="refused"} 1
# EOF
"#
    );
}

static WAITED: Metric = Metric {
    name: "waited_seconds",
    unit: "seconds",
    help: "How long.",
    kind: Kind::Histogram,
    labels: &["who"],
};

#[test]
fn reference_page_of_metrics_is_fresh() {
    expect_file("docs/reference/metrics.md", &reference_page());
}

fn reference_page() -> String {
    let mut page = String::from(
        "# Metrics\n\n<!-- Made from the metrics themselves by `make gen`. -->\n\n\
         `GET /metrics` on the admin address answers OpenMetrics text, which Prometheus reads. Series are bounded: labels\n\
         name listeners, routes, backends and endpoints of the configuration, or come from closed sets; never a path, a\n\
         host or a client. A route is `namespace/route/rule`, a backend `namespace/service:port`.\n",
    );
    for (heading, metrics) in [
        ("Requests and endpoints", proxy::observe::METRICS),
        ("Process and configuration", METRICS),
    ] {
        page.push_str(&format!(
            "\n## {heading}\n\n| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n"
        ));
        metrics.iter().for_each(|metric| page.push_str(&row(metric)));
    }
    page
}

fn row(metric: &Metric) -> String {
    let Metric { name, help, kind, labels, .. } = metric;
    let (suffix, kind) = match kind {
        Kind::Counter => ("_total", "counter"),
        Kind::Gauge => ("", "gauge"),
        Kind::Histogram => ("", "histogram"),
    };
    let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
    format!("| `{name}{suffix}` | {kind} | {labels} | {help} |\n")
}
