//! Endpoints that speak HTTP/2, seen by clients of HTTP/1.1; those of HTTP/2 are in `streams`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// A proxy.
#[path = "../scene/mod.rs"]
mod scene;
/// Endpoints.
mod endpoint;
/// Clients that speak HTTP/2 too.
mod streams;
/// Copies of requests, from either protocol to either.
mod mirrors;

use std::io::{Read, Write};
use std::num::NonZeroU32;
use std::thread;

use gateway::snapshot::BackendSettings;

use endpoint::{in_http2, scene, serve};
use scene::{Scene, backend};

fn has(answer: &str, parts: &[&str]) {
    for part in parts {
        assert!(answer.contains(part), "{part:?} in {answer}");
    }
}

#[test]
fn a_request_without_a_body_is_asked_by_its_head_alone() {
    let scene = scene();
    let answer = scene.ask("GET /a?b", "X-B: 1\r\nTE: trailers\r\nKeep-Alive: 1\r\n", "");
    has(
        &answer,
        &[
            "http/1.1 200 ok\r\n",
            "x-asked: get http://a.example/a?b\r\n",
            "x-got-x-b: 1\r\n",
            "x-got-te: trailers\r\n",
            "x-got-x-forwarded-for: 127.0.0.1\r\n",
            "via: 2 sheave\r\n",
            "transfer-encoding: chunked\r\n",
            "\r\n0\r\nx-after: all\r\n\r\n",
        ],
    );
    assert!(!answer.contains("x-got-keep-alive") && !answer.contains("x-got-connection"));
}

#[test]
fn bodies_with_and_without_length_arrive() {
    let scene = scene();
    let answer = scene.ask("POST /", "Content-Length: 5\r\n", "hello");
    has(&answer, &["x-got-content-length: 5\r\n", "5\r\nhello\r\n"]);
    let chunks = "5\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 6\r\n\r\n";
    let answer = scene.ask("POST /", "Transfer-Encoding: chunked\r\nTE: trailers\r\n", chunks);
    has(&answer, &["hello", "!", "x-sum: 6\r\n"]);
    assert!(!answer.contains("x-got-transfer-encoding"), "{answer}");
    let large = "x".repeat(1024 * 1024);
    let answer = scene.ask("PUT /", &format!("Content-Length: {}\r\n", large.len()), &large);
    let got: usize = answer.split("\r\n\r\n").nth(1).unwrap().matches('x').count();
    assert!(got >= large.len(), "{got}");
}

#[test]
fn responses_without_a_body_have_none() {
    let scene = scene();
    let answer = scene.ask("HEAD /", "", "");
    assert!(answer.starts_with("http/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
    let answer = scene.ask("GET /empty", "", "");
    assert!(answer.starts_with("http/1.1 204") && answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(!answer.contains("transfer-encoding"), "{answer}");
}

#[test]
fn interim_responses_pass() {
    let answer = scene().ask("GET /early", "", "");
    has(&answer, &["http/1.1 103 early hints\r\nlink: </a.css>\r\n", "http/1.1 200 ok\r\n"]);
}

#[test]
fn what_the_endpoint_refused_is_sent_again() {
    let scene = scene();
    let answer = scene.ask("POST /refuse-first", "Content-Length: 2\r\n", "hi");
    has(&answer, &["http/1.1 200 ok\r\n", "2\r\nhi\r\n"]);
    let answer = scene.ask("POST /refuse", "Content-Length: 2\r\n", "hi");
    has(&answer, &["http/1.1 503", "error=destination_unavailable"]);
}

#[test]
fn a_request_that_was_reset_is_not_sent_again_unless_that_is_harmless() {
    let answer = scene().ask("POST /reset", "Content-Length: 2\r\n", "hi");
    has(&answer, &["http/1.1 502", "error=connection_terminated"]);
}

#[test]
fn nothing_is_lost_when_the_endpoint_leaves() {
    let scene = scene();
    let asking: Vec<_> = (0..4)
        .map(|_| {
            let mut socket = scene.connect();
            thread::spawn(move || {
                for _ in 0..50 {
                    let request = b"POST /leave HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
                    socket.write_all(request).unwrap();
                    let mut answer = Vec::new();
                    while !answer.ends_with(b"x-after: all\r\n\r\n") {
                        let mut byte = [0];
                        socket.read_exact(&mut byte).unwrap();
                        answer.push(byte[0]);
                        assert!(!answer.starts_with(b"HTTP/1.1 5"));
                    }
                }
            })
        })
        .collect();
    asking.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn a_websocket_is_opened_by_extended_connect() {
    let scene = scene();
    let mut socket = scene.connect();
    let request = "GET /chat HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\n\
        Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    has(&head, &["Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"]);
    let head = head.to_lowercase();
    has(
        &head,
        &[
            "http/1.1 101 ",
            "upgrade: websocket\r\n",
            "x-asked: connect http://a.example/chat\r\n",
            "x-protocol: websocket\r\n",
            "x-got-sec-websocket-version: 13\r\n",
        ],
    );
    assert!(!head.contains("x-got-sec-websocket-key"), "{head}");
    for message in [b"one", b"two"] {
        socket.write_all(message).unwrap();
        let mut back = [0; 3];
        socket.read_exact(&mut back).unwrap();
        assert_eq!(&back, message);
    }
}

#[test]
fn another_upgrade_is_an_offer_that_is_not_taken() {
    let answer = scene().ask("GET /", "Upgrade: h9\r\nConnection: upgrade\r\n", "");
    has(&answer, &["http/1.1 200 ok\r\n", "x-asked: get "]);
}

#[test]
fn a_cap_counts_streams() {
    let max_in_flight_per_endpoint = NonZeroU32::new(1);
    let settings =
        BackendSettings { max_in_flight_per_endpoint, queue_max_requests: 0, ..in_http2() };
    let scene = Scene::with(vec![backend("backend", serve(), settings)], None);
    // It holds the one slot as long as its body is not whole.
    let mut first = scene.connect();
    first.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh").unwrap();
    let mut byte = [0];
    first.read_exact(&mut byte).unwrap();
    has(&scene.ask("GET /", "", ""), &["http/1.1 429"]);
    first.write_all(b"i").unwrap();
    let mut rest = Vec::new();
    while !rest.ends_with(b"x-after: all\r\n\r\n") {
        first.read_exact(&mut byte).unwrap();
        rest.push(byte[0]);
    }
    has(&scene.ask("GET /", "", ""), &["http/1.1 200"]);
}
