//! Settings of one rule that come from policies.

use std::sync::Arc;

use crate::snapshot::{RouteFilters, SecuritySettings};

/// Settings that policies add to a rule.
#[derive(Clone, Default)]
pub(super) struct RulePolicies {
    pub(super) rate_limit: Option<usize>,
    pub(super) security: Option<Arc<SecuritySettings>>,
}

impl RulePolicies {
    /// Returns the filters of a rule with what it lacks; `None` if it lacks nothing that is here.
    pub(super) fn fill(self, own: Option<&RouteFilters>) -> Option<RouteFilters> {
        let own_limit = own.and_then(|it| it.rate_limit);
        let own_security = own.and_then(|it| it.security.as_ref());
        let adds_limit = own_limit.is_none() && self.rate_limit.is_some();
        let adds_security = own_security.is_none() && self.security.is_some();
        (adds_limit || adds_security).then(|| RouteFilters {
            rate_limit: own_limit.or(self.rate_limit),
            security: own_security.cloned().or(self.security),
            ..own.cloned().unwrap_or_default()
        })
    }
}
