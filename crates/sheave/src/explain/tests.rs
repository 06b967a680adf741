//! Tests of explanations for a few requests.

use super::*;
use crate::files::SourceContents;

const CONFIGURATION: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: sheave}
spec: {controllerName: sheave.dev/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  gatewayClassName: sheave
  addresses: [{type: IPAddress, value: 127.0.0.1}]
  listeners: [{name: http, port: 8080, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop}
spec:
  parentRefs: [{name: edge}]
  hostnames: [shop.example]
  rules:
  - matches: [{path: {value: /cart}}]
    backendRefs: [{name: cart, port: 80, weight: 3}, {name: gone, port: 80}]
  - backendRefs: [{name: cart, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: cart}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: gone}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: http, port: 9001}]
endpoints: [{addresses: [10.0.0.1]}]
---
apiVersion: sheave.dev/v1alpha1
kind: BackendPolicy
metadata: {name: limits}
spec:
  targetRefs: [{group: "", kind: Service, name: cart}]
  maxInFlightPerEndpoint: 4
---
apiVersion: v1
kind: Service
metadata: {name: echo, annotations: {sheave.dev/balance: requests, sheave.dev/client-address: node}}
spec:
  clusterIP: 10.96.0.7
  ports: [{name: http, port: 80}, {name: db, port: 3306}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: echo, namespace: consumer}
spec:
  parentRefs: [{group: "", kind: Service, name: echo, namespace: default, port: 80}]
  rules: [{backendRefs: [{name: echo, namespace: default, port: 80}]}]
"#;

fn explained(url: &str) -> Result<String, String> {
    let (objects, problems) = gateway::parse(CONFIGURATION, "test.yaml");
    let mut contents = SourceContents { objects, problems, ..SourceContents::default() };
    contents.settings.transparent = Some(any_node());
    let checked = configuration::check(contents).unwrap();
    let request = ExplainRequest::parse("GET", url, &[]).unwrap();
    explain(&request, &checked.objects, &checked.translation).map(|lines| lines.join("\n"))
}

/// Asserts that the explanation contains all of these lines.
fn says(url: &str, lines: &[&str]) {
    let text = explained(url).unwrap();
    for line in lines {
        assert!(text.lines().any(|it| it.split_whitespace().eq(line.split_whitespace())), "{text}");
    }
}

#[test]
fn explain_shows_rule_backend_and_settings_with_reasons() {
    says(
        "http://shop.example:8080/cart/1",
        &[
            "listener default/edge/http on 127.0.0.1:8080",
            "rule default/shop/0",
            "matches host shop.example, path prefix /cart",
            "backend default/cart:80",
            "weight 3 of 4: 75 % of the rule's requests",
            "endpoints 10.0.0.1:9001, weight 1",
            "policy algorithm LeastLoad default",
            "maxInFlightPerEndpoint 4 BackendPolicy default/limits",
            "backend default/gone:80",
            "endpoints none: the response is 503 (no_endpoint)",
            "not default/shop/1: it also matches, but has lower precedence (matches host \
             shop.example, path prefix /)",
        ],
    );
    says(
        "http://shop.example:8080/other",
        &[
            "rule default/shop/1",
            "not default/shop/0: the path does not match (matches host shop.example, path prefix /cart)",
        ],
    );
}

/// Returns the explanation of a GET with the configuration of an example.
fn explained_in(example: &str, url: &str) -> String {
    let (objects, problems) = gateway::parse(example, "example.yaml");
    let checked =
        configuration::check(SourceContents { objects, problems, ..SourceContents::default() })
            .unwrap();
    let request = ExplainRequest::parse("GET", url, &[]).unwrap();
    let lines = explain(&request, &checked.objects, &checked.translation).unwrap();
    lines.join("\n")
}

#[test]
fn explain_names_the_source_of_session_affinity() {
    let example = include_str!("../../../../examples/session-persistence.yaml");
    let of_rule = explained_in(example, "http://localhost:8080/");
    assert!(of_rule.contains("session affinity Cookie"), "{of_rule}");
    let of_policy = explained_in(example, "http://localhost:8080/api");
    let mut lines = of_policy.lines();
    let line = lines.find(|line| line.contains("affinity ")).unwrap_or(&of_policy);
    assert!(line.ends_with("XBackendTrafficPolicy default/api"), "{line}");
}

#[test]
fn explain_shows_the_tls_handling() {
    let example = include_str!("../../../../examples/tls-passthrough.yaml");
    let explanation = |url: &str| explained_in(example, url);
    for (url, part) in [
        ("https://shop.example:8443/", "tls        Secret default/shop"),
        ("https://shop.example:8443/", "rule       default/web/0"),
        ("https://orders.db.example:8443/", "TLS passthrough, for orders.db.example"),
        (
            "https://queue.shop.example:8443/",
            "TLS terminated, then proxied as a TCP connection, for queue.shop.example",
        ),
        ("https://other.example:8443/", "the connection is refused"),
        ("https://127.0.0.1:8443/", "the connection is refused"),
        ("http://shop.example:8443/", "the URL must begin with https://"),
    ] {
        assert!(explanation(url).contains(part), "{url}: {}", explanation(url));
    }
    let error = explained("https://shop.example:8080/").unwrap();
    assert!(error.contains("the URL must begin with http://"), "{error}");
}

#[test]
fn explain_shows_http3_availability() {
    let example = include_str!("../../../../examples/http3.yaml");
    let explanation = |example: &str| {
        let (objects, problems) = gateway::parse(example, "example.yaml");
        let contents = SourceContents { objects, problems, ..SourceContents::default() };
        let checked = configuration::check(contents).unwrap();
        let request = ExplainRequest::parse("GET", "https://shop.example:8443/", &[]).unwrap();
        explain(&request, &checked.objects, &checked.translation).unwrap().join("\n") + "\n"
    };
    let line = "http3      on UDP port 8443, 128 concurrent requests";
    assert!(explanation(example).contains(&format!("{line}\n")), "{}", explanation(example));
    let by_bbr = example.replace("congestionControl: Cubic", "congestionControl: Bbr");
    assert!(
        explanation(&by_bbr).contains(&format!("{line}, congestion control BBR\n")),
        "{}",
        explanation(&by_bbr)
    );
}

#[test]
fn explain_shows_why_no_rule_matches() {
    says(
        "http://other.example:8080/",
        &[
            "rule none: the response is 404 (no_route)",
            "default/shop/1: the host does not match (matches host shop.example, path prefix /)",
        ],
    );
    let error = explained("http://shop.example:81/").unwrap_err();
    assert!(error.contains("port 81") && error.contains("127.0.0.1:8080"), "{error}");
    assert!(explained("http://shop.example/cart").is_ok(), "the URL names no port");
}

#[test]
fn path_is_normalised_as_a_request_is() {
    for path in ["//cart", "/x/../cart", "/./cart", "/%63art"] {
        says(
            &format!("http://shop.example:8080{path}"),
            &["path /cart, after normalisation", "matches host shop.example, path prefix /cart"],
        );
    }
    let above_root = explained("http://shop.example:8080/../cart").unwrap();
    assert!(above_root.ends_with("the response is 400"), "{above_root}");
}

#[test]
fn explain_shows_what_the_address_of_a_service_does() {
    for url in ["http://10.96.0.7/", "http://echo/", "http://echo.default.svc.cluster.local/"] {
        says(
            url,
            &[
                "listener default/echo/http on 10.96.0.7:80",
                "service connections are taken on nodes in transparent mode, else by kube-proxy",
                "endpoints see the address of the node",
                "clients in namespace consumer have routes of their own",
                "rule default/echo/http",
                "backend default/echo:80",
            ],
        );
    }
    let of_connections = [
        "listener default/echo/db on 10.96.0.7:3306",
        "protocol none is read: each connection is balanced as a whole",
        "backend default/echo:3306",
    ];
    says("http://echo:3306/", &of_connections);
    let other = explained("http://echo.other/").unwrap();
    assert!(!other.contains("10.96.0.7"), "{other}");
}
