//! Tests of jobs from outside: JSON lines in, JSON lines out, with the program's own endpoints as
//! the target.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, mpsc};

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::{HandshakeKind, ServerConfig, ServerConnection};
use serde_json::{Value, json};

struct Loadgen {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    endpoints: Vec<String>,
}

impl Loadgen {
    fn start(arguments: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_loadgen"))
            .args(arguments.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let ready = line(&mut output);
        let endpoints = serde_json::from_value(ready["endpoints"].clone()).unwrap();
        Self { child, input, output, endpoints }
    }

    fn run(&mut self, endpoint: usize, job: Value, request: Value) -> Value {
        let target = self.endpoints[endpoint].clone();
        self.run_at(&target, job, request)
    }

    /// Runs a job. It sleeps between events, because tests run in parallel.
    fn run_at(&mut self, target: &str, mut job: Value, request: Value) -> Value {
        let get = json!({"method": "GET", "host": "h", "path": "/b/100", "answer_bytes": 100});
        job["request"] = get;
        for (name, value) in request.as_object().unwrap() {
            job["request"][name] = value.clone();
        }
        job["target"] = json!(target);
        job["spin"] = json!(false);
        writeln!(self.input, "{job}").unwrap();
        line(&mut self.output)
    }
}

impl Drop for Loadgen {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn line(output: &mut BufReader<ChildStdout>) -> Value {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn exactly(requests: u64) -> Value {
    json!({"do": "load", "connections": 4, "requests": requests})
}

fn multiplexed(requests: u64) -> Value {
    json!({"do": "load", "connections": 2, "streams": 8, "requests": requests})
}

fn paced() -> Value {
    json!({
        "do": "pace", "rate": 400.0, "seed": 1, "connections": 64,
        "warmup_seconds": 0.0, "seconds": 0.25,
    })
}

#[test]
fn closed_loop_sends_exactly_the_requested_number() {
    let report = Loadgen::start("--endpoints 2").run(1, exactly(50), json!({}));
    assert_eq!((&report["requests"], &report["errors"]), (&json!(50), &json!(0)));
    assert_eq!(report["served"], json!([0, 50]));
}

#[test]
fn request_on_its_own_connection_ends_when_the_proxy_closes() {
    const REQUESTS: u64 = 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let proxy = std::thread::spawn(move || {
        for _ in 0..REQUESTS {
            let (mut client, _) = listener.accept().unwrap();
            let head = BufReader::new(client.try_clone().unwrap()).lines();
            let head: Vec<String> =
                head.map_while(Result::ok).take_while(|l| !l.is_empty()).collect();
            assert!(head.contains(&"Connection: close".to_owned()), "{head:?}");
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
            client.write_all(answer.as_bytes()).unwrap();
        }
    });
    let request = json!({"close": true, "answer_bytes": 2});
    let report = Loadgen::start("").run_at(&target, exactly(REQUESTS), request);
    assert_eq!((&report["requests"], &report["errors"]), (&json!(REQUESTS), &json!(0)));
    proxy.join().unwrap();
}

#[test]
fn answer_of_another_length_is_an_error() {
    let request = json!({"answer_bytes": 101});
    let report = Loadgen::start("--endpoints 1").run(0, paced(), request);
    assert_eq!(
        (&report["requests"], &report["first_error"]),
        (&json!(0), &json!("unexpected body length: 100 bytes"))
    );
}

#[test]
fn http2_streams_send_exactly_the_requested_number() {
    let report = Loadgen::start("--endpoints 2").run(1, multiplexed(5000), json!({}));
    assert_eq!((&report["requests"], &report["errors"]), (&json!(5000), &json!(0)), "{report}");
    assert_eq!(report["served"], json!([0, 5000]));
}

#[test]
fn http2_bodies_respect_the_flow_control_window() {
    // 16 bodies exceed the window of a connection.
    let request =
        json!({"method": "POST", "body_bytes": 16384, "path": "/b/16384", "answer_bytes": 16384});
    let report = Loadgen::start("").run(0, multiplexed(500), request);
    assert_eq!((&report["requests"], &report["errors"]), (&json!(500), &json!(0)), "{report}");
}

#[test]
fn grpc_calls_are_checked_by_status_and_message() {
    let call = json!({"method": "POST", "body_bytes": 10, "grpc": true});
    let mut loadgen = Loadgen::start("--endpoints 2 --delay-us 1000");
    let report = loadgen.run(0, multiplexed(100), call);
    assert_eq!((&report["requests"], &report["errors"]), (&json!(100), &json!(0)), "{report}");
    let mut job = multiplexed(0);
    job["requests"] = Value::Null;
    job["warmup_seconds"] = json!(0.0);
    job["seconds"] = json!(0.05);
    let call = json!({"method": "POST", "grpc": true, "answer_bytes": 99});
    let report = loadgen.run(1, job, call);
    assert_eq!(report["first_error"], "unexpected body length: 105 bytes");
    assert_eq!(report["requests"], 0);
}

#[test]
fn handshakes_are_counted_by_kind() {
    for resume in [false, true] {
        let (target, kinds) = tls_server();
        let job = json!({"do": "shake", "host": "lab.example", "connections": 2, "resume": resume, "requests": 20});
        let report = Loadgen::start("").run_at(&target, job, json!({}));
        assert_eq!((&report["requests"], &report["errors"]), (&json!(20), &json!(0)), "{report}");
        let resumed = kinds.try_iter().filter(|kind| *kind == HandshakeKind::Resumed).count();
        assert_eq!(resumed, if resume { 20 } else { 0 });
    }
}

/// Starts a server that resumes sessions; returns its address, and the kind of each handshake.
fn tls_server() -> (String, mpsc::Receiver<HandshakeKind>) {
    let own = rcgen::generate_simple_self_signed(["lab.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let (kind_sender, kinds) = mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut client = client.unwrap();
            let mut stream = rustls::Stream::new(&mut tls, &mut client);
            // Only the end of the stream is expected.
            assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
            if kind_sender.send(tls.handshake_kind().unwrap()).is_err() {
                return;
            }
        }
    });
    (target, kinds)
}

#[test]
fn open_loop_counts_latency_and_service() {
    let mut loadgen = Loadgen::start("--endpoints 1 --delay-us 5000");
    let report = loadgen.run(0, paced(), json!({}));
    assert!(report["requests"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["errors"], 0, "{report}");
    assert!(report["latency_p50_us"].as_f64().unwrap() >= 5000.0, "{report}");
}

#[test]
fn requests_queue_at_an_endpoint_with_concurrency_one() {
    // Arrivals at twice the service rate: the latency of queued requests counts from their intended
    // send time.
    let mut loadgen = Loadgen::start("--endpoints 1 --delay-us 5000 --at-once 1");
    let report = loadgen.run(0, paced(), json!({}));
    assert_eq!(report["errors"], 0, "{report}");
    assert!(report["latency_max_us"].as_f64().unwrap() >= 50_000.0, "{report}");
}

#[test]
fn defects_begin_with_the_measurement() {
    let mut loadgen = Loadgen::start("--endpoints 2 --defect 0=errors");
    let report = loadgen.run(0, paced(), json!({}));
    assert_eq!(report["first_error"], "status 500");
    assert_eq!(report["requests"], 0);
    assert_eq!(loadgen.run(1, paced(), json!({}))["errors"], 0);
}

fn traced(loadgen: &mut Loadgen, seconds_after: f64) -> Value {
    let job = json!({
        "do": "trace", "connections": 8, "warmup_seconds": 0.0,
        "seconds_before": 0.1, "seconds_after": seconds_after, "drain_seconds": 1.0,
    });
    assert_eq!(loadgen.run(0, job, json!({})), json!({"onset": true}));
    line(&mut loadgen.output)
}

/// Returns the start of each request, in microseconds from the onset, and its outcome.
fn requests(trace: &Value) -> Vec<(i64, &str)> {
    let began = trace["began_us"].as_array().unwrap().iter();
    let outcomes = trace["outcome"].as_array().unwrap().iter();
    let words = |place: &Value| {
        trace["outcomes"][usize::try_from(place.as_u64().unwrap()).unwrap()].as_str().unwrap()
    };
    began.zip(outcomes).map(|(began, place)| (began.as_i64().unwrap(), words(place))).collect()
}

#[test]
fn dead_endpoint_breaks_requests_in_flight_and_refuses_new_ones() {
    // The endpoint dies before the first response is due.
    let trace =
        traced(&mut Loadgen::start("--endpoints 1 --delay-us 9000000 --defect 0=dead"), 0.05);
    assert_eq!(trace["unanswered"], json!([8]));
    let (in_flight, later): (Vec<_>, Vec<_>) =
        requests(&trace).into_iter().partition(|(began, _)| *began < 0);
    assert_eq!(in_flight.len(), 8);
    assert!(in_flight.iter().all(|(_, outcome)| *outcome == "the connection was closed"));
    let refused = |(_, outcome): &(i64, &str)| outcome.starts_with("Connection refused");
    assert!(!later.is_empty() && later.iter().all(refused), "{}", trace["outcomes"]);
}

#[test]
fn dead_endpoint_returns_at_the_same_address() {
    let trace =
        traced(&mut Loadgen::start("--endpoints 1 --delay-us 5000 --defect 0=dead:100"), 0.3);
    let samples = trace["served"].as_array().unwrap();
    assert_eq!((&samples[0], &samples[1]), (&json!([0]), &json!([0])), "{samples:?}");
    assert_ne!(samples[samples.len() - 1], json!([0]), "{samples:?}");
    let (_, last) = requests(&trace)[requests(&trace).len() - 1];
    assert_eq!(last, "200");
}

#[test]
fn trace_lists_requests_without_an_answer() {
    // The response takes longer than the trace.
    let trace = traced(&mut Loadgen::start("--endpoints 1 --delay-us 9000000"), 0.05);
    let requests = requests(&trace);
    assert_eq!(requests.len(), 8);
    assert!(
        requests.iter().all(|(began, outcome)| *began < 0 && *outcome == "no answer by the end")
    );
}
