//! TrafficPolicies: the handling of requests to each target.

use super::index::{ObjectIndex, TRAFFIC_POLICY};
use super::owner::OwnerObject;
use super::report::ValidationFault;
use super::route_policy::{FaultyPolicy, RoutePolicies, RoutePolicy, full_name};
use crate::objects::{
    DirectResponse, InvalidObject, RouteTarget, TrafficLimits, TrafficPolicySpec,
};
use crate::snapshot::{DirectResponseSettings, ResponseContent, TrafficSettings};
use crate::status::ConditionReason;

/// Largest size of a body in a policy, in bytes.
const MAX_INLINE_BYTES: usize = 4096;
/// Statuses of responses that never have a body (RFC 9110).
const WITHOUT_BODY: [u16; 3] = [204, 205, 304];

/// The settings of all targets.
pub(super) type TrafficPolicies<'a> = RoutePolicies<'a, TrafficSettings>;

impl RoutePolicy<TrafficSettings> for TrafficPolicySpec {
    const KIND: &'static str = TRAFFIC_POLICY;

    fn targets(&self) -> &[RouteTarget] {
        &self.target_refs
    }

    fn faults(&self, _: &ObjectIndex<'_>, _: OwnerObject<'_>) -> Vec<ValidationFault> {
        let Self { target_refs: _, limits, direct_response } = self;
        if *limits == TrafficLimits::default() && direct_response.is_none() {
            return vec![ValidationFault::new(ConditionReason::Invalid, "spec", "has no settings")];
        }
        let direct = direct_response.as_ref().map(direct_settings);
        direct.and_then(Result::err).into_iter().collect()
    }

    fn settings(
        &self,
        _: &ObjectIndex<'_>,
        owner: OwnerObject<'_>,
        _: &RouteTarget,
    ) -> TrafficSettings {
        let TrafficLimits { body_bytes } = self.limits;
        let direct = self.direct_response.as_ref().map(direct_settings);
        TrafficSettings {
            policy: full_name(owner).into(),
            max_body_bytes: body_bytes,
            direct_response: direct.map(|it| it.unwrap_or(DirectResponseSettings::Invalid)),
        }
    }

    fn faulty(&self, _: &ObjectIndex<'_>, owner: OwnerObject<'_>) -> FaultyPolicy<TrafficSettings> {
        match self.direct_response {
            Some(_) => without_endpoints(&full_name(owner)),
            None => FaultyPolicy::LEFT_OUT,
        }
    }

    fn unreadable(policy: &str, object: &InvalidObject) -> FaultyPolicy<TrafficSettings> {
        match object.answers_directly {
            true => without_endpoints(policy),
            false => FaultyPolicy::LEFT_OUT,
        }
    }
}

/// Returns the effect of a policy in error whose targets send no request to an endpoint.
fn without_endpoints(policy: &str) -> FaultyPolicy<TrafficSettings> {
    FaultyPolicy {
        consequence: "all requests to its targets are answered with 500",
        settings: Some(TrafficSettings {
            policy: policy.into(),
            max_body_bytes: None,
            direct_response: Some(DirectResponseSettings::Invalid),
        }),
    }
}

fn direct_settings(direct: &DirectResponse) -> Result<DirectResponseSettings, ValidationFault> {
    let DirectResponse { status, body, content_type } = direct;
    let fault = |message: String| {
        let field = "spec.directResponse.body";
        Err(ValidationFault::new(ConditionReason::Invalid, field, message))
    };
    let body = body.as_deref().unwrap_or_default();
    if body.len() > MAX_INLINE_BYTES {
        return fault(format!("must have at most {MAX_INLINE_BYTES} bytes, has {}", body.len()));
    }
    if !body.is_empty() && WITHOUT_BODY.contains(status) {
        return fault(format!("is not allowed: a response with status {status} has no body"));
    }
    let content = (!body.is_empty()).then(|| ResponseContent {
        content_type: content_type.as_str().into(),
        body: body.as_bytes().into(),
    });
    Ok(DirectResponseSettings::Response { status: *status, content })
}
