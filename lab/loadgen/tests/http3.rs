//! Tests of HTTP/3 from outside, against an independent server: every request is sent once, answered completely, and
//! checked.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use h3::server::RequestResolver;
use http::{Method, Response};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, Incoming, ServerConfig};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::runtime::Builder;

/// Time limit far longer than a thread waits for a CPU.
const PATIENCE: Duration = Duration::from_secs(10);

/// Counters of the server made with `quinn` and `h3`.
#[derive(Debug, Default)]
struct ServerCounters {
    connections: AtomicUsize,
    requests: AtomicUsize,
    body_bytes: AtomicUsize,
}

/// Starts a server that answers a path `/b/N` with N bytes; returns its address and counters.
fn server() -> (SocketAddr, Arc<ServerCounters>) {
    let own = rcgen::generate_simple_self_signed(["lab.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
    let (seen, (address_sender, address)) = (Arc::new(ServerCounters::default()), mpsc::channel());
    let counters = Arc::clone(&seen);
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = Endpoint::server(config, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            address_sender.send(endpoint.local_addr().unwrap()).unwrap();
            while let Some(incoming) = endpoint.accept().await {
                tokio::spawn(serve(incoming, Arc::clone(&counters)));
            }
        });
    });
    (address.recv().unwrap(), seen)
}

async fn serve(incoming: Incoming, seen: Arc<ServerCounters>) {
    let Ok(connection) = incoming.await else { return };
    seen.connections.fetch_add(1, Ordering::Relaxed);
    let connection = h3_quinn::Connection::new(connection);
    let mut connection = h3::server::Connection::new(connection).await.unwrap();
    while let Ok(Some(request)) = connection.accept().await {
        tokio::spawn(answer(request, Arc::clone(&seen)));
    }
}

async fn answer(request: RequestResolver<h3_quinn::Connection, Bytes>, seen: Arc<ServerCounters>) {
    let (request, mut stream) = request.resolve_request().await.unwrap();
    while let Some(piece) = stream.recv_data().await.unwrap() {
        seen.body_bytes.fetch_add(piece.remaining(), Ordering::Relaxed);
    }
    seen.requests.fetch_add(1, Ordering::Relaxed);
    assert!(matches!(*request.method(), Method::GET | Method::POST));
    let (_, length) = request.uri().path().rsplit_once("/b/").unwrap();
    let status = if length == "418" { 418 } else { 200 };
    let head = Response::builder().status(status).body(()).unwrap();
    stream.send_response(head).await.unwrap();
    stream.send_data(vec![b'x'; length.parse().unwrap()].into()).await.unwrap();
    stream.finish().await.unwrap();
}

/// Runs a job and returns its report; it sleeps between events, since tests run in parallel.
fn run(mut job: Value) -> Value {
    job["spin"] = json!(false);
    job["http3"] = json!(true);
    let mut child = Loadgen::start();
    writeln!(child.0.stdin.as_mut().unwrap(), "{job}").unwrap();
    // The first line lists its endpoints.
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines().skip(1);
    serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()
}

struct Loadgen(Child);

impl Loadgen {
    fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Loadgen {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn load(target: SocketAddr, requests: u64, request: Value) -> Value {
    let usual =
        json!({"method": "GET", "host": "lab.example", "path": "/b/100", "answer_bytes": 100});
    let mut job = json!({
        "do": "load", "target": target, "connections": 2, "streams": 8, "requests": requests,
        "request": usual,
    });
    for (name, value) in request.as_object().unwrap() {
        job["request"][name] = value.clone();
    }
    run(job)
}

#[test]
fn each_request_is_sent_once_over_the_configured_connections() {
    let (target, seen) = server();
    let report = load(target, 2000, json!({}));
    assert_eq!((&report["requests"], &report["errors"]), (&json!(2000), &json!(0)), "{report}");
    assert_eq!(seen.requests.load(Ordering::Relaxed), 2000);
    assert_eq!(seen.connections.load(Ordering::Relaxed), 2);
}

#[test]
fn large_bodies_pass_both_ways() {
    let (target, seen) = server();
    let body = json!({"method": "POST", "body_bytes": 300_000, "path": "/b/144384", "answer_bytes": 144_384});
    let report = load(target, 100, body);
    assert_eq!((&report["requests"], &report["errors"]), (&json!(100), &json!(0)), "{report}");
    assert_eq!(seen.body_bytes.load(Ordering::Relaxed), 100 * 300_000);
}

#[test]
fn answers_of_another_status_or_length_are_errors() {
    for (path, error) in [("/b/418", "status 418"), ("/b/99", "unexpected body length: 99 bytes")] {
        let (target, _) = server();
        let usual =
            json!({"method": "GET", "host": "lab.example", "path": path, "answer_bytes": 100});
        let report = run(json!({
            "do": "load", "target": target, "connections": 1, "streams": 2, "request": usual,
            "warmup_seconds": 0.0, "seconds": 0.05,
        }));
        assert_eq!((&report["requests"], &report["first_error"]), (&json!(0), &json!(error)));
    }
}

#[test]
fn each_handshake_opens_its_own_connection() {
    let (target, seen) = server();
    let report = run(json!({
        "do": "shake", "target": target, "host": "lab.example", "connections": 2, "resume": false,
        "requests": 50,
    }));
    assert_eq!((&report["requests"], &report["errors"]), (&json!(50), &json!(0)), "{report}");
    // The client sees the server's confirmation before the server has counted the connection.
    let began = Instant::now();
    while seen.connections.load(Ordering::Relaxed) < 50 {
        assert!(began.elapsed() < PATIENCE, "{seen:?}");
        std::thread::yield_now();
    }
}

#[test]
fn closed_port_is_an_error() {
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let usual =
        json!({"method": "GET", "host": "lab.example", "path": "/b/100", "answer_bytes": 100});
    let report = run(json!({
        "do": "load", "target": free, "connections": 1, "streams": 1, "request": usual,
        "warmup_seconds": 0.0, "seconds": 0.05,
    }));
    assert_eq!(report["requests"], 0);
    assert!(report["first_error"].as_str().unwrap().contains("refused"), "{report}");
}
