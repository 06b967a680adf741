//! `GatewayClass` and `Gateway` (gateway.networking.k8s.io/v1): who serves, and where to accept.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::gateway_tls::{GatewayTls, ListenerTlsConfig};
use super::listener_set::AllowedListeners;
use super::namespace::LabelSelector;
use super::scalar::{Hostname, IgnoredField, UnsupportedField};

/// Who serves the Gateways of this class.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayClassSpec {
    /// The controller; ours is [`crate::translate::CONTROLLER`].
    #[schemars(length(min = 1, max = 253))]
    pub controller_name: String,
    /// For people.
    pub description: Option<IgnoredField>,
    /// Settings of the class.
    pub parameters_ref: Option<UnsupportedField>,
}

/// Where to accept.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewaySpec {
    /// The name of a GatewayClass.
    #[schemars(extend("format" = "name"))]
    pub gateway_class_name: String,
    /// What is accepted, and on which ports.
    #[schemars(length(min = 1, max = 64))]
    pub listeners: Vec<ListenerSpec>,
    /// The addresses of all listeners; none: every address of the machine, IPv4 and IPv6.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub addresses: Vec<GatewayAddress>,
    /// Labels and settings of what a controller makes for the Gateway.
    pub infrastructure: Option<GatewayInfrastructure>,
    /// Which ListenerSets may attach; none when not given.
    pub allowed_listeners: Option<AllowedListeners>,
    /// TLS of the whole Gateway.
    pub tls: Option<GatewayTls>,
    /// Which routes attach without naming the Gateway.
    pub default_scope: Option<UnsupportedField>,
}

/// Labels and settings of what a controller makes for a Gateway: of us, the Service in front of it, where there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GatewayInfrastructure {
    /// Labels of what is made.
    pub labels: BTreeMap<String, String>,
    /// Annotations of what is made.
    pub annotations: BTreeMap<String, String>,
    /// Settings of other implementations.
    pub parameters_ref: Option<UnsupportedField>,
}

/// One port and protocol, and the hosts that are meant.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListenerSpec {
    /// Unique within the Gateway.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// Only requests for this host; `*.example.com` is every host below example.com.
    pub hostname: Option<Hostname>,
    /// The port. 0, an extension of ours for files, takes any free one.
    #[schemars(range(min = 0, max = 65535))]
    pub port: u16,
    /// `HTTP`, `HTTPS`, `TLS`, `TCP` or `UDP`; what else there may be is refused in the listener's status.
    #[schemars(length(min = 1, max = 255))]
    pub protocol: String,
    /// How connections are decrypted, where `protocol` is `HTTPS` or `TLS`.
    pub tls: Option<ListenerTlsConfig>,
    /// Who may attach.
    #[serde(default)]
    pub allowed_routes: AllowedRoutes,
}

/// Which routes may attach to a listener.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowedRoutes {
    /// From which namespaces.
    #[serde(default)]
    pub namespaces: AllowedNamespaces,
    /// Of which kinds; none: those of the protocol.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub kinds: Vec<RouteKind>,
}

/// The namespaces from which routes or ListenerSets may attach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowedNamespaces {
    /// Which ones; when not given, for routes the same, for ListenerSets none.
    pub from: Option<FromNamespaces>,
    /// Their labels, for `from: Selector`.
    pub selector: Option<LabelSelector>,
}

/// Namespaces, relative to that of the object that says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum FromNamespaces {
    /// Its own.
    Same,
    /// Every one.
    All,
    /// Those with certain labels.
    Selector,
    /// None.
    None,
}

/// A kind of route.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteKind {
    /// Its API group; Gateway API's when not given.
    pub group: Option<String>,
    /// Its name.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
}

/// An address to accept on.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayAddress {
    /// `IPAddress` when not given; no other is served.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The address; none: any.
    pub value: Option<String>,
}
