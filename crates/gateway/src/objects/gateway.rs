//! `GatewayClass` and `Gateway` (gateway.networking.k8s.io/v1): the controller, and the listeners.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::gateway_tls::{GatewayTls, ListenerTlsConfig};
use super::listener_set::AllowedListeners;
use super::namespace::LabelSelector;
use super::scalar::{Hostname, IgnoredField, UnsupportedField};

/// The controller name of our GatewayClasses.
pub const GATEWAY_CONTROLLER: &str = "sheave.dev/gateway";

/// The controller of the Gateways of this class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayClassSpec {
    /// The controller. Sheave's is [`GATEWAY_CONTROLLER`].
    #[schemars(length(min = 1, max = 253))]
    pub controller_name: String,
    /// A description for users.
    pub description: Option<IgnoredField>,
    /// Settings of the class.
    pub parameters_ref: Option<UnsupportedField>,
}

/// Addresses and listeners to accept on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewaySpec {
    /// The name of a GatewayClass.
    #[schemars(extend("format" = "name"))]
    pub gateway_class_name: String,
    /// The listeners: ports, protocols and hosts.
    #[schemars(length(min = 1, max = 64))]
    pub listeners: Vec<ListenerSpec>,
    /// The addresses of all listeners. Empty: all addresses of the machine, IPv4 and IPv6.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub addresses: Vec<GatewayAddress>,
    /// Labels and settings of the resources that a controller creates for the Gateway.
    pub infrastructure: Option<GatewayInfrastructure>,
    /// ListenerSets that may attach. Default: none.
    pub allowed_listeners: Option<AllowedListeners>,
    /// TLS settings of the whole Gateway.
    pub tls: Option<GatewayTls>,
    /// Routes that attach without naming the Gateway.
    pub default_scope: Option<UnsupportedField>,
}

/// Labels and settings of the resources that a controller creates for a Gateway: here, the Service in front of it, if
/// there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GatewayInfrastructure {
    /// Labels of these resources.
    pub labels: BTreeMap<String, String>,
    /// Annotations of these resources.
    pub annotations: BTreeMap<String, String>,
    /// Settings of other implementations.
    pub parameters_ref: Option<UnsupportedField>,
}

/// A port, a protocol and a host to accept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListenerSpec {
    /// The name, unique within the Gateway.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The host to accept. `*.example.com` means every host below example.com. Default: all hosts.
    pub hostname: Option<Hostname>,
    /// The port. 0, an extension of Sheave for files, takes any free port.
    #[schemars(range(min = 0, max = 65535))]
    pub port: u16,
    /// `HTTP`, `HTTPS`, `TLS`, `TCP` or `UDP`. Any other value is rejected in the status of the listener.
    #[schemars(length(min = 1, max = 255))]
    pub protocol: String,
    /// TLS settings, if `protocol` is `HTTPS` or `TLS`.
    pub tls: Option<ListenerTlsConfig>,
    /// Routes that may attach.
    #[serde(default)]
    pub allowed_routes: AllowedRoutes,
}

/// Routes that may attach to a listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowedRoutes {
    /// The namespaces of these routes.
    #[serde(default)]
    pub namespaces: AllowedNamespaces,
    /// The kinds of these routes. Empty: the kinds that the protocol supports.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub kinds: Vec<RouteKind>,
}

/// The namespaces from which routes or ListenerSets may attach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowedNamespaces {
    /// The set of namespaces. Default: `Same` for routes, `None` for ListenerSets.
    pub from: Option<FromNamespaces>,
    /// The label selector of the namespaces, for `from: Selector`.
    pub selector: Option<LabelSelector>,
}

/// A set of namespaces, relative to the object that refers to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FromNamespaces {
    /// The namespace of the object itself.
    Same,
    /// All namespaces.
    All,
    /// Namespaces that a label selector matches.
    Selector,
    /// No namespace.
    None,
}

/// A kind of route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteKind {
    /// The API group. Default: the group of Gateway API.
    pub group: Option<String>,
    /// The kind.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
}

/// An address to accept on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayAddress {
    /// The type. Default: `IPAddress`. No other type is supported.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The address. Default: any address.
    pub value: Option<String>,
}
