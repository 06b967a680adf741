//! `AddressPool` (sheave.dev/v1alpha1): addresses for Services of type LoadBalancer.
//!
//! The doc comments become the reference page and the descriptions of the CRD.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::namespace::LabelSelector;
use super::scalar::{CidrBlock, RouteCommunity};

/// Addresses for Services of type LoadBalancer that Sheave serves. A pool belongs to no namespace. It assigns addresses
/// to the Services that both of its selectors match.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddressPoolSpec {
    /// Addresses and CIDR blocks, IPv4 and IPv6. The network address and the broadcast address of a block are not
    /// assigned, and neither is an address that an older pool or the pool of Gateways has.
    #[schemars(length(min = 1, max = 64))]
    pub addresses: Vec<CidrBlock>,
    /// The namespaces whose Services get addresses, by their labels; `kubernetes.io/metadata.name` is the name of each.
    /// Default: all namespaces.
    pub namespace_selector: Option<LabelSelector>,
    /// The Services that get addresses, by their labels. Default: all Services.
    pub service_selector: Option<LabelSelector>,
    /// False if only Services that request an address of the pool get one. Default: true.
    pub auto_assign: Option<bool>,
    /// Way in which nodes announce the addresses: `Layer2` or `BGP`, one of them. With `Layer2`, one node at a time carries an
    /// address and announces it on its link. With `BGP`, every node that serves an address announces a route to it to
    /// the routers of all BgpPeers. Default: `Layer2`.
    #[schemars(length(min = 1, max = 1))]
    pub announce: Option<Vec<AnnouncementMethod>>,
    /// Communities of the routes, with `BGP`: `65000:100` (RFC 1997) or `4200000000:1:2` (RFC 8092).
    #[schemars(length(max = 32))]
    pub communities: Option<Vec<RouteCommunity>>,
    /// Local preference of the routes, with `BGP`, for routers that are in the AS of the nodes. Default: 100.
    #[schemars(range(min = 0, max = 4_294_967_295_u32))]
    pub local_preference: Option<u32>,
}

/// Way in which nodes announce an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum AnnouncementMethod {
    /// One node at a time carries the address and announces it on its link by ARP and Neighbor Discovery.
    Layer2,
    /// Every node that serves the address announces a route to it.
    #[serde(rename = "BGP")]
    Bgp,
}

impl AddressPoolSpec {
    /// True if a Service that requests no address may get one.
    pub fn assigns_unrequested(&self) -> bool {
        self.auto_assign.unwrap_or(true)
    }

    /// True if the pool is for some Services only.
    pub const fn is_selective(&self) -> bool {
        self.namespace_selector.is_some() || self.service_selector.is_some()
    }

    /// Returns how nodes announce the addresses.
    pub fn announcement(&self) -> AnnouncementMethod {
        let methods = self.announce.as_deref().unwrap_or_default();
        methods.first().copied().unwrap_or(AnnouncementMethod::Layer2)
    }

    /// Returns the field and the error of an invalid selector, or of a setting without effect.
    pub fn fault(&self) -> Option<(String, String)> {
        let of = |field: &str, selector: &Option<LabelSelector>| {
            let (part, message) = selector.as_ref()?.fault()?;
            Some((format!("spec.{field}.{part}"), message))
        };
        of("namespaceSelector", &self.namespace_selector)
            .or_else(|| of("serviceSelector", &self.service_selector))
            .or_else(|| self.unused_setting())
    }

    /// Returns a setting of routes of a pool that has none.
    fn unused_setting(&self) -> Option<(String, String)> {
        let field = match (&self.communities, self.local_preference) {
            (Some(_), _) => "communities",
            (None, Some(_)) => "localPreference",
            (None, None) => return None,
        };
        let message = "needs announce: [BGP]".to_owned();
        (self.announcement() != AnnouncementMethod::Bgp).then(|| (format!("spec.{field}"), message))
    }
}
