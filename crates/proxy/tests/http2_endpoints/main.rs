//! Endpoints that speak HTTP/2, with HTTP/1.1 clients; HTTP/2 clients are in `streams`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

/// The proxy.
#[path = "../scene/mod.rs"]
mod scene;
/// HTTP/2 endpoints.
mod endpoint;
/// Clients that speak HTTP/2.
mod streams;
/// Request mirroring between HTTP/1.1 and HTTP/2.
mod mirrors;

use std::num::NonZeroU32;

use gateway::snapshot::BackendSettings;

use endpoint::{in_http2, scene, serve};
use scene::{Scene, backend, echo, either, has};

#[test]
fn request_without_a_body_is_sent_as_headers_only() {
    either::request_without_a_body_is_sent_as_headers_only(&scene(), "http", "2");
}

#[test]
fn bodies_with_and_without_length_arrive() {
    either::bodies_with_and_without_length_arrive(&scene());
}

#[test]
fn responses_without_a_body_have_none() {
    either::responses_without_a_body_have_none(&scene());
}

#[test]
fn interim_responses_pass() {
    either::interim_responses_pass(&scene());
}

#[test]
fn refused_stream_is_retried() {
    either::refused_stream_is_retried(&scene());
}

#[test]
fn reset_request_is_retried_only_if_idempotent() {
    either::reset_request_is_retried_only_if_idempotent(&scene());
}

#[test]
fn no_request_is_lost_on_goaway() {
    either::no_request_is_lost_on_goaway(&scene());
}

#[test]
fn a_websocket_is_opened_by_extended_connect() {
    let scene = scene();
    let (mut socket, head) = scene.open_websocket();
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
    either::other_upgrade_is_ignored(&scene());
}

#[test]
fn cap_limits_concurrent_streams() {
    let max_in_flight_per_endpoint = NonZeroU32::new(1);
    let settings =
        BackendSettings { max_in_flight_per_endpoint, queue_max_requests: 0, ..in_http2() };
    let scene = Scene::with(vec![backend("backend", serve(), settings)], None);
    either::cap_limits_concurrent_streams(&scene);
}
