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

use crate::kind::KINDS;
use crate::known::{Changes, Known};
use crate::publish::{self, Addresses, Statuses};
use crate::refusals::Refusals;
use crate::{Cluster, Identity, WRITER, lease};

/// Changes that follow one another within this are taken together.
const COALESCE: Duration = Duration::from_millis(5);
/// However they follow one another, none waits longer than this.
const COALESCE_MOST: Duration = Duration::from_millis(50);

/// How long the API server may take until another replica may write.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a cluster asks for.
#[derive(Debug, Default)]
pub struct Contents {
    /// Every object without an error.
    pub objects: Vec<ApiObject>,
    /// All that is wrong with the others.
    pub problems: Vec<ObjectProblem>,
}

/// What is known, shared by those who watch and those who write.
pub(crate) type Shared = Arc<Mutex<Known>>;

pub(crate) fn lock(known: &Shared) -> MutexGuard<'_, Known> {
    known.lock().expect("nobody panics while holding it")
}

/// The objects of a cluster, watched; and their statuses, written by the replica that leads.
pub struct Objects {
    known: Shared,
    told: Receiver<()>,
    statuses: Sender<Option<Statuses>>,
    followers: Vec<JoinHandle<()>>,
    writers: Option<Writers>,
}

/// Who makes of us the replica that writes.
struct Writers {
    publisher: JoinHandle<()>,
    contender: JoinHandle<()>,
}

impl Objects {
    /// Begins to watch. Needs a running tokio runtime.
    #[must_use]
    pub fn new(cluster: &Cluster, identity: Identity) -> Self {
        let known = Arc::new(Mutex::new(Known::new()));
        let (tell, told) = channel::channel(());
        let (statuses, published) = channel::channel(None);
        let follower = Follower {
            client: cluster.client.clone(),
            known: Arc::clone(&known),
            tell,
            lists: Arc::new(Once::new()),
        };
        let follow = |place| tokio::spawn(follower.clone().follow(place));
        let followers = (0..KINDS.len()).map(follow).collect();
        let (leads, contender) = lease::contend(cluster, identity, WRITER);
        let publisher = publish::Publisher {
            client: cluster.client.clone(),
            known: Arc::clone(&known),
            statuses: published,
            told: told.clone(),
            leads,
            refusals: Refusals::default(),
            said: publish::Said::default(),
        };
        let publisher = tokio::spawn(publisher.run());
        let writers = Some(Writers { publisher, contender });
        Self { known, told, statuses, followers, writers }
    }

    /// Waits until the cluster asks for something else, and not before it has told all that it holds. May be dropped and
    /// called again: nothing is lost.
    pub async fn changed(&mut self) {
        while !self.is_due() {
            self.next().await;
        }
        // Endpoints take the short way, and at once.
        if !self.pending().objects {
            return;
        }
        let settle = async { while timeout(COALESCE, self.next()).await.is_ok() {} };
        // Either they have settled, or this has lasted long enough.
        drop(timeout(COALESCE_MOST, settle).await);
    }

    /// What the cluster asks for now.
    pub fn load(&mut self) -> Contents {
        let mut known = lock(&self.known);
        known.changes.objects = false;
        known.changes.endpoints = false;
        let (objects, problems) = known.contents();
        Contents { objects, problems }
    }

    /// The addresses that Gateways have by their statuses.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        publish::addresses(&lock(&self.known), "Gateway")
    }

    /// The addresses that Ingresses have by their statuses.
    #[must_use]
    pub fn ingress_addresses(&self) -> Addresses {
        publish::addresses(&lock(&self.known), "Ingress")
    }

    /// Where clients find a Service.
    #[must_use]
    pub fn service_places(&self, namespace: &str, name: &str) -> Vec<PublishedAddress> {
        publish::service_places(&lock(&self.known), namespace, name)
    }

    /// Lets the statuses be written. Those that were given before change nothing.
    pub fn publish(&self, statuses: Statuses) {
        self.statuses.send_if_modified(|said| {
            let is_new = !said.as_ref().is_some_and(|said| said.are(&statuses));
            if is_new {
                *said = Some(statuses);
            }
            is_new
        });
    }

    /// Leaves the statuses to another replica: nothing is written from now on, and the Lease is given back. The API server
    /// is waited for, but not for long.
    pub async fn resign(&mut self) {
        let Some(Writers { publisher, contender }) = self.writers.take() else { return };
        publisher.abort();
        // If this takes too long, the Lease runs out.
        drop(timeout(FAREWELL, contender).await);
    }

    fn is_due(&self) -> bool {
        let known = lock(&self.known);
        known.is_complete() && known.changes.ask()
    }

    fn pending(&self) -> Changes {
        lock(&self.known).changes
    }

    async fn next(&mut self) {
        // The tasks that hold its other end live as long as this does.
        if self.told.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        let publisher = self.writers.iter().map(|writers| &writers.publisher);
        self.followers.iter().chain(publisher).for_each(JoinHandle::abort);
    }
}

/// Hears what the API server says of each kind.
#[derive(Clone)]
struct Follower {
    client: Client,
    known: Shared,
    tell: Sender<()>,
    /// It has been said that the API server is asked for lists.
    lists: Arc<Once>,
}

/// The API server cannot tell what there is in a watch.
struct CannotStream;

impl Follower {
    /// Takes all that the API server says of a kind, for ever.
    async fn follow(self, place: usize) {
        let fields = KINDS[place].fields.map(str::to_owned);
        let config = Config { field_selector: fields, ..Config::default() };
        if let Err(CannotStream) = self.hear(place, config.clone().streaming_lists()).await {
            self.lists.call_once(|| {
                tracing::info!("the API server cannot stream lists: it is asked for them");
            });
            // A watcher ends only with what drives it.
            self.hear(place, config).await.ok();
        }
    }

    async fn hear(&self, place: usize, config: Config) -> Result<(), CannotStream> {
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
                    lock(&self.known).take(place, event);
                }
                Err(error) if code(&error) == Some(404) => lock(&self.known).is_absent(place),
                // Kubernetes up to 1.33, but for 1.32, streams none unless it is configured to.
                Err(error) if streams && matches!(code(&error), Some(400 | 422)) => {
                    return Err(CannotStream);
                }
                Err(error) => {
                    // Once for each outage: it is tried again and again.
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(kind = kind.name, %error, "cannot watch; what is known holds");
                    }
                }
            }
            self.tell.send_replace(());
        }
        Ok(())
    }
}

/// With which status the API server has refused to tell of a kind at all.
fn code(error: &watcher::Error) -> Option<u16> {
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
