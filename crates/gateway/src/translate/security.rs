//! SecurityPolicies: the clients that may send requests to each target.

use super::index::SECURITY_POLICY;
use super::owner::OwnerObject;
use super::report::ValidationFault;
use super::route_policy::{RoutePolicies, RoutePolicy, full_name};
use crate::objects::{CidrBlock, ClientAddressAccess, RouteTarget, SecurityPolicySpec};
use crate::snapshot::{ClientAddressRules, SecuritySettings};
use crate::status::ConditionReason;

/// The settings of all targets.
pub(super) type SecurityPolicies<'a> = RoutePolicies<'a, SecuritySettings>;

impl RoutePolicy<SecuritySettings> for SecurityPolicySpec {
    const KIND: &'static str = SECURITY_POLICY;
    const CONSEQUENCE: &'static str = "all requests to its targets are answered with 500";

    fn targets(&self) -> &[RouteTarget] {
        &self.target_refs
    }

    fn faults(&self) -> Vec<ValidationFault> {
        let ClientAddressAccess { allow, deny } = &self.client_addresses;
        let fault = |message| {
            ValidationFault::new(ConditionReason::Invalid, "spec.clientAddresses", message)
        };
        let is_empty = allow.is_empty() && deny.is_empty();
        is_empty.then(|| fault("has neither `allow` nor `deny`")).into_iter().collect()
    }

    fn settings(&self, owner: OwnerObject<'_>, _: &RouteTarget) -> SecuritySettings {
        let networks = |blocks: &[CidrBlock]| blocks.iter().map(|it| it.0).collect();
        let ClientAddressAccess { allow, deny } = &self.client_addresses;
        let rules = ClientAddressRules { allowed: networks(allow), denied: networks(deny) };
        SecuritySettings { policy: full_name(owner).into(), client_addresses: Some(rules) }
    }

    // Without the settings of a policy it is unknown which clients may send requests.
    fn invalid_settings(policy: &str) -> Option<SecuritySettings> {
        Some(SecuritySettings { policy: policy.into(), client_addresses: None })
    }
}
