//! TrafficPolicies: the handling of requests to each target.

use super::index::{ObjectIndex, TRAFFIC_POLICY};
use super::owner::OwnerObject;
use super::report::ValidationFault;
use super::route_policy::{RoutePolicies, RoutePolicy, full_name};
use crate::objects::{RouteTarget, TrafficLimits, TrafficPolicySpec};
use crate::snapshot::TrafficSettings;
use crate::status::ConditionReason;

/// The settings of all targets.
pub(super) type TrafficPolicies<'a> = RoutePolicies<'a, TrafficSettings>;

impl RoutePolicy<TrafficSettings> for TrafficPolicySpec {
    const KIND: &'static str = TRAFFIC_POLICY;
    const CONSEQUENCE: &'static str = "the policy does not apply";

    fn targets(&self) -> &[RouteTarget] {
        &self.target_refs
    }

    fn faults(&self, _: &ObjectIndex<'_>, _: OwnerObject<'_>) -> Vec<ValidationFault> {
        let is_empty = self.limits == TrafficLimits::default();
        let fault = || ValidationFault::new(ConditionReason::Invalid, "spec", "has no settings");
        is_empty.then(fault).into_iter().collect()
    }

    fn settings(
        &self,
        _: &ObjectIndex<'_>,
        owner: OwnerObject<'_>,
        _: &RouteTarget,
    ) -> TrafficSettings {
        let TrafficLimits { body_bytes } = self.limits;
        TrafficSettings { policy: full_name(owner).into(), max_body_bytes: body_bytes }
    }

    fn invalid_settings(_: &str) -> Option<TrafficSettings> {
        None
    }
}
