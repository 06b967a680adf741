//! Properties of what a configuration is parsed to: objects from files and from an API server, and patterns.

use std::sync::Arc;

use gateway::jwks::{JsonWebKeySet, JwtAlgorithm};
use gateway::matching::{
    HostName, HostNameBuffer, HostPattern, OwnedHostName, PathPattern, query_value,
};
use gateway::objects::{Duration, read};
use gateway::snapshot::{Rule, RuleTarget, Snapshot};
use gateway::{ObjectOrigin, TranslationSettings, parse, translate};
use serde_json::json;

/// Any text gives a Snapshot that is valid, and the same one each time; so do its objects, if a cluster has them.
pub fn objects(text: &str) {
    let (objects, _) = parse(text, "fuzz.yaml");
    let settings = TranslationSettings::default();
    let translation = translate(&objects, &settings);
    assert_valid(&translation.snapshot);
    let again = translate(&objects, &settings);
    assert_eq!(format!("{:?}", translation.problems), format!("{:?}", again.problems));
    if let Ok(value) = serde_json::from_str(text) {
        let origin = ObjectOrigin { file: "cluster".into(), document: 1 };
        let (objects, _) = read(value, origin);
        assert_valid(&translate(&objects, &settings).snapshot);
    }
}

/// A snippet is understood as a whole, or refused at one of its lines; refused, no request is forwarded.
pub fn snippet(text: &str) {
    let service = json!({"name": "web", "port": {"number": 80}});
    let path = json!({"path": "/", "pathType": "Prefix", "backend": {"service": service}});
    let ingress = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {
            "name": "web",
            "annotations": {"nginx.ingress.kubernetes.io/configuration-snippet": text},
        },
        "spec": {"rules": [{"host": "web.example", "http": {"paths": [path]}}]},
    });
    let (mut objects, _) = parse(SNIPPET_CLASS, "class.yaml");
    let origin = ObjectOrigin { file: "web.yaml".into(), document: 1 };
    objects.extend(read(ingress, origin).0);
    let settings = TranslationSettings::default();
    let translation = translate(&objects, &settings);
    assert_valid(&translation.snapshot);
    let again = translate(&objects, &settings);
    assert_eq!(format!("{:?}", translation.snapshot), format!("{:?}", again.snapshot));
    let lines = text.lines().count().max(1);
    let is_refused = translation.problems.iter().any(|problem| {
        let message = problem.to_string();
        let Some((_, rest)) = message.split_once("-snippet: line ") else { return false };
        let line = rest.split(':').next().and_then(|line| line.parse().ok());
        assert!(line.is_some_and(|line: usize| (1..=lines).contains(&line)), "{message}");
        true
    });
    let is_forwarding = |rule: &Arc<Rule>| {
        rule.targets.iter().any(|share| matches!(share.target, RuleTarget::Backend(_)))
    };
    assert!(!is_refused || !translation.snapshot.rules.iter().any(is_forwarding), "{text}");
}

/// The class of the Ingress with the snippet, and its Service.
const SNIPPET_CLASS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata:
  name: sheave
  annotations: {ingressclass.kubernetes.io/is-default-class: "true"}
spec: {controller: sheave.dev/ingress}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80}]}
"#;

/// The keys of an issuer do not depend on their order, and each key that is kept is for an algorithm.
pub fn key_set(text: &[u8]) {
    let Ok(set) = JsonWebKeySet::parse(text) else { return };
    assert!(!set.keys.is_empty());
    for key in &set.keys {
        let usable = JwtAlgorithm::ALL.into_iter().filter(|it| key.is_for(*it));
        assert!(usable.clone().count() > 0 || key.algorithm.is_some(), "{key:?}");
        for algorithm in usable {
            let _any = key.key.prepare(algorithm);
        }
    }
    let Ok(mut document) = serde_json::from_slice::<serde_json::Value>(text) else { return };
    let Some(keys) = document.get_mut("keys").and_then(|keys| keys.as_array_mut()) else { return };
    keys.reverse();
    let Ok(reversed) = JsonWebKeySet::parse(document.to_string().as_bytes()) else { return };
    assert_eq!(reversed.keys.len(), set.keys.len());
}

/// Asserts what the data plane relies on without a check.
fn assert_valid(snapshot: &Snapshot) {
    assert!(snapshot.backends.is_sorted_by(|a, b| a.key < b.key), "backends are not sorted");
    for (index, rule) in snapshot.rules.iter().enumerate() {
        assert_eq!(rule.index, index);
        for share in &rule.targets {
            assert!(share.weight > 0);
            let RuleTarget::Backend(index) = share.target else { continue };
            assert!(index < snapshot.backends.len());
        }
    }
    for listener in &snapshot.listeners {
        assert!(listener.rules().all(|rule| rule.index < snapshot.rules.len()));
    }
}

/// Patterns that are accepted match what they name, and a name has one normal form. The first line is a host, the
/// second a path, the third a query.
pub fn patterns(bytes: &[u8]) {
    let mut lines = bytes.split(|&byte| byte == b'\n');
    let mut next = || lines.next().unwrap_or_default();
    let (host, path, query) = (next(), next(), next());
    host_name(host);
    path_pattern(path);
    let value = query_value(query, b"a");
    assert_eq!(value.is_some(), query_value(&[query, b"&b=1"].concat(), b"a").is_some());
    if let Ok(text) = str::from_utf8(query)
        && let Some(duration) = Duration::parse(text)
    {
        // Four numbers of five digits are more than one unit may have in another form.
        let again = Duration::parse(&duration.to_string());
        assert!(again.is_none_or(|again| again == duration), "{text}");
    }
}

fn host_name(host: &[u8]) {
    let mut buffer = HostNameBuffer::new();
    let name = HostName::new(host, &mut buffer);
    assert!(!name.as_bytes().iter().any(u8::is_ascii_uppercase));
    assert_eq!(OwnedHostName::new(host).borrowed(), name);
    let Ok(text) = str::from_utf8(host) else { return };
    let Ok(pattern) = HostPattern::parse(text) else { return };
    assert_eq!(pattern.intersect(&pattern).as_ref(), Some(&pattern));
    let is_matched = match &pattern {
        HostPattern::Any => unreachable!("a text names a host"),
        HostPattern::Exact(exact) => {
            pattern.matches(OwnedHostName::new(exact.as_bytes()).borrowed())
        }
        HostPattern::Wildcard(parent) => {
            let below = format!("a.{parent}");
            assert!(!pattern.matches(OwnedHostName::new(parent.as_bytes()).borrowed()));
            pattern.matches(OwnedHostName::new(below.as_bytes()).borrowed())
        }
    };
    assert!(is_matched || text.len() > 200, "{text}");
}

fn path_pattern(path: &[u8]) {
    let Ok(text) = str::from_utf8(path) else { return };
    if let Ok(exact) = PathPattern::exact(text) {
        assert!(exact.matches(path));
    }
    if let Ok(prefix) = PathPattern::prefix(text) {
        assert!(prefix.matches(path) || text == "/" || text.ends_with('/'));
        let below = format!("{}/a", text.trim_end_matches('/'));
        assert!(prefix.matches(below.as_bytes()));
    }
    if let Ok(regex) = PathPattern::regex(text) {
        let _any = regex.matches(path);
    }
}
