//! Endpoints that speak HTTP/3, seen by clients of HTTP/1.1.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// A proxy.
#[path = "../scene/mod.rs"]
mod scene;
/// Endpoints.
mod endpoint;
/// An endpoint that says what no library would.
mod bare;
/// What happens where HTTP/3 is not to be had.
mod fallback;

use std::io::{Read, Write};
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::thread;

use gateway::snapshot::{BackendSettings, Roots};

use endpoint::{Identity, Server, settings};
use scene::{Scene, backend};

fn has(answer: &str, parts: &[&str]) {
    for part in parts {
        assert!(answer.contains(part), "{part:?} in {answer}");
    }
}

fn before(server: &Server) -> Scene {
    Scene::with(vec![backend("backend", server.address, server.identity.settings())], None)
}

#[test]
fn a_request_without_a_body_is_asked_by_its_head_alone() {
    let server = Server::new();
    let scene = before(&server);
    let answer = scene.ask("GET /a?b", "X-B: 1\r\nTE: trailers\r\nKeep-Alive: 1\r\n", "");
    has(
        &answer,
        &[
            "http/1.1 200 ok\r\n",
            "x-asked: get https://a.example/a?b\r\n",
            "x-got-x-b: 1\r\n",
            "x-got-te: trailers\r\n",
            "x-got-x-forwarded-for: 127.0.0.1\r\n",
            "via: 3 sheave\r\n",
            "transfer-encoding: chunked\r\n",
            "\r\n0\r\nx-after: all\r\n\r\n",
        ],
    );
    assert!(!answer.contains("x-got-keep-alive") && !answer.contains("x-got-connection"));
}

#[test]
fn bodies_with_and_without_length_arrive() {
    let server = Server::new();
    let scene = before(&server);
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
    let server = Server::new();
    let scene = before(&server);
    let answer = scene.ask("HEAD /", "", "");
    assert!(answer.starts_with("http/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
    let answer = scene.ask("GET /empty", "", "");
    assert!(answer.starts_with("http/1.1 204") && answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(!answer.contains("transfer-encoding"), "{answer}");
}

#[test]
fn interim_responses_pass() {
    let server = Server::new();
    let answer = before(&server).ask("GET /early", "", "");
    has(&answer, &["http/1.1 103 early hints\r\nlink: </a.css>\r\n", "http/1.1 200 ok\r\n"]);
}

#[test]
fn what_the_endpoint_refused_is_sent_again() {
    let server = Server::new();
    let scene = before(&server);
    let answer = scene.ask("POST /refuse-first", "Content-Length: 2\r\n", "hi");
    has(&answer, &["http/1.1 200 ok\r\n", "2\r\nhi\r\n"]);
    let answer = scene.ask("POST /refuse", "Content-Length: 2\r\n", "hi");
    has(&answer, &["http/1.1 503", "error=destination_unavailable"]);
}

#[test]
fn a_request_that_was_reset_is_not_sent_again_unless_that_is_harmless() {
    let server = Server::new();
    let answer = before(&server).ask("POST /reset", "Content-Length: 2\r\n", "hi");
    has(&answer, &["http/1.1 502", "error=connection_terminated"]);
}

#[test]
fn a_response_that_breaks_off_is_cut() {
    let server = Server::new();
    let scene = before(&server);
    let mut socket = scene.connect();
    socket.write_all(b"POST /break HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"half\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    socket.write_all(b"hi").unwrap();
    let cut = socket.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    has(&answer, &["HTTP/1.1 200 OK\r\n"]);
    assert!(cut.is_err() && !answer.contains("\r\n0\r\n"), "it does not look whole: {answer}");
}

/// Answers to so many requests at a time on a connection each.
fn all_at_once(scene: &Scene, clients: usize, requests: usize) {
    let asking: Vec<_> = (0..clients)
        .map(|_| {
            let mut socket = scene.connect();
            thread::spawn(move || {
                for _ in 0..requests {
                    let request = b"POST /leave HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
                    socket.write_all(request).unwrap();
                    read_answer(&mut socket);
                }
            })
        })
        .collect();
    asking.into_iter().for_each(|client| client.join().unwrap());
}

/// Reads one answer of an echo to its end.
fn read_answer(socket: &mut impl Read) -> Vec<u8> {
    let mut answer = Vec::new();
    while !answer.ends_with(b"x-after: all\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
        let is_failure = answer.starts_with(b"HTTP/1.1 5") && answer.ends_with(b"\r\n\r\n");
        assert!(!is_failure, "{}", String::from_utf8_lossy(&answer));
    }
    answer
}

#[test]
fn nothing_is_lost_when_the_endpoint_leaves() {
    let server = Server::new();
    all_at_once(&before(&server), 4, 50);
    assert!(server.connections.load(Ordering::Relaxed) > 1);
}

#[test]
fn requests_share_one_connection() {
    let server = Server::new();
    let scene = before(&server);
    // Each has its stream open until its body ends.
    let mut open: Vec<_> = (0..50).map(|_| scene.connect()).collect();
    for socket in &mut open {
        socket.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh").unwrap();
        socket.read_exact(&mut [0]).unwrap();
    }
    for socket in &mut open {
        socket.write_all(b"i").unwrap();
        read_answer(socket);
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
}

#[test]
fn another_connection_is_opened_when_all_are_full() {
    let server = Server::with_streams(2);
    let scene = before(&server);
    let mut open: Vec<_> = (0..6).map(|_| scene.connect()).collect();
    for socket in &mut open {
        socket.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh").unwrap();
        socket.read_exact(&mut [0]).unwrap();
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 3);
    for socket in &mut open {
        socket.write_all(b"i").unwrap();
        read_answer(socket);
    }
}

#[test]
fn who_finds_all_full_waits_for_a_stream_to_end() {
    let server = Server::with_streams(1);
    let settings =
        BackendSettings { connection_max: NonZeroU32::new(1), ..server.identity.settings() };
    let scene = Scene::with(vec![backend("backend", server.address, settings)], None);
    let mut first = scene.connect();
    first.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh").unwrap();
    first.read_exact(&mut [0]).unwrap();
    let mut second = scene.connect();
    second.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").unwrap();
    first.write_all(b"i").unwrap();
    read_answer(&mut first);
    read_answer(&mut second);
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
}

#[test]
fn a_cap_counts_streams() {
    let server = Server::new();
    let max_in_flight_per_endpoint = NonZeroU32::new(1);
    let settings = BackendSettings {
        max_in_flight_per_endpoint,
        queue_max_requests: 0,
        ..server.identity.settings()
    };
    let scene = Scene::with(vec![backend("backend", server.address, settings)], None);
    // It holds the one slot as long as its body is not whole.
    let mut first = scene.connect();
    first.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh").unwrap();
    first.read_exact(&mut [0]).unwrap();
    has(&scene.ask("GET /", "", ""), &["http/1.1 429"]);
    first.write_all(b"i").unwrap();
    read_answer(&mut first);
    has(&scene.ask("GET /", "", ""), &["http/1.1 200"]);
}

#[test]
fn another_upgrade_is_an_offer_that_is_not_taken() {
    let server = Server::new();
    let answer = before(&server).ask("GET /", "Upgrade: h9\r\nConnection: upgrade\r\n", "");
    has(&answer, &["http/1.1 200 ok\r\n", "x-asked: get "]);
}

#[test]
fn a_request_is_lost_with_its_endpoint() {
    let server = Server::new();
    let scene = before(&server);
    let mut socket = scene.connect();
    socket.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh").unwrap();
    socket.read_exact(&mut [0]).unwrap();
    server.kill();
    let mut rest = Vec::new();
    let cut = socket.read_to_end(&mut rest);
    let rest = String::from_utf8(rest).unwrap();
    assert!(cut.is_err() && !rest.contains("\r\n0\r\n"), "it does not look whole: {rest}");
}

#[test]
fn who_is_not_believed_gets_no_request() {
    let server = Server::new();
    let stranger = Identity::new();
    let scene = Scene::with(vec![backend("backend", server.address, stranger.settings())], None);
    has(&scene.ask("GET /", "", ""), &["http/1.1 502", "error=tls_certificate_error"]);
}

#[test]
fn anybody_is_believed_where_that_is_asked_for() {
    let server = Server::new();
    let credulous = settings(Roots::Anybody);
    let scene = Scene::with(vec![backend("backend", server.address, credulous)], None);
    has(&scene.ask("GET /", "", ""), &["http/1.1 200 ok\r\n", "via: 3 sheave\r\n"]);
}
