//! RateLimitPolicies: the limits of each target.

use std::num::NonZeroU32;

use balance::rate_limit::RateLimit;

use super::index::{ObjectIndex, RATE_LIMIT_POLICY};
use super::owner::OwnerObject;
use super::report::ValidationFault;
use super::route_policy::{FaultyPolicy, RoutePolicies, RoutePolicy, full_name};
use crate::objects::{
    InvalidObject, RateLimitKeySpec, RateLimitKeyType, RateLimitPolicySpec, RequestRateLimit,
    RouteTarget,
};
use crate::snapshot::{KeyedRateLimit, RateLimitKey, RateLimitSettings};
use crate::status::ConditionReason;

/// Number of bits of an IPv6 address that identify a client, unless the policy says another.
const IPV6_PREFIX_LENGTH: u8 = 64;

/// The limits of all targets.
pub(super) type RateLimitPolicies<'a> = RoutePolicies<'a, RateLimitSettings>;

impl RoutePolicy<RateLimitSettings> for RateLimitPolicySpec {
    const KIND: &'static str = RATE_LIMIT_POLICY;

    fn targets(&self) -> &[RouteTarget] {
        &self.target_refs
    }

    fn faults(&self, _: &ObjectIndex<'_>, _: OwnerObject<'_>) -> Vec<ValidationFault> {
        let mut faults = Vec::new();
        for (number, limit) in self.limits.iter().enumerate() {
            let Some(RateLimitKeySpec { kind, name, ipv6_prefix_length }) = &limit.key else {
                continue;
            };
            let mut refuse = |part: &str, message: &str| {
                let field = format!("spec.limits[{number}].key.{part}");
                faults.push(ValidationFault::new(ConditionReason::Invalid, field, message));
            };
            match (kind, name) {
                (RateLimitKeyType::Header, None) => refuse("name", "is missing"),
                (RateLimitKeyType::ClientAddress, Some(_)) => {
                    refuse("name", "is not allowed with ClientAddress");
                }
                (RateLimitKeyType::Header, Some(_)) | (RateLimitKeyType::ClientAddress, None) => {}
            }
            if ipv6_prefix_length.is_some() && *kind == RateLimitKeyType::Header {
                refuse("ipv6PrefixLength", "is not allowed with Header");
            }
        }
        faults
    }

    fn settings(
        &self,
        _: &ObjectIndex<'_>,
        owner: OwnerObject<'_>,
        target: &RouteTarget,
    ) -> RateLimitSettings {
        let section = target.section_name.as_deref().map(|it| format!("/{it}")).unwrap_or_default();
        let target = match &self.ingress {
            Some(ingress) => format!("Ingress/{ingress}"),
            None => format!("{}/{}{section}", target.kind.name(), target.name),
        };
        RateLimitSettings {
            policy: full_name(owner).into(),
            target: target.into(),
            status: self.status,
            limits: self.limits.iter().map(keyed_limit).collect(),
        }
    }

    fn faulty(
        &self,
        _: &ObjectIndex<'_>,
        _: OwnerObject<'_>,
        _: &RouteTarget,
    ) -> FaultyPolicy<RateLimitSettings> {
        FaultyPolicy::LEFT_OUT
    }

    fn unreadable(_: &str, _: &InvalidObject) -> FaultyPolicy<RateLimitSettings> {
        FaultyPolicy::LEFT_OUT
    }
}

fn keyed_limit(asked: &RequestRateLimit) -> KeyedRateLimit {
    // The schema allows no zero.
    let number = |it: u32| NonZeroU32::new(it).unwrap_or(NonZeroU32::MIN);
    let requests = number(asked.requests);
    let burst = asked.burst.map_or(requests, number);
    let key = match &asked.key {
        None => RateLimitKey::All,
        Some(RateLimitKeySpec { kind: RateLimitKeyType::Header, name, .. }) => {
            RateLimitKey::Header(name.as_deref().unwrap_or_default().to_ascii_lowercase().into())
        }
        Some(RateLimitKeySpec {
            kind: RateLimitKeyType::ClientAddress,
            ipv6_prefix_length,
            ..
        }) => RateLimitKey::ClientAddress {
            ipv6_prefix_length: ipv6_prefix_length.unwrap_or(IPV6_PREFIX_LENGTH),
        },
    };
    KeyedRateLimit { limit: RateLimit { requests, period: asked.period.0, burst }, key }
}
