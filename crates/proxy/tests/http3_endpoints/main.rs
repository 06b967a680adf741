//! Endpoints that speak HTTP/3, with HTTP/1.1 clients.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

/// The proxy.
#[path = "../fixture/mod.rs"]
mod fixture;
/// HTTP/3 endpoints.
mod endpoint;
/// An endpoint that sends raw bytes.
mod bare;
/// Fallback to TCP if HTTP/3 is unavailable.
mod fallback;

use std::io::{Read, Write};
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

use gateway::snapshot::{BackendSettings, TrustAnchors};

use endpoint::{Identity, Server, settings};
use fixture::{ProxyFixture, backend, either, has, read_answer, read_until};

fn proxy_for(server: &Server) -> ProxyFixture {
    ProxyFixture::with(vec![backend("backend", server.address, server.identity.settings())], None)
}

#[test]
fn request_without_a_body_is_sent_as_headers_only() {
    let server = Server::new();
    either::request_without_a_body_is_sent_as_headers_only(&proxy_for(&server), "https", "3");
}

#[test]
fn bodies_with_and_without_length_arrive() {
    let server = Server::new();
    either::bodies_with_and_without_length_arrive(&proxy_for(&server));
}

#[test]
fn responses_without_a_body_have_none() {
    let server = Server::new();
    either::responses_without_a_body_have_none(&proxy_for(&server));
}

#[test]
fn interim_responses_pass() {
    let server = Server::new();
    either::interim_responses_pass(&proxy_for(&server));
}

#[test]
fn refused_stream_is_retried() {
    let server = Server::new();
    either::refused_stream_is_retried(&proxy_for(&server));
}

#[test]
fn reset_request_is_retried_only_if_idempotent() {
    let server = Server::new();
    either::reset_request_is_retried_only_if_idempotent(&proxy_for(&server));
}

#[test]
fn truncated_response_closes_the_client_connection() {
    let server = Server::new();
    let fixture = proxy_for(&server);
    let mut socket = fixture.connect();
    socket.write_all(b"POST /break HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n").unwrap();
    let mut answer = read_until(&mut socket, b"half\r\n");
    socket.write_all(b"hi").unwrap();
    let cut = socket.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    has(&answer, &["HTTP/1.1 200 OK\r\n"]);
    assert!(
        cut.is_err() && !answer.contains("\r\n0\r\n"),
        "the response must look truncated: {answer}"
    );
}

#[test]
fn no_request_is_lost_on_goaway() {
    let server = Server::new();
    either::no_request_is_lost_on_goaway(&proxy_for(&server));
    assert!(server.connections.load(Ordering::Relaxed) > 1);
}

#[test]
fn requests_share_one_connection() {
    let server = Server::new();
    let fixture = proxy_for(&server);
    // Each request keeps its stream open until its body ends.
    let mut open: Vec<_> = (0..50).map(|_| fixture.connect()).collect();
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
    let fixture = proxy_for(&server);
    let mut open: Vec<_> = (0..6).map(|_| fixture.connect()).collect();
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
    let fixture = ProxyFixture::with(vec![backend("backend", server.address, settings)], None);
    let mut first = fixture.connect();
    first.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh").unwrap();
    first.read_exact(&mut [0]).unwrap();
    let mut second = fixture.connect();
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
    let fixture = ProxyFixture::with(vec![backend("backend", server.address, settings)], None);
    either::cap_limits_concurrent_streams(&fixture);
}

#[test]
fn other_upgrade_is_ignored() {
    let server = Server::new();
    either::other_upgrade_is_ignored(&proxy_for(&server));
}

#[test]
fn request_in_flight_fails_when_its_endpoint_dies() {
    let server = Server::new();
    let fixture = proxy_for(&server);
    let mut socket = fixture.connect();
    socket.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh").unwrap();
    socket.read_exact(&mut [0]).unwrap();
    server.kill();
    let mut rest = Vec::new();
    let cut = socket.read_to_end(&mut rest);
    let rest = String::from_utf8(rest).unwrap();
    assert!(
        cut.is_err() && !rest.contains("\r\n0\r\n"),
        "the response must look truncated: {rest}"
    );
}

#[test]
fn untrusted_endpoint_gets_no_request() {
    let server = Server::new();
    let other = Identity::new();
    let fixture =
        ProxyFixture::with(vec![backend("backend", server.address, other.settings())], None);
    has(&fixture.ask("GET /", "", ""), &["http/1.1 502", "error=tls_certificate_error"]);
}

#[test]
fn any_certificate_is_accepted_without_verification() {
    let server = Server::new();
    let accept_any = settings(TrustAnchors::AcceptAny);
    let fixture = ProxyFixture::with(vec![backend("backend", server.address, accept_any)], None);
    has(&fixture.ask("GET /", "", ""), &["http/1.1 200 ok\r\n", "via: 3 sheave\r\n"]);
}
