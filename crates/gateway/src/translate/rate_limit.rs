//! RateLimitPolicies: which limits apply to which rule at which listener.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use balance::rate_limit::RateLimit;

use super::draft::RuleOrigin;
use super::index::{ObjectIndex, RATE_LIMIT_POLICY, by_age};
use super::listener::{GatewayContext, ListenerContext};
use super::owner::OwnerObject;
use super::policy::{PolicyAttachments, PolicyTargetRef, find_gateway};
use super::report::{TranslationReport, ValidationFault, condition};
use crate::objects::{
    RateLimitKeySpec, RateLimitKeyType, RateLimitPolicySpec, RateLimitTarget, RateLimitTargetKind,
    RequestRateLimit,
};
use crate::snapshot::{KeyedRateLimit, RateLimitKey, RateLimitSettings};
use crate::status::{ConditionReason, ConditionType, StatusDetail, TargetStatus};

/// Number of bits of an IPv6 address that identify a client, unless the policy says another.
const IPV6_PREFIX_LENGTH: u8 = 64;

/// The RateLimitPolicies of Gateways and routes.
#[derive(Default)]
pub(super) struct RateLimitPolicies<'a> {
    /// Indices of limits, by kind and target.
    attachments: BTreeMap<RateLimitTargetKind, PolicyAttachments<'a>>,
    /// The limits of each target.
    limits: Vec<Arc<RateLimitSettings>>,
}

/// Attaches every RateLimitPolicy to its targets.
pub(super) fn rate_limit_policies<'a>(
    index: &ObjectIndex<'a>,
    report: &mut TranslationReport,
) -> RateLimitPolicies<'a> {
    let mut policies = RateLimitPolicies::default();
    for policy in by_age(&index.rate_limit_policies) {
        let owner = OwnerObject::of(RATE_LIMIT_POLICY, policy);
        let faults = faults(&policy.spec);
        faults.iter().for_each(|fault| report.owner_fault(owner, fault));
        let mut statuses = Vec::new();
        for (number, target) in policy.spec.target_refs.iter().enumerate() {
            let attached = match faults.first() {
                // Half of a policy would admit more than it says.
                Some(fault) => Err(named(fault)),
                None => policies
                    .attach(index, owner, &policy.spec, number)
                    .inspect_err(|fault| report.owner_fault(owner, fault)),
            };
            let accepted = condition(
                ConditionType::Accepted,
                ConditionReason::Accepted,
                attached.as_ref().err(),
            );
            statuses.push(TargetStatus {
                kind: target.kind.name(),
                namespace: owner.metadata.namespace.clone(),
                name: target.name.clone(),
                section_name: target.section_name.clone(),
                slots: None,
                conditions: vec![accepted],
            });
        }
        report.owner_status(owner, StatusDetail::Policy(statuses));
    }
    policies
}

impl<'a> RateLimitPolicies<'a> {
    fn attach(
        &mut self,
        index: &ObjectIndex<'_>,
        owner: OwnerObject<'a>,
        spec: &'a RateLimitPolicySpec,
        number: usize,
    ) -> Result<(), ValidationFault> {
        let target = &spec.target_refs[number];
        let (field, namespace) = (format!("spec.targetRefs[{number}]"), &*owner.metadata.namespace);
        find_target(index, namespace, target).map_err(|(part, message)| {
            let field = format!("{field}.{part}");
            ValidationFault::new(ConditionReason::TargetNotFound, field, message)
        })?;
        let key = (namespace, &*target.name, target.section_name.as_deref());
        let of_kind = self.attachments.entry(target.kind).or_default();
        let made = settings(owner, spec, target);
        let is_made = |last: &Arc<RateLimitSettings>| spec.ingress.is_some() && **last == made;
        let shares_last = self.limits.last().is_some_and(is_made);
        let position = self.limits.len() - usize::from(shares_last);
        of_kind.attach(key, position, &owner.metadata.name).map_err(|older| {
            let message = format!("{RATE_LIMIT_POLICY} {older} has this target and is older");
            ValidationFault::new(ConditionReason::Conflicted, field, message)
        })?;
        if !shares_last {
            self.limits.push(Arc::new(made));
        }
        Ok(())
    }

    /// Returns the limits of a rule that are its own or its route's, as an index into [`Self::into_limits`].
    pub(super) fn of_rule(&self, origin: Option<&RuleOrigin>) -> Option<usize> {
        let RuleOrigin { kind, namespace, route, section } = origin?;
        let of_kind = self.attachments.get(&RateLimitTargetKind::find(kind)?)?;
        of_kind.find((namespace, route, section.as_deref()))
    }

    /// Returns the limits of a listener, or else of its Gateway. They apply to rules without limits of their own.
    pub(super) fn of_listener(
        &self,
        gateway: &GatewayContext<'_>,
        listener: &ListenerContext<'_>,
    ) -> Option<usize> {
        let of_kind = self.attachments.get(&RateLimitTargetKind::Gateway)?;
        let (namespace, name) = gateway.owner().name();
        of_kind.find((namespace, name, listener.section()))
    }

    /// Returns the limits of all targets.
    pub(super) fn into_limits(self) -> Vec<Arc<RateLimitSettings>> {
        self.limits
    }
}

/// Returns a fault for a status, which has no field path: the message names the field.
fn named(fault: &ValidationFault) -> ValidationFault {
    let message = format!("{}: {}; the policy does not apply", fault.field, fault.message);
    ValidationFault::new(ConditionReason::Invalid, "", message)
}

/// Returns all contradictions in a policy between values that are allowed individually.
fn faults(spec: &RateLimitPolicySpec) -> Vec<ValidationFault> {
    let mut faults = Vec::new();
    for (number, limit) in spec.limits.iter().enumerate() {
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
    owner: OwnerObject<'_>,
    spec: &RateLimitPolicySpec,
    target: &RateLimitTarget,
) -> RateLimitSettings {
    let (namespace, name) = owner.name();
    let section = target.section_name.as_deref().map(|it| format!("/{it}")).unwrap_or_default();
    let label = match &spec.ingress {
        Some(ingress) => format!("Ingress/{ingress}"),
        None => format!("{}/{}{section}", target.kind.name(), target.name),
    };
    RateLimitSettings {
        policy: format!("{namespace}/{name}").into(),
        target: label.into(),
        status: spec.status,
        limits: spec.limits.iter().map(keyed_limit).collect(),
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

fn find_target(
    index: &ObjectIndex<'_>,
    namespace: &str,
    target: &RateLimitTarget,
) -> Result<(), (&'static str, String)> {
    let (kind, name) = (target.kind.name(), &*target.name);
    let section = target.section_name.as_deref();
    let mut rules: Box<dyn Iterator<Item = Option<&str>> + '_> = match target.kind {
        RateLimitTargetKind::Gateway => {
            return find_gateway(index, namespace, &PolicyTargetRef { name, section });
        }
        RateLimitTargetKind::HttpRoute => match index.routes.get(&(namespace, name)) {
            Some(route) => Box::new(route.spec.rules.iter().map(|rule| rule.name.as_deref())),
            None => return Err(absent(kind, namespace, name)),
        },
        RateLimitTargetKind::GrpcRoute => match index.grpc_routes.get(&(namespace, name)) {
            Some(route) => Box::new(route.spec.rules.iter().map(|rule| rule.name.as_deref())),
            None => return Err(absent(kind, namespace, name)),
        },
    };
    match section {
        Some(section) if !rules.any(|rule| rule == Some(section)) => {
            Err(("sectionName", format!("{kind} {name} has no rule of this name")))
        }
        Some(_) | None => Ok(()),
    }
}

fn absent(kind: &str, namespace: &str, name: &str) -> (&'static str, String) {
    ("name", format!("there is no {kind} {namespace}/{name}"))
}
