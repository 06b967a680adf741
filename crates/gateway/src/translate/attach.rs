//! Where routes of any kind attach, and why they do not.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::ops::Range;

use super::index::{NamespacedName, ObjectIndex};
use super::listener::{AcceptedGateway, AcceptedListener, is_gateway_api};
use super::listener_set;
use super::owner::OwnerObject;
use super::{TranslationReport, ValidationFault};
use crate::matching::HostPattern;
use crate::objects::{Hostname, ParentRef, TypedObject};
use crate::snapshot::UrlScheme;
use crate::status::ConditionReason;

/// A route that asks to attach.
pub(super) struct AttachmentRequest<'a, S> {
    pub(super) kind: &'static str,
    pub(super) route: &'a TypedObject<S>,
    pub(super) parents: &'a [ParentRef],
    pub(super) hostnames: &'a [Hostname],
}

/// Where a route has attached.
#[derive(Clone, Debug)]
pub(super) struct RouteAttachment {
    /// A place among our Gateways.
    pub(super) gateway: usize,
    /// A place among the Gateway's listeners.
    pub(super) listener: usize,
    /// The listener's port.
    pub(super) port: u16,
    /// What a URL of requests at the listener begins with.
    pub(super) scheme: UrlScheme,
    /// The hosts that both the listener and the route ask for.
    pub(super) hosts: Vec<CommonHosts>,
}

/// Hosts that a listener and a route have in common.
#[derive(Clone, Debug)]
pub(super) struct CommonHosts {
    pub(super) hosts: HostPattern,
    /// As the route has them, perhaps with others. Of two routes with the same hosts in common with a listener the one
    /// that asked for fewer goes first, whatever their age.
    pub(super) route_hosts: HostPattern,
}

/// What becomes of a route at a parent of ours.
pub(super) struct ParentAttachment<'a> {
    pub(super) reference: &'a ParentRef,
    /// Where the reference stands.
    pub(super) field: String,
    pub(super) attached: Result<Vec<RouteAttachment>, ValidationFault>,
}

/// Who may be a parent of ours, by kind and name.
pub(super) struct ParentIndex<'a> {
    owners: BTreeMap<(&'a str, NamespacedName<'a>), ParentMatch<'a>>,
    /// The places of the listeners of a name among the Gateway's; only of one can there be several.
    sections: BTreeMap<(&'a str, NamespacedName<'a>, &'a str), Vec<usize>>,
}

/// A parent of ours.
struct ParentMatch<'a> {
    /// The Gateway's place among ours.
    gateway: usize,
    /// The Gateway, or a ListenerSet of it.
    owner: OwnerObject<'a>,
    /// The places of its listeners among the Gateway's.
    listeners: Range<usize>,
    /// Whether it is a ListenerSet that the Gateway does not take.
    is_refused: bool,
}

impl<'a> ParentIndex<'a> {
    pub(super) fn new(gateways: &[AcceptedGateway<'a>]) -> Self {
        let mut parents = Self { owners: BTreeMap::new(), sections: BTreeMap::new() };
        for (place, gateway) in gateways.iter().enumerate() {
            let own = (gateway.owner(), 0..gateway.own_listeners().len(), false);
            let sets = gateway.sets.iter();
            let sets = sets.map(|set| (set.owner(), set.listeners.clone(), set.fault.is_some()));
            for (owner, listeners, is_refused) in iter::once(own).chain(sets) {
                let found = ParentMatch { gateway: place, owner, listeners, is_refused };
                parents.owners.insert((owner.kind, owner.name()), found);
            }
            for (place, AcceptedListener { owner, spec, .. }) in
                gateway.listeners.iter().enumerate()
            {
                let section = (owner.kind, owner.name(), &*spec.name);
                parents.sections.entry(section).or_default().push(place);
            }
        }
        parents
    }

    /// The places of the listeners that a reference means, of the Gateway that it leads to.
    fn listeners(&self, found: &ParentMatch<'_>, reference: &ParentRef) -> Vec<usize> {
        let ParentMatch { owner, listeners, .. } = found;
        let Some(section) = reference.section_name.as_deref() else {
            return listeners.clone().collect();
        };
        let section = (owner.kind, owner.name(), section);
        self.sections.get(&section).cloned().unwrap_or_default()
    }
}

impl<'a, S> AttachmentRequest<'a, S> {
    /// The parents that are ours, each with where the route attaches or why it does not; what is wrong with references
    /// that lead to nobody is reported.
    pub(super) fn parents(
        &self,
        index: &ObjectIndex<'_>,
        known: &ParentIndex<'_>,
        gateways: &[AcceptedGateway<'_>],
        report: &mut TranslationReport,
    ) -> Vec<ParentAttachment<'a>> {
        if self.parents.is_empty() {
            let message = "is empty: the route attaches to nothing";
            report.problem(self.kind, self.route, "spec.parentRefs", message);
        }
        let mut parents = Vec::new();
        for (n, reference) in self.parents.iter().enumerate() {
            let field = format!("spec.parentRefs[{n}]");
            match self.find_parent(index, known, reference) {
                Ok(Some(found)) => {
                    let gateway = &gateways[found.gateway];
                    let listeners = known.listeners(found, reference).into_iter();
                    let listeners = listeners.map(|place| (place, &gateway.listeners[place]));
                    let attached = self.attach(index, reference, &field, found, listeners);
                    parents.push(ParentAttachment { reference, field, attached });
                }
                // Another controller's Gateway.
                Ok(None) => {}
                // Nor is what no Gateway is: the routes of a mesh have Services for parents.
                Err((part @ "kind", message)) => {
                    let field = format!("{field}.{part}");
                    report.problem_if_ours(self.kind, self.route, &field, message);
                }
                Err((part, message)) => {
                    report.problem(self.kind, self.route, &format!("{field}.{part}"), message);
                }
            }
        }
        parents
    }

    /// The parent that a reference means; none if it is another controller's.
    fn find_parent<'g>(
        &self,
        index: &ObjectIndex<'_>,
        known: &'g ParentIndex<'_>,
        parent: &'g ParentRef,
    ) -> Result<Option<&'g ParentMatch<'g>>, (&'static str, String)>
    where
        'a: 'g,
    {
        let kind = parent.kind.as_deref().unwrap_or("Gateway");
        let namespace = &**parent.namespace.as_ref().unwrap_or(&self.route.metadata.namespace);
        let name = (namespace, &*parent.name);
        let is_there = match kind {
            "Gateway" => index.gateways.contains_key(&name),
            listener_set::KIND => index.listener_sets.contains_key(&name),
            _ => false,
        };
        let is_known = ["Gateway", listener_set::KIND].contains(&kind);
        if !is_gateway_api(parent.group.as_deref()) || !is_known {
            return Err(("kind", format!("{kind} is not supported, only Gateway and ListenerSet")));
        }
        if !is_there {
            return Err(("name", format!("there is no {kind} {namespace}/{}", parent.name)));
        }
        Ok(known.owners.get(&(kind, name)))
    }

    /// Where the route attaches at a parent: listeners that are meant, allow it and have a host in common with it.
    fn attach<'l>(
        &self,
        index: &ObjectIndex<'_>,
        parent: &ParentRef,
        field: &str,
        &ParentMatch { gateway, owner, is_refused, .. }: &ParentMatch<'_>,
        listeners: impl Iterator<Item = (usize, &'l AcceptedListener<'l>)>,
    ) -> Result<Vec<RouteAttachment>, ValidationFault> {
        let is_meant =
            |it: &AcceptedListener<'_>| parent.port.is_none_or(|port| port == it.spec.port);
        let mut found: Vec<_> = listeners.filter(|(_, it)| is_meant(it)).collect();
        if found.is_empty() {
            let message = if is_refused {
                "the Gateway does not allow the ListenerSet".to_owned()
            } else {
                format!("the {} has no listener of this name and port", owner.kind)
            };
            return Err(ValidationFault::new(ConditionReason::NoMatchingParent, field, message));
        }
        let other = &self.route.metadata.namespace;
        found.retain(|(_, listener)| listener.allows(index, self.kind, other));
        if found.is_empty() {
            let message = format!("no listener allows {}s of namespace {other}", self.kind);
            return Err(ValidationFault::new(
                ConditionReason::NotAllowedByListeners,
                field,
                message,
            ));
        }
        let attachments: Vec<_> = found
            .into_iter()
            .map(|(place, it)| self.at_listener(gateway, place, it))
            .filter(|attachment| !attachment.hosts.is_empty())
            .collect();
        if attachments.is_empty() {
            let message = "no listener has a hostname in common with the route";
            return Err(ValidationFault::new(
                ConditionReason::NoMatchingListenerHostname,
                "spec.hostnames",
                message,
            ));
        }
        Ok(attachments)
    }

    fn at_listener(
        &self,
        gateway: usize,
        place: usize,
        listener: &AcceptedListener<'_>,
    ) -> RouteAttachment {
        let hosts = common_hosts(&listener.hosts, self.hostnames);
        let (port, scheme) = (listener.spec.port, listener.protocol.scheme());
        RouteAttachment { gateway, listener: place, port, scheme, hosts }
    }
}

/// Counts a route at each listener that it has attached to, and keeps those attachments that are served.
pub(super) fn retain_served(
    attachments: &mut Vec<RouteAttachment>,
    gateways: &mut [AcceptedGateway<'_>],
) {
    let listeners: BTreeSet<_> = attachments.iter().map(|it| (it.gateway, it.listener)).collect();
    for (gateway, listener) in listeners {
        gateways[gateway].listeners[listener].attached_routes += 1;
    }
    attachments.retain(|it| gateways[it.gateway].serves(it.listener));
}

fn common_hosts(listener: &HostPattern, hostnames: &[Hostname]) -> Vec<CommonHosts> {
    let common = |asked: &HostPattern| Some((listener.intersect(asked)?, asked.clone()));
    let every = [HostPattern::Any];
    let asked: Vec<_> = hostnames.iter().map(|hostname| &hostname.0).collect();
    let asked = if asked.is_empty() { every.iter().collect() } else { asked };
    let common = asked.into_iter().filter_map(common);
    common.map(|(hosts, asked)| CommonHosts { hosts, route_hosts: asked }).collect()
}
