//! `kubectl sheave status`: the replicas, and the objects with problems.

use std::collections::{BTreeMap, BTreeSet};

use kube::PodSummary;
use serde::Deserialize;
use serde_json::Value;

use super::replicas::{ReplicaAnswer, ReplicaGroup};
use super::text::{escaped, table, wrapped};
use crate::check::{pluralize, print};
use crate::failure::Failure;

/// Most problems that are listed.
const MAX_PROBLEMS: usize = 50;

/// The part of `/api/v1/overview` that is shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReplicaOverview {
    process: ReplicaProcess,
    totals: ReplicaTotals,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReplicaProcess {
    version: String,
    phase: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReplicaTotals {
    requests_per_second: f64,
    waiting: u64,
    troubled_endpoints: u64,
}

/// The part of `/api/v1/config` that is shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReplicaConfig {
    problems: Vec<ConfigProblem>,
    unbound_listeners: Vec<String>,
    statuses: Vec<ObjectConditions>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConfigProblem {
    object: String,
    field: String,
    message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ObjectConditions {
    kind: String,
    namespace: String,
    name: String,
    status: Value,
}

/// Problem of an object, as it is listed: the object with the field, and the message.
type ListedProblem = (String, String);

/// Prints the status. The exit code tells nothing: a problem of one object is none of Sheave.
pub(super) fn run(group: &ReplicaGroup<'_>) -> Result<(), Failure> {
    let overviews = group.ask("/api/v1/overview");
    let configs = group.ask("/api/v1/config");
    let is_answered = overviews.iter().any(|(_, answer)| answer.is_ok());
    print(&lines(&group.namespace, &group.pods, &overviews, &configs))?;
    if is_answered { Ok(()) } else { Err(Failure::input("no replica of Sheave answers")) }
}

fn lines(
    namespace: &str,
    pods: &[PodSummary],
    overviews: &[ReplicaAnswer<ReplicaOverview>],
    configs: &[ReplicaAnswer<ReplicaConfig>],
) -> Vec<String> {
    let known = || overviews.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let versions: BTreeSet<&str> = known().map(|it| it.process.version.as_str()).collect();
    let versions: Vec<_> = versions.into_iter().map(escaped).collect();
    let version = match versions.as_slice() {
        [] => "version not known".to_owned(),
        [version] => format!("version {version}"),
        several => format!("different versions: {}", several.join(", ")),
    };
    let title = format!(
        "Sheave in namespace {}: {}, {version}",
        escaped(namespace),
        pluralize(pods.len(), "replica")
    );
    let mut lines = wrapped("", &title);
    lines.push(String::new());
    let heading = ["REPLICA", "VERSION", "READY", "PHASE", "REQ/S", "WAITING", "TROUBLED"];
    let rows: Vec<_> = pods.iter().zip(overviews).map(|(pod, (_, it))| row(pod, it)).collect();
    lines.extend(table(&heading, &rows));
    for (pod, answer) in overviews {
        if let Err(reason) = answer {
            lines.extend(wrapped(&format!("{}: ", escaped(pod)), reason));
        }
    }
    lines.push(String::new());
    lines.extend(problem_lines(configs));
    lines
}

fn row(pod: &PodSummary, answer: &Result<ReplicaOverview, String>) -> Vec<String> {
    let ready = match (pod.is_terminating, pod.is_ready) {
        (true, _) => "ending",
        (false, true) => "yes",
        (false, false) => "no",
    };
    let mut row = vec![pod.name.clone()];
    match answer {
        Err(_) => row.extend(["-", ready, "no answer", "-", "-", "-"].map(str::to_owned)),
        Ok(ReplicaOverview { process, totals }) => row.extend([
            process.version.clone(),
            ready.to_owned(),
            process.phase.clone(),
            format!("{:.1}", totals.requests_per_second),
            totals.waiting.to_string(),
            totals.troubled_endpoints.to_string(),
        ]),
    }
    row
}

/// Returns the problems of all objects, each once, with the number of replicas if not all have it.
fn problem_lines(configs: &[ReplicaAnswer<ReplicaConfig>]) -> Vec<String> {
    let known: Vec<_> = configs.iter().filter_map(|(_, answer)| answer.as_ref().ok()).collect();
    if known.is_empty() {
        return Vec::new();
    }
    let mut counts: BTreeMap<ListedProblem, usize> = BTreeMap::new();
    for config in &known {
        for problem in problems(config) {
            *counts.entry(problem).or_default() += 1;
        }
    }
    if counts.is_empty() {
        return vec!["No object has a problem.".to_owned()];
    }
    let mut lines = vec![format!("{}:", pluralize(counts.len(), "problem"))];
    for ((place, message), count) in counts.iter().take(MAX_PROBLEMS) {
        let share = match *count < known.len() {
            true => format!(" (in {count} of {} replicas)", known.len()),
            false => String::new(),
        };
        lines.extend(wrapped("- ", &format!("{place}{share}")));
        lines.extend(wrapped("    ", message));
    }
    if counts.len() > MAX_PROBLEMS {
        lines.push(format!("and {} more", counts.len() - MAX_PROBLEMS));
    }
    lines
}

fn problems(config: &ReplicaConfig) -> BTreeSet<ListedProblem> {
    let mut found = BTreeSet::new();
    for ConfigProblem { object, field, message } in &config.problems {
        let place = match field.is_empty() {
            true => object.clone(),
            false => format!("{object}: {field}"),
        };
        found.insert((place, message.clone()));
    }
    for listener in &config.unbound_listeners {
        found.insert(("listener without its address".to_owned(), listener.clone()));
    }
    for ObjectConditions { kind, namespace, name, status } in &config.statuses {
        let object = match namespace.is_empty() {
            true => format!("{kind} {name}"),
            false => format!("{kind} {namespace}/{name}"),
        };
        let mut of_status = BTreeSet::new();
        collect(&object, "", status, &mut of_status);
        // A problem with its field says more than the condition that repeats its message.
        let is_repeated = |message: &String| {
            config.problems.iter().any(|it| it.object == object && it.message == *message)
        };
        found.extend(of_status.into_iter().filter(|(_, message)| !is_repeated(message)));
    }
    found
}

/// Adds the conditions of a status that tell of a problem, however deep they are: of the object, of its listeners, of its
/// parents.
fn collect(object: &str, field: &str, status: &Value, found: &mut BTreeSet<ListedProblem>) {
    match status {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), value) {
                    ("conditions", Value::Array(conditions)) => {
                        let bad = conditions.iter().filter_map(bad_condition);
                        let place = |text: String| match field.is_empty() {
                            true => format!("{object}: {text}"),
                            false => format!("{object}: {field}: {text}"),
                        };
                        found.extend(bad.map(|(text, message)| (place(text), message)));
                    }
                    (_, value) => {
                        let field = match field.is_empty() {
                            true => name.clone(),
                            false => format!("{field}.{name}"),
                        };
                        collect(object, &field, value, found);
                    }
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let label = match item["name"].as_str() {
                    Some(name) => format!("{field}[{name}]"),
                    None => format!("{field}[{index}]"),
                };
                collect(object, &label, item, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns the condition with its reason, and its message, if it tells of a problem.
fn bad_condition(condition: &Value) -> Option<(String, String)> {
    let text = |name: &str| condition[name].as_str().unwrap_or_default();
    let is_bad = match text("type") {
        "Accepted" | "Programmed" | "ResolvedRefs" => text("status") == "False",
        "Conflicted" | "PartiallyInvalid" => text("status") == "True",
        _ => false,
    };
    let label = format!("{} is {} ({})", text("type"), text("status"), text("reason"));
    is_bad.then(|| (label, text("message").to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::text::WIDTH;
    use super::*;

    fn pod(name: &str) -> PodSummary {
        PodSummary { name: name.to_owned(), is_ready: true, ..PodSummary::default() }
    }

    fn overview(version: &str) -> ReplicaOverview {
        serde_json::from_value(json!({
            "process": { "version": version, "phase": "ready", "other": 1 },
            "totals": { "requests_per_second": 12.34, "waiting": 2, "troubled_endpoints": 1 },
        }))
        .unwrap()
    }

    fn config(message: &str) -> ReplicaConfig {
        serde_json::from_value(json!({
            "problems": [{ "file": "kubernetes", "document": 0, "object": "Ingress shop/web",
                "field": "spec.rules[0].host", "message": "not a host name" }],
            "unbound_listeners": [],
            "statuses": [{ "kind": "Ingress", "namespace": "shop", "name": "web", "status": { "conditions": [{
                "type": "Accepted", "status": "False", "reason": "Invalid", "message": "not a host name" }] } },
                { "kind": "Gateway", "namespace": "shop", "name": "web", "status": {
                "conditions": [{ "type": "Accepted", "status": "True", "reason": "Accepted", "message": "" }],
                "listeners": [{ "name": "https", "conditions": [{ "type": "ResolvedRefs", "status": "False",
                    "reason": "InvalidCertificateRef", "message": message }] }],
            } }],
        }))
        .unwrap()
    }

    fn page(
        overviews: Vec<Result<ReplicaOverview, String>>,
        configs: Vec<Result<ReplicaConfig, String>>,
    ) -> String {
        let names: Vec<_> = (0..overviews.len()).map(|index| format!("sheave-{index}")).collect();
        let pods: Vec<_> = names.iter().map(|name| pod(name)).collect();
        let overviews: Vec<_> = names.iter().cloned().zip(overviews).collect();
        let configs: Vec<_> = names.iter().cloned().zip(configs).collect();
        let lines = lines("sheave-system", &pods, &overviews, &configs);
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:#?}");
        lines.join("\n")
    }

    #[test]
    fn problems_have_object_and_field_and_replicas_that_differ_are_counted() {
        let overviews = vec![Ok(overview("0.1.0")), Ok(overview("0.1.0"))];
        let text = page(overviews, vec![Ok(config("no Secret")), Ok(config("expired"))]);
        assert_eq!(
            text,
            "\
Sheave in namespace sheave-system: 2 replicas, version 0.1.0

REPLICA   VERSION  READY  PHASE  REQ/S  WAITING  TROUBLED
sheave-0    0.1.0    yes  ready   12.3        2         1
sheave-1    0.1.0    yes  ready   12.3        2         1

3 problems:
- Gateway shop/web: listeners[https]: ResolvedRefs is False
  (InvalidCertificateRef) (in 1 of 2 replicas)
    expired
- Gateway shop/web: listeners[https]: ResolvedRefs is False
  (InvalidCertificateRef) (in 1 of 2 replicas)
    no Secret
- Ingress shop/web: spec.rules[0].host
    not a host name"
        );
    }

    #[test]
    fn replica_without_an_answer_is_shown_with_the_reason() {
        let reason = "you may not get pods/proxy in namespace sheave-system".to_owned();
        let overviews = vec![Ok(overview("0.1.0")), Err(reason.clone())];
        let text = page(overviews, vec![Ok(ReplicaConfig::default()), Err(reason)]);
        assert!(text.contains("sheave-1: you may not get pods/proxy"), "{text}");
        assert!(text.ends_with("No object has a problem."), "{text}");
    }

    #[test]
    fn hostile_names_and_messages_are_escaped() {
        let overviews = vec![Ok(overview("0\u{1b}[2J")), Ok(overview("1"))];
        let configs = vec![Ok(config("\u{1b}]0;x\u{7} \u{202e}gnp")), Err(String::new())];
        let text = page(overviews, configs);
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text}");
        assert!(text.contains("different versions: 0\\u{1b}[2J, 1"), "{text}");
    }
}
