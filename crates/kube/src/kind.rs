//! Which objects of a cluster matter, and how each is asked for.

use gateway::ingress;
use gateway::managed_services::{GATEWAY_ANNOTATION, PublishedAddress};
use kube_core::{ApiResource, DynamicObject};
use serde_json::Value;

/// A kind of objects.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) name: &'static str,
    pub(crate) plural: &'static str,
    /// Which of them are left out by the API server; none: none are.
    pub(crate) fields: Option<&'static str>,
    /// Whether a change is for endpoints alone, and takes the short way.
    pub(crate) is_endpoints: bool,
    /// Whether its status is a list that others write as well, of which ours must go when we have nothing more to say.
    pub(crate) has_entries: bool,
}

const GATEWAY_API: &str = "gateway.networking.k8s.io";
const SHEAVE: &str = "sheave.dev";
const INGRESS: &str = "networking.k8s.io";

/// That of Gateway tells which version of Gateway API is installed.
pub(crate) const DEFINITION: &str = "CustomResourceDefinition";

/// The values of Secrets and ConfigMaps that are looked at.
const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITIES: &str = "ca.crt";

/// Of Secrets, those that never hold a certificate are most of what a cluster has, and the largest.
const NO_CERTIFICATES: &str = "type!=kubernetes.io/service-account-token,type!=helm.sh/release.v1,\
     type!=bootstrap.kubernetes.io/token,type!=kubernetes.io/dockerconfigjson,\
     type!=kubernetes.io/dockercfg,type!=kubernetes.io/basic-auth,type!=kubernetes.io/ssh-auth";

/// Every kind; never Pods, which change far more often and say nothing that EndpointSlices do not.
pub(crate) const KINDS: [Kind; 20] = [
    Kind {
        fields: Some("metadata.name=gateways.gateway.networking.k8s.io"),
        ..of("apiextensions.k8s.io", "v1", DEFINITION, "customresourcedefinitions")
    },
    of(GATEWAY_API, "v1", "GatewayClass", "gatewayclasses"),
    of(GATEWAY_API, "v1", "Gateway", "gateways"),
    of(GATEWAY_API, "v1", "ListenerSet", "listenersets"),
    entries(GATEWAY_API, "v1", "HTTPRoute", "httproutes"),
    entries(GATEWAY_API, "v1", "GRPCRoute", "grpcroutes"),
    entries(GATEWAY_API, "v1", "TLSRoute", "tlsroutes"),
    entries(GATEWAY_API, "v1", "TCPRoute", "tcproutes"),
    entries(GATEWAY_API, "v1", "UDPRoute", "udproutes"),
    of(GATEWAY_API, "v1", "ReferenceGrant", "referencegrants"),
    entries(GATEWAY_API, "v1", "BackendTLSPolicy", "backendtlspolicies"),
    entries(SHEAVE, "v1alpha1", "BackendPolicy", "backendpolicies"),
    entries(SHEAVE, "v1alpha1", "ClientPolicy", "clientpolicies"),
    of(INGRESS, "v1", "IngressClass", "ingressclasses"),
    of(INGRESS, "v1", "Ingress", "ingresses"),
    of("", "v1", "Namespace", "namespaces"),
    of("", "v1", "Service", "services"),
    Kind { is_endpoints: true, ..of("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices") },
    Kind { fields: Some(NO_CERTIFICATES), ..of("", "v1", "Secret", "secrets") },
    of("", "v1", "ConfigMap", "configmaps"),
];

const fn of(
    group: &'static str,
    version: &'static str,
    name: &'static str,
    plural: &'static str,
) -> Kind {
    let (is_endpoints, has_entries) = (false, false);
    Kind { group, version, name, plural, fields: None, is_endpoints, has_entries }
}

const fn entries(
    group: &'static str,
    version: &'static str,
    name: &'static str,
    plural: &'static str,
) -> Kind {
    Kind { has_entries: true, ..of(group, version, name, plural) }
}

impl Kind {
    /// The kind of a name: no two of ours share one.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.name == name)
    }

    /// Its place in [`KINDS`].
    pub(crate) fn place(name: &str) -> Option<usize> {
        KINDS.iter().position(|kind| kind.name == name)
    }

    /// The namespace of one of its objects: a GatewayClass has none, whatever was filled in.
    pub(crate) fn namespace_of<'n>(&self, namespace: &'n str) -> &'n str {
        if self.name == "GatewayClass" { "" } else { namespace }
    }

    /// As `apiVersion` says it.
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

    /// Where a status of this kind says that clients find it: that is asked for by whoever knows it.
    pub(crate) fn places(&self, status: Option<&Value>) -> Vec<PublishedAddress> {
        let (list, ip, name) = match self.name {
            "Gateway" => ("/addresses", "value", None),
            "Ingress" | "Service" => ("/loadBalancer/ingress", "ip", Some("hostname")),
            _ => return Vec::new(),
        };
        let list = status.and_then(|status| status.pointer(list)?.as_array());
        let text = |entry: &Value, field: &str| Some(entry.get(field)?.as_str()?.to_owned());
        let place = |entry: &Value| {
            let address = text(entry, ip).and_then(|text| text.parse().ok());
            let name = || text(entry, name?).filter(|name| !name.is_empty());
            address.map(PublishedAddress::Ip).or_else(|| name().map(PublishedAddress::Hostname))
        };
        list.into_iter().flatten().filter_map(place).collect()
    }

    /// Whether an object of this kind can matter at all. Of Secrets and ConfigMaps, which a cluster has many of, those that
    /// hold certificates do.
    pub(crate) fn may_matter(&self, content: &Value) -> bool {
        let holds = |name: &str| content.pointer("/data").is_some_and(|it| it.get(name).is_some());
        match self.name {
            "Secret" => holds(CHAIN) || holds(AUTHORITIES),
            "ConfigMap" => holds(AUTHORITIES),
            _ => true,
        }
    }

    /// Leaves out what is never looked at, so that it takes no room and its changes go unnoticed.
    pub(crate) fn trim(&self, object: &mut DynamicObject) {
        // Who wrote which field is most of an object's metadata.
        object.metadata.managed_fields = None;
        let is_read = |name: &str| match self.name {
            "Ingress" | "IngressClass" => ingress::is_known_annotation(name),
            "Service" => name == GATEWAY_ANNOTATION,
            _ => false,
        };
        if let Some(annotations) = &mut object.metadata.annotations {
            annotations.retain(|name, _| is_read(name));
        }
        if ["Secret", "ConfigMap"].contains(&self.name)
            && let Some(Value::Object(values)) = object.data.get_mut("data")
        {
            values.retain(|name, _| [CHAIN, KEY, AUTHORITIES].contains(&&**name));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn api_versions_include_the_group() {
        assert_eq!(Kind::named("Service").unwrap().api_version(), "v1");
        let gateway = Kind::named("Gateway").unwrap();
        assert_eq!(gateway.api_version(), "gateway.networking.k8s.io/v1");
        assert_eq!(KINDS[Kind::place("Gateway").unwrap()].plural, "gateways");
    }

    #[test]
    fn only_config_maps_and_secrets_with_certificates_are_relevant() {
        let matter = |kind: &str, data: Value| {
            Kind::named(kind).unwrap().may_matter(&json!({ "data": data }))
        };
        assert!(matter("ConfigMap", json!({"ca.crt": "PEM"})));
        assert!(!matter("ConfigMap", json!({"app.conf": ""})));
        assert!(matter("Secret", json!({"tls.crt": "UEVN", "tls.key": "UEVN"})));
        assert!(matter("Secret", json!({"ca.crt": "UEVN"})));
        assert!(!matter("Secret", json!({"password": "", "tls": ""})));
        assert!(!Kind::named("Secret").unwrap().may_matter(&json!({})));
    }
}
