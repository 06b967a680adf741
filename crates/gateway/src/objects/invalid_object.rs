//! Objects of a cluster that are invalid: the parents and targets that they name, so that their status can state the
//! error.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::schema;
use super::{BackendPolicySpec, ClientPolicySpec, ParentRef};

/// The readable parts of an invalid object.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidObject {
    /// The kind.
    pub kind: &'static str,
    /// The GatewayClass that it names, if it is a Gateway.
    pub class: Option<String>,
    /// The parents that it names, if it is a route; the Gateway, if it is a ListenerSet.
    pub parents: Vec<ParentRef>,
    /// The targets that it names, if it is a policy.
    pub targets: Vec<InvalidObjectTarget>,
    /// True if it has responses in place of those of endpoints, if it is a TrafficPolicy.
    pub answers_directly: bool,
    /// The parts that apply nevertheless, if it is a policy of Sheave.
    pub partial_policy: Option<PartialPolicy>,
    /// The first error, with its field.
    pub message: String,
}

/// The valid parts (`queue`, `timeouts`, ...) of a policy. The others count as not given.
///
/// Without this, a Service whose policy names an algorithm of a later version would also lose the limits of its
/// endpoints.
#[derive(Clone, Debug, PartialEq)]
pub enum PartialPolicy {
    /// Parts of a BackendPolicy.
    Backend {
        /// The valid parts.
        spec: Box<BackendPolicySpec>,
        /// True if `tls` is invalid, so that it is unknown which certificates to trust.
        lacks_tls: bool,
        /// True if `xdsServers` is invalid, so that it is unknown which clients servers may accept.
        lacks_xds_servers: bool,
    },
    /// Parts of a ClientPolicy.
    Client {
        /// The valid parts.
        spec: Box<ClientPolicySpec>,
        /// True if `revocation` is invalid, so that it is unknown which client certificates are revoked.
        lacks_revocation: bool,
    },
}

/// A target of an invalid policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidObjectTarget {
    /// The kind of the target, if it is given.
    pub kind: Option<String>,
    /// The name of the target.
    pub name: String,
    /// The section of the target: a port or a listener.
    pub section_name: Option<String>,
}

impl InvalidObject {
    /// Returns the readable parts of an invalid object.
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
            answers_directly: ["directResponse", "requestRules"]
                .iter()
                .any(|it| !spec[it].is_null()),
            partial_policy: None,
            message,
        }
    }

    /// Returns the Services among the targets, if it is a policy. A target without a kind may be a Service.
    pub fn services(&self) -> impl Iterator<Item = &InvalidObjectTarget> {
        let is_service =
            |it: &&InvalidObjectTarget| it.kind.as_deref().is_none_or(|kind| kind == "Service");
        self.targets.iter().filter(is_service)
    }
}

impl PartialPolicy {
    /// Returns the valid parts of the spec of a Sheave policy, or `None` if its targets cannot be read. If `narrows` is
    /// true for an unknown field, the part that contains the field is invalid.
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
                lacks_xds_servers: parts.contains("xdsServers"),
            }),
            "ClientPolicy" => Some(Self::Client {
                spec: serde_json::from_value(spec).ok()?,
                lacks_revocation: parts.contains("revocation"),
            }),
            _ => None,
        }
    }
}

/// Returns the part of a spec that contains a field: the first segment of its path.
fn part(field: &str) -> &str {
    field.split(['.', '[']).next().unwrap_or(field)
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn readable<T: DeserializeOwned>(list: &Value) -> Vec<T> {
    items(list).iter().filter_map(|item| T::deserialize(item).ok()).collect()
}
