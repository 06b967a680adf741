//! Tests that are common to HTTP/2 and HTTP/3 endpoints; the endpoints echo, or act as the request path says.

use std::io::{Read, Write};
use std::thread;

use super::{Scene, has, read_answer};

/// `scheme` is the scheme of the request to the endpoint, `via` the HTTP version of its response.
pub(crate) fn request_without_a_body_is_sent_as_headers_only(
    scene: &Scene,
    scheme: &str,
    via: &str,
) {
    let answer = scene.ask("GET /a?b", "X-B: 1\r\nTE: trailers\r\nKeep-Alive: 1\r\n", "");
    has(
        &answer,
        &[
            "http/1.1 200 ok\r\n",
            &format!("x-asked: get {scheme}://a.example/a?b\r\n"),
            "x-got-x-b: 1\r\n",
            "x-got-te: trailers\r\n",
            "x-got-x-forwarded-for: 127.0.0.1\r\n",
            &format!("via: {via} sheave\r\n"),
            "transfer-encoding: chunked\r\n",
            "\r\n0\r\nx-after: all\r\n\r\n",
        ],
    );
    assert!(!answer.contains("x-got-keep-alive") && !answer.contains("x-got-connection"));
}

pub(crate) fn bodies_with_and_without_length_arrive(scene: &Scene) {
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

pub(crate) fn responses_without_a_body_have_none(scene: &Scene) {
    let answer = scene.ask("HEAD /", "", "");
    assert!(answer.starts_with("http/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
    let answer = scene.ask("GET /empty", "", "");
    assert!(answer.starts_with("http/1.1 204") && answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(!answer.contains("transfer-encoding"), "{answer}");
}

pub(crate) fn interim_responses_pass(scene: &Scene) {
    let answer = scene.ask("GET /early", "", "");
    has(&answer, &["http/1.1 103 early hints\r\nlink: </a.css>\r\n", "http/1.1 200 ok\r\n"]);
}

pub(crate) fn refused_stream_is_retried(scene: &Scene) {
    let answer = scene.ask("POST /refuse-first", "Content-Length: 2\r\n", "hi");
    has(&answer, &["http/1.1 200 ok\r\n", "2\r\nhi\r\n"]);
    let answer = scene.ask("POST /refuse", "Content-Length: 2\r\n", "hi");
    has(&answer, &["http/1.1 503", "error=destination_unavailable"]);
}

pub(crate) fn reset_request_is_retried_only_if_idempotent(scene: &Scene) {
    let answer = scene.ask("POST /reset", "Content-Length: 2\r\n", "hi");
    has(&answer, &["http/1.1 502", "error=connection_terminated"]);
}

pub(crate) fn other_upgrade_is_ignored(scene: &Scene) {
    let answer = scene.ask("GET /", "Upgrade: h9\r\nConnection: upgrade\r\n", "");
    has(&answer, &["http/1.1 200 ok\r\n", "x-asked: get "]);
}

pub(crate) fn no_request_is_lost_on_goaway(scene: &Scene) {
    send_concurrently(scene, 4, 50);
}

/// Sends `requests` requests one after the other from each of `clients` concurrent clients.
fn send_concurrently(scene: &Scene, clients: usize, requests: usize) {
    let clients: Vec<_> = (0..clients)
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
    clients.into_iter().for_each(|client| client.join().unwrap());
}

/// Requires a backend with one slot and no queue.
pub(crate) fn cap_limits_concurrent_streams(scene: &Scene) {
    // The request holds the only slot until its body is complete.
    let mut first = scene.connect();
    first.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh").unwrap();
    first.read_exact(&mut [0]).unwrap();
    has(&scene.ask("GET /", "", ""), &["http/1.1 429"]);
    first.write_all(b"i").unwrap();
    read_answer(&mut first);
    has(&scene.ask("GET /", "", ""), &["http/1.1 200"]);
}
