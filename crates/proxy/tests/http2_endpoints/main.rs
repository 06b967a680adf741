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

use std::num::NonZeroU32;

use gateway::snapshot::BackendSettings;

use endpoint::{in_http2, scene, serve};
use scene::{Scene, backend, echo, either, has};

#[test]
fn a_request_without_a_body_is_asked_by_its_head_alone() {
    either::a_request_without_a_body_is_asked_by_its_head_alone(&scene(), "http", "2");
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
fn what_the_endpoint_refused_is_sent_again() {
    either::what_the_endpoint_refused_is_sent_again(&scene());
}

#[test]
fn a_request_that_was_reset_is_not_sent_again_unless_that_is_harmless() {
    either::a_request_that_was_reset_is_not_sent_again_unless_that_is_harmless(&scene());
}

#[test]
fn nothing_is_lost_when_the_endpoint_leaves() {
    either::nothing_is_lost_when_the_endpoint_leaves(&scene());
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
fn another_upgrade_is_an_offer_that_is_not_taken() {
    either::another_upgrade_is_an_offer_that_is_not_taken(&scene());
}

#[test]
fn a_cap_counts_streams() {
    let max_in_flight_per_endpoint = NonZeroU32::new(1);
    let settings =
        BackendSettings { max_in_flight_per_endpoint, queue_max_requests: 0, ..in_http2() };
    let scene = Scene::with(vec![backend("backend", serve(), settings)], None);
    either::a_cap_counts_streams(&scene);
}
