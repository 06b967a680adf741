//! Objects of a cluster that cannot be read: whom they concern, so that their status can say why nothing comes of them.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::schema;
use super::{BackendPolicySpec, ClientPolicySpec, ParentRef};

/// What is known of an object that cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidObject {
    /// Its kind.
    pub kind: &'static str,
    /// The GatewayClass that it names, if it is a Gateway.
    pub class: Option<String>,
    /// The parents that it names, if it is a route; the Gateway, if it is a ListenerSet.
    pub parents: Vec<ParentRef>,
    /// The targets that it names, if it is a policy.
    pub targets: Vec<InvalidObjectTarget>,
    /// What applies of it nevertheless, if it is a policy of ours.
    pub partial_policy: Option<PartialPolicy>,
    /// Why it cannot be read: the first reason, with its field.
    pub message: String,
}

/// What can be read of a policy: its parts (`queue`, `timeouts`, ...) that are without fault. The others are as if they
/// were not given.
///
/// A Service whose policy names an algorithm of a later version would else lose the limit of its endpoints with it.
#[derive(Clone, Debug, PartialEq)]
pub enum PartialPolicy {
    /// Of a BackendPolicy.
    Backend {
        /// What can be read.
        spec: Box<BackendPolicySpec>,
        /// Whether `tls` is not among it: nobody can say whom connections may be trusted to.
        lacks_tls: bool,
    },
    /// Of a ClientPolicy.
    Client(Box<ClientPolicySpec>),
}

/// A target of a policy that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidObjectTarget {
    /// The target's kind, where it is given.
    pub kind: Option<String>,
    /// The target's name.
    pub name: String,
    /// Which part of it.
    pub section_name: Option<String>,
}

impl InvalidObject {
    /// What can be read of an object nevertheless.
    pub(super) fn of(kind: &'static str, spec: &Value, message: String) -> Self {
        let text = |of: &Value, name: &str| of[name].as_str().map(str::to_owned);
        let target = |of: &Value| {
            let (kind, section_name) = (text(of, "kind"), text(of, "sectionName"));
            Some(InvalidObjectTarget { kind, name: text(of, "name")?, section_name })
        };
        let gateway = serde_json::from_value(spec["parentRef"].clone()).ok();
        Self {
            kind,
            class: text(spec, "gatewayClassName"),
            parents: readable(&spec["parentRefs"]).into_iter().chain(gateway).collect(),
            targets: items(&spec["targetRefs"]).iter().filter_map(target).collect(),
            partial_policy: None,
            message,
        }
    }

    /// The Services among the targets, if it is a policy. What does not say its kind may be one.
    pub fn services(&self) -> impl Iterator<Item = &InvalidObjectTarget> {
        let is_service =
            |it: &&InvalidObjectTarget| it.kind.as_deref().is_none_or(|kind| kind == "Service");
        self.targets.iter().filter(is_service)
    }
}

impl PartialPolicy {
    /// What can be read of the spec of a policy of ours; nothing if nobody can say whom it is for. `narrows` tells which
    /// fields that we do not know take the part that they are in with them.
    pub(super) fn of(
        kind: &str,
        mut spec: Value,
        allowed: &Value,
        narrows: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        let unknown = schema::prune(&mut spec, allowed, "");
        let faults = schema::faults(&spec, allowed, "");
        let unknown = unknown.iter().filter(|it| narrows(&it.field));
        let faults = unknown.chain(faults.iter().filter(|it| !it.is_name));
        let parts: BTreeSet<&str> = faults.map(|it| part(&it.field)).collect();
        spec.as_object_mut()?.retain(|name, _| !parts.contains(&**name));
        match kind {
            "BackendPolicy" => Some(Self::Backend {
                spec: serde_json::from_value(spec).ok()?,
                lacks_tls: parts.contains("tls"),
            }),
            "ClientPolicy" => Some(Self::Client(serde_json::from_value(spec).ok()?)),
            _ => None,
        }
    }
}

/// The part of a spec that a field is in: its first word.
fn part(field: &str) -> &str {
    field.split(['.', '[']).next().unwrap_or(field)
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn readable<T: DeserializeOwned>(list: &Value) -> Vec<T> {
    items(list).iter().filter_map(|item| T::deserialize(item).ok()).collect()
}
