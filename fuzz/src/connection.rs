//! Whole connections: a client script and an endpoint script, with a worker of the data plane between them.
//!
//! After each script the connection must end, each slot must be free again, and the endpoint must have received no
//! request that the client did not send. One worker serves all scripts, so that state that one connection leaves behind
//! is found by a later one.

/// Steps of the client, and answers of the endpoint.
mod script;
/// The data plane with one listener and one endpoint.
mod fixture;
/// The endpoint.
mod endpoint;
/// Waiting until the worker has nothing left to do.
mod quiescence;

use codec::path::{PathRules, normalise};
use fixture::Fixture;
use script::Script;

use crate::laws;
use crate::reference::{self, Seen};

/// What HTTP/2 with prior knowledge begins with (RFC 9113 §3.4), and an empty SETTINGS frame.
const HTTP2_START: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PREFACE_BYTES: usize = 24;
/// The type of a frame that opens a stream.
const HEADERS: u8 = 1;

/// Runs a script over HTTP/1.1. Bytes that begin an HTTP/2 connection are no script for it.
pub fn http1(bytes: &[u8]) {
    let script = Script::parse(bytes);
    let sent = script.client_bytes();
    if sent.starts_with(b"PRI") {
        return;
    }
    let received = Fixture::run(b"", &script);
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
    let script = Script::parse(bytes);
    let received = Fixture::run(HTTP2_START, &script);
    let sent = [HTTP2_START, &script.client_bytes()].concat();
    let frames = laws::h2::simple_frames(&sent, PREFACE_BYTES);
    let opened = frames.iter().filter(|frame| frame.kind == HEADERS).count();
    assert!(received.len() <= opened, "{opened} streams, the endpoint received: {received:?}");
}
