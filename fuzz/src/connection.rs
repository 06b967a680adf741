//! Whole connections: a client script and an endpoint script, with a worker of the data plane between them.
//!
//! After each script the connection must end, each slot must be free again, and the endpoint must have received no
//! request that the client did not send. One worker serves all scripts, so that state that one connection leaves behind
//! is found by a later one.

/// Steps of the client, and answers of the endpoint.
mod script;
/// The data plane with one listener and one endpoint.
mod fixture;
/// The client over TCP.
mod tcp_client;
/// The client over HTTP/3.
mod http3_client;
/// Its QUIC connection.
mod quic_client;
/// The endpoint.
mod endpoint;
/// Waiting until the worker has nothing left to do.
mod quiescence;

use std::cell::Cell;
use std::fs;

use codec::path::{PathRules, normalise};
use fixture::Fixture;
use http3_client::Http3Step;
use quinn_proto::ClientConfig;
use script::Script;
use tcp_client::TcpStep;

use crate::laws;
use crate::reference::{self, Seen};

/// What HTTP/2 with prior knowledge begins with (RFC 9113 §3.4), and an empty SETTINGS frame.
const HTTP2_START: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PREFACE_BYTES: usize = 24;
/// The type of a frame that opens a stream.
const HEADERS: u8 = 1;

/// Largest growth of the process by one script, in bytes. Its buffers are bounded, and so is what a sanitizer adds.
const MAX_GROWTH_BYTES: u64 = 64 << 20;

/// Runs a script over HTTP/1.1. Bytes that begin an HTTP/2 connection are no script for it.
pub fn http1(bytes: &[u8]) {
    let script = Script::parse(bytes, TcpStep::parse);
    let sent = script.client_bytes();
    if sent.starts_with(b"PRI") {
        return;
    }
    let received = run_over_tcp(b"", &script);
    let sent = reference::requests(&sent);
    assert!(received.len() <= sent.len(), "sent: {sent:?}, the endpoint received: {received:?}");
    for request in &received {
        assert!(sent.iter().any(|sent| is_same(sent, request)), "{request:?} is not in {sent:?}");
    }
}

/// True if the client's request may arrive at an endpoint like this.
fn is_same(sent: &Seen, received: &Seen) -> bool {
    let path_len = sent.target.find('?').unwrap_or(sent.target.len());
    let (path, query) = sent.target.split_at(path_len);
    let normal = normalise(path.as_bytes(), PathRules::default());
    let normal = normal.ok().flatten().unwrap_or_else(|| path.as_bytes().to_vec());
    let is_target = received.target.as_bytes() == [&normal, query.as_bytes()].concat();
    sent.method == received.method && (is_target || sent.target == "*")
}

/// Runs a script over HTTP/2, after the preface. The endpoint speaks HTTP/1.1.
pub fn http2(bytes: &[u8]) {
    let script = Script::parse(bytes, TcpStep::parse);
    let received = run_over_tcp(HTTP2_START, &script);
    let sent = [HTTP2_START, &script.client_bytes()].concat();
    let frames = laws::h2::simple_frames(&sent, PREFACE_BYTES);
    let opened = frames.iter().filter(|frame| frame.kind == HEADERS).count();
    assert!(received.len() <= opened, "{opened} streams, the endpoint received: {received:?}");
}

/// Runs a script after the bytes `start`; returns the requests that the endpoint received.
fn run_over_tcp(start: &[u8], script: &Script<TcpStep>) -> Vec<Seen> {
    let fixture = Fixture::over_tcp();
    fixture.run(&script.answers, async {
        let reading = tcp_client::act(fixture, start, script).await;
        move || reading.is_finished()
    })
}

/// Runs a script over HTTP/3. The endpoint speaks HTTP/1.1. Afterwards another connection is served.
pub fn http3(bytes: &[u8]) {
    let script = Script::parse(bytes, Http3Step::parse);
    let fixture = Fixture::over_quic();
    let config = HTTP3_CONFIG.with(ClientConfig::clone);
    let (memory, opened) = (resident_bytes(), Cell::new(0));
    let received = fixture.run(&script.answers, async {
        http3_client::act(fixture, config.clone(), &script, &opened).await;
        || true
    });
    let opened = opened.get();
    assert!(received.len() <= opened, "{opened} streams, the endpoint received: {received:?}");
    fixture.run(&[], async {
        http3_client::request(fixture, config).await;
        || true
    });
    let growth = resident_bytes().saturating_sub(memory);
    assert!(growth <= MAX_GROWTH_BYTES, "the process has grown by {growth} bytes");
}

thread_local! {
    static HTTP3_CONFIG: ClientConfig = quic_client::config(Fixture::over_quic());
}

/// Returns the memory of this process that is in RAM.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a process has a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    let kibibytes = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
    kibibytes * 1024
}
