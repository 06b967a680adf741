//! SecurityPolicies: the requests that may be sent to each target.

use std::sync::Arc;

use super::external_auth;
use super::index::ObjectIndex;
use super::owner::OwnerObject;
use super::report::ValidationFault;
use super::route_policy::{FaultyPolicy, RoutePolicies, RoutePolicy, full_name};
use super::{api_keys, basic_auth, jwt};
use crate::objects::{
    ClientAddressAccess, InvalidObject, RouteTarget, SECURITY_POLICY, SecurityPolicySpec,
};
use crate::snapshot::{ClientAddressRules, SecuritySettings};
use crate::status::ConditionReason;

/// The settings of all targets.
pub(super) type SecurityPolicies<'a> = RoutePolicies<'a, SecuritySettings>;

impl RoutePolicy<SecuritySettings> for SecurityPolicySpec {
    const KIND: &'static str = SECURITY_POLICY;

    fn targets(&self) -> &[RouteTarget] {
        &self.target_refs
    }

    fn faults(&self, index: &ObjectIndex<'_>, owner: OwnerObject<'_>) -> Vec<ValidationFault> {
        let Self {
            target_refs: _,
            client_addresses,
            client_certificate,
            basic_auth,
            api_keys,
            jwt,
            external_auth,
        } = self;
        let fault = |field, message| ValidationFault::new(ConditionReason::Invalid, field, message);
        let is_empty = client_addresses.is_none()
            && client_certificate.is_none()
            && basic_auth.is_none()
            && api_keys.is_none()
            && jwt.is_none()
            && external_auth.is_none();
        if is_empty {
            return vec![fault("spec", "has no check")];
        }
        let namespace = &*owner.metadata.namespace;
        let is_empty = |it: &ClientAddressAccess| it.allow.is_empty() && it.deny.is_empty();
        let addresses = client_addresses.as_ref().filter(|it| is_empty(it));
        let addresses =
            addresses.map(|_| fault("spec.clientAddresses", "has neither `allow` nor `deny`"));
        let users = basic_auth.as_ref().map(|it| basic_auth::settings(index, namespace, it));
        let keys = api_keys.as_ref().map(|it| api_keys::settings(index, namespace, "", it));
        let issuers = jwt.as_ref().map(|it| jwt::settings(index, owner, "", it));
        let authorizer =
            external_auth.as_ref().map(|it| external_auth::of_policy(index, owner, it));
        let faults = addresses.into_iter().chain(users.and_then(Result::err));
        let faults = faults.chain(keys.and_then(Result::err));
        let faults = faults.chain(issuers.and_then(Result::err).into_iter().flatten());
        faults.chain(authorizer.and_then(Result::err).into_iter().flatten()).collect()
    }

    fn settings(
        &self,
        index: &ObjectIndex<'_>,
        owner: OwnerObject<'_>,
        _: &RouteTarget,
    ) -> SecuritySettings {
        let rules = self.client_addresses.as_ref().map(ClientAddressRules::from);
        let namespace = &*owner.metadata.namespace;
        let policy = full_name(owner);
        let users = self.basic_auth.as_ref();
        let users = users.map(|it| basic_auth::settings(index, namespace, it));
        let keys = self.api_keys.as_ref();
        let keys = keys.map(|it| api_keys::settings(index, namespace, &policy, it));
        let issuers = self.jwt.as_ref();
        let issuers = issuers.map(|it| jwt::settings(index, owner, &policy, it));
        let authorizer = self.external_auth.as_ref();
        let authorizer = authorizer.map(|it| external_auth::of_policy(index, owner, it));
        let (Ok(basic_auth), Ok(api_keys), Ok(jwt), Ok(external_auth)) =
            (users.transpose(), keys.transpose(), issuers.transpose(), authorizer.transpose())
        else {
            return invalid(&policy);
        };
        SecuritySettings {
            policy: policy.into(),
            client_addresses: Some(rules.unwrap_or_default()),
            client_certificate: self.client_certificate.clone(),
            basic_auth,
            api_keys: api_keys.map(Arc::new),
            jwt: jwt.map(Arc::new),
            external_auth,
        }
    }

    fn resolution(
        &self,
        index: &ObjectIndex<'_>,
        owner: OwnerObject<'_>,
    ) -> Option<Option<ValidationFault>> {
        let jwt = self.jwt.as_ref().filter(|it| jwt::fetches(it))?;
        Some(jwt::fetch_fault(index, owner, jwt))
    }

    fn faulty(
        &self,
        _: &ObjectIndex<'_>,
        owner: OwnerObject<'_>,
        _: &RouteTarget,
    ) -> FaultyPolicy<SecuritySettings> {
        closed(&full_name(owner))
    }

    fn unreadable(policy: &str, _: &InvalidObject) -> FaultyPolicy<SecuritySettings> {
        closed(policy)
    }
}

/// Returns the effect of a policy without settings: it is unknown which clients may send requests.
fn closed(policy: &str) -> FaultyPolicy<SecuritySettings> {
    FaultyPolicy {
        consequence: "all requests to its targets are answered with 500",
        settings: Some(invalid(policy)),
    }
}

fn invalid(policy: &str) -> SecuritySettings {
    SecuritySettings {
        policy: policy.into(),
        client_addresses: None,
        client_certificate: None,
        basic_auth: None,
        api_keys: None,
        jwt: None,
        external_auth: None,
    }
}
