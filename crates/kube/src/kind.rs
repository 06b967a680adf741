//! The watched kinds, with their resources and selectors.

use gateway::managed_services::{CONTROLLER_ANNOTATION, GATEWAY_ANNOTATION, PublishedAddress};
use gateway::transparent::{self, BALANCE_ANNOTATION};
use gateway::{ingress, load_balancer};
use kube_core::{ApiResource, DynamicObject};
use serde_json::{Value, json};

/// A watched kind.
#[derive(Debug)]
pub(crate) struct WatchedKind {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) name: &'static str,
    pub(crate) plural: &'static str,
    /// Field selector by which the API server leaves objects out; `None`: no selector.
    pub(crate) field_selector: Option<&'static str>,
    /// True if a change affects endpoints only and takes the fast path.
    pub(crate) is_endpoints: bool,
    /// True if its objects belong to namespaces.
    pub(crate) is_namespaced: bool,
    /// True if it can hold certificates, so that only those objects are read that others refer to.
    pub(crate) holds_certificates: bool,
    /// True if its status is a list with entries of several controllers, so that our entry must be removed when it is
    /// no longer wanted.
    pub(crate) has_status_entries: bool,
}

const GATEWAY_API: &str = "gateway.networking.k8s.io";
/// The group of kinds that only the experimental channel has.
pub(crate) const GATEWAY_API_EXPERIMENTAL: &str = "gateway.networking.x-k8s.io";
const SHEAVE: &str = "sheave.dev";
const INGRESS: &str = "networking.k8s.io";

/// The CRD of Gateway shows which version of Gateway API is installed.
pub(crate) const CRD_KIND: &str = "CustomResourceDefinition";

/// NetworkPolicies are read in transparent mode alone.
pub(crate) const NETWORK_POLICY: &str = "NetworkPolicy";

/// AddressPools and BgpPeers are read only if Sheave serves Services of type LoadBalancer.
pub(crate) const ADDRESS_POOL: &str = "AddressPool";
pub(crate) const BGP_PEER: &str = "BgpPeer";

/// Nodes are read by the layer-4 data path alone.
pub(crate) const NODE: &str = "Node";

/// Kinds that can hold certificates.
pub(crate) const SECRET: &str = "Secret";
pub(crate) const CONFIG_MAP: &str = "ConfigMap";

/// Keys of Secrets and ConfigMaps that are read.
const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";
const CA_BUNDLE: &str = "ca.crt";
const REVOCATION_LISTS: &str = "ca.crl";
const KEY_SET: &str = "jwks";
/// Type of Secrets whose values may have any name: users and keys of clients are in them.
const OPAQUE: &str = "Opaque";

/// Excludes the types of Secrets that never hold a certificate: they are most of the Secrets in a
/// cluster, and the largest.
const CERTIFICATE_SECRETS_SELECTOR: &str = "type!=kubernetes.io/service-account-token,type!=helm.sh/release.v1,\
     type!=bootstrap.kubernetes.io/token,type!=kubernetes.io/dockerconfigjson,\
     type!=kubernetes.io/dockercfg,type!=kubernetes.io/basic-auth,type!=kubernetes.io/ssh-auth";

/// Every watched kind. Pods are not watched: they change far more often than EndpointSlices and add
/// no information.
pub(crate) const KINDS: [WatchedKind; 28] = [
    WatchedKind {
        field_selector: Some("metadata.name=gateways.gateway.networking.k8s.io"),
        is_namespaced: false,
        ..watched_kind("apiextensions.k8s.io", "v1", CRD_KIND, "customresourcedefinitions")
    },
    cluster_kind(GATEWAY_API, "GatewayClass", "gatewayclasses"),
    watched_kind(GATEWAY_API, "v1", "Gateway", "gateways"),
    watched_kind(GATEWAY_API, "v1", "ListenerSet", "listenersets"),
    kind_with_entries(GATEWAY_API, "v1", "HTTPRoute", "httproutes"),
    kind_with_entries(GATEWAY_API, "v1", "GRPCRoute", "grpcroutes"),
    kind_with_entries(GATEWAY_API, "v1", "TLSRoute", "tlsroutes"),
    kind_with_entries(GATEWAY_API, "v1", "TCPRoute", "tcproutes"),
    kind_with_entries(GATEWAY_API, "v1", "UDPRoute", "udproutes"),
    watched_kind(GATEWAY_API, "v1", "ReferenceGrant", "referencegrants"),
    kind_with_entries(GATEWAY_API, "v1", "BackendTLSPolicy", "backendtlspolicies"),
    kind_with_entries(
        GATEWAY_API_EXPERIMENTAL,
        "v1alpha1",
        "XBackendTrafficPolicy",
        "xbackendtrafficpolicies",
    ),
    kind_with_entries(SHEAVE, "v1alpha1", "BackendPolicy", "backendpolicies"),
    kind_with_entries(SHEAVE, "v1alpha1", "ClientPolicy", "clientpolicies"),
    kind_with_entries(SHEAVE, "v1alpha1", "RateLimitPolicy", "ratelimitpolicies"),
    kind_with_entries(SHEAVE, "v1alpha1", "SecurityPolicy", "securitypolicies"),
    kind_with_entries(SHEAVE, "v1alpha1", "TrafficPolicy", "trafficpolicies"),
    WatchedKind {
        is_namespaced: false,
        ..watched_kind(SHEAVE, "v1alpha1", ADDRESS_POOL, "addresspools")
    },
    WatchedKind { is_namespaced: false, ..watched_kind(SHEAVE, "v1alpha1", BGP_PEER, "bgppeers") },
    cluster_kind(INGRESS, "IngressClass", "ingressclasses"),
    watched_kind(INGRESS, "v1", "Ingress", "ingresses"),
    watched_kind(INGRESS, "v1", NETWORK_POLICY, "networkpolicies"),
    cluster_kind("", "Namespace", "namespaces"),
    watched_kind("", "v1", "Service", "services"),
    cluster_kind("", NODE, "nodes"),
    WatchedKind {
        is_endpoints: true,
        ..watched_kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
    },
    WatchedKind {
        field_selector: Some(CERTIFICATE_SECRETS_SELECTOR),
        holds_certificates: true,
        ..watched_kind("", "v1", SECRET, "secrets")
    },
    WatchedKind { holds_certificates: true, ..watched_kind("", "v1", CONFIG_MAP, "configmaps") },
];

const fn watched_kind(
    group: &'static str,
    version: &'static str,
    name: &'static str,
    plural: &'static str,
) -> WatchedKind {
    let (is_endpoints, has_entries) = (false, false);
    WatchedKind {
        group,
        version,
        name,
        plural,
        field_selector: None,
        is_endpoints,
        is_namespaced: true,
        holds_certificates: false,
        has_status_entries: has_entries,
    }
}

const fn cluster_kind(
    group: &'static str,
    name: &'static str,
    plural: &'static str,
) -> WatchedKind {
    WatchedKind { is_namespaced: false, ..watched_kind(group, "v1", name, plural) }
}

const fn kind_with_entries(
    group: &'static str,
    version: &'static str,
    name: &'static str,
    plural: &'static str,
) -> WatchedKind {
    WatchedKind { has_status_entries: true, ..watched_kind(group, version, name, plural) }
}

impl WatchedKind {
    /// Returns the kind with this name; the names are unique in [`KINDS`].
    pub(crate) fn by_name(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.name == name)
    }

    /// Returns the index of a kind in [`KINDS`].
    pub(crate) fn index_of(name: &str) -> Option<usize> {
        KINDS.iter().position(|kind| kind.name == name)
    }

    /// Returns the namespace of an object; one of the whole cluster has none, even if the field is set.
    pub(crate) fn namespace_of<'n>(&self, namespace: &'n str) -> &'n str {
        if self.is_namespaced { namespace } else { "" }
    }

    /// Returns the value of `apiVersion`.
    pub(crate) fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    pub(crate) fn resource(&self) -> ApiResource {
        ApiResource {
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            api_version: self.api_version(),
            kind: self.name.to_owned(),
            plural: self.plural.to_owned(),
        }
    }

    /// Returns the addresses in a status of this kind at which clients reach it.
    pub(crate) fn status_addresses(&self, status: Option<&Value>) -> Vec<PublishedAddress> {
        let (list, ip, name) = match self.name {
            "Gateway" => ("/addresses", "value", None),
            "Ingress" | "Service" => ("/loadBalancer/ingress", "ip", Some("hostname")),
            _ => return Vec::new(),
        };
        let list = status.and_then(|status| status.pointer(list)?.as_array());
        let text = |entry: &Value, field: &str| Some(entry.get(field)?.as_str()?.to_owned());
        let address = |entry: &Value| {
            let address = text(entry, ip).and_then(|text| text.parse().ok());
            let name = || text(entry, name?).filter(|name| !name.is_empty());
            address.map(PublishedAddress::Ip).or_else(|| name().map(PublishedAddress::Hostname))
        };
        list.into_iter().flatten().filter_map(address).collect()
    }

    /// True if an object of this kind can affect the configuration. Of Secrets and ConfigMaps, which are numerous in a
    /// cluster, only those with certificates, key sets or values of any name can, if no object is known to refer to them.
    pub(crate) fn is_relevant(&self, content: &Value) -> bool {
        let holds = |name: &str| content.pointer("/data").is_some_and(|it| it.get(name).is_some());
        match self.name {
            "Secret" => {
                is_opaque(content) || holds(CHAIN) || holds(CA_BUNDLE) || holds(REVOCATION_LISTS)
            }
            "ConfigMap" => holds(CA_BUNDLE) || holds(REVOCATION_LISTS) || holds(KEY_SET),
            _ => true,
        }
    }

    /// Removes fields that are never read, to save memory and to ignore their changes.
    pub(crate) fn trim(&self, object: &mut DynamicObject) {
        // The managed fields (the writer of each field) are the largest part of an object's
        // metadata.
        object.metadata.managed_fields = None;
        let is_read = |name: &str| match self.name {
            "Ingress" | "IngressClass" => ingress::is_known_annotation(name),
            "Service" => {
                [GATEWAY_ANNOTATION, CONTROLLER_ANNOTATION].contains(&name)
                    || transparent::ANNOTATIONS.contains(&name)
                    || load_balancer::ANNOTATIONS.contains(&name)
            }
            "Namespace" => name == BALANCE_ANNOTATION,
            _ => false,
        };
        if let Some(annotations) = &mut object.metadata.annotations {
            annotations.retain(|name, _| is_read(name));
        }
        if self.name == NODE {
            trim_node(object);
        }
    }

    /// Removes values of a Secret or ConfigMap that are never read, if no object is known to refer to it.
    pub(crate) fn trim_values(&self, object: &mut DynamicObject) {
        let has_any_name = self.name == SECRET && is_opaque(&object.data);
        if self.holds_certificates
            && !has_any_name
            && let Some(Value::Object(values)) = object.data.get_mut("data")
        {
            let read = [CHAIN, KEY, CA_BUNDLE, REVOCATION_LISTS, KEY_SET];
            values.retain(|name, _| read.contains(&&**name));
        }
    }
}

fn is_opaque(content: &Value) -> bool {
    content.get("data").is_some() && content.get("type").and_then(Value::as_str) == Some(OPAQUE)
}

/// Removes all of a Node but its addresses: its images alone are larger than all that is read.
fn trim_node(object: &mut DynamicObject) {
    object.metadata.labels = None;
    let addresses = object.data.pointer("/status/addresses").cloned().unwrap_or_default();
    object.data = json!({ "status": { "addresses": addresses } });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_versions_include_the_group() {
        assert_eq!(WatchedKind::by_name("Service").unwrap().api_version(), "v1");
        let gateway = WatchedKind::by_name("Gateway").unwrap();
        assert_eq!(gateway.api_version(), "gateway.networking.k8s.io/v1");
        assert_eq!(KINDS[WatchedKind::index_of("Gateway").unwrap()].plural, "gateways");
    }

    #[test]
    fn only_config_maps_and_secrets_that_can_be_used_are_relevant() {
        let matter = |kind: &str, data: Value| {
            WatchedKind::by_name(kind).unwrap().is_relevant(&json!({ "data": data }))
        };
        assert!(matter("ConfigMap", json!({"ca.crt": "PEM"})));
        assert!(matter("ConfigMap", json!({"ca.crl": "PEM"})));
        assert!(!matter("ConfigMap", json!({"app.conf": ""})));
        assert!(matter("Secret", json!({"tls.crt": "UEVN", "tls.key": "UEVN"})));
        assert!(matter("Secret", json!({"ca.crt": "UEVN"})));
        assert!(matter("ConfigMap", json!({"jwks": "{}"})));
        let secret = |kind: &str| json!({ "type": kind, "data": { "password": "", "tls": "" } });
        let is_relevant = |it| WatchedKind::by_name("Secret").unwrap().is_relevant(&it);
        assert!(is_relevant(secret("Opaque")));
        assert!(!is_relevant(secret("example.com/other")));
        assert!(!WatchedKind::by_name("Secret").unwrap().is_relevant(&json!({})));
    }
}
