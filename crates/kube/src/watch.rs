//! Reflectors: one task per kind watches the API server and fills the store. A task resumes by itself after any
//! failure. Meanwhile the last known objects stay valid.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::time::Duration;

use futures_util::StreamExt;
use gateway::managed_services::PublishedAddress;
use gateway::{ApiObject, CertificateObject, ControllerNames, ObjectProblem};
use kube_client::{Api, Client};
use kube_core::{DynamicObject, Status};
use kube_runtime::WatchStreamExt;
use kube_runtime::utils::Backoff;
use kube_runtime::watcher::{self, Config, InitialListStrategy, watcher};
use tokio::sync::watch::{self as channel, Receiver, Sender};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::backoff::{WriteBackoff, absence_backoff, watch_backoff};
use crate::deletion_cost::DeletionCostWriter;
use crate::events::{EventRecorder, EventWriter, ReporterIdentity};
use crate::kind::{
    ADDRESS_POOL, BGP_PEER, GATEWAY_API_EXPERIMENTAL, KINDS, NETWORK_POLICY, NODE, WatchedKind,
};
use crate::publish::{self, DesiredStatuses, StatusAddresses};
use crate::store::{PendingChanges, Store, WatchKey, WatchScope};
use crate::{ClusterClient, ReplicaIdentity, leader_election};
use referenced::ReferencedObjects;

/// Watches of the Secrets and ConfigMaps that objects refer to.
mod referenced;

/// Shortest and longest pause between the end of a translation and the next: changes in it are coalesced into one.
const PAUSE: RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_millis(50);

/// Time limit to release the Lease, so that another replica may write.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(1);

/// Content of a cluster.
#[derive(Debug, Default)]
pub struct ClusterContents {
    /// Every object without an error.
    pub objects: Vec<ApiObject>,
    /// The errors of all other objects.
    pub problems: Vec<ObjectProblem>,
    /// Secrets and ConfigMaps that objects refer to and that cannot be read, each with the reason.
    pub unreadable: BTreeMap<CertificateObject, String>,
}

/// The objects of a cluster to watch.
#[derive(Clone, Debug, Default)]
pub struct WatchSelection {
    /// Namespaces of the objects; if it is empty, all.
    pub namespaces: Vec<String>,
    /// True if all Secrets and ConfigMaps of the namespaces are watched, not only those that objects refer to.
    pub all_certificates: bool,
    /// True if NetworkPolicies are watched, for transparent mode.
    pub network_policies: bool,
    /// True if AddressPools and BgpPeers are watched, for Services of type LoadBalancer.
    pub address_pools: bool,
}

/// The store, shared by the reflectors and the publisher.
pub(crate) type SharedStore = Arc<Mutex<Store>>;

pub(crate) fn lock(known: &SharedStore) -> MutexGuard<'_, Store> {
    known.lock().expect("no holder of the lock panics")
}

/// The objects of a cluster, watched; their statuses are written by the leader.
pub struct ClusterObjects {
    store: SharedStore,
    store_changes: Receiver<()>,
    statuses: Sender<Option<DesiredStatuses>>,
    reflectors: Vec<JoinHandle<()>>,
    /// `None` if all Secrets and ConfigMaps are watched.
    referenced: Option<ReferencedObjects>,
    writers: Option<WriterTasks>,
    events: EventRecorder,
    pause: TranslationPause,
}

/// The pause after a translation. The first change after it is handled at once. During a series of changes at most half
/// the time goes into translations, however many objects there are.
#[derive(Debug, Default)]
struct TranslationPause {
    /// Time at which the objects were loaded, until their translation has ended.
    loaded_at: Option<Instant>,
    ends_at: Option<Instant>,
}

impl TranslationPause {
    fn record_load(&mut self, now: Instant) {
        self.loaded_at = Some(now);
    }

    /// Waits for the end of the pause. Cancel-safe.
    async fn wait(&self) {
        if let Some(ends_at) = self.ends_at {
            sleep_until(ends_at).await;
        }
    }

    /// Begins the pause, if a translation has ended.
    fn begin(&mut self, now: Instant) {
        if let Some(loaded_at) = self.loaded_at.take() {
            let duration = now.saturating_duration_since(loaded_at);
            self.ends_at = Some(now + duration.clamp(*PAUSE.start(), *PAUSE.end()));
        }
    }
}

/// Tasks of the leader election and of what is written.
struct WriterTasks {
    writers: Vec<JoinHandle<()>>,
    /// Time until which this replica is the leader. The election ends when the last receiver is dropped.
    leadership: Receiver<Option<Instant>>,
    identity: publish::WriterIdentity,
    client: Client,
    elector: JoinHandle<()>,
}

impl ClusterObjects {
    /// Starts to watch. Needs a running tokio runtime.
    ///
    /// The own namespace is watched too, for the Services and endpoints of the replicas.
    #[must_use]
    pub fn new(
        cluster: &ClusterClient,
        identity: ReplicaIdentity,
        selection: WatchSelection,
    ) -> Self {
        let writer = identity.writer();
        let watches = watches(&selection, &identity.namespace);
        let store = Arc::new(Mutex::new(Store::new(&watches, &writer)));
        let (notify, store_changes) = channel::channel(());
        let (statuses, published) = channel::channel(None);
        let reflector = Reflector::new(cluster, Arc::clone(&store), notify);
        let reflectors =
            watches.into_iter().map(|watch| tokio::spawn(reflector.clone().run(watch))).collect();
        let controller = Arc::clone(&identity.controller);
        let referenced = (!selection.all_certificates)
            .then(|| ReferencedObjects::new(reflector, selection.namespaces));
        let instance = identity.name.clone();
        let (leads, elector) = leader_election::start_election(cluster, identity, writer.clone());
        let events = EventRecorder::default();
        let reporter = ReporterIdentity { controller: controller.to_string(), instance };
        let (client, recorder) = (cluster.client.clone(), events.clone());
        let event_writer = EventWriter::new(client, recorder, reporter, leads.clone());
        let event_writer = tokio::spawn(event_writer.run());
        let identity = publish::WriterIdentity { controller, field_manager: writer };
        let leadership = leads.clone();
        let publisher = publish::StatusPublisher {
            client: cluster.client.clone(),
            store: Arc::clone(&store),
            statuses: published,
            store_changes: store_changes.clone(),
            leadership: leads,
            backoff: WriteBackoff::default(),
            written: publish::WrittenStatuses::default(),
            writer: identity.clone(),
        };
        let writers = vec![tokio::spawn(publisher.run()), event_writer];
        let client = cluster.client.clone();
        let writers = Some(WriterTasks { writers, leadership, identity, client, elector });
        Self {
            store,
            store_changes,
            statuses,
            reflectors,
            referenced,
            writers,
            events,
            pause: TranslationPause::default(),
        }
    }

    /// Waits until the content of the cluster changes, and not before the initial lists of all kinds are complete. To be
    /// called when what was loaded before has been translated. Cancel-safe: nothing is lost.
    pub async fn changed(&mut self) {
        self.pause.begin(Instant::now());
        while !self.has_changes() {
            self.wait_for_update().await;
        }
        // Endpoint changes take the fast path without a pause.
        if self.pending().objects {
            self.pause.wait().await;
        }
    }

    /// Returns the content of the cluster now, with the Secrets and ConfigMaps that it refers to, or `others`, which are
    /// objects of other sources. If the API server does not answer for a new one within a short time, it is unreadable.
    pub async fn load(
        &mut self,
        others: &[ApiObject],
        controllers: &ControllerNames,
    ) -> ClusterContents {
        let has_changes = self.pending().objects;
        if let Some(referenced) = &mut self.referenced {
            if has_changes || referenced.has_new_others(others) {
                let (objects, _) = lock(&self.store).contents();
                referenced.follow(objects, others, controllers);
            }
            referenced.wait_for_answers(self.store_changes.clone()).await;
        }
        let unreadable = self.referenced.as_ref().map(ReferencedObjects::unreadable);
        let unreadable = unreadable.unwrap_or_default();
        let mut known = lock(&self.store);
        known.changes.objects = false;
        known.changes.endpoints = false;
        let (objects, problems) = known.contents();
        self.pause.record_load(Instant::now());
        ClusterContents { objects, problems, unreadable }
    }

    /// Returns the addresses in the statuses of Gateways.
    #[must_use]
    pub fn addresses(&self) -> StatusAddresses {
        publish::status_addresses(&lock(&self.store), "Gateway")
    }

    /// Returns the addresses in the statuses of Ingresses.
    #[must_use]
    pub fn ingress_addresses(&self) -> StatusAddresses {
        publish::status_addresses(&lock(&self.store), "Ingress")
    }

    /// Returns the addresses in the statuses of Services.
    #[must_use]
    pub fn load_balancer_addresses(&self) -> StatusAddresses {
        publish::status_addresses(&lock(&self.store), "Service")
    }

    /// Returns the addresses at which clients reach a Service.
    #[must_use]
    pub fn service_addresses(&self, namespace: &str, name: &str) -> Vec<PublishedAddress> {
        publish::service_addresses(&lock(&self.store), namespace, name)
    }

    /// Returns the recorder of events of objects.
    #[must_use]
    pub fn events(&self) -> EventRecorder {
        self.events.clone()
    }

    /// Starts a task that writes deletion costs of pods. It ends when this replica gives up leadership for good.
    pub fn write_deletion_costs<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        task: impl FnOnce(DeletionCostWriter) -> F,
    ) {
        let Some(WriterTasks { writers, leadership, identity, client, .. }) = &mut self.writers
        else {
            return;
        };
        let writer = DeletionCostWriter {
            client: client.clone(),
            store: Arc::clone(&self.store),
            leadership: leadership.clone(),
            field_manager: identity.field_manager.clone(),
        };
        writers.push(tokio::spawn(task(writer)));
    }

    /// Hands over the statuses to write; statuses that are the same as the last ones have no
    /// effect.
    pub fn publish(&self, statuses: DesiredStatuses) {
        self.statuses.send_if_modified(|current| {
            let is_new = !current.as_ref().is_some_and(|it| it.is_same(&statuses));
            if is_new {
                *current = Some(statuses);
            }
            is_new
        });
    }

    /// Gives up leadership: nothing is written from now on, and the Lease is released. Waits for the API server, but
    /// only for a short time.
    pub async fn resign(&mut self) {
        let Some(WriterTasks { writers, leadership, elector, .. }) = self.writers.take() else {
            return;
        };
        writers.iter().for_each(JoinHandle::abort);
        drop(leadership);
        // If this takes too long, the Lease expires.
        drop(timeout(RESIGN_TIMEOUT, elector).await);
    }

    fn has_changes(&self) -> bool {
        let known = lock(&self.store);
        known.has_synced() && known.changes.needs_translation()
    }

    fn pending(&self) -> PendingChanges {
        lock(&self.store).changes
    }

    async fn wait_for_update(&mut self) {
        // The tasks with the senders live as long as this object.
        if self.store_changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for ClusterObjects {
    fn drop(&mut self) {
        let writers = self.writers.iter().flat_map(|it| &it.writers);
        self.reflectors.iter().chain(writers).for_each(JoinHandle::abort);
    }
}

/// Returns the watches of all kinds, except those of single objects.
fn watches(selection: &WatchSelection, own: &str) -> Vec<WatchKey> {
    let of_kind = |(kind, it): (usize, &WatchedKind)| {
        let scopes = scopes(it, own, selection).into_iter();
        scopes.map(move |scope| WatchKey { kind, scope }).collect::<Vec<_>>()
    };
    KINDS.iter().enumerate().flat_map(of_kind).collect()
}

/// Returns the watches of a kind: one per namespace, or one of the whole cluster. The replicas and their Services are in
/// the own namespace.
fn scopes(kind: &WatchedKind, own: &str, selection: &WatchSelection) -> Vec<WatchScope> {
    let namespaces = &selection.namespaces;
    let is_needed = match kind.name {
        NETWORK_POLICY => selection.network_policies,
        ADDRESS_POOL | BGP_PEER => selection.address_pools,
        NODE => false,
        _ => !kind.holds_certificates || selection.all_certificates,
    };
    if !is_needed {
        return Vec::new();
    }
    if namespaces.is_empty() || !kind.is_namespaced {
        return vec![WatchScope::Cluster];
    }
    let of_replicas = ["Service", "EndpointSlice"].contains(&kind.name).then(|| own.to_owned());
    let namespaces: BTreeSet<_> = namespaces.iter().cloned().chain(of_replicas).collect();
    namespaces.into_iter().map(WatchScope::Namespace).collect()
}

/// Watches the kinds and applies their events to the store.
#[derive(Clone)]
pub(crate) struct Reflector {
    client: Client,
    store: SharedStore,
    notify: Sender<()>,
    /// Ensures that the fallback to list requests is logged once.
    list_fallback_logged: Arc<Once>,
}

/// The API server does not support streaming lists.
struct CannotStream;

impl Reflector {
    /// Returns a reflector that fills a store and notifies of its changes.
    pub(crate) fn new(cluster: &ClusterClient, store: SharedStore, notify: Sender<()>) -> Self {
        let client = cluster.client.clone();
        Self { client, store, notify, list_fallback_logged: Arc::new(Once::new()) }
    }

    /// Applies all events of a watch to the store, forever.
    pub(crate) async fn run(self, watch: WatchKey) {
        let kind = &KINDS[watch.kind];
        let mut fields = kind.field_selector.map(str::to_owned);
        let (client, resource) = (self.client.clone(), kind.resource());
        let api = match &watch.scope {
            WatchScope::Cluster => Api::all_with(client, &resource),
            WatchScope::Namespace(namespace) => Api::namespaced_with(client, namespace, &resource),
            WatchScope::Object((namespace, name)) => {
                // A Role with this name in `resourceNames` permits it.
                fields = Some(format!("metadata.name={name}"));
                Api::namespaced_with(client, namespace, &resource)
            }
        };
        let config = Config { field_selector: fields, ..Config::default() };
        let streaming = config.clone().streaming_lists();
        if let Err(CannotStream) = self.watch_kind(&watch, api.clone(), streaming).await {
            self.list_fallback_logged.call_once(|| {
                tracing::info!(
                    "the API server does not support streaming lists: using list requests"
                );
            });
            // A watch without streaming lists never returns.
            self.watch_kind(&watch, api, config).await.ok();
        }
    }

    async fn watch_kind(
        &self,
        watch: &WatchKey,
        api: Api<DynamicObject>,
        config: Config,
    ) -> Result<(), CannotStream> {
        let kind = &KINDS[watch.kind];
        let streams = config.initial_list_strategy == InitialListStrategy::StreamingList;
        let mut events = pin!(watcher(api, config).backoff(watch_backoff()));
        let mut is_failing = false;
        let mut absence = absence_backoff();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    absence.reset();
                    if std::mem::take(&mut is_failing) {
                        tracing::info!(
                            kind = kind.name,
                            object = watch.scope.object(),
                            "watching again"
                        );
                    }
                    lock(&self.store).apply_event(watch, event);
                }
                Err(error) if status_code(&error) == Some(404) => {
                    lock(&self.store).mark_kind_absent(watch);
                    self.notify.send_replace(());
                    sleep(absence.next().unwrap_or_default()).await;
                    continue;
                }
                // Kubernetes up to 1.33, except 1.32, has streaming lists disabled by default.
                Err(error) if streams && matches!(status_code(&error), Some(400 | 422)) => {
                    return Err(CannotStream);
                }
                Err(error) => {
                    if let (WatchScope::Object(_), Some(reason)) = (&watch.scope, refusal(&error)) {
                        lock(&self.store).mark_rejected(watch, reason);
                    } else if kind.group == GATEWAY_API_EXPERIMENTAL && refusal(&error).is_some() {
                        // A role of an earlier version does not permit it; the rest is served.
                        lock(&self.store).mark_kind_absent(watch);
                    }
                    // Log once per outage: the watch is retried repeatedly.
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(kind = kind.name, object = watch.scope.object(), %error, "cannot watch; the last known objects stay valid");
                    }
                }
            }
            self.notify.send_replace(());
        }
        Ok(())
    }
}

/// Returns the HTTP status with which the API server rejected the list or the watch.
fn status_code(error: &watcher::Error) -> Option<u16> {
    Some(status(error)?.code)
}

/// Returns the reason if the API server forbids the list or the watch.
fn refusal(error: &watcher::Error) -> Option<String> {
    let status = status(error).filter(|status| status.code == 403)?;
    Some(format!("the API server refuses it: {}", status.message))
}

fn status(error: &watcher::Error) -> Option<&Status> {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) =
        error
    else {
        return None;
    };
    match error {
        kube_client::Error::Api(status) => Some(status),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
