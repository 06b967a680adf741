//! Statuses in the JSON format of Kubernetes, without the times of transitions, which are not known here.

use serde_json::{Map, Value, json};

use super::{
    GatewayClassStatus, GatewayStatus, ListenerStatus, ParentStatus, ResourceStatus,
    StatusCondition, StatusDetail, TargetStatus,
};
use crate::managed_services::PublishedAddress;
use crate::objects::ParentRef;

const GROUP: &str = "gateway.networking.k8s.io";

/// Maximum length of a message in Kubernetes, in characters.
const MAX_MESSAGE_CHARACTERS: usize = 32_768;

/// Returns the `status` of an object, as the controller of this name writes it.
pub fn status_json(status: &ResourceStatus, controller: &str) -> Value {
    let conditions = |of: &[StatusCondition]| conditions(of, status.observed_generation);
    let listeners = |of: &[ListenerStatus]| all(of, |it| listener(it, conditions(&it.conditions)));
    match &status.detail {
        StatusDetail::GatewayClass(GatewayClassStatus { conditions: of, features }) => json!({
            "conditions": conditions(of),
            "supportedFeatures": all(features, |name| json!({ "name": name })),
        }),
        StatusDetail::Gateway(GatewayStatus {
            addresses,
            conditions: of,
            listeners: own,
            attached_listener_sets,
        }) => json!({
            "addresses": all(addresses, address),
            "conditions": conditions(of),
            "listeners": listeners(own),
            "attachedListenerSets": attached_listener_sets,
        }),
        StatusDetail::ListenerSet(of, own) => json!({
            "conditions": conditions(of),
            "listeners": listeners(own),
        }),
        StatusDetail::AddressPool(of) | StatusDetail::BgpPeer(of) => {
            json!({ "conditions": conditions(of) })
        }
        StatusDetail::Route(parents) => json!({
            "parents": all(parents, |it| parent(it, controller, conditions(&it.conditions))),
        }),
        StatusDetail::Policy(targets) => json!({
            "ancestors": all(targets, |it| target(it, controller, conditions(&it.conditions))),
        }),
    }
}

fn address(place: &PublishedAddress) -> Value {
    let kind = match place {
        PublishedAddress::Ip(_) => "IPAddress",
        PublishedAddress::Hostname(_) => "Hostname",
    };
    json!({ "type": kind, "value": place.to_string() })
}

fn all<T>(of: &[T], shape: impl Fn(&T) -> Value) -> Value {
    of.iter().map(shape).collect()
}

fn conditions(conditions: &[StatusCondition], observed_generation: i64) -> Value {
    all(conditions, |condition| {
        json!({
            "type": condition.kind.name(),
            "status": if condition.holds { "True" } else { "False" },
            "reason": format!("{:?}", condition.reason),
            "message": message(&condition.message),
            "observedGeneration": observed_generation,
        })
    })
}

/// Returns a message, truncated to the maximum length of Kubernetes.
fn message(text: &str) -> &str {
    text.char_indices().nth(MAX_MESSAGE_CHARACTERS).map_or(text, |(end, _)| &text[..end])
}

fn listener(status: &ListenerStatus, conditions: Value) -> Value {
    json!({
        "name": status.name,
        "supportedKinds":
            all(&status.supported_kinds, |kind| json!({ "group": GROUP, "kind": kind })),
        "attachedRoutes": status.attached_routes,
        "conditions": conditions,
    })
}

fn parent(status: &ParentStatus, controller: &str, conditions: Value) -> Value {
    let ParentRef { group, kind, namespace, name, section_name, port } = &status.parent;
    json!({
        "parentRef": present([
            ("group", json!(group.as_deref().unwrap_or(GROUP))),
            ("kind", json!(kind.as_deref().unwrap_or("Gateway"))),
            ("namespace", json!(namespace)),
            ("name", json!(name)),
            ("sectionName", json!(section_name)),
            ("port", json!(port)),
        ]),
        "controllerName": controller,
        "conditions": conditions,
    })
}

fn target(status: &TargetStatus, controller: &str, conditions: Value) -> Value {
    let TargetStatus { kind, namespace, name, section_name, .. } = status;
    json!({
        "ancestorRef": present([
            ("group", json!(if *kind == "Service" { "" } else { GROUP })),
            ("kind", json!(kind)),
            ("namespace", json!(namespace)),
            ("name", json!(name)),
            ("sectionName", json!(section_name)),
        ]),
        "controllerName": controller,
        "conditions": conditions,
    })
}

/// Returns the fields that have a value.
fn present<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
    fields.map(|(name, value)| (name.to_owned(), value)).collect()
}
