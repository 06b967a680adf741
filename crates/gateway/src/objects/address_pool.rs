//! `AddressPool` (sheave.dev/v1alpha1): addresses for Services of type LoadBalancer.
//!
//! The doc comments become the reference page and the descriptions of the CRD.

use schemars::JsonSchema;
use serde::Deserialize;

use super::namespace::LabelSelector;
use super::scalar::CidrBlock;

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

    /// Returns the field and the error of an invalid selector.
    pub fn fault(&self) -> Option<(String, String)> {
        let of = |field: &str, selector: &Option<LabelSelector>| {
            let (part, message) = selector.as_ref()?.fault()?;
            Some((format!("spec.{field}.{part}"), message))
        };
        of("namespaceSelector", &self.namespace_selector)
            .or_else(|| of("serviceSelector", &self.service_selector))
    }
}
