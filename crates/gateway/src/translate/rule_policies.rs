//! Settings of one rule that come from policies.

use std::sync::Arc;

use crate::snapshot::{RouteFilters, SecuritySettings, TrafficSettings};

/// Settings that policies add to a rule.
#[derive(Clone, Default, PartialEq)]
pub(super) struct RulePolicies {
    pub(super) rate_limit: Option<usize>,
    pub(super) security: Option<Arc<SecuritySettings>>,
    pub(super) traffic: Option<Arc<TrafficSettings>>,
}

impl RulePolicies {
    /// Returns the settings that a rule has already.
    fn of(filters: &RouteFilters) -> Self {
        let RouteFilters { rate_limit, security, traffic, .. } = filters;
        Self { rate_limit: *rate_limit, security: security.clone(), traffic: traffic.clone() }
    }

    /// Returns the filters of a rule with what it lacks; `None` if it lacks nothing that is here.
    pub(super) fn fill(self, filters: Option<&RouteFilters>) -> Option<RouteFilters> {
        let own = filters.map(Self::of).unwrap_or_default();
        let filled = Self {
            rate_limit: own.rate_limit.or(self.rate_limit),
            security: own.security.clone().or(self.security),
            traffic: own.traffic.clone().or(self.traffic),
        };
        if filled == own {
            return None;
        }
        let Self { rate_limit, security, traffic } = filled;
        let filters = filters.cloned().unwrap_or_default();
        Some(RouteFilters { rate_limit, security, traffic, ..filters })
    }
}
