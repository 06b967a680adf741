//! Writes statuses that differ from those in the cluster; only the leader writes.
//!
//! `gateway::status` knows the content of a status and which part of it is ours.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{mem, slice};

use futures_util::{StreamExt, stream};
use gateway::ingress;
use gateway::load_balancer::{self, LoadBalancerService};
use gateway::managed_services::PublishedAddress;
use gateway::status::{
    self, ObjectIdentity, ResourceStatus, SlotSharing, StatusDetail, StatusUpdate,
};
use k8s_openapi::jiff::Timestamp;
use kube_client::api::{Patch, PatchParams};
use kube_client::{Api, Client, Error};
use kube_core::DynamicObject;
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;
use tokio::sync::watch::error::RecvError;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::backoff::{WriteBackoff, WriteKey};
use crate::gateway_services::{self, DesiredServices, ServiceChange};
use crate::kind::{KINDS, WatchedKind};
use crate::store::{Store, StoredObject};
use crate::watch::{SharedStore, lock};

/// Maximum number of concurrent writes: many routes change together, and each write takes the API server milliseconds.
const MAX_CONCURRENT_WRITES: usize = 16;
/// Delay before a retry after a conflict; by then the watch has reported the conflicting change.
const CONFLICT_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Delay before a retry while the API server is unreachable.
const UNAVAILABLE_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Time limit of a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of failures that are logged individually in one pass.
const MAX_LOGGED_FAILURES: usize = 8;

/// The kind whose statuses have the addresses of load balancers.
const SERVICE: &str = "Service";

/// Addresses of Gateways, Ingresses or Services, by namespace and name.
pub type StatusAddresses = BTreeMap<(String, String), Vec<IpAddr>>;

/// Addresses at which clients reach Gateways or Ingresses, by namespace and name.
pub type IngressAddresses = BTreeMap<(String, String), Vec<PublishedAddress>>;

/// Statuses and Services to write to the cluster.
#[derive(Clone, Debug, Default)]
pub struct DesiredStatuses {
    /// Statuses of objects of Gateway API and of our own kinds.
    pub statuses: Arc<[ResourceStatus]>,
    /// Addresses of Ingresses that are served; an Ingress that is not served has none.
    pub ingresses: IngressAddresses,
    /// The managed Services in front of Gateways; `None`: Services are not managed.
    pub services: Option<DesiredServices>,
    /// The Services of type LoadBalancer that are served; `None`: their statuses are left alone.
    pub load_balancers: Option<Arc<[LoadBalancerService]>>,
    /// The sharing of fixed limits by replicas; `None`: unknown.
    pub sharing: Option<SlotSharing>,
}

impl DesiredStatuses {
    /// True if both are certainly equal, which is cheap to determine.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.statuses, &other.statuses)
            && self.ingresses == other.ingresses
            && self.services == other.services
            && self.load_balancers == other.load_balancers
            && self.sharing == other.sharing
    }
}

/// Writer of statuses.
pub(crate) struct StatusPublisher {
    pub(crate) client: Client,
    pub(crate) store: SharedStore,
    /// Statuses to write.
    pub(crate) statuses: Receiver<Option<DesiredStatuses>>,
    /// Notifies of changes in the store.
    pub(crate) store_changes: Receiver<()>,
    /// Time until which this replica is the leader.
    pub(crate) leadership: Receiver<Option<Instant>>,
    pub(crate) backoff: WriteBackoff,
    pub(crate) written: WrittenStatuses,
    pub(crate) writer: WriterIdentity,
}

/// Names under which an installation writes.
#[derive(Clone, Debug)]
pub(crate) struct WriterIdentity {
    /// Name of our entries in statuses that several controllers write.
    pub(crate) controller: Arc<str>,
    /// Manager of fields that are applied server-side.
    pub(crate) field_manager: String,
}

/// Statuses that the cluster is known to have: nothing is written until a status or its object changes, and of
/// thousands of routes usually one does.
#[derive(Default)]
pub(crate) struct WrittenStatuses {
    statuses: Arc<[ResourceStatus]>,
    /// Index of an object's status in `statuses`, and the version of the object that had it.
    objects: HashMap<ObjectIdentity, (usize, String)>,
}

/// A write to do.
struct PendingWrite {
    kind: &'static WatchedKind,
    namespace: String,
    name: String,
    resource_version: String,
    content: WriteContent,
}

enum WriteContent {
    Status(StatusUpdate),
    /// Change of a managed Service.
    Service(ServiceChange),
}

/// Outcome of a write.
enum WriteOutcome {
    Done,
    /// Another writer changed the object in between: to be examined again.
    Conflict,
    /// The API server rejected the write, with this message.
    Rejected(String),
    /// The API server did not answer, with this error.
    Unavailable(String),
    /// This replica is no longer the leader.
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

    /// Writes all differences; returns when to try again in any case.
    async fn write_all(&mut self) -> Option<Instant> {
        if leader_until(&self.leadership).is_none() {
            return recheck_leadership_at(&self.leadership);
        }
        let statuses = self.statuses.borrow_and_update().clone()?;
        let mut writes = self.pending_writes(&statuses);
        let Self { client, leadership: leads, backoff, writer, .. } = self;
        let (client, leads, manager) = (&*client, &*leads, &*writer.field_manager);
        backoff.retain_pending(&writes.iter().map(PendingWrite::key).collect());
        let now = Instant::now();
        writes.retain(|it| backoff.is_due(&it.key(), now));
        let mut results = stream::iter(writes)
            .map(|it| async move { (write_in_time(client, leads, &it, manager).await, it) })
            .buffer_unordered(MAX_CONCURRENT_WRITES);
        let mut again = None;
        let mut limiter = LogLimiter::default();
        while let Some((outcome, it)) = results.next().await {
            let now = Instant::now();
            let mut fail = |reason: &str| {
                if backoff.record_failure(it.key(), now) {
                    limiter.warn(&it, reason);
                }
            };
            match outcome {
                WriteOutcome::Done => {}
                WriteOutcome::Conflict => again = Some(now + CONFLICT_RETRY_DELAY),
                WriteOutcome::Rejected(reason) => fail(&reason),
                WriteOutcome::Unavailable(reason) => {
                    fail(&reason);
                    // The remaining writes would most likely time out too.
                    return Some(now + UNAVAILABLE_RETRY_DELAY);
                }
                WriteOutcome::NotLeader => return recheck_leadership_at(leads),
            }
        }
        again.into_iter().chain(backoff.next_retry_at()).min()
    }

    /// Returns the writes that are needed: statuses that differ, and statuses to remove.
    fn pending_writes(&mut self, wanted: &DesiredStatuses) -> Vec<PendingWrite> {
        let DesiredStatuses { statuses, ingresses, services, load_balancers, sharing } = wanted;
        let Self { store: known, written: current, writer, .. } = self;
        let controller = &*writer.controller;
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let known = lock(known);
        let differences = services
            .iter()
            .flat_map(|services| gateway_services::pending_changes(&known, services));
        let mut due: Vec<_> = differences.filter_map(PendingWrite::for_service).collect();
        let mut reported: HashSet<(&str, &str, &str)> = HashSet::new();
        let mut before = mem::replace(current, WrittenStatuses::of(statuses));
        for (index, status) in statuses.iter().enumerate() {
            let object = &status.object;
            let Some(kind) = WatchedKind::by_name(object.kind) else { continue };
            let namespace = kind.namespace_of(&object.namespace);
            reported.insert((kind.name, namespace, &object.name));
            let Some(held) = known.find(kind.name, namespace, &object.name) else { continue };
            if before.take_if_unchanged(status, held) {
                current.add(index, status, held);
                continue;
            }
            let completed = complete_status(status, known.bundle_version(), *sharing);
            match status::status_update(&completed, controller, held.status.as_ref(), &now) {
                Some(written) => {
                    due.push(PendingWrite::new(kind, namespace, &object.name, held, written));
                }
                // A completed status depends on more than the status itself.
                None if matches!(completed, Cow::Borrowed(_)) => current.add(index, status, held),
                None => {}
            }
        }
        for ((namespace, name), places) in ingresses {
            let Some(kind) = WatchedKind::by_name("Ingress") else { continue };
            reported.insert((kind.name, namespace, name));
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
        for service in load_balancers.iter().flat_map(|it| it.iter()) {
            let Some(kind) = WatchedKind::by_name(SERVICE) else { continue };
            let (namespace, name) = (&*service.namespace, &*service.name);
            reported.insert((kind.name, namespace, name));
            let held = known.find(kind.name, namespace, name);
            // Its type may have changed since the translation.
            let Some(held) = held.filter(|held| held.is_load_balancer()) else { continue };
            let update = load_balancer::status_update(service, held.status.as_ref(), &now);
            due.extend(update.map(|it| PendingWrite::new(kind, namespace, name, held, it)));
        }
        let may_withdraw = |kind: &&WatchedKind| match kind.name {
            "Ingress" => true,
            SERVICE => load_balancers.is_some(),
            _ => kind.has_status_entries,
        };
        for kind in KINDS.iter().filter(may_withdraw) {
            for ((namespace, name), held) in known.all(kind.name) {
                if reported.contains(&(kind.name, namespace.as_str(), name.as_str())) {
                    continue;
                }
                let written = withdrawal(kind, held, controller);
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

    fn add(&mut self, index: usize, status: &ResourceStatus, held: &StoredObject) {
        self.objects.insert(status.object.clone(), (index, held.resource_version.clone()));
    }

    /// True if the object had this status, and has not changed since.
    fn take_if_unchanged(&mut self, status: &ResourceStatus, held: &StoredObject) -> bool {
        self.objects.remove(&status.object).is_some_and(|(index, version)| {
            version == held.resource_version && self.statuses[index] == *status
        })
    }
}

/// Returns the update that removes our status from an object that we no longer report on.
fn withdrawal(kind: &WatchedKind, held: &StoredObject, controller: &str) -> Option<StatusUpdate> {
    if kind.has_status_entries {
        return held.status.as_ref().and_then(|it| status::status_removal(it, controller));
    }
    // Server-side apply with an empty configuration gives up our fields, and fields without an
    // owner are removed.
    held.has_our_status.then_some(StatusUpdate::Apply(Value::Null))
}

/// Completes a status: a GatewayClass reports whether the installed version of Gateway API is supported, and a policy
/// how replicas share its limits.
fn complete_status<'s>(
    status: &'s ResourceStatus,
    version: Option<&str>,
    sharing: Option<SlotSharing>,
) -> Cow<'s, ResourceStatus> {
    let mut status = Cow::Borrowed(status);
    match (&status.detail, sharing) {
        (StatusDetail::GatewayClass(_), _) => {
            status::report_version(slice::from_mut(status.to_mut()), version);
        }
        (StatusDetail::Policy(_), Some(sharing)) => {
            status::report_slot_assignment(slice::from_mut(status.to_mut()), sharing);
        }
        _ => {}
    }
    status
}

/// Waits until a status in the cluster has changed: another writer may have changed it, and then it
/// must be restored.
async fn wait_for_status_change(
    known: &SharedStore,
    store_changes: &mut Receiver<()>,
) -> Result<(), RecvError> {
    while !mem::take(&mut lock(known).changes.statuses) {
        store_changes.changed().await?;
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

/// Counts failures, so that an error that affects all objects does not flood the log.
#[derive(Default)]
struct LogLimiter(usize);

impl LogLimiter {
    fn warn(&mut self, it: &PendingWrite, error: &str) {
        self.0 += 1;
        if self.0 <= MAX_LOGGED_FAILURES {
            let PendingWrite { kind, namespace, name, .. } = it;
            tracing::warn!(kind = kind.name, %namespace, %name, error, "cannot write to the cluster; the write is retried");
        }
    }
}

impl Drop for LogLimiter {
    fn drop(&mut self) {
        if let Some(others @ 1..) = self.0.checked_sub(MAX_LOGGED_FAILURES) {
            tracing::warn!(others, "cannot write further objects; the writes are retried");
        }
    }
}

/// Returns the time until which this replica is the leader.
fn leader_until(leads: &Receiver<Option<Instant>>) -> Option<Instant> {
    leads.borrow().filter(|until| *until > Instant::now())
}

/// Returns when to check leadership again: a Lease that is still held but renewed late notifies no receiver.
fn recheck_leadership_at(leads: &Receiver<Option<Instant>>) -> Option<Instant> {
    leads.borrow().map(|_| Instant::now() + UNAVAILABLE_RETRY_DELAY)
}

/// Writes if this replica is the leader, and only as long as it is.
async fn write_in_time(
    client: &Client,
    leads: &Receiver<Option<Instant>>,
    it: &PendingWrite,
    manager: &str,
) -> WriteOutcome {
    let Some(until) = leader_until(leads) else { return WriteOutcome::NotLeader };
    let write = execute_write(client, it, manager);
    match timeout_at(until.min(Instant::now() + WRITE_TIMEOUT), write).await {
        Ok(result) => result.map_or_else(classify_error, |()| WriteOutcome::Done),
        Err(_elapsed) => WriteOutcome::Unavailable("the API server does not answer".to_owned()),
    }
}

/// Status lists that are maps are applied server-side, so that entries of others are preserved; the others are replaced
/// on the version that was read, or not at all.
async fn execute_write(client: &Client, it: &PendingWrite, manager: &str) -> Result<(), Error> {
    let written = match &it.content {
        WriteContent::Status(written) => written,
        WriteContent::Service(difference) => {
            return gateway_services::write_service(client, difference, manager).await;
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
            api.patch_status(&it.name, &PatchParams::apply(manager).force(), &Patch::Apply(patch))
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
        // The object has been deleted; there is nothing to report.
        Error::Api(status) if status.code == 404 => WriteOutcome::Done,
        Error::Api(status) if status.code == 409 => WriteOutcome::Conflict,
        Error::Api(_) => WriteOutcome::Rejected(error.to_string()),
        _ => WriteOutcome::Unavailable(error.to_string()),
    }
}

/// Returns the addresses in the statuses of a kind.
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

/// Returns the addresses at which clients reach a Service, from the status that its load balancer
/// writes.
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
