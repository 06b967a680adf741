//! Statuses, written where the cluster does not say the same already, by the replica that leads.
//!
//! What a status says and what of it is ours is for `gateway::status` to know.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{mem, slice};

use futures_util::{StreamExt, stream};
use gateway::ingress;
use gateway::managed_services::PublishedAddress;
use gateway::status::{self, ObjectIdentity, ResourceStatus, StatusDetail, StatusUpdate};
use k8s_openapi::jiff::Timestamp;
use kube_client::api::{Patch, PatchParams};
use kube_client::{Api, Client, Error};
use kube_core::DynamicObject;
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;
use tokio::sync::watch::error::RecvError;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::WRITER;
use crate::backoff::{WriteBackoff, WriteKey};
use crate::gateway_services::{self, DesiredServices, ServiceChange};
use crate::kind::{KINDS, WatchedKind};
use crate::store::{Store, StoredObject};
use crate::watch::{SharedStore, lock};

/// Writes that are under way at once: many routes change together, and each write takes the API server milliseconds.
const MAX_CONCURRENT_WRITES: usize = 16;
/// Before a write that failed is tried again; by then a watch has told what was written in between.
const CONFLICT_RETRY_DELAY: Duration = Duration::from_millis(200);
/// While the API server cannot be reached.
const UNAVAILABLE_RETRY_DELAY: Duration = Duration::from_secs(2);
/// How long a write may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Of many failures at once, so many are told one by one.
const MAX_LOGGED_FAILURES: usize = 8;

/// Addresses of Gateways, or of Ingresses, by namespace and name.
pub type StatusAddresses = BTreeMap<(String, String), Vec<IpAddr>>;

/// Where clients find Gateways, or Ingresses, by namespace and name.
pub type IngressAddresses = BTreeMap<(String, String), Vec<PublishedAddress>>;

/// What is to be said in the cluster.
#[derive(Clone, Debug, Default)]
pub struct DesiredStatuses {
    /// Of objects of Gateway API and of our own.
    pub statuses: Arc<[ResourceStatus]>,
    /// Where Ingresses are served; of one that is served nowhere, none.
    pub ingresses: IngressAddresses,
    /// The Services in front of Gateways; `None`: those are nobody's business.
    pub services: Option<DesiredServices>,
    /// How many replicas share what policies allow, this one included; `None`: nobody knows.
    pub replicas: Option<u32>,
}

impl DesiredStatuses {
    /// Whether they are certain to say the same, which takes no time to see.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.statuses, &other.statuses)
            && self.ingresses == other.ingresses
            && self.services == other.services
            && self.replicas == other.replicas
    }
}

/// Writes statuses.
pub(crate) struct StatusPublisher {
    pub(crate) client: Client,
    pub(crate) store: SharedStore,
    /// What is to be said.
    pub(crate) statuses: Receiver<Option<DesiredStatuses>>,
    /// Something that is known has changed.
    pub(crate) store_changes: Receiver<()>,
    /// Until when it is for us to write.
    pub(crate) leadership: Receiver<Option<Instant>>,
    pub(crate) backoff: WriteBackoff,
    pub(crate) written: WrittenStatuses,
}

/// What the cluster was seen to say already: nothing is due before a status or its object changes, and of thousands of
/// routes it is one that does.
#[derive(Default)]
pub(crate) struct WrittenStatuses {
    statuses: Arc<[ResourceStatus]>,
    /// The place of an object's status among those, and the version of the object that had it.
    objects: HashMap<ObjectIdentity, (usize, String)>,
}

/// Something to be written.
struct PendingWrite {
    kind: &'static WatchedKind,
    namespace: String,
    name: String,
    resource_version: String,
    content: WriteContent,
}

enum WriteContent {
    Status(StatusUpdate),
    /// A Service in front of a Gateway.
    Service(ServiceChange),
}

/// How a write went.
enum WriteOutcome {
    Done,
    /// Somebody else wrote in between: to be looked at again.
    Conflict,
    /// The API server does not want it, and says why.
    Rejected(String),
    /// The API server has not said anything.
    Unavailable(String),
    /// The Lease has gone.
    NotLeader,
}

impl StatusPublisher {
    pub(crate) async fn run(mut self) {
        loop {
            self.leadership.mark_unchanged();
            let again = self.write_all().await;
            let pause = async {
                match again {
                    Some(again) => sleep_until(again).await,
                    None => std::future::pending().await,
                }
            };
            let changed = tokio::select! {
                changed = self.statuses.changed() => changed,
                changed = self.leadership.changed() => changed,
                changed = wait_for_status_change(&self.store, &mut self.store_changes) => changed,
                () = pause => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Writes what differs; tells when to look again, whatever else happens.
    async fn write_all(&mut self) -> Option<Instant> {
        if leader_until(&self.leadership).is_none() {
            return recheck_leadership_at(&self.leadership);
        }
        let statuses = self.statuses.borrow_and_update().clone()?;
        let mut writes = self.pending_writes(&statuses);
        let Self { client, leadership: leads, backoff: refusals, .. } = self;
        let (client, leads) = (&*client, &*leads);
        refusals.retain_pending(&writes.iter().map(PendingWrite::key).collect());
        let now = Instant::now();
        writes.retain(|it| refusals.is_due(&it.key(), now));
        let mut results = stream::iter(writes)
            .map(|it| async move { (write_in_time(client, leads, &it).await, it) })
            .buffer_unordered(MAX_CONCURRENT_WRITES);
        let mut again = None;
        let mut told = LogLimiter::default();
        while let Some((outcome, it)) = results.next().await {
            let now = Instant::now();
            let mut fail = |why: &str| {
                if refusals.record_failure(it.key(), now) {
                    told.warn(&it, why);
                }
            };
            match outcome {
                WriteOutcome::Done => {}
                WriteOutcome::Conflict => again = Some(now + CONFLICT_RETRY_DELAY),
                WriteOutcome::Rejected(why) => fail(&why),
                WriteOutcome::Unavailable(why) => {
                    fail(&why);
                    // What is left would most likely wait as long.
                    return Some(now + UNAVAILABLE_RETRY_DELAY);
                }
                WriteOutcome::NotLeader => return recheck_leadership_at(leads),
            }
        }
        again.into_iter().chain(refusals.next_retry_at()).min()
    }

    /// What the cluster does not say yet, or still says.
    fn pending_writes(&mut self, wanted: &DesiredStatuses) -> Vec<PendingWrite> {
        let DesiredStatuses { statuses, ingresses, services, replicas } = wanted;
        let Self { store: known, written: said, .. } = self;
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let known = lock(known);
        let differences = services
            .iter()
            .flat_map(|services| gateway_services::pending_changes(&known, services));
        let mut due: Vec<_> = differences.filter_map(PendingWrite::for_service).collect();
        let mut spoken_of: HashSet<(&str, &str, &str)> = HashSet::new();
        let mut before = mem::replace(said, WrittenStatuses::of(statuses));
        for (place, status) in statuses.iter().enumerate() {
            let object = &status.object;
            let Some(kind) = WatchedKind::by_name(object.kind) else { continue };
            let namespace = kind.namespace_of(&object.namespace);
            spoken_of.insert((kind.name, namespace, &object.name));
            let Some(held) = known.find(kind.name, namespace, &object.name) else { continue };
            if before.take_if_unchanged(status, held) {
                said.add(place, status, held);
                continue;
            }
            let completed = complete_status(status, known.bundle_version(), *replicas);
            match status::status_update(&completed, held.status.as_ref(), &now) {
                Some(written) => {
                    due.push(PendingWrite::new(kind, namespace, &object.name, held, written));
                }
                // What is completed depends on more than the status.
                None if matches!(completed, Cow::Borrowed(_)) => said.add(place, status, held),
                None => {}
            }
        }
        for ((namespace, name), places) in ingresses {
            let Some(kind) = WatchedKind::by_name("Ingress") else { continue };
            spoken_of.insert((kind.name, namespace, name));
            let Some(held) = known.find(kind.name, namespace, name) else { continue };
            let status = ingress::status(places);
            if held.status.as_ref() != Some(&status) {
                due.push(PendingWrite::new(
                    kind,
                    namespace,
                    name,
                    held,
                    StatusUpdate::Apply(status),
                ));
            }
        }
        for kind in KINDS.iter().filter(|kind| kind.has_status_entries || kind.name == "Ingress") {
            for ((namespace, name), held) in known.all(kind.name) {
                if spoken_of.contains(&(kind.name, namespace.as_str(), name.as_str())) {
                    continue;
                }
                let written = withdrawal(kind, held);
                due.extend(
                    written.map(|written| PendingWrite::new(kind, namespace, name, held, written)),
                );
            }
        }
        due
    }
}

impl WrittenStatuses {
    fn of(statuses: &Arc<[ResourceStatus]>) -> Self {
        Self { statuses: Arc::clone(statuses), objects: HashMap::with_capacity(statuses.len()) }
    }

    fn add(&mut self, place: usize, status: &ResourceStatus, held: &StoredObject) {
        self.objects.insert(status.object.clone(), (place, held.resource_version.clone()));
    }

    /// Whether an object has been seen to have that status, and has not changed since.
    fn take_if_unchanged(&mut self, status: &ResourceStatus, held: &StoredObject) -> bool {
        self.objects.remove(&status.object).is_some_and(|(place, version)| {
            version == held.resource_version && self.statuses[place] == *status
        })
    }
}

/// What takes back what we have said of an object of which we say nothing any more.
fn withdrawal(kind: &WatchedKind, held: &StoredObject) -> Option<StatusUpdate> {
    if kind.has_status_entries {
        return held.status.as_ref().and_then(status::status_removal);
    }
    // Whoever applies nothing owns nothing, and what nobody owns goes.
    (kind.name == "Ingress" && held.has_our_status).then_some(StatusUpdate::Apply(Value::Null))
}

/// A GatewayClass says as well whether we know the definitions of Gateway API that are there, and a policy how replicas
/// share what it allows.
fn complete_status<'s>(
    status: &'s ResourceStatus,
    version: Option<&str>,
    replicas: Option<u32>,
) -> Cow<'s, ResourceStatus> {
    let mut status = Cow::Borrowed(status);
    match (&status.detail, replicas) {
        (StatusDetail::GatewayClass(_), _) => {
            status::report_version(slice::from_mut(status.to_mut()), version);
        }
        (StatusDetail::Policy(_), Some(replicas)) => {
            status::report_slot_assignment(slice::from_mut(status.to_mut()), replicas);
        }
        _ => {}
    }
    status
}

/// Waits until a status in the cluster has changed: it may be another's doing, and ours to mend.
async fn wait_for_status_change(
    known: &SharedStore,
    told: &mut Receiver<()>,
) -> Result<(), RecvError> {
    while !mem::take(&mut lock(known).changes.statuses) {
        told.changed().await?;
    }
    Ok(())
}

impl PendingWrite {
    fn new(
        kind: &'static WatchedKind,
        namespace: &str,
        name: &str,
        held: &StoredObject,
        written: StatusUpdate,
    ) -> Self {
        Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            resource_version: held.resource_version.clone(),
            content: WriteContent::Status(written),
        }
    }

    fn for_service(difference: ServiceChange) -> Option<Self> {
        let (namespace, name) = difference.name();
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let (kind, resource_version) = (WatchedKind::by_name("Service")?, String::new());
        Some(Self {
            kind,
            namespace,
            name,
            resource_version,
            content: WriteContent::Service(difference),
        })
    }

    fn key(&self) -> WriteKey {
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        (self.kind.name, namespace, name, self.resource_version.clone())
    }
}

/// How many failures have been told of, so that what goes wrong with all does not drown everything else.
#[derive(Default)]
struct LogLimiter(usize);

impl LogLimiter {
    fn warn(&mut self, it: &PendingWrite, error: &str) {
        self.0 += 1;
        if self.0 <= MAX_LOGGED_FAILURES {
            let PendingWrite { kind, namespace, name, .. } = it;
            tracing::warn!(kind = kind.name, %namespace, %name, error, "cannot write to the cluster; it is tried again");
        }
    }
}

impl Drop for LogLimiter {
    fn drop(&mut self) {
        if let Some(others @ 1..) = self.0.checked_sub(MAX_LOGGED_FAILURES) {
            tracing::warn!(others, "cannot write other objects either; they are tried again");
        }
    }
}

/// Until when it is for us to write.
fn leader_until(leads: &Receiver<Option<Instant>>) -> Option<Instant> {
    leads.borrow().filter(|until| *until > Instant::now())
}

/// When to look whether it is again for us to write: a Lease that was held all along, and renewed late, wakes nobody.
fn recheck_leadership_at(leads: &Receiver<Option<Instant>>) -> Option<Instant> {
    leads.borrow().map(|_| Instant::now() + UNAVAILABLE_RETRY_DELAY)
}

/// Writes if that is still for us to do, and no longer than it is.
async fn write_in_time(
    client: &Client,
    leads: &Receiver<Option<Instant>>,
    it: &PendingWrite,
) -> WriteOutcome {
    let Some(until) = leader_until(leads) else { return WriteOutcome::NotLeader };
    match timeout_at(until.min(Instant::now() + WRITE_TIMEOUT), execute_write(client, it)).await {
        Ok(result) => result.map_or_else(classify_error, |()| WriteOutcome::Done),
        Err(_elapsed) => WriteOutcome::Unavailable("the API server does not answer".to_owned()),
    }
}

/// Lists that are maps are applied, so that what others say in them stays by itself; the others are replaced as they were
/// read, or not at all.
async fn execute_write(client: &Client, it: &PendingWrite) -> Result<(), Error> {
    let written = match &it.content {
        WriteContent::Status(written) => written,
        WriteContent::Service(difference) => {
            return gateway_services::write_service(client, difference).await;
        }
    };
    let resource = it.kind.resource();
    let api: Api<DynamicObject> = match it.namespace.as_str() {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    match written {
        StatusUpdate::Apply(status) => {
            let mut patch = json!({
                "apiVersion": it.kind.api_version(),
                "kind": it.kind.name,
                "metadata": { "name": it.name },
            });
            if !status.is_null() {
                patch["status"] = status.clone();
            }
            api.patch_status(&it.name, &PatchParams::apply(WRITER).force(), &Patch::Apply(patch))
                .await?;
        }
        StatusUpdate::Replace(status) => {
            let patch = json!({
                "metadata": { "resourceVersion": it.resource_version },
                "status": status,
            });
            api.patch_status(&it.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
    }
    Ok(())
}

fn classify_error(error: Error) -> WriteOutcome {
    match error {
        // It has gone, and nobody has to be told.
        Error::Api(status) if status.code == 404 => WriteOutcome::Done,
        Error::Api(status) if status.code == 409 => WriteOutcome::Conflict,
        Error::Api(_) => WriteOutcome::Rejected(error.to_string()),
        _ => WriteOutcome::Unavailable(error.to_string()),
    }
}

/// The addresses that the objects of a kind have by their statuses.
pub(crate) fn status_addresses(known: &Store, kind: &str) -> StatusAddresses {
    let Some(kind) = WatchedKind::by_name(kind) else { return StatusAddresses::new() };
    let address = |place: PublishedAddress| match place {
        PublishedAddress::Ip(address) => Some(address),
        PublishedAddress::Hostname(_) => None,
    };
    let given = |held: &StoredObject| {
        kind.status_addresses(held.status.as_ref()).into_iter().filter_map(address).collect()
    };
    known.all(kind.name).map(|(name, held)| (name.clone(), given(held))).collect()
}

/// Where clients find a Service, by what its load balancer says in its status.
pub(crate) fn service_addresses(
    known: &Store,
    namespace: &str,
    name: &str,
) -> Vec<PublishedAddress> {
    let held = WatchedKind::by_name("Service").zip(known.find("Service", namespace, name));
    held.map(|(kind, held)| kind.status_addresses(held.status.as_ref())).unwrap_or_default()
}

#[cfg(test)]
mod tests;
