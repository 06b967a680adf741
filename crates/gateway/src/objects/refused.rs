//! Objects of a cluster that cannot be read: whom they concern, so that their status can say why nothing comes of them.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::route::ParentRef;

/// What is known of an object that cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub struct RefusedSpec {
    /// Its kind.
    pub kind: &'static str,
    /// The GatewayClass that it names, if it is a Gateway.
    pub class: Option<String>,
    /// The parents that it names, if it is a route.
    pub parents: Vec<ParentRef>,
    /// The targets that it names, if it is a policy.
    pub targets: Vec<RefusedTarget>,
    /// Why it cannot be read: the first reason, with its field.
    pub message: String,
}

/// A target of a policy that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedTarget {
    /// The target's name.
    pub name: String,
    /// Which part of it.
    pub section_name: Option<String>,
}

impl RefusedSpec {
    /// What can be read of an object nevertheless.
    pub(super) fn of(kind: &'static str, spec: &Value, message: String) -> Self {
        let text = |of: &Value, name: &str| of[name].as_str().map(str::to_owned);
        let target = |of: &Value| {
            let section_name = text(of, "sectionName");
            Some(RefusedTarget { name: text(of, "name")?, section_name })
        };
        Self {
            kind,
            class: text(spec, "gatewayClassName"),
            parents: readable(&spec["parentRefs"]),
            targets: items(&spec["targetRefs"]).iter().filter_map(target).collect(),
            message,
        }
    }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn readable<T: DeserializeOwned>(list: &Value) -> Vec<T> {
    items(list).iter().filter_map(|item| T::deserialize(item).ok()).collect()
}
