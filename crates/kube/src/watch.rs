//! From the API server's watches to what is known: one task for each kind, which comes back by itself after whatever
//! ends it. While it is away, what was known holds.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt;
use gateway::{Object, Problem};
use kube_client::Api;
use kube_core::DynamicObject;
use kube_runtime::WatchStreamExt;
use kube_runtime::watcher::{self, Config, watcher};
use tokio::sync::watch::{self as channel, Receiver, Sender};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::kind::KINDS;
use crate::known::{Changes, Known};
use crate::publish::{self, Addresses, Places, Statuses};
use crate::{Cluster, Identity, WRITER, lease};

/// Changes that follow one another within this are taken together.
const COALESCE: Duration = Duration::from_millis(5);
/// However they follow one another, none waits longer than this.
const COALESCE_MOST: Duration = Duration::from_millis(50);

/// What a cluster asks for.
#[derive(Debug, Default)]
pub struct Contents {
    /// Every object without an error.
    pub objects: Vec<Object>,
    /// All that is wrong with the others.
    pub problems: Vec<Problem>,
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
    tasks: Vec<JoinHandle<()>>,
}

impl Objects {
    /// Begins to watch. Needs a running tokio runtime.
    #[must_use]
    pub fn new(cluster: &Cluster, identity: Identity) -> Self {
        let known = Arc::new(Mutex::new(Known::new()));
        let (tell, told) = channel::channel(());
        let (statuses, published) = channel::channel(None);
        let follow = |place| {
            let (known, tell) = (Arc::clone(&known), tell.clone());
            tokio::spawn(follow(cluster.clone(), place, known, tell))
        };
        let mut tasks: Vec<_> = (0..KINDS.len()).map(follow).collect();
        let leads = lease::contend(cluster, identity, WRITER);
        let publisher = publish::Publisher {
            client: cluster.client.clone(),
            known: Arc::clone(&known),
            statuses: published,
            told: told.clone(),
            leads,
        };
        tasks.push(tokio::spawn(publisher.run()));
        Self { known, told, statuses, tasks }
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
        publish::addresses(&lock(&self.known))
    }

    /// The addresses that Ingresses have by their statuses.
    #[must_use]
    pub fn ingress_addresses(&self) -> Addresses {
        publish::ingress_addresses(&lock(&self.known))
    }

    /// Where clients find our Services in a namespace.
    #[must_use]
    pub fn service_places(&self, namespace: &str) -> Places {
        publish::service_places(&lock(&self.known), namespace)
    }

    /// Lets the statuses be written.
    pub fn publish(&self, statuses: Statuses) {
        self.statuses.send_replace(Some(statuses));
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
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Takes all that the API server says of a kind, for ever.
async fn follow(cluster: Cluster, place: usize, known: Shared, tell: Sender<()>) {
    let kind = &KINDS[place];
    let api: Api<DynamicObject> = Api::all_with(cluster.client, &kind.resource());
    let config = Config { field_selector: kind.fields.map(str::to_owned), ..Config::default() };
    let mut events = pin!(watcher(api, config.streaming_lists()).default_backoff());
    let mut is_failing = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if std::mem::take(&mut is_failing) {
                    tracing::info!(kind = kind.name, "watching again");
                }
                lock(&known).take(place, event);
            }
            Err(error) if is_absent(&error) => lock(&known).is_absent(place),
            Err(error) => {
                // Once for each outage: it is tried again and again.
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(kind = kind.name, %error, "cannot watch; what is known holds");
                }
            }
        }
        tell.send_replace(());
    }
}

/// Whether the API server has no such kind.
fn is_absent(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) =
        error
    else {
        return false;
    };
    matches!(error, kube_client::Error::Api(status) if status.code == 404)
}
