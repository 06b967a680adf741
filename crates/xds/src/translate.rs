//! Translation of a Snapshot into resources: which names clients can dial, and what belongs to them.
//!
//! A route that xDS, or gRPC's part of it, cannot express is reported as a [`TranslationFinding`]. Its requests fail, unless they
//! can be served without the part that is missing; all other routes are served.

/// RouteConfigurations.
mod route;
/// Matches of requests.
mod matcher;
/// Actions of routes: the clusters, retries and timeouts.
mod action;
/// Clusters.
mod cluster;
/// ClusterLoadAssignments.
mod assignment;
/// TLS of clients and servers.
mod tls;
/// Listeners of servers.
mod server;
/// RouteConfigurations and Clusters for Envoys.
pub(crate) mod envoy;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use gateway::Snapshot;
use gateway::matching::{RouteMatch, RouteTable};
use gateway::snapshot::{Backend, BackendKey, Rule, RuleTarget, ServicePortRoutes};
use gateway::status::RouteParent;
use prost::Message;

pub(crate) use assignment::load_assignment;
pub(crate) use cluster::{
    cluster, encrypted_cluster, limit_field, max_requests, unresolved_assignment,
    unresolved_cluster,
};
pub(crate) use server::listener_start;

use crate::message::{
    AnyMessage, ApiListener, ConfigSource, HttpConnectionManager, HttpFilter, ListenerResource,
    ResourceType, RouteSource, VirtualHost,
};
use crate::name;

/// Maximum number of findings; further ones are counted.
pub const MAX_FINDINGS: usize = 1_000;

/// A part of the configuration that clients do not follow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TranslationFinding {
    /// The rule (`namespace/route/rule`) or the backend (`namespace/service:port`).
    pub subject: Arc<str>,
    /// A sentence for people.
    pub message: String,
}

/// An encoded resource.
#[derive(Clone, Debug)]
pub(crate) struct TranslatedResource {
    pub(crate) any: Bytes,
    /// The encoding for Envoys, if it differs.
    pub(crate) envoy: Option<Bytes>,
}

/// The routes from which resources come, each with the port of a Service at which it is.
pub(crate) type ResourceOrigins =
    BTreeMap<(ResourceType, Arc<str>), BTreeSet<(Arc<str>, RouteParent)>>;

/// The resources of a Snapshot.
#[derive(Clone, Debug, Default)]
pub struct TranslatedResources {
    /// Encoded Listeners by name.
    pub(crate) listeners: BTreeMap<Arc<str>, Bytes>,
    /// Encoded Listeners of servers by their port, without name and address.
    pub(crate) servers: BTreeMap<Arc<str>, Bytes>,
    /// Encoded RouteConfigurations by name.
    pub(crate) routes: BTreeMap<Arc<str>, TranslatedResource>,
    /// The backends that these name.
    pub(crate) backends: Vec<Backend>,
    /// The routes from which these come.
    pub(crate) origins: ResourceOrigins,
    /// Parts that clients do not follow, sorted; at most [`MAX_FINDINGS`].
    pub findings: Vec<TranslationFinding>,
    /// The number of findings beyond that.
    pub further_findings: usize,
}

/// Translates the ports of Services of a Snapshot. `cluster_domain` is the domain of the cluster in DNS.
#[must_use]
pub fn translate(snapshot: &Snapshot, cluster_domain: &str) -> TranslatedResources {
    let mut translated = TranslatedResources::default();
    let mut findings = BTreeSet::new();
    let mut keys: BTreeSet<&BackendKey> = BTreeSet::new();
    let mut hosts: BTreeMap<u16, Vec<VirtualHost>> = BTreeMap::new();
    for port in &snapshot.service_ports {
        let routes_name = name::routes(port);
        for listener_name in name::listeners(port, cluster_domain) {
            let resource = listener(&listener_name, &routes_name);
            translated.listeners.insert(listener_name, resource.encode_to_vec().into());
        }
        let server = server::listener(&port.server).encode_to_vec().into();
        translated.servers.insert(Arc::clone(&routes_name), server);
        let matches = port.routes.by_precedence();
        let targets = matches.iter().flat_map(|(_, rule)| &rule.targets);
        keys.extend(targets.filter_map(|it| match it.target {
            RuleTarget::Backend(index) => Some(&snapshot.backends[index].key),
            RuleTarget::Unresolved => None,
        }));
        let mirrors = matches.iter().flat_map(|(_, rule)| envoy::mirrors(rule));
        keys.extend(mirrors.map(|it| &snapshot.backends[it.backend].key));
        for (_, rule) in port.consumer_routes.values().flat_map(RouteTable::by_precedence) {
            let message = format!(
                "a route for clients of one namespace: it has no effect on clients that use xDS, at {routes_name}"
            );
            findings.insert(TranslationFinding { subject: Arc::clone(&rule.name), message });
        }
        add_origins(&mut translated.origins, port, &matches, snapshot, cluster_domain);
        let resource =
            route::configuration(&routes_name, &matches, &snapshot.backends, &mut findings);
        let entries = envoy::routes(&matches, &snapshot.backends, &mut findings);
        let host = |domains| envoy::virtual_host(&routes_name, domains, entries.clone());
        let of_envoy = envoy::configuration(&routes_name, vec![host(vec!["*".to_owned()])]);
        let of_port = host(name::hosts(port, cluster_domain).into());
        hosts.entry(port.port).or_default().push(of_port);
        let resource = TranslatedResource {
            any: resource.encode_to_vec().into(),
            envoy: Some(of_envoy.encode_to_vec().into()),
        };
        translated.routes.insert(routes_name, resource);
    }
    for (port, hosts) in hosts {
        let resource = envoy::configuration(&name::services(port), hosts);
        let any = resource.encode_to_vec().into();
        translated.routes.insert(name::services(port), TranslatedResource { any, envoy: None });
    }
    let is_named = |backend: &&Backend| keys.contains(&backend.key);
    translated.backends = snapshot.backends.iter().filter(is_named).cloned().collect();
    for backend in &translated.backends {
        cluster::findings(backend, &mut findings);
    }
    translated.further_findings = findings.len().saturating_sub(MAX_FINDINGS);
    translated.findings = findings.into_iter().take(MAX_FINDINGS).collect();
    translated
}

/// Adds the resources of a port, with their routes.
fn add_origins(
    origins: &mut ResourceOrigins,
    port: &ServicePortRoutes,
    matches: &[(&RouteMatch, &Arc<Rule>)],
    snapshot: &Snapshot,
    cluster_domain: &str,
) {
    let parent = RouteParent {
        namespace: Arc::clone(&port.namespace),
        service: Arc::clone(&port.service),
        port: port.port,
    };
    let mut routes = BTreeSet::new();
    for (_, rule) in matches {
        let Some(route) = route_of(&rule.name) else { continue };
        let origin = (Arc::from(route), parent.clone());
        for target in &rule.targets {
            let RuleTarget::Backend(index) = target.target else { continue };
            let cluster = name::cluster(&snapshot.backends[index].key);
            for kind in [ResourceType::Cluster, ResourceType::ClusterLoadAssignment] {
                origins.entry((kind, Arc::clone(&cluster))).or_default().insert(origin.clone());
            }
        }
        routes.insert(origin);
    }
    for listener in name::listeners(port, cluster_domain) {
        origins.insert((ResourceType::Listener, listener), routes.clone());
    }
    origins.insert((ResourceType::RouteConfiguration, name::routes(port)), routes);
}

/// Returns the route of a rule: `namespace/route`.
pub(crate) fn route_of(rule_name: &str) -> Option<&str> {
    rule_name.rsplit_once('/').map(|(route, _)| route)
}

/// Returns the Listener of a name that clients dial.
fn listener(listener_name: &str, routes_name: &str) -> ListenerResource {
    let manager = HttpConnectionManager {
        stat_prefix: routes_name.to_owned(),
        rds: Some(RouteSource {
            config_source: Some(ConfigSource::same_stream()),
            route_config_name: routes_name.to_owned(),
        }),
        http_filters: vec![HttpFilter::router()],
        ..HttpConnectionManager::default()
    };
    let api_listener = AnyMessage::of(HttpConnectionManager::NAME, &manager);
    ListenerResource {
        name: listener_name.to_owned(),
        api_listener: Some(ApiListener { api_listener: Some(api_listener) }),
        ..ListenerResource::default()
    }
}

#[cfg(test)]
pub(crate) mod tests;
