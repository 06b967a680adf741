//! Policies of requests: which of them applies to which rule at which listener.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::draft::RuleOrigin;
use super::index::{ObjectIndex, ObjectsByName, by_age};
use super::listener::{GatewayContext, ListenerContext};
use super::owner::OwnerObject;
use super::policy::{PolicyAttachments, PolicyTargetRef, find_gateway};
use super::report::{TranslationReport, ValidationFault, condition};
use crate::objects::{InvalidObject, RouteTarget, RouteTargetKind};
use crate::status::{ConditionReason, ConditionType, StatusDetail, TargetStatus};

/// A kind of policy that attaches to Gateways and routes. The most specific policy applies to a request, and no other.
///
/// `T` is the settings of one target.
pub(super) trait RoutePolicy<T: PartialEq> {
    /// The kind.
    const KIND: &'static str;

    fn targets(&self) -> &[RouteTarget];

    /// Returns all contradictions between values that are allowed individually, and references that cannot be resolved.
    fn faults(&self, index: &ObjectIndex<'_>, owner: OwnerObject<'_>) -> Vec<ValidationFault>;

    /// Returns the settings of a target, if there are no faults.
    fn settings(&self, index: &ObjectIndex<'_>, owner: OwnerObject<'_>, target: &RouteTarget) -> T;

    /// Returns the reason why something that a valid policy refers to by URL is not known now; `None`: it refers to
    /// nothing by URL.
    fn resolution(
        &self,
        _: &ObjectIndex<'_>,
        _: OwnerObject<'_>,
    ) -> Option<Option<ValidationFault>> {
        None
    }

    /// Returns what becomes of the targets if there are faults.
    fn faulty(
        &self,
        index: &ObjectIndex<'_>,
        owner: OwnerObject<'_>,
        target: &RouteTarget,
    ) -> FaultyPolicy<T>;

    /// Returns what becomes of the targets of a policy that cannot be read. `policy` is its namespace and name.
    fn unreadable(policy: &str, object: &InvalidObject) -> FaultyPolicy<T>;
}

/// The effect of a policy in error on its targets.
pub(super) struct FaultyPolicy<T> {
    /// The consequence, for the status.
    pub(super) consequence: &'static str,
    /// The settings of the targets; `None`: as if there were no policy.
    pub(super) settings: Option<T>,
}

impl<T> FaultyPolicy<T> {
    /// The effect of a policy that is left out.
    pub(super) const LEFT_OUT: Self =
        Self { consequence: "the policy does not apply", settings: None };
}

/// The policies of a kind.
pub(super) struct RoutePolicies<'a, T> {
    /// Indices of settings, by kind and target.
    attachments: BTreeMap<RouteTargetKind, PolicyAttachments<'a>>,
    settings: Vec<Arc<T>>,
}

/// Attaches every policy of a kind to its targets.
pub(super) fn route_policies<'a, T: PartialEq, P: RoutePolicy<T>>(
    index: &ObjectIndex<'a>,
    policies: &ObjectsByName<'a, P>,
    report: &mut TranslationReport,
) -> RoutePolicies<'a, T> {
    let mut attached = RoutePolicies { attachments: BTreeMap::new(), settings: Vec::new() };
    for policy in by_age(policies) {
        let owner = OwnerObject::of(P::KIND, policy);
        let faults = policy.spec.faults(index, owner);
        faults.iter().for_each(|fault| report.owner_fault(owner, fault));
        let mut statuses = Vec::new();
        for (number, target) in policy.spec.targets().iter().enumerate() {
            let (settings, consequence) = match faults.is_empty() {
                true => (Some(policy.spec.settings(index, owner, target)), ""),
                false => {
                    let faulty = policy.spec.faulty(index, owner, target);
                    (faulty.settings, faulty.consequence)
                }
            };
            let result = attached.attach::<P>(index, owner, target, number, settings);
            let result = match faults.first() {
                // Half of a policy would admit more than it says.
                Some(fault) => Err(named(fault, consequence)),
                None => result.inspect_err(|fault| report.owner_fault(owner, fault)),
            };
            let accepted = condition(
                ConditionType::Accepted,
                ConditionReason::Accepted,
                result.as_ref().err(),
            );
            let resolution = policy.spec.resolution(index, owner).filter(|_| faults.is_empty());
            let resolved = resolution.map(|fault| {
                let reason = ConditionReason::ResolvedRefs;
                condition(ConditionType::ResolvedRefs, reason, fault.as_ref())
            });
            statuses.push(TargetStatus {
                kind: target.kind.name(),
                namespace: owner.metadata.namespace.clone(),
                name: target.name.clone(),
                section_name: target.section_name.clone(),
                slots: None,
                conditions: std::iter::once(accepted).chain(resolved).collect(),
            });
        }
        report.owner_status(owner, StatusDetail::Policy(statuses));
    }
    attached.attach_invalid_objects::<P>(index);
    attached
}

impl<'a, T: PartialEq> RoutePolicies<'a, T> {
    fn attach<P: RoutePolicy<T>>(
        &mut self,
        index: &ObjectIndex<'_>,
        owner: OwnerObject<'a>,
        target: &'a RouteTarget,
        number: usize,
        settings: Option<T>,
    ) -> Result<(), ValidationFault> {
        let (field, namespace) = (format!("spec.targetRefs[{number}]"), &*owner.metadata.namespace);
        find_target(index, namespace, target).map_err(|(part, message)| {
            let field = format!("{field}.{part}");
            ValidationFault::new(ConditionReason::TargetNotFound, field, message)
        })?;
        let Some(settings) = settings else { return Ok(()) };
        let key = (namespace, &*target.name, target.section_name.as_deref());
        let of_kind = self.attachments.entry(target.kind).or_default();
        // Targets with the same settings share them: the routes of one Ingress have one limit.
        let shares_last = self.settings.last().is_some_and(|last| **last == settings);
        let position = self.settings.len() - usize::from(shares_last);
        of_kind.attach(key, position, &owner.metadata.name).map_err(|older| {
            let message = format!("{} {older} has this target and is older", P::KIND);
            ValidationFault::new(ConditionReason::Conflicted, field, message)
        })?;
        if !shares_last {
            self.settings.push(Arc::new(settings));
        }
        Ok(())
    }

    /// Attaches policies that cannot be read to the targets that they name, unless another policy has them.
    fn attach_invalid_objects<P: RoutePolicy<T>>(&mut self, index: &ObjectIndex<'a>) {
        for object in index.invalid_objects.iter().filter(|it| it.spec.kind == P::KIND) {
            let owner = OwnerObject::of(P::KIND, object);
            for target in &object.spec.targets {
                let kind = target.kind.as_deref().and_then(RouteTargetKind::find);
                let settings = P::unreadable(&full_name(owner), &object.spec).settings;
                let (Some(kind), Some(settings)) = (kind, settings) else { continue };
                let key =
                    (&*object.metadata.namespace, &*target.name, target.section_name.as_deref());
                let of_kind = self.attachments.entry(kind).or_default();
                if of_kind.attach(key, self.settings.len(), &object.metadata.name).is_ok() {
                    self.settings.push(Arc::new(settings));
                }
            }
        }
    }

    /// Returns the settings of a rule that are its own or its route's, as an index into [`Self::into_settings`].
    pub(super) fn of_rule(&self, origin: Option<&RuleOrigin>) -> Option<usize> {
        let RuleOrigin { kind, namespace, route, section } = origin?;
        let of_kind = self.attachments.get(&RouteTargetKind::find(kind)?)?;
        of_kind.find((namespace, route, section.as_deref()))
    }

    /// Returns the settings of a listener, or else of its Gateway. They apply to rules without settings of their own.
    pub(super) fn of_listener(
        &self,
        gateway: &GatewayContext<'_>,
        listener: &ListenerContext<'_>,
    ) -> Option<usize> {
        let of_kind = self.attachments.get(&RouteTargetKind::Gateway)?;
        let (namespace, name) = gateway.owner().name();
        of_kind.find((namespace, name, listener.section()))
    }

    /// Returns settings by their index.
    pub(super) fn get(&self, index: usize) -> &Arc<T> {
        &self.settings[index]
    }

    /// Returns the settings of all targets, those that targets share once.
    pub(super) fn settings(&self) -> impl Iterator<Item = &Arc<T>> {
        self.settings.iter()
    }

    /// Returns the settings of all targets.
    pub(super) fn into_settings(self) -> Vec<Arc<T>> {
        self.settings
    }
}

/// Returns `namespace/name` of a policy.
pub(super) fn full_name(owner: OwnerObject<'_>) -> String {
    let (namespace, name) = owner.name();
    format!("{namespace}/{name}")
}

/// Returns a fault for a status, which has no field path: the message names the field.
fn named(fault: &ValidationFault, consequence: &str) -> ValidationFault {
    let message = format!("{}: {}; {consequence}", fault.field, fault.message);
    ValidationFault::new(ConditionReason::Invalid, "", message)
}

fn find_target(
    index: &ObjectIndex<'_>,
    namespace: &str,
    target: &RouteTarget,
) -> Result<(), (&'static str, String)> {
    let (kind, name) = (target.kind.name(), &*target.name);
    let section = target.section_name.as_deref();
    let mut rules: Box<dyn Iterator<Item = Option<&str>> + '_> = match target.kind {
        RouteTargetKind::Gateway => {
            return find_gateway(index, namespace, &PolicyTargetRef { name, section });
        }
        RouteTargetKind::HttpRoute => match index.routes.get(&(namespace, name)) {
            Some(route) => Box::new(route.spec.rules.iter().map(|rule| rule.name.as_deref())),
            None => return Err(absent(kind, namespace, name)),
        },
        RouteTargetKind::GrpcRoute => match index.grpc_routes.get(&(namespace, name)) {
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
