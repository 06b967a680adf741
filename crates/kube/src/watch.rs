//! From the API server's watches to what is known: one task for each kind, which comes back by itself after whatever
//! ends it. While it is away, what was known holds.

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
use crate::kind::KINDS;
use crate::publish::{self, DesiredStatuses, StatusAddresses};
use crate::store::{PendingChanges, Store};
use crate::{ClusterClient, ReplicaIdentity, WRITER, leader_election};

/// Changes that follow one another within this are taken together.
const COALESCE: Duration = Duration::from_millis(5);
/// However they follow one another, none waits longer than this.
const MAX_COALESCE: Duration = Duration::from_millis(50);

/// How long the API server may take until another replica may write.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(1);

/// What a cluster asks for.
#[derive(Debug, Default)]
pub struct ClusterContents {
    /// Every object without an error.
    pub objects: Vec<ApiObject>,
    /// All that is wrong with the others.
    pub problems: Vec<ObjectProblem>,
}

/// What is known, shared by those who watch and those who write.
pub(crate) type SharedStore = Arc<Mutex<Store>>;

pub(crate) fn lock(known: &SharedStore) -> MutexGuard<'_, Store> {
    known.lock().expect("nobody panics while holding it")
}

/// The objects of a cluster, watched; and their statuses, written by the replica that leads.
pub struct ClusterObjects {
    store: SharedStore,
    store_changes: Receiver<()>,
    statuses: Sender<Option<DesiredStatuses>>,
    reflectors: Vec<JoinHandle<()>>,
    writers: Option<WriterTasks>,
}

/// Who makes of us the replica that writes.
struct WriterTasks {
    publisher: JoinHandle<()>,
    elector: JoinHandle<()>,
}

impl ClusterObjects {
    /// Begins to watch. Needs a running tokio runtime.
    #[must_use]
    pub fn new(cluster: &ClusterClient, identity: ReplicaIdentity) -> Self {
        let store = Arc::new(Mutex::new(Store::new()));
        let (tell, store_changes) = channel::channel(());
        let (statuses, published) = channel::channel(None);
        let follower = Reflector {
            client: cluster.client.clone(),
            store: Arc::clone(&store),
            notify: tell,
            list_fallback_logged: Arc::new(Once::new()),
        };
        let follow = |place| tokio::spawn(follower.clone().run(place));
        let reflectors = (0..KINDS.len()).map(follow).collect();
        let (leads, contender) = leader_election::start_election(cluster, identity, WRITER);
        let publisher = publish::StatusPublisher {
            client: cluster.client.clone(),
            store: Arc::clone(&store),
            statuses: published,
            store_changes: store_changes.clone(),
            leadership: leads,
            backoff: WriteBackoff::default(),
            written: publish::WrittenStatuses::default(),
        };
        let publisher = tokio::spawn(publisher.run());
        let writers = Some(WriterTasks { publisher, elector: contender });
        Self { store, store_changes, statuses, reflectors, writers }
    }

    /// Waits until the cluster asks for something else, and not before it has told all that it holds. May be dropped and
    /// called again: nothing is lost.
    pub async fn changed(&mut self) {
        while !self.has_changes() {
            self.wait_for_update().await;
        }
        // Endpoints take the short way, and at once.
        if !self.pending().objects {
            return;
        }
        let settle = async { while timeout(COALESCE, self.wait_for_update()).await.is_ok() {} };
        // Either they have settled, or this has lasted long enough.
        drop(timeout(MAX_COALESCE, settle).await);
    }

    /// What the cluster asks for now.
    pub fn load(&mut self) -> ClusterContents {
        let mut known = lock(&self.store);
        known.changes.objects = false;
        known.changes.endpoints = false;
        let (objects, problems) = known.contents();
        ClusterContents { objects, problems }
    }

    /// The addresses that Gateways have by their statuses.
    #[must_use]
    pub fn addresses(&self) -> StatusAddresses {
        publish::status_addresses(&lock(&self.store), "Gateway")
    }

    /// The addresses that Ingresses have by their statuses.
    #[must_use]
    pub fn ingress_addresses(&self) -> StatusAddresses {
        publish::status_addresses(&lock(&self.store), "Ingress")
    }

    /// Where clients find a Service.
    #[must_use]
    pub fn service_addresses(&self, namespace: &str, name: &str) -> Vec<PublishedAddress> {
        publish::service_addresses(&lock(&self.store), namespace, name)
    }

    /// Lets the statuses be written. Those that were given before change nothing.
    pub fn publish(&self, statuses: DesiredStatuses) {
        self.statuses.send_if_modified(|said| {
            let is_new = !said.as_ref().is_some_and(|said| said.is_same(&statuses));
            if is_new {
                *said = Some(statuses);
            }
            is_new
        });
    }

    /// Leaves the statuses to another replica: nothing is written from now on, and the Lease is given back. The API server
    /// is waited for, but not for long.
    pub async fn resign(&mut self) {
        let Some(WriterTasks { publisher, elector: contender }) = self.writers.take() else {
            return;
        };
        publisher.abort();
        // If this takes too long, the Lease runs out.
        drop(timeout(RESIGN_TIMEOUT, contender).await);
    }

    fn has_changes(&self) -> bool {
        let known = lock(&self.store);
        known.has_synced() && known.changes.needs_translation()
    }

    fn pending(&self) -> PendingChanges {
        lock(&self.store).changes
    }

    async fn wait_for_update(&mut self) {
        // The tasks that hold its other end live as long as this does.
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

/// Hears what the API server says of each kind.
#[derive(Clone)]
struct Reflector {
    client: Client,
    store: SharedStore,
    notify: Sender<()>,
    /// It has been said that the API server is asked for lists.
    list_fallback_logged: Arc<Once>,
}

/// The API server cannot tell what there is in a watch.
struct CannotStream;

impl Reflector {
    /// Takes all that the API server says of a kind, for ever.
    async fn run(self, place: usize) {
        let fields = KINDS[place].field_selector.map(str::to_owned);
        let config = Config { field_selector: fields, ..Config::default() };
        if let Err(CannotStream) = self.watch_kind(place, config.clone().streaming_lists()).await {
            self.list_fallback_logged.call_once(|| {
                tracing::info!("the API server cannot stream lists: it is asked for them");
            });
            // A watcher ends only with what drives it.
            self.watch_kind(place, config).await.ok();
        }
    }

    async fn watch_kind(&self, place: usize, config: Config) -> Result<(), CannotStream> {
        let kind = &KINDS[place];
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind.resource());
        let streams = config.initial_list_strategy == InitialListStrategy::StreamingList;
        let mut events = pin!(watcher(api, config).default_backoff());
        let mut is_failing = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    if std::mem::take(&mut is_failing) {
                        tracing::info!(kind = kind.name, "watching again");
                    }
                    lock(&self.store).apply_event(place, event);
                }
                Err(error) if status_code(&error) == Some(404) => {
                    lock(&self.store).mark_kind_absent(place)
                }
                // Kubernetes up to 1.33, but for 1.32, streams none unless it is configured to.
                Err(error) if streams && matches!(status_code(&error), Some(400 | 422)) => {
                    return Err(CannotStream);
                }
                Err(error) => {
                    // Once for each outage: it is tried again and again.
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(kind = kind.name, %error, "cannot watch; what is known holds");
                    }
                }
            }
            self.notify.send_replace(());
        }
        Ok(())
    }
}

/// With which status the API server has refused to tell of a kind at all.
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
