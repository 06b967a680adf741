//! What became of each object, in the shape that Kubernetes gives the status of the same object.

use gateway::status::{Condition, Detail, ListenerStatus, ParentStatus, Status, TargetStatus};
use serde::Serialize;
use serde_json::{Value, json};

/// An object's status beside its name.
#[derive(Serialize)]
pub(super) struct ObjectStatus {
    kind: &'static str,
    namespace: String,
    name: String,
    status: Value,
}

impl ObjectStatus {
    pub(super) fn of(status: &Status) -> Self {
        let Status { object, observed_generation, detail } = status;
        let conditions = |of: &[Condition]| conditions(of, *observed_generation);
        let status = match detail {
            Detail::GatewayClass(of) => json!({ "conditions": conditions(of) }),
            Detail::Gateway(of, listeners) => json!({
                "conditions": conditions(of),
                "listeners": all(listeners, |it| listener(it, conditions(&it.conditions))),
            }),
            Detail::Route(parents) => json!({
                "parents": all(parents, |it| parent(it, conditions(&it.conditions))),
            }),
            Detail::Policy(targets) => json!({
                "ancestors": all(targets, |it| target(it, conditions(&it.conditions))),
            }),
        };
        let (namespace, name) = (object.namespace.to_string(), object.name.to_string());
        Self { kind: object.kind, namespace, name, status }
    }
}

fn all<T>(of: &[T], shape: impl Fn(&T) -> Value) -> Value {
    of.iter().map(shape).collect()
}

fn conditions(conditions: &[Condition], observed_generation: i64) -> Value {
    all(conditions, |condition| {
        json!({
            "type": format!("{:?}", condition.kind),
            "status": if condition.holds { "True" } else { "False" },
            "reason": format!("{:?}", condition.reason),
            "message": condition.message,
            "observedGeneration": observed_generation,
        })
    })
}

fn listener(status: &ListenerStatus, conditions: Value) -> Value {
    json!({
        "name": status.name,
        "supportedKinds": all(&status.supported_kinds, |kind| json!({ "kind": kind })),
        "attachedRoutes": status.attached_routes,
        "conditions": conditions,
    })
}

fn parent(status: &ParentStatus, conditions: Value) -> Value {
    let parent = &status.parent;
    json!({
        "parentRef": {
            "namespace": parent.namespace,
            "name": parent.name,
            "sectionName": parent.section_name,
            "port": parent.port,
        },
        "conditions": conditions,
    })
}

fn target(status: &TargetStatus, conditions: Value) -> Value {
    json!({
        "ancestorRef": {
            "kind": status.kind,
            "namespace": status.namespace,
            "name": status.name,
            "sectionName": status.section_name,
        },
        "conditions": conditions,
    })
}
