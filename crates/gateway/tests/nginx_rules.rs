//! Snippets of ingress-nginx: the decisions of their rules are the answers of nginx in a table.

use gateway::matching::PlainRequest;
use gateway::snapshot::{
    DirectResponseSettings, ListenerProtocol, RuleDecision, RuleRequest, Snapshot, UrlScheme,
};
use gateway::{TranslationSettings, parse, translate};

const TABLE: &str = include_str!("../../../tests/src/nginx_rules.txt");

/// Ingresses of a host: one with the snippet, and two without.
fn snapshot(snippet: &str) -> Snapshot {
    let ingress = |name: &str, path: &str, annotations: &str| {
        format!(
            "
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {name}
{annotations}
spec:
  ingressClassName: sheave
  defaultBackend: {{service: {{name: web, port: {{number: 80}}}}}}
  rules:
  - http: {{paths: [{{path: {path}, pathType: Prefix, backend: {{service: {{name: web, port: {{number: 80}}}}}}}}]}}
"
        )
    };
    let annotation = format!(
        "  annotations:\n    nginx.ingress.kubernetes.io/configuration-snippet: |\n      {snippet}\n"
    );
    let text = [
        "
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: sheave}
spec: {controller: sheave.dev/ingress}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80}]}
",
        &ingress("a", "/", &annotation),
        &ingress("b", "/api", ""),
        &ingress("c", "/new", ""),
    ]
    .concat();
    let (objects, problems) = parse(&text, "table");
    assert!(problems.is_empty(), "{snippet}: {problems:?}");
    let translation = translate(&objects, &TranslationSettings::default());
    assert!(translation.problems.is_empty(), "{snippet}: {:?}", translation.problems);
    translation.snapshot
}

/// Returns the status, and the path that the endpoint gets or the value of `Location`.
fn answer(snapshot: &Snapshot, received: &str, mut request: PlainRequest) -> String {
    for _ in 0..=10 {
        let ListenerProtocol::Http(routes) = &snapshot.listeners[0].protocol else {
            panic!("a listener of HTTP")
        };
        let rule = routes.find(&request).expect("a route");
        let filters = rule.filters.as_deref();
        let rules = filters.and_then(|it| it.traffic.as_ref()?.request_rules.as_ref());
        let closes = || filters.is_some_and(|it| it.security.is_some());
        let forwarded = |target: &str| match closes() {
            true => "403".to_owned(),
            false => format!("200 {target}"),
        };
        let query = if request.query.is_empty() { "" } else { "?" };
        let target = format!("{}{query}{}", request.path, request.query);
        let Some(rules) = rules else { return forwarded(&target) };
        let decision = rules.decide(&RuleRequest {
            attributes: &request,
            scheme: UrlScheme::Http,
            port: 80,
            authority: request.host.as_bytes(),
            received_target: received.as_bytes(),
            client: [192, 0, 2, 1].into(),
        });
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("a URL");
        match decision.expect("short texts") {
            RuleDecision::Proceed => return forwarded(&target),
            RuleDecision::Forward { target: new } => {
                return forwarded(&new.map(text).unwrap_or(target));
            }
            RuleDecision::Redirect { status, location } => {
                let location = text(location);
                let host = if location.starts_with('/') { "http://HOST" } else { "" };
                return format!("{status} {host}{location}");
            }
            RuleDecision::Respond { rule } => match rules.response(rule) {
                Some(DirectResponseSettings::Response { status, .. }) => return status.to_string(),
                other => panic!("{other:?}"),
            },
            RuleDecision::Route { target } => {
                let target = text(target);
                let (path, query) = target.split_once('?').unwrap_or((&target, ""));
                (request.path, request.query) = (path.to_owned(), query.to_owned());
            }
        }
    }
    "500".to_owned()
}

/// Parses a request. Its path is brought to the normal form, as far as the table needs it.
fn parse_request(text: &str) -> (String, PlainRequest) {
    let mut words = text.split(' ');
    let mut word = || words.next().expect("a method and a target").to_owned();
    let (method, received) = (word(), word());
    let (path, query) = received.split_once('?').unwrap_or((&received, ""));
    let (path, query) = (path.replace("//", "/").replace("%61", "a"), query.to_owned());
    let mut host = "app.test".to_owned();
    let mut headers = Vec::new();
    for (name, value) in words.map(|word| word.split_once(':').expect("a field")) {
        match name {
            "HOST" => value.clone_into(&mut host),
            name => headers.push((name.to_owned(), value.to_owned())),
        }
    }
    (received, PlainRequest { method, host, path, query, headers })
}

#[test]
fn decisions_are_the_answers_of_nginx() {
    let mut served = None;
    let mut requests = 0;
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some(line) = line.strip_prefix("  ") else {
            served = Some((line, snapshot(line)));
            continue;
        };
        let (snippet, snapshot) = served.as_ref().expect("a snippet comes first");
        let (request, expected) = line.split_once(" -> ").expect("an answer");
        let (received, request) = parse_request(request);
        let host = request.host.clone();
        let answer = answer(snapshot, &received, request).replace(&host, "HOST");
        assert_eq!(answer, expected, "{snippet}\n  {line}");
        requests += 1;
    }
    assert!(requests > 60, "{requests} requests");
}
