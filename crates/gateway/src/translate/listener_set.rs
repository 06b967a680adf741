//! ListenerSets: which of them their Gateway takes, and what becomes of each.

use std::collections::BTreeMap;
use std::ops::Range;

use super::allowed::Allowed;
use super::gateway_status::{listener_status, served_conditions};
use super::index::{Index, Name, by_age};
use super::listener::{OurGateway, OurListener, is_gateway_api};
use super::owner::Owner;
use super::{Fault, Report};
use crate::objects::{GatewaySpec, ListenerSetSpec, Resource};
use crate::status::{Condition, ConditionType, Detail, Reason};

pub(super) const KIND: &str = "ListenerSet";

/// A ListenerSet that asks for a Gateway of ours.
pub(super) struct OurSet<'a> {
    pub(super) object: &'a Resource<ListenerSetSpec>,
    /// Why the Gateway does not take it.
    pub(super) fault: Option<Fault>,
    /// The places of its listeners among the Gateway's.
    pub(super) listeners: Range<usize>,
}

/// The ListenerSets by the Gateway that they ask for, the oldest first.
pub(super) struct ListenerSets<'a>(BTreeMap<Name<'a>, Vec<&'a Resource<ListenerSetSpec>>>);

impl<'a> ListenerSets<'a> {
    /// Those whose Gateway is there, whoever's it is; the others are reported.
    pub(super) fn new(index: &Index<'a>, report: &mut Report) -> Self {
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

    /// Those that ask for a Gateway, with why it does not take some of them.
    pub(super) fn of(
        &self,
        index: &Index<'_>,
        gateway: &Resource<GatewaySpec>,
        allowed: &Allowed<'_>,
        report: &mut Report,
    ) -> Vec<OurSet<'a>> {
        let name = (&*gateway.metadata.namespace, &*gateway.metadata.name);
        let asking = self.0.get(&name).into_iter().flatten();
        let fault = |object: &Resource<ListenerSetSpec>| {
            let is_allowed = allowed.permits(index, &object.metadata.namespace);
            (!is_allowed).then(|| refusal(gateway, object))
        };
        let sets = asking.map(|object| OurSet { object, fault: fault(object), listeners: 0..0 });
        sets.inspect(|set| {
            set.fault.iter().for_each(|fault| report.fault(KIND, set.object, fault));
        })
        .collect()
    }
}

fn gateway_name<'a>(
    index: &Index<'a>,
    set: &'a Resource<ListenerSetSpec>,
) -> Result<Name<'a>, (&'static str, String)> {
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

/// Why a Gateway does not take a ListenerSet: it must allow it.
fn refusal(gateway: &Resource<GatewaySpec>, set: &Resource<ListenerSetSpec>) -> Fault {
    let message = format!(
        "Gateway {}/{} allows no ListenerSet of namespace {}",
        gateway.metadata.namespace, gateway.metadata.name, set.metadata.namespace
    );
    Fault::new(Reason::NotAllowed, "spec.parentRef", message)
}

impl<'a> OurGateway<'a> {
    /// The listeners of one of its ListenerSets.
    fn of_set(&self, set: &OurSet<'_>) -> &[OurListener<'a>] {
        &self.listeners[set.listeners.clone()]
    }

    /// How many ListenerSets it serves something of.
    pub(super) fn attached_sets(&self) -> usize {
        let is_served = |set: &&OurSet<'_>| {
            self.fault.is_none() && self.of_set(set).iter().any(OurListener::is_served)
        };
        self.sets.iter().filter(is_served).count()
    }
}

impl<'a> OurSet<'a> {
    pub(super) const fn owner(&self) -> Owner<'a> {
        Owner::of(KIND, self.object)
    }
}

/// What became of each ListenerSet of a Gateway.
pub(super) fn statuses(gateway: &OurGateway<'_>, report: &mut Report) {
    for set in &gateway.sets {
        let own = gateway.of_set(set);
        let listeners = own.iter().map(|it| listener_status(gateway, it)).collect();
        let conditions = match refused(gateway, set) {
            Some((reason, message)) => not_served(reason, &message).into(),
            None => {
                let unserved = Reason::ListenersNotValid;
                served_conditions(own, unserved, gateway.unassigned_fault()).into()
            }
        };
        report.status(KIND, set.object, Detail::ListenerSet(conditions, listeners));
    }
}

fn refused(gateway: &OurGateway<'_>, set: &OurSet<'_>) -> Option<(Reason, String)> {
    let own = set.fault.as_ref().map(|fault| (fault.reason, fault.message.clone()));
    own.or_else(|| {
        let message = "the Gateway is not accepted".to_owned();
        gateway.fault.as_ref().map(|_| (Reason::ParentNotAccepted, message))
    })
}

fn not_served(reason: Reason, message: &str) -> [Condition; 2] {
    [ConditionType::Accepted, ConditionType::Programmed]
        .map(|kind| Condition::no(kind, reason, message.to_owned()))
}
