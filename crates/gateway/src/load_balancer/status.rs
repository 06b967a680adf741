//! The status of a Service whose load balancer is Sheave.

use serde_json::{Value, json};

use super::{LoadBalancerService, ServiceFinding};
use crate::status::StatusUpdate;

/// The type of the condition that states if the Service has all of its addresses and ports.
const CONDITION: &str = "sheave.dev/Served";
/// Maximum length of a message, in characters.
const MAX_MESSAGE_CHARACTERS: usize = 32_768;

/// Returns the update of the status of a Service, which is `current`, or `None` if it is up to date. `now` is a time in
/// RFC 3339.
///
/// `ipMode: Proxy` keeps kube-proxy from taking connections to the address on each node, past Sheave (KEP-1860). An API
/// server that does not know the field drops it.
pub fn status_update(
    service: &LoadBalancerService,
    current: Option<&Value>,
    now: &str,
) -> Option<StatusUpdate> {
    let current = current.unwrap_or(&Value::Null);
    let mut status = json!({ "conditions": [condition(&service.findings, current, now)] });
    let ingress = service.addresses.iter().map(|it| json!({ "ip": it, "ipMode": "Proxy" }));
    let ingress: Vec<_> = ingress.collect();
    if !ingress.is_empty() {
        status["loadBalancer"] = json!({ "ingress": ingress });
    }
    let has_addresses =
        current["loadBalancer"]["ingress"].as_array().is_some_and(|it| !it.is_empty());
    let is_up_to_date = (status["loadBalancer"] == current["loadBalancer"]
        || (ingress.is_empty() && !has_addresses))
        && written(current) == &status["conditions"][0];
    (!is_up_to_date).then_some(StatusUpdate::Apply(status))
}

/// Returns our condition in a status.
fn written(status: &Value) -> &Value {
    let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().find(|it| it["type"] == CONDITION).unwrap_or(&Value::Null)
}

fn condition(findings: &[ServiceFinding], current: &Value, now: &str) -> Value {
    let (holds, reason) = match findings.first() {
        None => ("True", "Served"),
        Some(first) => ("False", first.reason),
    };
    let messages: Vec<_> = findings.iter().map(|it| &*it.message).collect();
    let message: String = messages.join("; ").chars().take(MAX_MESSAGE_CHARACTERS).collect();
    let before = written(current);
    let since = before["lastTransitionTime"].as_str().filter(|_| before["status"] == holds);
    json!({
        "type": CONDITION,
        "status": holds,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since.unwrap_or(now),
    })
}
