//! Reflectors: one task per kind watches the API server and fills the store. A task resumes by itself after any
//! failure. Meanwhile the last known objects stay valid.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::time::Duration;

use futures_util::StreamExt;
use gateway::managed_services::PublishedAddress;
use gateway::{ApiObject, ObjectProblem};
use kube_client::{Api, Client};
use kube_core::DynamicObject;
use kube_runtime::WatchStreamExt;
use kube_runtime::watcher::{self, Config, InitialListStrategy, watcher};
use tokio::sync::watch::{self as channel, Receiver, Sender};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::backoff::WriteBackoff;
use crate::kind::{KINDS, WatchedKind};
use crate::publish::{self, DesiredStatuses, StatusAddresses};
use crate::store::{PendingChanges, Store, WatchIndex, WatchScope};
use crate::{ClusterClient, ReplicaIdentity, leader_election};

/// Time within which successive changes are coalesced into one.
const COALESCE: Duration = Duration::from_millis(5);
/// Longest time that a change waits to be coalesced.
const MAX_COALESCE: Duration = Duration::from_millis(50);

/// Time limit to release the Lease, so that another replica may write.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(1);

/// Content of a cluster.
#[derive(Debug, Default)]
pub struct ClusterContents {
    /// Every object without an error.
    pub objects: Vec<ApiObject>,
    /// The errors of all other objects.
    pub problems: Vec<ObjectProblem>,
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
    writers: Option<WriterTasks>,
}

/// Tasks of the leader election and of the status writes.
struct WriterTasks {
    publisher: JoinHandle<()>,
    elector: JoinHandle<()>,
}

impl ClusterObjects {
    /// Starts to watch these namespaces, or all if there are none. Needs a running tokio runtime.
    ///
    /// The own namespace is watched too, for the Services and endpoints of the replicas.
    #[must_use]
    pub fn new(cluster: &ClusterClient, identity: ReplicaIdentity, namespaces: &[String]) -> Self {
        let writer = identity.writer();
        let scopes: Vec<_> =
            KINDS.iter().map(|kind| scopes(kind, &identity.namespace, namespaces)).collect();
        let store = Arc::new(Mutex::new(Store::new(&scopes, &writer)));
        let (notify, store_changes) = channel::channel(());
        let (statuses, published) = channel::channel(None);
        let reflector = Reflector {
            client: cluster.client.clone(),
            store: Arc::clone(&store),
            notify,
            list_fallback_logged: Arc::new(Once::new()),
        };
        let watches = scopes.into_iter().enumerate().flat_map(|(kind, scopes)| {
            let scopes = scopes.into_iter().enumerate();
            scopes.map(move |(scope, namespace)| (WatchIndex { kind, scope }, namespace))
        });
        let reflectors = watches
            .map(|(index, namespace)| tokio::spawn(reflector.clone().run(index, namespace)))
            .collect();
        let controller = Arc::clone(&identity.controller);
        let (leads, elector) = leader_election::start_election(cluster, identity, writer.clone());
        let publisher = publish::StatusPublisher {
            client: cluster.client.clone(),
            store: Arc::clone(&store),
            statuses: published,
            store_changes: store_changes.clone(),
            leadership: leads,
            backoff: WriteBackoff::default(),
            written: publish::WrittenStatuses::default(),
            writer: publish::WriterIdentity { controller, field_manager: writer },
        };
        let publisher = tokio::spawn(publisher.run());
        let writers = Some(WriterTasks { publisher, elector });
        Self { store, store_changes, statuses, reflectors, writers }
    }

    /// Waits until the content of the cluster changes, and not before the initial lists of all kinds are complete.
    /// Cancel-safe: nothing is lost.
    pub async fn changed(&mut self) {
        while !self.has_changes() {
            self.wait_for_update().await;
        }
        // Endpoint changes take the fast path without a delay.
        if !self.pending().objects {
            return;
        }
        let settle = async { while timeout(COALESCE, self.wait_for_update()).await.is_ok() {} };
        // The changes have settled, or the longest delay has passed.
        drop(timeout(MAX_COALESCE, settle).await);
    }

    /// Returns the content of the cluster now.
    pub fn load(&mut self) -> ClusterContents {
        let mut known = lock(&self.store);
        known.changes.objects = false;
        known.changes.endpoints = false;
        let (objects, problems) = known.contents();
        ClusterContents { objects, problems }
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

    /// Returns the addresses at which clients reach a Service.
    #[must_use]
    pub fn service_addresses(&self, namespace: &str, name: &str) -> Vec<PublishedAddress> {
        publish::service_addresses(&lock(&self.store), namespace, name)
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
        let Some(WriterTasks { publisher, elector }) = self.writers.take() else {
            return;
        };
        publisher.abort();
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
        let publisher = self.writers.iter().map(|writers| &writers.publisher);
        self.reflectors.iter().chain(publisher).for_each(JoinHandle::abort);
    }
}

/// Returns the watches of a kind: one per namespace, or one of the whole cluster. The replicas and their Services are in
/// the own namespace.
fn scopes(kind: &WatchedKind, own: &str, namespaces: &[String]) -> Vec<WatchScope> {
    if namespaces.is_empty() || !kind.is_namespaced {
        return vec![None];
    }
    let of_replicas = ["Service", "EndpointSlice"].contains(&kind.name).then(|| own.to_owned());
    let namespaces: BTreeSet<_> = namespaces.iter().cloned().chain(of_replicas).collect();
    namespaces.into_iter().map(Some).collect()
}

/// Watches the kinds and applies their events to the store.
#[derive(Clone)]
struct Reflector {
    client: Client,
    store: SharedStore,
    notify: Sender<()>,
    /// Ensures that the fallback to list requests is logged once.
    list_fallback_logged: Arc<Once>,
}

/// The API server does not support streaming lists.
struct CannotStream;

impl Reflector {
    /// Applies all events of a kind to the store, forever.
    async fn run(self, index: WatchIndex, namespace: WatchScope) {
        let kind = &KINDS[index.kind];
        let fields = kind.field_selector.map(str::to_owned);
        let config = Config { field_selector: fields, ..Config::default() };
        let (client, resource) = (self.client.clone(), kind.resource());
        let api = match namespace {
            Some(namespace) => Api::namespaced_with(client, &namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let streaming = config.clone().streaming_lists();
        if let Err(CannotStream) = self.watch_kind(index, api.clone(), streaming).await {
            self.list_fallback_logged.call_once(|| {
                tracing::info!(
                    "the API server does not support streaming lists: using list requests"
                );
            });
            // A watch without streaming lists never returns.
            self.watch_kind(index, api, config).await.ok();
        }
    }

    async fn watch_kind(
        &self,
        index: WatchIndex,
        api: Api<DynamicObject>,
        config: Config,
    ) -> Result<(), CannotStream> {
        let kind = &KINDS[index.kind];
        let streams = config.initial_list_strategy == InitialListStrategy::StreamingList;
        let mut events = pin!(watcher(api, config).default_backoff());
        let mut is_failing = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    if std::mem::take(&mut is_failing) {
                        tracing::info!(kind = kind.name, "watching again");
                    }
                    lock(&self.store).apply_event(index, event);
                }
                Err(error) if status_code(&error) == Some(404) => {
                    lock(&self.store).mark_kind_absent(index)
                }
                // Kubernetes up to 1.33, except 1.32, has streaming lists disabled by default.
                Err(error) if streams && matches!(status_code(&error), Some(400 | 422)) => {
                    return Err(CannotStream);
                }
                Err(error) => {
                    // Log once per outage: the watch is retried repeatedly.
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(kind = kind.name, %error, "cannot watch; the last known objects stay valid");
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
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) =
        error
    else {
        return None;
    };
    match error {
        kube_client::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
