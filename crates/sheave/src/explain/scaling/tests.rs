//! Explanations for a Service and its autoscalers.

use serde_json::{Value, json};

use super::*;

fn backend(name: &str, demand: f64, cap: Value) -> BackendInfo {
    let (namespace, rest) = name.split_once('/').unwrap();
    let (service, port) = rest.split_once(':').unwrap();
    let endpoint = |last: u8| {
        json!({
            "address": format!("10.0.0.{last}:80"), "weight": 1, "health": "serving",
            "in_flight": 1, "limit": cap, "limit_reason": null, "idle_connections": 0,
            "requests": 0, "failures": 0, "latency_seconds": null, "http3": null,
        })
    };
    let parts = json!({
        "total": demand, "in_flight": demand / 2.0, "queued": demand / 2.0, "rejected": 0.0,
    });
    let value = json!({
        "name": name, "namespace": namespace, "service": service,
        "port": port.parse::<u16>().unwrap(), "algorithm": "LeastLoad",
        "max_in_flight_per_endpoint": cap, "auto_limit": false, "queue_max_requests": 10,
        "queue_timeout_seconds": 5.0, "queue_length": 0, "panicking": false, "retries": 0,
        "demand": parts, "demand_all_replicas": parts,
        "rates_all_replicas": { "requests_per_second": 90.0, "rejections_per_second": 1.5 },
        "service_time_seconds": null, "endpoints": [endpoint(1), endpoint(2)],
    });
    serde_json::from_value(value).unwrap()
}

fn autoscaler(metrics: Value) -> AutoscalerObject {
    let value = json!({
        "metadata": { "name": "scaler" },
        "spec": {
            "scaleTargetRef": { "kind": "Deployment", "name": "web" },
            "minReplicas": 1, "maxReplicas": 20, "metrics": metrics,
        },
        "status": {
            "currentReplicas": 2,
            "conditions": [
                { "type": "ScalingActive", "status": "False", "reason": "FailedGetExternalMetric",
                  "message": "no route refers to a Service" },
                { "type": "ScalingLimited", "status": "False", "reason": "DesiredWithinRange",
                  "message": "" },
            ],
        },
    });
    serde_json::from_value(value).unwrap()
}

fn external(metric: &str, selector: Value, target: Value) -> Value {
    json!({ "type": "External", "external": {
        "metric": { "name": metric, "selector": selector }, "target": target,
    }})
}

fn page(backends: &[BackendInfo], metrics: Value) -> String {
    page_with_routes(backends, json!([]), metrics)
}

fn page_with_routes(backends: &[BackendInfo], routes: Value, metrics: Value) -> String {
    let routes: RoutesResponse = serde_json::from_value(json!({ "routes": routes })).unwrap();
    let load = ObservedLoad::new(backends.iter().collect(), &routes.routes);
    explain(&load, &Ok(vec![autoscaler(metrics)])).join("\n")
}

fn rule(name: &str, backends: &[&str], requests: Option<f64>) -> Value {
    let rates =
        requests.map(|it| json!({ "requests_per_second": it, "rejections_per_second": it / 10.0 }));
    json!({ "name": name, "backends": backends, "rates_all_replicas": rates })
}

fn assert_has(page: &str, texts: &[&str]) {
    for text in texts {
        assert!(page.contains(text), "{text:?} is not in:\n{page}");
    }
}

const WEB: &str = "shop/web:80";

fn of_web() -> Value {
    json!({ "matchLabels": { "service": "web" } })
}

#[test]
fn next_step_of_an_autoscaler_has_its_reasons() {
    let metric = external("sheave_demand", of_web(), json!({ "averageValue": "2" }));
    let page = page(&[backend(WEB, 7.2, json!(2))], json!([metric]));
    assert_has(
        &page,
        &[
            "service    shop/web:80",
            "demand     7.20 concurrent requests: 3.60 in flight, 3.60 waiting, 0.00 rejected",
            "rates      90.00 requests per second, of which 1.50 are rejected",
            "endpoints  2, 2 serving, each with 2 requests at a time: full at 4; the demand fills 4",
            "autoscaler scaler: Deployment web has 2 pods, of 1 to 20",
            "metric     sheave_demand of service=web is 7.20",
            "7.20 / 2 for each pod, rounded up: 4 pods",
            "next sync  4 pods: 2 more",
            "it says    FailedGetExternalMetric: no route refers to a Service",
        ],
    );
    assert!(!page.contains("warning") && !page.contains("DesiredWithinRange"), "{page}");
}

#[test]
fn absurd_targets_are_named() {
    let with = |metric: &str, target: Value| {
        let metric = external(metric, of_web(), target);
        page(&[backend(WEB, 8.0, json!(200))], json!([metric]))
    };
    let above = with("sheave_demand", json!({ "averageValue": "1k" }));
    assert_has(&above, &["warning    the target 1000 exceeds the 200 requests that a pod takes"]);
    let below = with("sheave_demand", json!({ "averageValue": "1m" }));
    assert_has(&below, &["less than a hundredth of the 200 requests", "without a behavior"]);
    let total = with("sheave_demand", json!({ "value": "4" }));
    assert_has(&total, &["warning    the target is one for all pods", "4 pods: 2 more"]);
    let none = with("sheave_demand", json!({ "averageValue": "0" }));
    assert_has(
        &none,
        &["the target is no positive number: averageValue \"0\"", "next sync  no change"],
    );
    let rejections = with("sheave_rejections_per_second", json!({ "averageValue": "1" }));
    assert_has(&rejections, &["is 1.50", "warning    rejections are none with enough pods"]);
}

#[test]
fn metrics_select_ports_by_labels_and_expressions_or_by_the_object() {
    let backends = [backend(WEB, 3.0, Value::Null), backend("shop/web:443", 5.0, Value::Null)];
    let one_port = json!({ "matchExpressions": [
        { "key": "service", "operator": "In", "values": ["web", "api"] },
        { "key": "port", "operator": "NotIn", "values": ["80"] },
    ]});
    let target = json!({ "averageValue": "4" });
    let found = page(&backends, json!([external("sheave_demand", one_port, target.clone())]));
    assert_has(&found, &["sheave_demand of service in (web,api),port notin (80) is 5.00"]);
    assert_has(&found, &["endpoints  2, 2 serving; none has a limit"]);
    let object = |kind: &str| {
        json!({ "type": "Object", "object": {
            "describedObject": { "kind": kind, "name": "web" },
            "metric": { "name": "sheave_requests_per_second" }, "target": target,
        }})
    };
    let cpu = json!({ "type": "Resource", "resource": { "name": "cpu" } });
    let found = page(&backends, json!([object("Service"), cpu]));
    assert_has(&found, &["sheave_requests_per_second of Service web is 180.00"]);
    assert_has(&found, &["of its 1 other metrics, the highest counts"]);
    let route = page(&backends, json!([object("HTTPRoute")]));
    assert_has(&route, &["none scales by a metric of this Service, or of a route that refers"]);
    assert_has(&route, &["scaler scales by Object sheave_requests_per_second"]);
}

#[test]
fn metrics_of_routes_are_explained_for_the_services_that_they_refer_to() {
    let object = |kind: &str, metric: &str, selector: Value| {
        json!({ "type": "Object", "object": {
            "describedObject": { "kind": kind, "name": "checkout" },
            "metric": { "name": metric, "selector": selector },
            "target": { "averageValue": "50" },
        }})
    };
    let rate = "sheave_requests_per_second";
    let routes = |requests: Option<f64>| {
        json!([
            rule("shop/checkout/0", &[WEB], requests),
            rule("shop/checkout/pay", &["shop/pay:80"], requests),
            rule("blog/checkout/0", &[WEB], requests),
            rule("shop/cart/0", &["shop/cart:80"], requests),
        ])
    };
    let backends = [backend(WEB, 3.0, Value::Null)];
    let explain = |metric: Value| page_with_routes(&backends, routes(Some(100.0)), json!([metric]));
    let whole = explain(object("HTTPRoute", rate, Value::Null));
    assert_has(&whole, &["sheave_requests_per_second of HTTPRoute checkout is 200.00"]);
    assert_has(
        &whole,
        &["200.00 / 50 for each pod, rounded up: 4 pods", "next sync  4 pods: 2 more"],
    );
    let of_rule = json!({ "matchLabels": { "rule": "0" } });
    let part = explain(object("HTTPRoute", rate, of_rule));
    assert_has(&part, &["of HTTPRoute checkout, rule=0 is 100.00"]);
    let by_label = json!({ "matchLabels": { "route": "checkout" } });
    let external = explain(external(rate, by_label, json!({ "averageValue": "50" })));
    assert_has(&external, &["sheave_requests_per_second of route=checkout is 200.00"]);
    let other_rule = json!({ "matchLabels": { "rule": "pay" } });
    let other = explain(object("HTTPRoute", rate, other_rule));
    assert_has(&other, &["none scales by a metric of this Service"]);
    let demand = explain(object("HTTPRoute", "sheave_demand", Value::Null));
    assert_has(&demand, &["of HTTPRoute checkout has no value: routes have no sheave_demand"]);
    assert_has(&demand, &["next sync  no change"]);
    let unknown = object("GRPCRoute", rate, Value::Null);
    let unknown = page_with_routes(&backends, routes(None), json!([unknown]));
    assert_has(&unknown, &["has no value: Sheave averages no rates of routes without metricsApi"]);
}

#[test]
fn without_an_autoscaler_the_demand_is_explained() {
    let web = backend(WEB, 1.0, json!(2));
    let reason = "no credentials for an API server found".to_owned();
    let load = ObservedLoad::new(vec![&web], &[]);
    let page = explain(&load, &Err(reason)).join("\n");
    assert_has(&page, &["demand     1.00", "autoscaler not known: no credentials"]);
    let page = explain(&load, &Ok(Vec::new())).join("\n");
    assert_has(&page, &["autoscaler none scales by a metric of this Service, or of a route"]);
}

#[test]
fn unknown_service_is_told_the_known_ones() {
    let backends = [backend(WEB, 1.0, Value::Null), backend("blog/web:80", 1.0, Value::Null)];
    let select = |text: &str| {
        let service = ServiceName::parse(text).unwrap();
        select(&service, &backends).map(|found| found.len())
    };
    assert_eq!(select("shop/web"), Ok(1));
    assert_eq!(select("blog/web:80"), Ok(1));
    let two = select("web").unwrap_err();
    assert!(two.contains("in the namespaces shop and blog"), "{two}");
    let unknown = select("shop/cart:81").unwrap_err();
    assert!(unknown.contains("Service shop/cart:81; routes refer to shop/web:80, "), "{unknown}");
    let service = ServiceName::parse("web").unwrap();
    assert!(super::select(&service, &[]).unwrap_err().contains("any Service"));
}

#[test]
fn malformed_name_of_a_service_is_refused() {
    for text in ["", "/web", "shop/", "a/b/c", "Web", "web:0", "web:http", "web:70000"] {
        assert!(ServiceName::parse(text).is_err(), "{text}");
    }
}
