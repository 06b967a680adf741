//! Where routes of any kind attach, and why they do not.

use std::collections::BTreeSet;
use std::iter;

use super::index::Index;
use super::listener::{OurGateway, OurListener, is_gateway_api};
use super::listener_set::{self, OurSet};
use super::owner::Owner;
use super::{Fault, Report};
use crate::matching::HostPattern;
use crate::objects::{Hostname, ParentRef, Resource};
use crate::snapshot::Scheme;
use crate::status::Reason;

/// A route that asks to attach.
pub(super) struct Asking<'a, S> {
    pub(super) kind: &'static str,
    pub(super) route: &'a Resource<S>,
    pub(super) parents: &'a [ParentRef],
    pub(super) hostnames: &'a [Hostname],
}

/// Where a route has attached.
#[derive(Clone, Debug)]
pub(super) struct Attachment {
    /// A place among our Gateways.
    pub(super) gateway: usize,
    /// A place among the Gateway's listeners.
    pub(super) listener: usize,
    /// The listener's port.
    pub(super) port: u16,
    /// What a URL of requests at the listener begins with.
    pub(super) scheme: Scheme,
    /// The hosts that both the listener and the route ask for.
    pub(super) hosts: Vec<CommonHosts>,
}

/// Hosts that a listener and a route have in common.
#[derive(Clone, Debug)]
pub(super) struct CommonHosts {
    pub(super) hosts: HostPattern,
    /// As the route has them, perhaps with others. Of two routes with the same hosts in common with a listener the one
    /// that asked for fewer goes first, whatever their age.
    pub(super) asked: HostPattern,
}

/// What becomes of a route at a parent of ours.
pub(super) struct Parent<'a> {
    pub(super) reference: &'a ParentRef,
    /// Where the reference stands.
    pub(super) field: String,
    pub(super) attached: Result<Vec<Attachment>, Fault>,
}

/// A parent of ours.
struct Found<'g> {
    /// The Gateway's place among ours.
    place: usize,
    gateway: &'g OurGateway<'g>,
    /// The Gateway, or a ListenerSet of it.
    owner: Owner<'g>,
}

impl<'a, S> Asking<'a, S> {
    /// The parents that are ours, each with where the route attaches or why it does not; what is wrong with references
    /// that lead to nobody is reported.
    pub(super) fn parents(
        &self,
        index: &Index<'_>,
        gateways: &[OurGateway<'_>],
        report: &mut Report,
    ) -> Vec<Parent<'a>> {
        if self.parents.is_empty() {
            let message = "is empty: the route attaches to nothing";
            report.problem(self.kind, self.route, "spec.parentRefs", message);
        }
        let mut parents = Vec::new();
        for (n, reference) in self.parents.iter().enumerate() {
            let field = format!("spec.parentRefs[{n}]");
            match self.find_parent(index, reference, gateways) {
                Ok(Some(found)) => {
                    let attached = self.attach(index, reference, &field, &found);
                    parents.push(Parent { reference, field, attached });
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
        index: &Index<'_>,
        parent: &ParentRef,
        gateways: &'g [OurGateway<'g>],
    ) -> Result<Option<Found<'g>>, (&'static str, String)> {
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
        let mut ours = gateways.iter().enumerate();
        Ok(ours.find_map(|(place, gateway)| {
            let owners = iter::once(gateway.owner()).chain(gateway.sets.iter().map(OurSet::owner));
            let mut owners = owners.filter(|owner| owner.kind == kind);
            let owner = owners.find(|it| (&*it.metadata.namespace, &*it.metadata.name) == name)?;
            Some(Found { place, gateway, owner })
        }))
    }

    /// Where the route attaches at a parent: listeners that are meant, allow it and have a host in common with it.
    fn attach(
        &self,
        index: &Index<'_>,
        parent: &ParentRef,
        field: &str,
        found: &Found<'_>,
    ) -> Result<Vec<Attachment>, Fault> {
        let Found { place, gateway, owner } = *found;
        let listeners = gateway.listeners.iter().enumerate();
        let mut found: Vec<_> = listeners
            .filter(|(_, it)| it.owner.is(owner))
            .filter(|(_, it)| parent.section_name.as_ref().is_none_or(|name| *name == it.spec.name))
            .filter(|(_, it)| parent.port.is_none_or(|port| port == it.spec.port))
            .collect();
        if found.is_empty() {
            let is_refused = |set: &OurSet<'_>| set.owner().is(owner) && set.fault.is_some();
            let message = if gateway.sets.iter().any(is_refused) {
                "the Gateway does not allow the ListenerSet".to_owned()
            } else {
                format!("the {} has no listener of this name and port", owner.kind)
            };
            return Err(Fault::new(Reason::NoMatchingParent, field, message));
        }
        let other = &self.route.metadata.namespace;
        found.retain(|(_, listener)| listener.allows(index, self.kind, other));
        if found.is_empty() {
            let message = format!("no listener allows {}s of namespace {other}", self.kind);
            return Err(Fault::new(Reason::NotAllowedByListeners, field, message));
        }
        let attachments: Vec<_> = found
            .into_iter()
            .map(|(listener, it)| self.at_listener(place, listener, it))
            .filter(|attachment| !attachment.hosts.is_empty())
            .collect();
        if attachments.is_empty() {
            let message = "no listener has a hostname in common with the route";
            return Err(Fault::new(Reason::NoMatchingListenerHostname, "spec.hostnames", message));
        }
        Ok(attachments)
    }

    fn at_listener(&self, gateway: usize, place: usize, listener: &OurListener<'_>) -> Attachment {
        let hosts = common_hosts(&listener.hosts, self.hostnames);
        let (port, scheme) = (listener.spec.port, listener.protocol.scheme());
        Attachment { gateway, listener: place, port, scheme, hosts }
    }
}

/// Counts a route at each listener that it has attached to, and keeps those attachments that are served.
pub(super) fn settle(attachments: &mut Vec<Attachment>, gateways: &mut [OurGateway<'_>]) {
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
    common.map(|(hosts, asked)| CommonHosts { hosts, asked }).collect()
}
