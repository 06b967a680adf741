//! Status of each object, in the format of its Kubernetes status.

use gateway::status::{ResourceStatus, status_json};
use serde::Serialize;
use serde_json::Value;

/// Status of an object, with its name.
#[derive(Serialize)]
pub(super) struct ObjectStatus {
    kind: &'static str,
    namespace: String,
    name: String,
    status: Value,
}

impl ObjectStatus {
    pub(super) fn of(status: &ResourceStatus, controller: &str) -> Self {
        let object = &status.object;
        let (namespace, name) = (object.namespace.to_string(), object.name.to_string());
        Self { kind: object.kind, namespace, name, status: status_json(status, controller) }
    }
}
