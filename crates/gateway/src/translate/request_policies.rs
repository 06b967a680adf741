//! Policies of requests of all kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::draft::RuleOrigin;
use super::index::ObjectIndex;
use super::listener::{GatewayContext, ListenerContext};
use super::rate_limit::RateLimitPolicies;
use super::report::TranslationReport;
use super::route_policy::route_policies;
use super::rule_policies::RulePolicies;
use super::security::SecurityPolicies;
use super::traffic::TrafficPolicies;
use crate::snapshot::{
    ApiKeySettings, BackendKey, ErrorPageSource, ExternalAuthSettings, JwtSettings,
    RateLimitSettings,
};

/// The policies that attach to Gateways and routes.
pub(super) struct RequestPolicies<'a> {
    rate_limits: RateLimitPolicies<'a>,
    security: SecurityPolicies<'a>,
    traffic: TrafficPolicies<'a>,
}

impl<'a> RequestPolicies<'a> {
    /// Attaches every policy to its targets.
    pub(super) fn new(index: &ObjectIndex<'a>, report: &mut TranslationReport) -> Self {
        Self {
            rate_limits: route_policies(index, &index.rate_limit_policies, report),
            security: route_policies(index, &index.security_policies, report),
            traffic: route_policies(index, &index.traffic_policies, report),
        }
    }

    /// Returns what policies of a rule, or of its route, add to it.
    pub(super) fn of_rule(&self, origin: Option<&RuleOrigin>) -> RulePolicies {
        RulePolicies {
            rate_limit: self.rate_limits.of_rule(origin),
            security: self.security.of_rule(origin).map(|it| Arc::clone(self.security.get(it))),
            traffic: self.traffic.of_rule(origin).map(|it| Arc::clone(self.traffic.get(it))),
        }
    }

    /// Returns what policies of a listener, or of its Gateway, add to rules that have no policies of that kind.
    pub(super) fn of_listener(
        &self,
        gateway: &GatewayContext<'_>,
        listener: &ListenerContext<'_>,
    ) -> RulePolicies {
        let security = self.security.of_listener(gateway, listener);
        let traffic = self.traffic.of_listener(gateway, listener);
        RulePolicies {
            rate_limit: self.rate_limits.of_listener(gateway, listener),
            security: security.map(|it| Arc::clone(self.security.get(it))),
            traffic: traffic.map(|it| Arc::clone(self.traffic.get(it))),
        }
    }

    /// Returns the keys of clients of all policies.
    pub(super) fn api_keys(&self) -> Vec<Arc<ApiKeySettings>> {
        let settings = self.security.settings();
        let keys = settings.filter_map(|it| it.api_keys.as_ref());
        // The targets of a policy have the same keys.
        let of_policies: BTreeMap<_, _> = keys.map(|it| (&it.policy, it)).collect();
        of_policies.into_values().map(Arc::clone).collect()
    }

    /// Returns the issuers of tokens of all policies.
    pub(super) fn jwt(&self) -> Vec<Arc<JwtSettings>> {
        let settings = self.security.settings();
        let issuers = settings.filter_map(|it| it.jwt.as_ref());
        // The targets of a policy have the same issuers.
        let of_policies: BTreeMap<_, _> = issuers.map(|it| (&it.policy, it)).collect();
        of_policies.into_values().map(Arc::clone).collect()
    }

    /// Returns every backend that a policy names.
    pub(super) fn keys(&self) -> impl Iterator<Item = &BackendKey> {
        let pages = self.traffic.settings().flat_map(|it| &it.error_pages);
        let pages = pages.filter_map(|page| match &page.source {
            ErrorPageSource::Backend(key) => Some(key),
            ErrorPageSource::Content(_) => None,
        });
        self.authorizers().filter_map(|it| it.backend.as_ref()).chain(pages)
    }

    /// Returns the settings of every authorizer that a policy names.
    pub(super) fn authorizers(&self) -> impl Iterator<Item = &ExternalAuthSettings> {
        self.security.settings().filter_map(|it| it.external_auth.as_ref())
    }

    /// Returns the limits of all targets.
    pub(super) fn into_rate_limits(self) -> Vec<Arc<RateLimitSettings>> {
        self.rate_limits.into_settings()
    }
}
