//! ListenerSets: which of them their Gateway allows, and the status of each.

use std::collections::BTreeMap;
use std::ops::Range;

use super::gateway_status::{listener_status, served_conditions};
use super::index::{NamespacedName, ObjectIndex, by_age};
use super::listener::{GatewayContext, ListenerContext, is_gateway_api};
use super::namespace_scope::NamespaceScope;
use super::owner::OwnerObject;
use super::report::{TranslationReport, ValidationFault};
use crate::objects::{GatewaySpec, ListenerSetSpec, TypedObject};
use crate::status::{ConditionReason, ConditionType, StatusCondition, StatusDetail};

pub(super) const KIND: &str = "ListenerSet";

/// A ListenerSet that refers to a Gateway of ours, whether allowed or not.
pub(super) struct ListenerSetContext<'a> {
    pub(super) object: &'a TypedObject<ListenerSetSpec>,
    /// The reason why the Gateway does not allow it.
    pub(super) fault: Option<ValidationFault>,
    /// Indices of its listeners among those of the Gateway.
    pub(super) listeners: Range<usize>,
}

/// ListenerSets by the Gateway that they refer to, the oldest first.
pub(super) struct ListenerSets<'a>(
    BTreeMap<NamespacedName<'a>, Vec<&'a TypedObject<ListenerSetSpec>>>,
);

impl<'a> ListenerSets<'a> {
    /// Indexes the ListenerSets whose Gateway exists, whichever controller it belongs to. The others are reported.
    pub(super) fn new(index: &ObjectIndex<'a>, report: &mut TranslationReport) -> Self {
        let mut sets: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for object in by_age(&index.listener_sets) {
            match gateway_name(index, object) {
                Ok(gateway) => sets.entry(gateway).or_default().push(object),
                Err((part, message)) => {
                    report.problem(KIND, object, &format!("spec.parentRef.{part}"), message);
                }
            }
        }
        Self(sets)
    }

    /// Returns the ListenerSets that refer to a Gateway, each with the reason if the Gateway does not allow it.
    pub(super) fn of(
        &self,
        index: &ObjectIndex<'_>,
        gateway: &TypedObject<GatewaySpec>,
        allowed: &NamespaceScope<'_>,
        report: &mut TranslationReport,
    ) -> Vec<ListenerSetContext<'a>> {
        let name = (&*gateway.metadata.namespace, &*gateway.metadata.name);
        let candidates = self.0.get(&name).into_iter().flatten();
        let fault = |object: &TypedObject<ListenerSetSpec>| {
            let is_allowed = allowed.permits(index, &object.metadata.namespace);
            (!is_allowed).then(|| refusal(gateway, object))
        };
        let sets = candidates.map(|object| ListenerSetContext {
            object,
            fault: fault(object),
            listeners: 0..0,
        });
        sets.inspect(|set| {
            set.fault.iter().for_each(|fault| report.fault(KIND, set.object, fault));
        })
        .collect()
    }
}

fn gateway_name<'a>(
    index: &ObjectIndex<'a>,
    set: &'a TypedObject<ListenerSetSpec>,
) -> Result<NamespacedName<'a>, (&'static str, String)> {
    let parent = &set.spec.parent_ref;
    let kind = parent.kind.as_deref().unwrap_or("Gateway");
    if !is_gateway_api(parent.group.as_deref()) || kind != "Gateway" {
        return Err(("kind", format!("{kind} is not supported, only Gateway")));
    }
    let namespace = parent.namespace.as_ref().unwrap_or(&set.metadata.namespace);
    let name = (&**namespace, &*parent.name);
    if !index.gateways.contains_key(&name) {
        return Err(("name", format!("there is no Gateway {namespace}/{}", parent.name)));
    }
    Ok(name)
}

/// Returns the error of a ListenerSet that the Gateway does not allow.
fn refusal(
    gateway: &TypedObject<GatewaySpec>,
    set: &TypedObject<ListenerSetSpec>,
) -> ValidationFault {
    let message = format!(
        "Gateway {}/{} allows no ListenerSet of namespace {}",
        gateway.metadata.namespace, gateway.metadata.name, set.metadata.namespace
    );
    ValidationFault::new(ConditionReason::NotAllowed, "spec.parentRef", message)
}

impl<'a> GatewayContext<'a> {
    /// Returns the listeners of one of its ListenerSets.
    fn of_set(&self, set: &ListenerSetContext<'_>) -> &[ListenerContext<'a>] {
        &self.listeners[set.listeners.clone()]
    }

    /// Returns the number of ListenerSets with at least one served listener.
    pub(super) fn attached_sets(&self) -> usize {
        let is_served = |set: &&ListenerSetContext<'_>| {
            self.fault.is_none() && self.of_set(set).iter().any(ListenerContext::is_served)
        };
        self.sets.iter().filter(is_served).count()
    }
}

impl<'a> ListenerSetContext<'a> {
    pub(super) const fn owner(&self) -> OwnerObject<'a> {
        OwnerObject::of(KIND, self.object)
    }
}

/// Reports the status of each ListenerSet of a Gateway.
pub(super) fn statuses(gateway: &GatewayContext<'_>, report: &mut TranslationReport) {
    for set in &gateway.sets {
        let own = gateway.of_set(set);
        let listeners = own.iter().map(|it| listener_status(gateway, it)).collect();
        let conditions = match refused(gateway, set) {
            Some((reason, message)) => not_served(reason, &message).into(),
            None => {
                let unserved = ConditionReason::ListenersNotValid;
                served_conditions(own, unserved, gateway.unassigned_fault()).into()
            }
        };
        report.status(KIND, set.object, StatusDetail::ListenerSet(conditions, listeners));
    }
}

fn refused(
    gateway: &GatewayContext<'_>,
    set: &ListenerSetContext<'_>,
) -> Option<(ConditionReason, String)> {
    let own = set.fault.as_ref().map(|fault| (fault.reason, fault.message.clone()));
    own.or_else(|| {
        let message = "the Gateway is not accepted".to_owned();
        gateway.fault.as_ref().map(|_| (ConditionReason::ParentNotAccepted, message))
    })
}

fn not_served(reason: ConditionReason, message: &str) -> [StatusCondition; 2] {
    [ConditionType::Accepted, ConditionType::Programmed]
        .map(|kind| StatusCondition::no(kind, reason, message.to_owned()))
}
