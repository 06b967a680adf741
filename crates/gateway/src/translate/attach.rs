//! Attachment of routes of any kind to listeners, with the reason if it fails.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::ops::Range;

use super::index::{NamespacedName, ObjectIndex};
use super::listener::{GatewayContext, ListenerContext, is_gateway_api};
use super::listener_set;
use super::owner::OwnerObject;
use super::report::{TranslationReport, ValidationFault};
use super::transparent::TransparentServices;
use crate::matching::HostPattern;
use crate::objects::{Hostname, ParentRef, TypedObject};
use crate::snapshot::UrlScheme;
use crate::status::ConditionReason;

/// A route and the parents that it refers to.
pub(super) struct AttachmentRequest<'a, S> {
    pub(super) kind: &'static str,
    pub(super) route: &'a TypedObject<S>,
    pub(super) parents: &'a [ParentRef],
    pub(super) hostnames: &'a [Hostname],
}

/// The attachment of a route to one listener.
#[derive(Clone, Debug)]
pub(super) struct RouteAttachment {
    /// Index of the Gateway among the accepted ones.
    pub(super) gateway: usize,
    /// Index of the listener among those of the Gateway.
    pub(super) listener: usize,
    /// The listener's port.
    pub(super) port: u16,
    /// The scheme of URLs at the listener.
    pub(super) scheme: UrlScheme,
    /// The hosts that the listener and the route have in common.
    pub(super) hosts: Vec<CommonHosts>,
}

/// Hosts that a listener and a route have in common.
#[derive(Clone, Debug)]
pub(super) struct CommonHosts {
    pub(super) hosts: HostPattern,
    /// The hosts as the route has them, which may be more. If two routes have the same common hosts at a listener, the
    /// route with the more specific hosts has precedence, regardless of age.
    pub(super) route_hosts: HostPattern,
}

/// The result of one parent reference of a route.
pub(super) struct ParentAttachment<'a> {
    pub(super) reference: &'a ParentRef,
    /// The field path of the reference.
    pub(super) field: String,
    pub(super) attached: Result<Vec<RouteAttachment>, ValidationFault>,
}

/// The possible parents of routes, by kind and name.
pub(super) struct ParentIndex<'a> {
    owners: BTreeMap<(&'a str, NamespacedName<'a>), ParentMatch<'a>>,
    /// Indices of the listeners of a name among those of the Gateway; there are several only if a name is duplicated.
    sections: BTreeMap<(&'a str, NamespacedName<'a>, &'a str), Vec<usize>>,
    /// Services, in transparent mode.
    pub(super) services: &'a TransparentServices<'a>,
}

/// A Gateway of ours, or a ListenerSet of one.
struct ParentMatch<'a> {
    /// Index of the Gateway among the accepted ones.
    gateway: usize,
    /// The Gateway, or a ListenerSet of it.
    owner: OwnerObject<'a>,
    /// Indices of its listeners among those of the Gateway.
    listeners: Range<usize>,
    /// True if it is a ListenerSet that the Gateway does not allow.
    is_refused: bool,
}

impl<'a> ParentIndex<'a> {
    pub(super) fn new(
        gateways: &[GatewayContext<'a>],
        services: &'a TransparentServices<'a>,
    ) -> Self {
        let mut parents = Self { owners: BTreeMap::new(), sections: BTreeMap::new(), services };
        for (place, gateway) in gateways.iter().enumerate() {
            let own = (gateway.owner(), 0..gateway.own_listeners().len(), false);
            let sets = gateway.sets.iter();
            let sets = sets.map(|set| (set.owner(), set.listeners.clone(), set.fault.is_some()));
            for (owner, listeners, is_refused) in iter::once(own).chain(sets) {
                let found = ParentMatch { gateway: place, owner, listeners, is_refused };
                parents.owners.insert((owner.kind, owner.name()), found);
            }
            for (place, ListenerContext { owner, spec, .. }) in gateway.listeners.iter().enumerate()
            {
                let section = (owner.kind, owner.name(), &*spec.name);
                parents.sections.entry(section).or_default().push(place);
            }
        }
        parents
    }

    /// Returns the indices of the Gateway's listeners that a reference selects.
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
    /// Returns the result for each Gateway and ListenerSet that this controller accepts: the attachments, or why there
    /// are none. References that cannot be resolved are reported.
    pub(super) fn parents(
        &self,
        index: &ObjectIndex<'_>,
        known: &ParentIndex<'_>,
        gateways: &[GatewayContext<'_>],
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
                // Other kinds are not ours either: a service mesh uses Services as parents.
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

    /// Returns the parent of a reference, or `None` if it belongs to another controller, or is a Service of ours.
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
        if known.services.has_parent(self.kind, &self.route.metadata.namespace, parent) {
            return Ok(None);
        }
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

    /// Returns the attachments at a parent: the selected listeners that allow the route and have a host in common with
    /// it.
    fn attach<'l>(
        &self,
        index: &ObjectIndex<'_>,
        parent: &ParentRef,
        field: &str,
        &ParentMatch { gateway, owner, is_refused, .. }: &ParentMatch<'_>,
        listeners: impl Iterator<Item = (usize, &'l ListenerContext<'l>)>,
    ) -> Result<Vec<RouteAttachment>, ValidationFault> {
        let is_meant =
            |it: &ListenerContext<'_>| parent.port.is_none_or(|port| port == it.spec.port);
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
        listener: &ListenerContext<'_>,
    ) -> RouteAttachment {
        let hosts = common_hosts(&listener.hosts, self.hostnames);
        let (port, scheme) = (listener.spec.port, listener.protocol.scheme());
        RouteAttachment { gateway, listener: place, port, scheme, hosts }
    }
}

/// Counts a route at each listener that it has attached to, and keeps the attachments whose listeners are served.
pub(super) fn retain_served(
    attachments: &mut Vec<RouteAttachment>,
    gateways: &mut [GatewayContext<'_>],
) {
    let listeners: BTreeSet<_> = attachments.iter().map(|it| (it.gateway, it.listener)).collect();
    for (gateway, listener) in listeners {
        gateways[gateway].listeners[listener].attached_routes += 1;
    }
    attachments.retain(|it| gateways[it.gateway].serves(it.listener));
}

fn common_hosts(listener: &HostPattern, hostnames: &[Hostname]) -> Vec<CommonHosts> {
    let common =
        |route_hosts: &HostPattern| Some((listener.intersect(route_hosts)?, route_hosts.clone()));
    let every = [HostPattern::Any];
    let route_hosts: Vec<_> = hostnames.iter().map(|hostname| &hostname.0).collect();
    let route_hosts = if route_hosts.is_empty() { every.iter().collect() } else { route_hosts };
    let common = route_hosts.into_iter().filter_map(common);
    common.map(|(hosts, route_hosts)| CommonHosts { hosts, route_hosts }).collect()
}
