//! SecurityPolicies: the requests that may be sent to each target.

use super::external_auth;
use super::index::{ObjectIndex, SECURITY_POLICY};
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

    fn faults(&self, index: &ObjectIndex<'_>, owner: OwnerObject<'_>) -> Vec<ValidationFault> {
        let fault = |field, message| ValidationFault::new(ConditionReason::Invalid, field, message);
        let mut faults = Vec::new();
        match &self.client_addresses {
            Some(ClientAddressAccess { allow, deny }) if allow.is_empty() && deny.is_empty() => {
                faults.push(fault("spec.clientAddresses", "has neither `allow` nor `deny`"));
            }
            None if self.external_auth.is_none() => {
                faults.push(fault("spec", "has neither `clientAddresses` nor `externalAuth`"));
            }
            Some(_) | None => {}
        }
        let auth = self.external_auth.as_ref();
        let auth = auth.and_then(|auth| external_auth::of_policy(index, owner, auth).err());
        faults.extend(auth.into_iter().flatten());
        faults
    }

    fn settings(
        &self,
        index: &ObjectIndex<'_>,
        owner: OwnerObject<'_>,
        _: &RouteTarget,
    ) -> SecuritySettings {
        let networks = |blocks: &[CidrBlock]| blocks.iter().map(|it| it.0).collect();
        let rules = |access: &ClientAddressAccess| ClientAddressRules {
            allowed: networks(&access.allow),
            denied: networks(&access.deny),
        };
        let auth = self.external_auth.as_ref();
        SecuritySettings {
            policy: full_name(owner).into(),
            client_addresses: Some(self.client_addresses.as_ref().map(rules).unwrap_or_default()),
            external_auth: auth.and_then(|auth| external_auth::of_policy(index, owner, auth).ok()),
        }
    }

    // Without the settings of a policy it is unknown which clients may send requests.
    fn invalid_settings(policy: &str) -> Option<SecuritySettings> {
        Some(SecuritySettings {
            policy: policy.into(),
            client_addresses: None,
            external_auth: None,
        })
    }
}
