//! How long it takes to translate what large clusters hold: `cargo run --release -p gateway --example large`, with a
//! part of a name to see that alone.
//!
//! A time that is much more than proportional to what is asked for is a fault. Each is the best of several runs.
#![expect(clippy::unwrap_used, reason = "the input is ours")]
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures time")]
#![expect(clippy::print_stdout, reason = "for people")]

use std::fmt::Write;
use std::time::{Duration, Instant};

use gateway::{ApiObject, TranslationSettings, parse, translate};

/// Runs of each.
const RUNS: usize = 5;

const HEAD: &str = "
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
  listeners: [{name: http, protocol: HTTP, port: 80, allowedRoutes: {namespaces: {from: All}}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80}]}
";

type InputGenerator = fn() -> String;

/// What is translated, and how it is made.
const CASES: [(&str, InputGenerator); 4] = [
    ("5,000 HTTPRoutes on one Gateway", || routes(5000)),
    ("5,000 HTTPRoutes of 500 namespaces, with ReferenceGrants, on 500 Gateways", || spread(500)),
    ("1,000 Services of 100 endpoints, with policies", || services(1000, 100)),
    ("one Ingress with 5,000 TLS hosts", || ingress(5000)),
];

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    for (name, input) in CASES.iter().filter(|(name, _)| name.contains(&wanted)) {
        let (objects, problems) = parse(&input(), "large.yaml");
        assert_eq!(problems, []);
        println!("{:>8.1} ms  {name}", time(&objects).as_secs_f64() * 1e3);
    }
}

/// The best of several runs.
fn time(objects: &[ApiObject]) -> Duration {
    let run = || {
        let start = Instant::now();
        let translation = translate(objects, &TranslationSettings::default());
        let took = start.elapsed();
        assert_eq!(translation.problems.first(), None);
        took
    };
    (0..RUNS).map(|_| run()).min().unwrap()
}

/// Each for a host of its own, to one Service.
fn routes(count: usize) -> String {
    let mut out = HEAD.to_owned();
    for n in 0..count {
        let rule = "{matches: [{path: {type: PathPrefix, value: /api}}, {path: {type: Exact, value: /}}], \
                    backendRefs: [{name: web, port: 80}]}";
        write!(out, "{}", route(&format!("web-{n}"), "default", "edge", rule)).unwrap();
    }
    out
}

/// Ten routes of each namespace at a Gateway of its own, to a Service of another.
fn spread(count: usize) -> String {
    let mut out = HEAD.to_owned();
    for n in 0..count {
        write!(
            out,
            "---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: team-{n}}}
spec:
  gatewayClassName: sheave
  listeners: [{{name: http, protocol: HTTP, port: {}}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {{name: team-{n}}}
spec:
  from: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: team-{n}}}]
  to: [{{group: \"\", kind: Service, name: web}}]
",
            1000 + n
        )
        .unwrap();
        for m in 0..10 {
            let rule = "{backendRefs: [{namespace: default, name: web, port: 80}]}";
            write!(out, "{}", route(&format!("web-{m}"), &format!("team-{n}"), "edge", rule))
                .unwrap();
        }
    }
    out
}

/// With a route and a policy for each.
fn services(count: usize, endpoints: usize) -> String {
    let mut out = HEAD.to_owned();
    for n in 0..count {
        write!(
            out,
            "---
apiVersion: v1
kind: Service
metadata: {{name: web-{n}}}
spec: {{ports: [{{port: 80, appProtocol: https}}]}}
---
apiVersion: sheave.dev/v1alpha1
kind: BackendPolicy
metadata: {{name: web-{n}}}
spec: {{targetRefs: [{{kind: Service, name: web-{n}}}], maxInFlightPerEndpoint: 4, tls: {{insecureSkipVerify: true}}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-{n}, labels: {{kubernetes.io/service-name: web-{n}}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints:
"
        )
        .unwrap();
        for m in 0..endpoints {
            writeln!(
                out,
                "- {{addresses: [10.{}.{}.{m}], conditions: {{ready: true}}}}",
                n / 256,
                n % 256
            )
            .unwrap();
        }
        let rule = format!("{{backendRefs: [{{name: web-{n}, port: 80}}]}}");
        write!(out, "{}", route(&format!("web-{n}"), "default", "edge", &rule)).unwrap();
    }
    out
}

fn route(name: &str, namespace: &str, gateway: &str, rule: &str) -> String {
    format!(
        "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{parentRefs: [{{name: {gateway}}}], hostnames: [{name}.example.com], rules: [{rule}]}}
"
    )
}

/// All with one certificate.
fn ingress(hosts: usize) -> String {
    let names = (0..hosts).map(|n| format!("host-{n}.example.com"));
    let pair = rcgen::generate_simple_self_signed(["*.example.com".to_owned()]).unwrap();
    let mut out = HEAD.to_owned();
    write!(
        out,
        "---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {{name: ours}}
spec: {{controller: sheave.dev/ingress}}
---
apiVersion: v1
kind: Secret
metadata: {{name: cert}}
type: kubernetes.io/tls
stringData:
  tls.crt: {:?}
  tls.key: {:?}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{name: web, annotations: {{nginx.ingress.kubernetes.io/proxy-read-timeout: \"7\"}}}}
spec:
  ingressClassName: ours
  tls:
  - secretName: cert
    hosts: [{}]
  rules:
",
        pair.cert.pem(),
        pair.signing_key.serialize_pem(),
        names.clone().collect::<Vec<_>>().join(", ")
    )
    .unwrap();
    for name in names {
        writeln!(
            out,
            "  - {{host: {name}, http: {{paths: [{{path: /, pathType: Prefix, backend: \
             {{service: {{name: web, port: {{number: 80}}}}}}}}]}}}}"
        )
        .unwrap();
    }
    out
}
