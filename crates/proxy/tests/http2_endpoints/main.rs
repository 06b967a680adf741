//! Endpoints that speak HTTP/2, with HTTP/1.1 clients; HTTP/2 clients are in `streams`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

/// The proxy.
#[path = "../fixture/mod.rs"]
mod fixture;
/// HTTP/2 endpoints.
mod endpoint;
/// Clients that speak HTTP/2.
mod streams;
/// Request mirroring between HTTP/1.1 and HTTP/2.
mod mirrors;

use std::num::NonZeroU32;

use gateway::snapshot::BackendSettings;

use endpoint::{in_http2, serve, start_fixture};
use fixture::{ProxyFixture, backend, echo, either, has};

#[test]
fn request_without_a_body_is_sent_as_headers_only() {
    either::request_without_a_body_is_sent_as_headers_only(&start_fixture(), "http", "2");
}

#[test]
fn bodies_with_and_without_length_arrive() {
    either::bodies_with_and_without_length_arrive(&start_fixture());
}

#[test]
fn responses_without_a_body_have_none() {
    either::responses_without_a_body_have_none(&start_fixture());
}

#[test]
fn interim_responses_pass() {
    either::interim_responses_pass(&start_fixture());
}

#[test]
fn refused_stream_is_retried() {
    either::refused_stream_is_retried(&start_fixture());
}

#[test]
fn reset_request_is_retried_only_if_idempotent() {
    either::reset_request_is_retried_only_if_idempotent(&start_fixture());
}

#[test]
fn no_request_is_lost_on_goaway() {
    either::no_request_is_lost_on_goaway(&start_fixture());
}

#[test]
fn a_websocket_is_opened_by_extended_connect() {
    let fixture = start_fixture();
    let (mut socket, head) = fixture.open_websocket();
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
    echo(&mut socket, b"one");
    echo(&mut socket, b"two");
}

#[test]
fn other_upgrade_is_ignored() {
    either::other_upgrade_is_ignored(&start_fixture());
}

#[test]
fn cap_limits_concurrent_streams() {
    let max_in_flight_per_endpoint = NonZeroU32::new(1);
    let settings =
        BackendSettings { max_in_flight_per_endpoint, queue_max_requests: 0, ..in_http2() };
    let fixture = ProxyFixture::with(vec![backend("backend", serve(), settings)], None);
    either::cap_limits_concurrent_streams(&fixture);
}
