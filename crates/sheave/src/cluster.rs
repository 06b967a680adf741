//! A Kubernetes cluster as a source of objects, and as the place where their statuses are written.
//!
//! It knows the flags and the API server; the configuration decides how objects take effect.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use gateway::address_pool;
use gateway::ingress::{self, ServedIngress};
use gateway::load_balancer::{
    self, AddressAnnouncement, LoadBalancerSettings, PoolFindings, ReservedAddresses,
};
use gateway::managed_services::{self, DesiredService, ManagedServices, TargetPortMap};
use gateway::objects::{
    EndpointConditions, EndpointSliceSpec, GatewayName, SERVICE_NAME_LABEL, TypedObject,
};
use gateway::status::SlotSharing;
use gateway::{AddressAssignment, ApiObject, TranslationSettings};
use ipnet::IpNet;
use kube::{
    ClusterClient, ClusterObjects, DesiredServices, DesiredStatuses, EventRecorder,
    IngressAddresses, NodeWatch, OwnSecret, ReplicaIdentity, StatusAddresses, WatchSelection,
};
use proxy::{Proxy, Time, clock};
use serde_json::Value;

use crate::configuration::ErrorPolicy;
use crate::deletion_costs;
use crate::failure::Failure;
use crate::files::SourceContents;
use crate::flags::{MetricsApiFlags, ServeFlags, ServiceTemplate};
use crate::load_balancer_events;
use crate::metrics_api::MetricsApiCluster;
use crate::process;
use crate::report::{ProcessReport, TranslatedServices};
use crate::terminating_peers::TerminatingPeers;
use crate::timer;
use crate::transparent;

/// Time that a shutdown takes beyond the flags: until the pod receives the signal, and for the last writes.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(10);

/// The objects of a cluster, watched.
pub(crate) struct ClusterSource {
    client: ClusterClient,
    objects: ClusterObjects,
    mode: AddressMode,
    /// Settings of the flags; addresses are added with each load.
    settings: TranslationSettings,
    /// Our own namespace.
    namespace: String,
    /// Addresses assigned to Gateways last; the status that shows them may not have arrived yet.
    assigned_addresses: StatusAddresses,
    /// Addresses assigned to Services last.
    service_addresses: StatusAddresses,
    /// Announcement of these, as far as it is known: a pool may have become unreadable since.
    announcements: BTreeMap<IpAddr, AddressAnnouncement>,
    /// Findings of AddressPools at the last assignment.
    pool_findings: PoolFindings,
    /// Target ports assigned to the ports of Gateways last; the Service that shows them may not have arrived yet.
    target_ports: BTreeMap<GatewayName, TargetPortMap>,
    /// Addresses at which Ingresses are served.
    ingresses: IngressAddresses,
    /// The headless Service of all replicas, and the replicas that serve.
    peers: Option<PeerReplicas>,
    /// The node of this process, in transparent mode.
    node: Option<NodeWatch>,
    /// True once the objects have been loaded: then their initial lists are complete.
    has_loaded: bool,
}

/// Source of the addresses of Gateways.
enum AddressMode {
    /// All Gateways share the addresses of the machine; if a Service is named, they are behind it.
    Shared(Option<String>),
    /// Each Gateway has an address of its own from the pool.
    Pool(Vec<IpNet>),
    /// Each Gateway is behind a Service of its own, made from a template.
    PerGatewayServices(Value),
}

/// The replicas that share fixed limits.
struct PeerReplicas {
    namespace: String,
    service: String,
    serving: Vec<SocketAddr>,
    terminating: TerminatingPeers,
    /// Nodes of the replicas that are ready.
    nodes: Arc<BTreeSet<Arc<str>>>,
    /// True if they lease slots to one another.
    lease_slots: bool,
}

/// Connects to the API server that the environment names.
pub(crate) async fn connect() -> Result<ClusterClient, Failure> {
    ClusterClient::connect().await.map_err(|error| {
        let error = anyhow::Error::from(error);
        Failure::input(format_args!("{error:#}: set KUBECONFIG, or run it in a pod"))
    })
}

impl ClusterSource {
    /// Starts to watch the cluster if the flags ask for it. Needs a running tokio runtime.
    pub(crate) async fn connect(
        all_flags: &ServeFlags,
        settings: TranslationSettings,
    ) -> Result<Option<Self>, Failure> {
        let flags = &all_flags.cluster;
        if !flags.kubernetes {
            return Ok(None);
        }
        let cluster = connect().await?;
        let name = flags.identity.clone().unwrap_or_else(process::host_name);
        let namespace =
            flags.namespace.as_deref().unwrap_or_else(|| cluster.namespace()).to_owned();
        let controller = Arc::clone(&settings.controllers.gateway);
        let identity = ReplicaIdentity { name, namespace: namespace.clone(), controller };
        let peers = flags.peers.clone().map(|service| PeerReplicas {
            namespace: identity.namespace.clone(),
            service,
            serving: Vec::new(),
            // The other replicas are assumed to have the same flags as this one.
            terminating: TerminatingPeers::new(
                all_flags.drain_delay + all_flags.drain_timeout + SHUTDOWN_MARGIN,
            ),
            nodes: Arc::default(),
            lease_slots: all_flags.replica.lease_slots,
        });
        let selection = WatchSelection {
            namespaces: flags.watch_namespaces.clone(),
            all_certificates: flags.watch_all_secrets,
            network_policies: settings.transparent.is_some(),
            address_pools: settings.load_balancer.is_some(),
        };
        let objects = ClusterObjects::new(&cluster, identity, selection);
        let node = settings.transparent.as_ref().map(|it| NodeWatch::start(&cluster, &it.node));
        let mode = match &flags.service_template {
            Some(ServiceTemplate(template)) => AddressMode::PerGatewayServices(template.clone()),
            None if flags.pool.is_empty() => AddressMode::Shared(flags.published_service.clone()),
            None => AddressMode::Pool(flags.pool.clone()),
        };
        let (assigned, of_services, targets, ingresses) = Default::default();
        Ok(Some(Self {
            client: cluster,
            objects,
            mode,
            settings,
            namespace,
            assigned_addresses: assigned,
            service_addresses: of_services,
            announcements: BTreeMap::new(),
            pool_findings: PoolFindings::new(),
            target_ports: targets,
            ingresses,
            peers,
            node,
            has_loaded: false,
        }))
    }

    /// Returns the objects of the cluster now, with the Secrets and ConfigMaps to which they or the objects of other
    /// sources refer, and the address of each Gateway.
    pub(crate) async fn load(&mut self, others: &[ApiObject]) -> SourceContents {
        self.has_loaded = true;
        let controllers = &self.settings.controllers;
        let contents = self.objects.load(others, controllers).await;
        let kube::ClusterContents { objects, problems, unreadable } = contents;
        if let Some(peers) = &mut self.peers {
            peers.update(&objects, clock::now());
        }
        let served = ingress::served_ingresses(&objects, &self.settings.controllers);
        let addresses = match &self.mode {
            AddressMode::Shared(None) => AddressAssignment::Host,
            AddressMode::Shared(Some(service)) => {
                let published = self.objects.service_addresses(&self.namespace, service);
                AddressAssignment::SharedService(published)
            }
            AddressMode::Pool(pool) => {
                let known = known_addresses(
                    std::mem::take(&mut self.assigned_addresses),
                    &self.objects,
                    &served,
                );
                address_pool::assign(pool, &objects, &known, &self.settings.controllers)
            }
            AddressMode::PerGatewayServices(_) => {
                AddressAssignment::ManagedServices(self.managed_services(&objects))
            }
        };
        self.assigned_addresses = addresses.pool_assignments();
        let with_addresses = |it: ServedIngress| {
            let published = addresses.published_addresses(&it.gateway);
            (!published.is_empty()).then_some(((it.namespace, it.name), published))
        };
        self.ingresses = served.into_iter().filter_map(with_addresses).collect();
        let load_balancer = self.assign_services(&objects);
        let settings = TranslationSettings {
            unreadable_objects: unreadable,
            ..self.translation_settings(addresses, load_balancer)
        };
        SourceContents { objects, problems, settings, error_policy: ErrorPolicy::SkipInvalid }
    }

    /// Returns the settings with these addresses of Gateways. No endpoint may have one of them, or one of a replica.
    fn translation_settings(
        &self,
        addresses: AddressAssignment,
        load_balancer: Option<LoadBalancerSettings>,
    ) -> TranslationSettings {
        let mut settings =
            TranslationSettings { addresses, load_balancer, ..self.settings.clone() };
        settings.address_filter.add_gateways(settings.addresses.all());
        settings.address_filter.add_gateways(self.service_addresses.values().flatten().copied());
        let replicas = self.peers.iter().flat_map(|peers| &peers.serving);
        settings.address_filter.add_own(replicas.map(SocketAddr::ip));
        if let (Some(settings), Some(node)) = (&mut settings.transparent, &self.node) {
            settings.zone = node.description.borrow().as_ref().and_then(|it| it.zone.clone());
        }
        settings
    }

    /// Assigns addresses to Services of type LoadBalancer, if they are served. The addresses in a status take precedence
    /// over our memory, because another replica may have assigned others.
    fn assign_services(&mut self, objects: &[ApiObject]) -> Option<LoadBalancerSettings> {
        let settings = self.settings.load_balancer.clone()?;
        let gateways = match &self.mode {
            AddressMode::Pool(pool) => pool.as_slice(),
            AddressMode::Shared(_) | AddressMode::PerGatewayServices(_) => &[],
        };
        let replicas = self.peers.iter().flat_map(|peers| &peers.serving).map(SocketAddr::ip);
        let reserved = ReservedAddresses { gateways, replicas: replicas.collect() };
        let mut known = std::mem::take(&mut self.service_addresses);
        let published = self.objects.load_balancer_addresses().into_iter();
        known.extend(published.filter(|(_, addresses)| !addresses.is_empty()));
        let mut assignment = load_balancer::assign(objects, settings.is_default, &reserved, &known);
        self.service_addresses = assignment.addresses();
        for address in self.service_addresses.values().flatten() {
            if let Some(before) = self.announcements.remove(address) {
                assignment.announcements.entry(*address).or_insert(before);
            }
        }
        self.announcements.clone_from(&assignment.announcements);
        self.pool_findings.clone_from(&assignment.pools);
        Some(LoadBalancerSettings { assignment, ..settings })
    }

    /// Returns the state of the managed Services. The state in the cluster takes precedence over our memory, because
    /// another replica may be the leader.
    fn managed_services(&self, objects: &[ApiObject]) -> ManagedServices {
        let mut managed =
            ManagedServices::read(objects, &self.namespace, &self.settings.controllers.gateway);
        for (gateway, known) in &mut managed.services {
            known.addresses = self
                .objects
                .service_addresses(&self.namespace, &managed_services::service_name(gateway));
        }
        for (gateway, targets) in &self.target_ports {
            let known = managed.services.entry(gateway.clone()).or_default();
            for (port, target) in targets {
                known.target_ports.entry(*port).or_insert(*target);
            }
        }
        managed
    }

    /// Waits until there is something to load, and not before the initial lists of all kinds are complete. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        let has_ended = self.peers.as_ref().and_then(|peers| peers.terminating.next_expiry());
        tokio::select! {
            () = self.objects.changed() => {}
            () = timer::wait_until(has_ended) => {}
            () = node_change(&mut self.node), if self.has_loaded => {}
        }
    }

    /// Returns the node of this process, in transparent mode.
    pub(crate) const fn node(&self) -> Option<&NodeWatch> {
        self.node.as_ref()
    }

    /// Starts to watch a Secret of this installation.
    pub(crate) fn own_secret(&self, name: &str) -> OwnSecret {
        OwnSecret::watch(&self.client, &self.namespace, name)
    }

    /// Returns what the API of metrics needs.
    pub(crate) fn metrics_api(&self, flags: &MetricsApiFlags) -> MetricsApiCluster {
        MetricsApiCluster {
            client: self.client.clone(),
            secret: self.own_secret(&flags.metrics_api_secret),
            namespace: self.namespace.clone(),
            service: flags.metrics_api_service.clone(),
            groups: flags.metrics_api_groups.clone(),
        }
    }

    /// Starts to write deletion costs of pods.
    pub(crate) fn write_deletion_costs(&mut self, proxy: Arc<Proxy>) {
        self.objects.write_deletion_costs(|writer| deletion_costs::run(writer, proxy));
    }

    /// Returns the recorder of Events.
    pub(crate) fn events(&self) -> EventRecorder {
        self.objects.events()
    }

    /// Returns the replicas that share fixed limits; `None` without `--peers`.
    pub(crate) fn replicas(&self) -> Option<Vec<SocketAddr>> {
        self.peers.as_ref().map(|peers| peers.serving.clone())
    }

    /// Returns the nodes with a ready replica; empty without `--peers`.
    pub(crate) fn nodes(&self) -> Arc<BTreeSet<Arc<str>>> {
        self.peers.as_ref().map(|peers| Arc::clone(&peers.nodes)).unwrap_or_default()
    }

    /// Gives up leadership, so that another replica writes statuses.
    pub(crate) async fn resign(&mut self) {
        self.objects.resign().await;
    }

    /// Hands over statuses and Services to write; the leader writes them.
    pub(crate) fn publish(&mut self, report: &ProcessReport) {
        let (statuses, ingresses) = (Arc::clone(&report.statuses), self.ingresses.clone());
        let services = match &self.mode {
            AddressMode::Shared(_) | AddressMode::Pool(_) => None,
            AddressMode::PerGatewayServices(template) => {
                Some(self.services(template, &report.services))
            }
        };
        let targets = |service: &DesiredService| {
            let ports = service.ports.iter().map(|((port, _), target)| (*port, *target));
            (service.gateway.clone(), ports.collect())
        };
        self.target_ports = report.services.desired.iter().map(targets).collect();
        let sharing = self.peers.as_ref().and_then(PeerReplicas::sharing);
        let serves = self.settings.load_balancer.is_some();
        let load_balancers = serves.then(|| Arc::clone(&report.load_balancers));
        self.objects.publish(DesiredStatuses {
            statuses,
            ingresses,
            services,
            load_balancers,
            sharing,
        });
        let mut events = load_balancer_events::of_services(&report.load_balancers);
        events.extend(load_balancer_events::of_pools(&self.pool_findings));
        self.objects.events().set_standing("load-balancers", events);
        let events = transparent::service_events(&report.transparent_services);
        self.objects.events().set_standing("services", events);
    }

    fn services(&self, template: &Value, translated: &TranslatedServices) -> DesiredServices {
        let controller = &self.settings.controllers.gateway;
        let manifest = |service: &DesiredService| {
            managed_services::service_manifest(service, template, &self.namespace, controller)
        };
        let name = |(namespace, name): &GatewayName| format!("{namespace}/{name}");
        DesiredServices {
            namespace: self.namespace.clone(),
            controller: controller.to_string(),
            desired: translated.desired.iter().map(manifest).collect(),
            retained: translated.retained.iter().map(name).collect(),
            owner: self.peers.as_ref().map(|peers| peers.service.clone()),
        }
    }
}

/// Waits until more is known of the node.
async fn node_change(node: &mut Option<NodeWatch>) {
    if let Some(node) = node
        && node.description.changed().await.is_ok()
    {
        return;
    }
    pending().await
}

/// Returns the current addresses of Gateways, including those that stand for classes of Ingresses. The addresses in a
/// status take precedence over our memory, because another replica may have assigned others.
fn known_addresses(
    mut remembered: StatusAddresses,
    objects: &ClusterObjects,
    served: &[ServedIngress],
) -> StatusAddresses {
    let published = objects.ingress_addresses();
    for ingress in served {
        let name = (ingress.namespace.clone(), ingress.name.clone());
        if let Some(addresses) = published.get(&name).filter(|it| !it.is_empty()) {
            remembered.insert(ingress.gateway.clone(), addresses.clone());
        }
    }
    remembered.extend(objects.addresses().into_iter().filter(|(_, it)| !it.is_empty()));
    remembered
}

impl PeerReplicas {
    /// Updates the serving replicas from the EndpointSlices of the Service: those that are ready, and those that are
    /// terminating. A terminating replica keeps its slots until it has finished its last requests or its shutdown time
    /// has passed.
    fn update(&mut self, objects: &[ApiObject], now: Time) {
        let slices = objects.iter().filter_map(|object| self.own_slice(object));
        let endpoints: Vec<_> = slices.flat_map(|slice| &slice.spec.endpoints).collect();
        let addresses = |condition: &dyn Fn(&EndpointConditions) -> bool| -> BTreeSet<IpAddr> {
            let those = endpoints.iter().filter(|endpoint| condition(&endpoint.conditions));
            those.filter_map(|endpoint| endpoint.addresses.first()?.parse().ok()).collect()
        };
        let is_ready = |it: &EndpointConditions| it.ready.unwrap_or(true);
        let ready = endpoints.iter().filter(|endpoint| is_ready(&endpoint.conditions));
        let nodes = ready.filter_map(|endpoint| endpoint.node_name.as_deref().map(Arc::from));
        self.nodes = Arc::new(nodes.collect());
        let ends = |it: &EndpointConditions| it.terminating.unwrap_or(false);
        let mut serving = addresses(&|it| is_ready(it) && !ends(it));
        let ending = addresses(&ends);
        serving.extend(self.terminating.update(&ending, now));
        self.serving = serving.into_iter().map(|address| SocketAddr::new(address, 0)).collect();
    }

    /// Returns how the replicas share fixed limits.
    fn sharing(&self) -> Option<SlotSharing> {
        let replicas = self.serving.len().max(1).try_into().ok()?;
        Some(SlotSharing { replicas, is_leased: self.lease_slots })
    }

    /// Returns the object if it is an EndpointSlice of the peers' Service.
    fn own_slice<'o>(&self, object: &'o ApiObject) -> Option<&'o TypedObject<EndpointSliceSpec>> {
        let ApiObject::EndpointSlice(slice) = object else { return None };
        let metadata = &slice.metadata;
        let is_ours = metadata.namespace == self.namespace
            && metadata.labels.get(SERVICE_NAME_LABEL) == Some(&self.service);
        is_ours.then_some(slice)
    }
}

#[cfg(test)]
mod tests;
