//! Tests of the reasons, for pods and replicas as data.

use serde_json::{Value, json};

use super::super::text::WIDTH;
use super::*;

fn pod() -> PodSummary {
    PodSummary {
        namespace: "shop".to_owned(),
        name: "web-1".to_owned(),
        phase: "Running".to_owned(),
        addresses: vec!["10.0.0.1".parse().unwrap()],
        is_ready: true,
        ..PodSummary::default()
    }
}

fn mention(is_ready: bool) -> EndpointMention {
    EndpointMention { service: "web".to_owned(), is_ready, is_terminating: false }
}

fn endpoint(address: &str, change: Value) -> Value {
    let mut endpoint = json!({
        "address": address, "weight": 1, "health": "serving", "in_flight": 0, "limit": 8,
        "limit_reason": "fixed", "idle_connections": 0, "requests": 100, "failures": 0,
        "latency_seconds": null, "http3": null,
    });
    for (name, value) in change.as_object().unwrap() {
        endpoint[name] = value.clone();
    }
    endpoint
}

fn backends(endpoints: &[Value]) -> BackendsResponse {
    let demand = json!({ "total": 0.0, "in_flight": 0.0, "queued": 0.0, "rejected": 0.0 });
    serde_json::from_value(json!({ "backends": [{
        "name": "shop/web:80", "namespace": "shop", "service": "web", "port": 80,
        "algorithm": "LeastLoad", "max_in_flight_per_endpoint": 8, "auto_limit": false,
        "queue_max_requests": 100, "queue_timeout_seconds": 5.0, "queue_length": 3, "panicking": false,
        "retries": 0, "demand": demand, "service_time_seconds": null, "endpoints": endpoints,
    }] }))
    .unwrap()
}

fn lines(case: &PodCase) -> String {
    let lines = case.lines();
    assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:#?}");
    assert!(lines.iter().all(|line| !line.contains('\u{1b}')), "{lines:#?}");
    // As one text, whatever the line breaks.
    lines.join("\n").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn case(services: Vec<EndpointMention>, replicas: Vec<ReplicaAnswer<BackendsResponse>>) -> PodCase {
    PodCase { pod: pod(), services: Ok(services), replicas, before: Vec::new() }
}

/// Returns the page for one endpoint of the pod beside one other.
fn with_endpoint(change: Value) -> String {
    let endpoints = [endpoint("10.0.0.1:80", change), endpoint("10.0.0.2:80", json!({}))];
    lines(&case(vec![mention(true)], vec![("a".to_owned(), Ok(backends(&endpoints)))]))
}

#[test]
fn pod_that_no_service_or_route_names_is_told_so() {
    let none = lines(&case(Vec::new(), vec![("a".to_owned(), Ok(backends(&[])))]));
    assert!(none.contains("no Service has this pod as an endpoint"), "{none}");
    let empty = BackendsResponse { backends: Vec::new() };
    let unrouted = lines(&case(vec![mention(true)], vec![("a".to_owned(), Ok(empty))]));
    assert!(
        unrouted.contains("no route or Ingress of Sheave refers to this Service"),
        "{unrouted}"
    );
}

#[test]
fn pod_that_is_not_ready_is_told_so() {
    let text = lines(&case(vec![mention(false)], vec![("a".to_owned(), Ok(backends(&[])))]));
    assert!(
        text.contains("Service shop/web: the pod is not ready, so it gets no requests"),
        "{text}"
    );
    assert!(text.contains("a: this replica does not have the endpoint"), "{text}");
}

#[test]
fn health_weight_and_limits_have_their_reasons() {
    for (change, reason) in [
        (json!({ "health": "ejected" }), "it is ejected after failures"),
        (json!({ "health": "unhealthy" }), "its active health check fails"),
        (json!({ "health": "unreachable" }), "connections to it fail"),
        (json!({ "health": "slow_start" }), "its share grows during the slow start"),
        (json!({ "health": "brand_new" }), "its health is none that this version knows"),
        (json!({ "weight": 0 }), "its weight is 0"),
        (
            json!({ "in_flight": 8 }),
            "all 8 slots are in use (maxInFlight of its BackendPolicy); 3 requests wait",
        ),
        (
            json!({ "limit": 0, "limit_reason": "leased" }),
            "its limit is 0 (slots that this replica has leased",
        ),
        (
            json!({ "limit": 2, "limit_reason": "saturation" }),
            "its limit is 2, the mean of all is 5.0 (learned",
        ),
    ] {
        let text = with_endpoint(change);
        assert!(text.contains(reason), "{reason}: {text}");
    }
    let idle = with_endpoint(json!({}));
    assert!(idle.contains("no request has been sent to any endpoint"), "{idle}");
}

#[test]
fn replicas_with_different_views_are_shown_each() {
    let ejected = [endpoint("10.0.0.1:80", json!({ "health": "ejected", "failures": 7 }))];
    let serving = [endpoint("10.0.0.1:80", json!({}))];
    let reason = "you may not get pods/proxy in namespace sheave-system".to_owned();
    let text = lines(&case(
        vec![mention(true)],
        vec![
            ("a".to_owned(), Ok(backends(&ejected))),
            ("b".to_owned(), Ok(backends(&serving))),
            ("c".to_owned(), Err(reason)),
        ],
    ));
    assert!(text.contains("a ejected 0 8 1 0 - 7 b serving 0 8 1 0 - 0"), "{text}");
    assert!(text.contains("replica c does not tell: you may not get pods/proxy"), "{text}");
    assert!(text.contains("a: it is ejected") && !text.contains("b: it is ejected"), "{text}");
}

#[test]
fn share_is_that_of_the_last_second() {
    let now = [
        endpoint("10.0.0.1:80", json!({ "requests": 190 })),
        endpoint("10.0.0.2:80", json!({ "requests": 110 })),
    ];
    let before = [endpoint("10.0.0.1:80", json!({})), endpoint("10.0.0.2:80", json!({}))];
    let mut case = case(vec![mention(true)], vec![("a".to_owned(), Ok(backends(&now)))]);
    case.before = vec![("a".to_owned(), Ok(backends(&before)))];
    let text = lines(&case);
    assert!(text.contains("a serving 0 8 1 90 90 % 0"), "{text}");
    // 90 % is less than twice its fair half.
    assert!(!text.contains("by its weight"), "{text}");
    let third = endpoint("10.0.0.3:80", json!({}));
    case.replicas = vec![("a".to_owned(), Ok(backends(&[&now[..], &[third]].concat())))];
    let text = lines(&case);
    assert!(text.contains("by its weight it would be 33 %: LeastLoad decides"), "{text}");
}

#[test]
fn services_that_may_not_be_read_are_named_and_hostile_names_escaped() {
    let mut case = case(Vec::new(), vec![("a\u{1b}[2J".to_owned(), Ok(backends(&[])))]);
    case.pod.name = "web\u{1b}]0;owned\u{7}".to_owned();
    case.services =
        Err("you may not list endpointslices.discovery.k8s.io in namespace shop".to_owned());
    let text = lines(&case);
    assert!(text.contains("its Services are not known: you may not list endpointslices"), "{text}");
    assert!(text.contains("web\\u{1b}]0;owned\\u{7}"), "{text}");
}
