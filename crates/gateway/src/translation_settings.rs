//! Settings of the operator that a translation depends on, beside the objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::address_filter::AddressFilter;
use crate::addresses::AddressAssignment;
use crate::certificate_object::CertificateObject;
use crate::jwks::{JwksSubscription, KeySetState};
use crate::load_balancer::LoadBalancerSettings;
use crate::objects::{
    GATEWAY_CONTROLLER, GatewayClassSpec, INGRESS_CONTROLLER, IngressClassSpec, TypedObject,
};

/// Settings of a translation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TranslationSettings {
    /// Addresses of Gateways.
    pub addresses: AddressAssignment,
    /// Names by which classes select this installation.
    pub controllers: ControllerNames,
    /// Rule for the addresses of endpoints that a cluster names.
    pub address_filter: AddressFilter,
    /// The domain of the cluster: no ExternalName Service of a cluster may name a Service.
    pub cluster_domain: ClusterDomain,
    /// True if a Gateway may serve a host below a wildcard of another namespace's Gateway.
    pub share_hostnames: bool,
    /// Names in DNS of which the last answer had addresses that the filter rejects, each with the reason.
    pub rejected_answers: BTreeMap<Arc<str>, String>,
    /// Key sets that are fetched. One that is missing has not been fetched yet.
    pub key_sets: BTreeMap<JwksSubscription, KeySetState>,
    /// Secrets and ConfigMaps of the cluster that cannot be read, each with the reason.
    pub unreadable_objects: BTreeMap<CertificateObject, String>,
    /// Transparent mode. `None`: annotations of Services have no effect.
    pub transparent: Option<TransparentSettings>,
    /// True if clients ask for the routes and endpoints of Services and balance each call themselves (xDS). Then routes
    /// may name any Service as parent.
    pub proxyless: bool,
    /// Services of type LoadBalancer. `None`: they are not served.
    pub load_balancer: Option<LoadBalancerSettings>,
}

/// Settings of transparent mode: the node that it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransparentSettings {
    /// The name of the node, for `internalTrafficPolicy`, hints and preferences. Empty: unknown.
    pub node: Arc<str>,
    /// The zone of the node, if known.
    pub zone: Option<Arc<str>>,
    /// True if IPv4 addresses can be taken.
    pub ipv4: bool,
    /// True if IPv6 addresses can be taken.
    pub ipv6: bool,
}

impl TranslationSettings {
    /// Returns the default settings with these addresses of Gateways.
    pub fn at(addresses: AddressAssignment) -> Self {
        Self { addresses, ..Self::default() }
    }
}

/// Names of the controllers of an installation: a class with another name belongs to another installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerNames {
    /// The `controllerName` of GatewayClasses, and of entries in statuses.
    pub gateway: Arc<str>,
    /// The `controller` of IngressClasses.
    pub ingress: Arc<str>,
}

impl Default for ControllerNames {
    fn default() -> Self {
        Self { gateway: GATEWAY_CONTROLLER.into(), ingress: INGRESS_CONTROLLER.into() }
    }
}

impl ControllerNames {
    /// True if a GatewayClass selects this installation. Classes in files may have the default name, because files
    /// belong to one installation.
    pub(crate) fn own_class(&self, class: &TypedObject<GatewayClassSpec>) -> bool {
        let name = &*class.spec.controller_name;
        name == &*self.gateway || (!class.metadata.in_cluster && name == GATEWAY_CONTROLLER)
    }

    /// True if an IngressClass selects this installation.
    pub(crate) fn own_ingress_class(&self, class: &TypedObject<IngressClassSpec>) -> bool {
        let name = &*class.spec.controller;
        name == &*self.ingress || (!class.metadata.in_cluster && name == INGRESS_CONTROLLER)
    }
}

/// The domain of a cluster's names, in lower case, without a dot at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDomain(Box<str>);

impl Default for ClusterDomain {
    fn default() -> Self {
        Self::new("cluster.local")
    }
}

impl ClusterDomain {
    /// Takes a domain in any notation.
    pub fn new(domain: &str) -> Self {
        Self(domain.trim_matches('.').to_ascii_lowercase().into())
    }

    /// Returns the domain.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// True if a name is of the cluster: below its domain, or a short form `SERVICE.NAMESPACE.svc`, which a resolver
    /// with a search list would complete. Case and a dot at the end do not matter.
    pub fn contains(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        [&*self.0, "svc"].iter().filter(|domain| !domain.is_empty()).any(|domain| {
            name.strip_suffix(domain).is_some_and(|front| front.is_empty() || front.ends_with('.'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_cluster_are_recognised_in_any_notation() {
        let domain = ClusterDomain::new("Cluster.Local.");
        for name in [
            "web.shop.svc.cluster.local",
            "web.shop.svc.cluster.local.",
            "WEB.Shop.SVC.Cluster.LOCAL",
            "pod.web.shop.svc.cluster.local..",
            "10-0-0-1.shop.pod.cluster.local",
            "cluster.local",
            "web.shop.svc",
            "web.shop.SVC.",
        ] {
            assert!(domain.contains(name), "{name}");
        }
        for name in [
            "example.com",
            "notcluster.local",
            "cluster.local.example",
            "websvc",
            "svc.example",
            "",
        ] {
            assert!(!domain.contains(name), "{name}");
        }
        assert!(ClusterDomain::new("k8s.corp").contains("web.shop.svc.k8s.corp"));
        assert!(!ClusterDomain::new("").contains("example.com"));
    }
}
