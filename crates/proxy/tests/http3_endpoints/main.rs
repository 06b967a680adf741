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

use gateway::snapshot::{BackendSettings, TrustAnchors};

use endpoint::{Identity, Server, settings};
use scene::{Scene, backend, either, has, read_answer, read_until};

fn before(server: &Server) -> Scene {
    Scene::with(vec![backend("backend", server.address, server.identity.settings())], None)
}

#[test]
fn request_without_a_body_is_sent_as_headers_only() {
    let server = Server::new();
    either::request_without_a_body_is_sent_as_headers_only(&before(&server), "https", "3");
}

#[test]
fn bodies_with_and_without_length_arrive() {
    let server = Server::new();
    either::bodies_with_and_without_length_arrive(&before(&server));
}

#[test]
fn responses_without_a_body_have_none() {
    let server = Server::new();
    either::responses_without_a_body_have_none(&before(&server));
}

#[test]
fn interim_responses_pass() {
    let server = Server::new();
    either::interim_responses_pass(&before(&server));
}

#[test]
fn refused_stream_is_retried() {
    let server = Server::new();
    either::refused_stream_is_retried(&before(&server));
}

#[test]
fn reset_request_is_retried_only_if_idempotent() {
    let server = Server::new();
    either::reset_request_is_retried_only_if_idempotent(&before(&server));
}

#[test]
fn truncated_response_closes_the_client_connection() {
    let server = Server::new();
    let scene = before(&server);
    let mut socket = scene.connect();
    socket.write_all(b"POST /break HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n").unwrap();
    let mut answer = read_until(&mut socket, b"half\r\n");
    socket.write_all(b"hi").unwrap();
    let cut = socket.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    has(&answer, &["HTTP/1.1 200 OK\r\n"]);
    assert!(cut.is_err() && !answer.contains("\r\n0\r\n"), "it does not look whole: {answer}");
}

#[test]
fn no_request_is_lost_on_goaway() {
    let server = Server::new();
    either::no_request_is_lost_on_goaway(&before(&server));
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
fn request_waits_for_a_stream_when_all_connections_are_full() {
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
fn cap_limits_concurrent_streams() {
    let server = Server::new();
    let max_in_flight_per_endpoint = NonZeroU32::new(1);
    let settings = BackendSettings {
        max_in_flight_per_endpoint,
        queue_max_requests: 0,
        ..server.identity.settings()
    };
    let scene = Scene::with(vec![backend("backend", server.address, settings)], None);
    either::cap_limits_concurrent_streams(&scene);
}

#[test]
fn other_upgrade_is_ignored() {
    let server = Server::new();
    either::other_upgrade_is_ignored(&before(&server));
}

#[test]
fn request_in_flight_fails_when_its_endpoint_dies() {
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
fn untrusted_endpoint_gets_no_request() {
    let server = Server::new();
    let stranger = Identity::new();
    let scene = Scene::with(vec![backend("backend", server.address, stranger.settings())], None);
    has(&scene.ask("GET /", "", ""), &["http/1.1 502", "error=tls_certificate_error"]);
}

#[test]
fn any_certificate_is_accepted_without_verification() {
    let server = Server::new();
    let credulous = settings(TrustAnchors::AcceptAny);
    let scene = Scene::with(vec![backend("backend", server.address, credulous)], None);
    has(&scene.ask("GET /", "", ""), &["http/1.1 200 ok\r\n", "via: 3 sheave\r\n"]);
}
