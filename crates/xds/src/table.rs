//! Resources with their versions, and the publisher that keeps them up to date.
//!
//! A table is immutable; each change makes another one, which has in common with the last what has not changed. A
//! resource keeps its version as long as its bytes are the same, so that clients get what has changed alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use gateway::Snapshot;
use gateway::snapshot::{Backend, BackendKey, EndpointSpec};
use gateway::status::{RouteParent, XdsProblem};
use prost::Message;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client::{ClientIdentity, ClientKind};
use crate::limit::{
    ClaimTable, ClientShare, ClusterClaim, CompetingDemand, DividedLimit, LimitReplicas,
    LimitShare, LimitShares, available, divide,
};
use crate::load::{ClusterLoad, LoadStatus, LoadTable};
use crate::message::{ClusterResource, ResourceType};
use crate::name::{self, UNRESOLVED};
use crate::server::{DiscoveryService, LoadReportService};
use crate::status::{ServerStatus, StatusRecorder};
use crate::translate::{
    ResourceOrigins, TranslatedResource, TranslatedResources, cluster, encrypted_cluster, envoy,
    limit_field, listener_start, load_assignment, max_requests, translate, unresolved_assignment,
    unresolved_cluster,
};

/// Endpoints that get no requests, because they are not healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointHealth {
    unhealthy: BTreeMap<BackendKey, BTreeSet<SocketAddr>>,
}

impl EndpointHealth {
    /// Adds an endpoint of a backend.
    pub fn add_unhealthy(&mut self, backend: &BackendKey, address: SocketAddr) {
        self.unhealthy.entry(backend.clone()).or_default().insert(address);
    }

    /// True if an endpoint of a backend is not healthy.
    pub(crate) fn is_unhealthy(&self, backend: &BackendKey, address: SocketAddr) -> bool {
        self.unhealthy.get(backend).is_some_and(|addresses| addresses.contains(&address))
    }
}

/// All resources at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResourceTable {
    /// Number of the table; versions are the number of the table in which a resource has changed last.
    generation: u64,
    clusters: ResourceMap,
    assignments: ResourceMap,
    listeners: ResourceMap,
    /// Listeners of servers by their port, without name and address.
    servers: ResourceMap,
    routes: ResourceMap,
    /// The limits of clusters, as clients share them.
    shares: Arc<LimitShares>,
}

/// The resources of one type.
#[derive(Clone, Debug, Default)]
struct ResourceMap {
    /// Number of the table in which one of them has changed last.
    version: u64,
    resources: Arc<BTreeMap<Arc<str>, VersionedResource>>,
}

/// A resource as clients get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionedResource {
    pub(crate) version: u64,
    content: EncodedResource,
}

/// A resource in its encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EncodedResource {
    any: Bytes,
    /// The encodings for clients in a zone, if they differ.
    by_zone: BTreeMap<Arc<str>, Bytes>,
    /// The encoding for Envoys, if it differs.
    envoy: Option<Bytes>,
    /// The encoding for clients with certificates, if it differs.
    encrypted: Option<Bytes>,
    /// The limit of a Cluster that clients of gRPC share. Their encodings lack it.
    limit: Option<u32>,
}

impl From<Bytes> for EncodedResource {
    fn from(any: Bytes) -> Self {
        Self { any, by_zone: BTreeMap::new(), envoy: None, encrypted: None, limit: None }
    }
}

impl From<TranslatedResource> for EncodedResource {
    fn from(resource: TranslatedResource) -> Self {
        Self { envoy: resource.envoy, ..resource.any.into() }
    }
}

/// A resource as a client gets it.
pub(crate) struct ClientResource<'t> {
    resource: &'t VersionedResource,
    /// The share of the client, if it is a Cluster with a limit.
    share: Option<LimitShare>,
}

impl ClientResource<'_> {
    /// Returns the number of the table in which it has changed last for the client.
    pub(crate) fn version(&self) -> u64 {
        self.resource.version.max(self.share.map_or(0, |it| it.version))
    }

    /// Returns the encoding for the client, which has asked for this name.
    pub(crate) fn encoded(&self, name: &str, client: &ClientIdentity) -> Bytes {
        let EncodedResource { any, by_zone, envoy, encrypted, limit: _ } = &self.resource.content;
        // The fields of messages that follow each other are those of one message.
        if let Some((_, address)) = name::server_port(name) {
            return [&*listener_start(name, address).encode_to_vec(), any].concat().into();
        }
        let own = match client.kind {
            ClientKind::Envoy => envoy.as_ref(),
            ClientKind::Grpc => encrypted.as_ref().filter(|_| client.has_certificates),
        };
        let encoded = own.or_else(|| by_zone.get(client.zone.as_str())).unwrap_or(any);
        match self.share {
            Some(share) => [encoded, &*limit_field(share.requests).encode_to_vec()].concat().into(),
            None => encoded.clone(),
        }
    }
}

impl ResourceTable {
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns a resource as a client gets it.
    pub(crate) fn find(
        &self,
        kind: ResourceType,
        name: &str,
        client: &ClientIdentity,
    ) -> Option<ClientResource<'_>> {
        let (map, name) = match name::server_port(name) {
            Some((port, _)) if kind == ResourceType::Listener => (&self.servers, port),
            Some(_) | None => (self.map(kind), name),
        };
        let resource = map.resources.get(name)?;
        let limit = resource.content.limit.filter(|_| client.kind == ClientKind::Grpc);
        let share = limit.map(|limit| self.shares.share(client.stream, name, limit));
        Some(ClientResource { resource, share })
    }

    /// Returns the names of the resources of a type, but for those of servers, which have as many as addresses.
    pub(crate) fn names(&self, kind: ResourceType) -> impl Iterator<Item = &Arc<str>> {
        self.map(kind).resources.keys()
    }

    /// Returns the number of resources of a type.
    pub(crate) fn len(&self, kind: ResourceType) -> usize {
        self.map(kind).resources.len()
    }

    /// Returns the version of the resources of a type: it changes with each of them.
    pub(crate) fn version(&self, kind: ResourceType) -> u64 {
        let version = self.map(kind).version;
        match kind {
            ResourceType::Listener => version.max(self.servers.version),
            ResourceType::Cluster
            | ResourceType::ClusterLoadAssignment
            | ResourceType::RouteConfiguration => version,
        }
    }

    /// Returns the version of the resources of a type for a client: it changes with its shares of limits too.
    pub(crate) fn version_for(&self, kind: ResourceType, client: &ClientIdentity) -> u64 {
        let version = self.version(kind);
        match kind {
            ResourceType::Cluster => version.max(self.shares.version(client.stream)),
            ResourceType::ClusterLoadAssignment
            | ResourceType::Listener
            | ResourceType::RouteConfiguration => version,
        }
    }

    fn map(&self, kind: ResourceType) -> &ResourceMap {
        match kind {
            ResourceType::Cluster => &self.clusters,
            ResourceType::ClusterLoadAssignment => &self.assignments,
            ResourceType::Listener => &self.listeners,
            ResourceType::RouteConfiguration => &self.routes,
        }
    }

    /// Replaces the resources of a map; those that are the same keep their version.
    fn replaced(
        &self,
        former: &ResourceMap,
        contents: impl Iterator<Item = (Arc<str>, EncodedResource)>,
    ) -> ResourceMap {
        let version = self.generation;
        let resource = |(name, content): (Arc<str>, EncodedResource)| {
            let same = former.resources.get(&name).filter(|it| it.content == content);
            let resource = same.cloned().unwrap_or(VersionedResource { version, content });
            (name, resource)
        };
        let new: BTreeMap<_, _> = contents.map(resource).collect();
        match new == *former.resources {
            true => former.clone(),
            false => ResourceMap { version, resources: Arc::new(new) },
        }
    }

    /// Replaces one resource, unless it is the same; returns true if it has changed.
    fn replace_one(
        map: &mut ResourceMap,
        name: &str,
        content: EncodedResource,
        version: u64,
    ) -> bool {
        let Some(known) = map.resources.get(name) else { return false };
        if known.content == content {
            return false;
        }
        let resource = VersionedResource { version, content };
        Arc::make_mut(&mut map.resources).insert(name.into(), resource);
        map.version = version;
        true
    }
}

/// The control side of the server: takes what has changed, and hands it to the clients.
pub struct ResourcePublisher {
    state: Mutex<PublishedState>,
    table: watch::Sender<Arc<ResourceTable>>,
    is_closing: watch::Sender<bool>,
    recorder: Arc<StatusRecorder>,
    load: Arc<LoadTable>,
    claims: Arc<ClaimTable>,
}

#[derive(Default)]
struct PublishedState {
    backends: BTreeMap<BackendKey, Backend>,
    health: EndpointHealth,
    origins: ResourceOrigins,
    replicas: LimitReplicas,
}

impl Default for ResourcePublisher {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            table: watch::Sender::new(Arc::default()),
            is_closing: watch::Sender::new(false),
            recorder: Arc::default(),
            load: Arc::default(),
            claims: Arc::default(),
        }
    }
}

impl ResourcePublisher {
    /// Returns the server of the resources.
    #[must_use]
    pub fn service(&self) -> DiscoveryService {
        let (table, is_closing) = (self.table.subscribe(), self.is_closing.subscribe());
        let (recorder, claims) = (Arc::clone(&self.recorder), Arc::clone(&self.claims));
        DiscoveryService::new(table, is_closing, recorder, claims)
    }

    /// Returns the server of clients' reports of load.
    #[must_use]
    pub fn load_service(&self) -> LoadReportService {
        let (load, claims) = (Arc::clone(&self.load), Arc::clone(&self.claims));
        LoadReportService::new(load, claims, self.is_closing.subscribe())
    }

    /// Replaces all resources by those of a Snapshot. Clients get what has changed for them.
    pub fn publish(&self, snapshot: &Snapshot, cluster_domain: &str) {
        let translated = translate(snapshot, cluster_domain);
        let mut state = self.state();
        let TranslatedResources {
            listeners,
            servers,
            routes,
            backends,
            origins,
            findings,
            further_findings,
        } = translated;
        state.origins = origins;
        self.recorder.set_findings(findings, further_findings);
        state.backends = backends.into_iter().map(|it| (it.key.clone(), it)).collect();
        self.load.set_backends(state.backends.keys());
        self.change(|table| {
            let former = table.clone();
            let encoded = |(name, content): (Arc<str>, Bytes)| (name, content.into());
            let backends = || state.backends.values();
            let clusters = backends().map(|it| (name::cluster(&it.key), encoded_cluster(it)));
            let clusters = clusters.chain([(UNRESOLVED.into(), encoded_unresolved())]);
            let assignments =
                backends().map(|it| (name::cluster(&it.key), assignment(it, &state.health)));
            let assignments = assignments.chain([(
                UNRESOLVED.into(),
                EncodedResource::from(Bytes::from(unresolved_assignment().encode_to_vec())),
            )]);
            table.clusters = table.replaced(&former.clusters, clusters);
            table.assignments = table.replaced(&former.assignments, assignments);
            table.listeners = table.replaced(&former.listeners, listeners.into_iter().map(encoded));
            table.servers = table.replaced(&former.servers, servers.into_iter().map(encoded));
            let routes = routes.into_iter().map(|(name, content)| (name, content.into()));
            table.routes = table.replaced(&former.routes, routes);
            let is_same = |kind: &ResourceType| table.version(*kind) == former.version(*kind);
            !ResourceType::ALL.iter().all(is_same)
        });
    }

    /// Replaces the endpoints of a backend, if clients know it.
    pub fn set_endpoints(&self, key: &BackendKey, endpoints: &[EndpointSpec]) {
        let mut state = self.state();
        let PublishedState { backends, health, .. } = &mut *state;
        let Some(backend) = backends.get_mut(key) else { return };
        backend.endpoints = endpoints.to_vec();
        self.change(|table| {
            let (name, version) = (name::cluster(key), table.generation);
            // The limit of a cluster is that of all endpoints together.
            let content = encoded_cluster(backend);
            let has_cluster_changed =
                ResourceTable::replace_one(&mut table.clusters, &name, content, version);
            let content = assignment(backend, health);
            let has_changed =
                ResourceTable::replace_one(&mut table.assignments, &name, content, version);
            has_changed || has_cluster_changed
        });
    }

    /// Replaces the health of all endpoints.
    pub fn set_health(&self, health: EndpointHealth) {
        let mut state = self.state();
        if state.health == health {
            return;
        }
        state.health = health;
        self.change(|table| {
            let contents =
                state.backends.values().map(|it| (&it.key, assignment(it, &state.health)));
            let version = table.generation;
            let mut has_changed = false;
            for (key, content) in contents {
                has_changed |= ResourceTable::replace_one(
                    &mut table.assignments,
                    &name::cluster(key),
                    content,
                    version,
                );
            }
            has_changed
        });
    }

    /// Sets the replicas that divide the same limits, for the next division.
    pub fn set_replicas(&self, replicas: LimitReplicas) {
        self.state().replicas = replicas;
    }

    /// Divides the limits of clusters among the clients that use them, beside the demand of others.
    pub fn divide_limits(&self, others: impl Fn(&BackendKey) -> CompetingDemand) {
        // Every change of the table is made with the lock of the state.
        let state = self.state();
        let former = Arc::clone(&*self.table.borrow());
        let backends = state.backends.values();
        let limits =
            backends.filter_map(|it| Some((name::cluster(&it.key), (it, max_requests(it)?))));
        let limits: BTreeMap<_, _> = limits.collect();
        if limits.is_empty() && former.shares.is_empty() {
            return;
        }
        let claims = self.claims.by_cluster(|name| limits.contains_key(name));
        let divided = |(cluster, claims): (Arc<str>, Vec<ClusterClaim>)| {
            let (backend, limit) = limits[&cluster];
            let shares = divided_limit(limit, &claims, others(&backend.key), state.replicas);
            DividedLimit { cluster, shares }
        };
        let divided: Vec<_> = claims.into_iter().map(divided).collect();
        let shares = former.shares.replaced(former.generation + 1, &divided);
        if shares != *former.shares {
            self.load.set_shares(&shares.sums());
            self.change(|table| {
                table.shares = Arc::new(shares);
                true
            });
        }
    }

    /// Ends the streams of all clients, which then connect to another replica, or to the successor of this process.
    pub fn close(&self) {
        self.is_closing.send_replace(true);
    }

    /// Returns the state of the server.
    #[must_use]
    pub fn status(&self) -> ServerStatus {
        let table = self.table.borrow().clone();
        self.recorder.status(|kind| table.len(kind))
    }

    /// Returns what clients do not follow of routes, and what they reject now, sorted.
    #[must_use]
    pub fn route_problems(&self) -> Vec<XdsProblem> {
        let state = self.state();
        let exists = |name: &_| state.origins.contains_key(name);
        let rejected = self.recorder.rejected_resources.current(exists, Instant::now());
        let rejections = rejected.into_iter().flat_map(|(name, message)| {
            let problem = move |(route, parent): &(Arc<str>, RouteParent)| XdsProblem {
                route: Arc::clone(route),
                parent: Some(parent.clone()),
                is_rejected: true,
                message: message.clone(),
            };
            state.origins[&name].iter().map(problem).collect::<Vec<_>>()
        });
        let mut problems: Vec<XdsProblem> = rejections.collect();
        problems.extend(self.recorder.route_findings());
        problems.sort();
        problems
    }

    /// Returns the load that clients report, since the start.
    #[must_use]
    pub fn load(&self) -> LoadStatus {
        self.load.status()
    }

    /// Returns the requests of clients that are in progress, by backend, with those that were issued and dropped since
    /// the last call.
    #[must_use]
    pub fn take_load(&self) -> BTreeMap<BackendKey, ClusterLoad> {
        self.load.take()
    }

    /// Publishes another table, if `edit` returns that it has changed something.
    fn change(&self, edit: impl FnOnce(&mut ResourceTable) -> bool) {
        self.table.send_if_modified(|current| {
            let mut table = ResourceTable::clone(current);
            table.generation += 1;
            let has_changed = edit(&mut table);
            if has_changed {
                *current = Arc::new(table);
            }
            has_changed
        });
    }

    fn state(&self) -> MutexGuard<'_, PublishedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the shares of the clients of a cluster.
fn divided_limit(
    limit: u32,
    claims: &[ClusterClaim],
    others: CompetingDemand,
    replicas: LimitReplicas,
) -> Vec<ClientShare> {
    let LimitReplicas { count, share_demand } = replicas;
    let available = match share_demand {
        true => available(limit, others, count),
        false => {
            let own = CompetingDemand { peers: 0, ..others };
            available(limit / count, own, NonZeroU32::MIN)
        }
    };
    // A client that does not report its demand has a part like the others.
    let fair = u64::from(available) / claims.len().max(1) as u64;
    let demands: Vec<_> = claims.iter().map(|it| it.demand.unwrap_or(fair)).collect();
    let shares = divide(available, &demands);
    let shares = claims.iter().zip(shares).zip(&demands);
    shares
        .map(|((claim, requests), demand)| ClientShare {
            stream: claim.stream,
            requests,
            demand: *demand,
        })
        .collect()
}

fn encoded_cluster(backend: &Backend) -> EncodedResource {
    let limit = max_requests(backend);
    let encoded = |mut cluster: ClusterResource| {
        if limit.is_some() {
            cluster.circuit_breakers = None;
        }
        Bytes::from(cluster.encode_to_vec())
    };
    EncodedResource {
        envoy: Some(envoy::cluster(backend).encode_to_vec().into()),
        encrypted: encrypted_cluster(backend).map(encoded),
        limit,
        ..encoded(cluster(backend)).into()
    }
}

fn encoded_unresolved() -> EncodedResource {
    EncodedResource {
        envoy: Some(envoy::unresolved_cluster().encode_to_vec().into()),
        ..Bytes::from(unresolved_cluster().encode_to_vec()).into()
    }
}

/// Returns the endpoints of a backend, encoded for each zone that its own clients prefer.
fn assignment(backend: &Backend, health: &EndpointHealth) -> EncodedResource {
    let encoded = |zone: &str| Bytes::from(load_assignment(backend, health, zone).encode_to_vec());
    let zones = backend.endpoints.iter().filter_map(|it| it.zone.clone());
    let zones: BTreeSet<Arc<str>> = match backend.settings.prefers_same_zone {
        true => zones.collect(),
        false => BTreeSet::new(),
    };
    let by_zone = zones.into_iter().map(|zone| (zone.clone(), encoded(&zone))).collect();
    EncodedResource { by_zone, ..encoded("").into() }
}

#[cfg(test)]
impl ResourcePublisher {
    /// Returns the resources as clients get them now.
    pub(crate) fn current_table(&self) -> Arc<ResourceTable> {
        self.table.borrow().clone()
    }

    /// Returns the backend with this name.
    pub(crate) fn key_of(&self, name: &str) -> BackendKey {
        let state = self.state();
        let found = state.backends.keys().find(|key| key.to_string() == name);
        found.expect("a backend of this name").clone()
    }
}

#[cfg(test)]
mod tests;
