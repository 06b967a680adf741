//! Store of the objects of a cluster, as far as they are known, with their errors and present statuses.
//!
//! It knows watch events and whether they change anything; it must not know how they arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use gateway::objects::{EndpointTargetRef, ServiceType};
use gateway::{ApiObject, ObjectOrigin, ObjectProblem};
use kube_core::{DynamicObject, ObjectMeta};
use kube_runtime::watcher::Event;
use serde_json::{Value, json};

use crate::deletion_cost::PodReference;
use crate::gateway_services;
use crate::kind::{CRD_KIND, KINDS, NODE, WatchedKind};

/// Annotation with the version of Gateway API on its CRDs.
const BUNDLE_VERSION: &str = "gateway.networking.k8s.io/bundle-version";

/// Namespace (empty for cluster-scoped objects) and name.
pub(crate) type ObjectName = (String, String);

/// All known objects.
#[derive(Debug)]
pub(crate) struct Store {
    /// One store per kind, in the order of [`KINDS`].
    kinds: Vec<KindStore>,
    pub(crate) changes: PendingChanges,
    /// Our name as the manager of fields.
    writer: String,
}

/// A watch of a kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WatchKey {
    /// Index of the kind in [`KINDS`].
    pub(crate) kind: usize,
    pub(crate) scope: WatchScope,
}

#[cfg(test)]
impl WatchKey {
    /// Returns the watch of a kind in the whole cluster.
    pub(crate) const fn of_kind(kind: usize) -> Self {
        Self { kind, scope: WatchScope::Cluster }
    }
}

/// The objects that one watch reports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WatchScope {
    /// All objects of the cluster.
    Cluster,
    /// The objects of a namespace.
    Namespace(String),
    /// One object.
    Object(ObjectName),
}

impl WatchScope {
    /// Returns the object of a watch of one object, as `namespace/name`.
    pub(crate) fn object(&self) -> Option<String> {
        match self {
            Self::Object((namespace, name)) => Some(format!("{namespace}/{name}")),
            Self::Cluster | Self::Namespace(_) => None,
        }
    }

    fn covers(&self, name: &ObjectName) -> bool {
        match self {
            Self::Cluster => true,
            Self::Namespace(namespace) => *namespace == name.0,
            Self::Object(object) => object == name,
        }
    }
}

/// Changes since they were last handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingChanges {
    /// Changes that need a translation.
    pub(crate) objects: bool,
    /// Changes of endpoints only.
    pub(crate) endpoints: bool,
    /// Changes of statuses, including our own writes, and of their inputs.
    pub(crate) statuses: bool,
}

#[derive(Debug, Default)]
struct KindStore {
    objects: BTreeMap<ObjectName, StoredObject>,
    /// One list per watch.
    lists: BTreeMap<WatchScope, WatchedList>,
}

/// The list of one watch.
#[derive(Debug, Default)]
struct WatchedList {
    /// Incomplete list that is being received; until it is complete, the previous objects stay
    /// valid.
    partial: Option<BTreeMap<ObjectName, StoredObject>>,
    /// True if a complete list has been received.
    is_complete: bool,
    /// The reason why the API server rejected the watch last, if no complete list has been received.
    rejection: Option<String>,
}

/// One object.
#[derive(Debug)]
pub(crate) struct StoredObject {
    /// None if it has errors, or does not concern us.
    object: Option<ApiObject>,
    problems: Vec<ObjectProblem>,
    pub(crate) status: Option<Value>,
    /// Resource version, for optimistic concurrency.
    pub(crate) resource_version: String,
    /// True if part of the status was written by us.
    pub(crate) has_our_status: bool,
    /// Version annotation of a CRD.
    bundle_version: Option<String>,
    pub(crate) uid: String,
    /// The whole object with its status, if it is a managed Service: changes by others are restored.
    managed_service: Option<Value>,
}

impl StoredObject {
    /// Returns the whole object, if it is a managed Service in front of a Gateway.
    pub(crate) const fn managed_service(&self) -> Option<&Value> {
        self.managed_service.as_ref()
    }

    /// True if it is a Service of type LoadBalancer. No other may have addresses in its status.
    pub(crate) fn is_load_balancer(&self) -> bool {
        let Some(ApiObject::Service(service)) = &self.object else { return false };
        service.spec.kind == ServiceType::LoadBalancer
    }
}

impl Store {
    /// Creates an empty store for these watches. `writer` is our name as the manager of fields.
    pub(crate) fn new(watches: &[WatchKey], writer: &str) -> Self {
        let kinds = KINDS.iter().map(|_| KindStore::default()).collect();
        let mut store =
            Self { kinds, changes: PendingChanges::default(), writer: writer.to_owned() };
        watches.iter().cloned().for_each(|watch| store.add_watch(watch));
        store
    }

    /// Creates a store with one watch per kind.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        let watches: Vec<_> = (0..KINDS.len()).map(WatchKey::of_kind).collect();
        Self::new(&watches, "sheave")
    }

    /// Adds the empty list of a watch.
    pub(crate) fn add_watch(&mut self, WatchKey { kind, scope }: WatchKey) {
        self.kinds[kind].lists.insert(scope, WatchedList::default());
    }

    /// Removes a watch with its objects. Nothing refers to them, so that no translation is needed.
    pub(crate) fn remove_watch(&mut self, WatchKey { kind, scope }: &WatchKey) {
        let of_kind = &mut self.kinds[*kind];
        of_kind.lists.remove(scope);
        of_kind.objects.retain(|name, _| !scope.covers(name));
    }

    /// True if a complete list of each kind has been received: before that, a missing object may not have arrived yet.
    /// Watches of single objects do not count.
    pub(crate) fn has_synced(&self) -> bool {
        let lists = self.kinds.iter().flat_map(|kind| &kind.lists);
        let mut lists = lists.filter(|(scope, _)| !matches!(scope, WatchScope::Object(_)));
        lists.all(|(_, list)| list.is_complete)
    }

    /// True if the API server has answered a watch, or the watch does not exist.
    pub(crate) fn has_answer(&self, WatchKey { kind, scope }: &WatchKey) -> bool {
        let list = self.kinds[*kind].lists.get(scope);
        list.is_none_or(|list| list.is_complete || list.rejection.is_some())
    }

    /// Returns the watches that the API server has rejected, with the reasons.
    pub(crate) fn rejections(&self) -> Vec<(WatchKey, String)> {
        let of_kind = |(kind, store): (usize, &KindStore)| {
            let rejection = |(scope, list): (&WatchScope, &WatchedList)| {
                let reason = list.rejection.clone()?;
                Some((WatchKey { kind, scope: scope.clone() }, reason))
            };
            store.lists.iter().filter_map(rejection).collect::<Vec<_>>()
        };
        self.kinds.iter().enumerate().flat_map(of_kind).collect()
    }

    /// Applies a watch event.
    pub(crate) fn apply_event(&mut self, watch: &WatchKey, event: Event<DynamicObject>) {
        let kind = &KINDS[watch.kind];
        let of_kind = &mut self.kinds[watch.kind];
        // The event of a watch that has been removed may come late.
        let Some(list) = of_kind.lists.get_mut(&watch.scope) else { return };
        let changes = match event {
            Event::Init => {
                list.partial = Some(BTreeMap::new());
                PendingChanges::default()
            }
            Event::InitApply(object) => {
                if let Some((name, held)) = to_stored(kind, &watch.scope, object, &self.writer) {
                    list.partial.get_or_insert_default().insert(name, held);
                }
                PendingChanges::default()
            }
            Event::InitDone => of_kind.replace(kind, &watch.scope),
            Event::Apply(object) => of_kind.apply(watch, object, &self.writer),
            Event::Delete(object) => {
                let gone = of_kind.objects.remove(&name_of(&object));
                gone.map_or_else(PendingChanges::default, |_| PendingChanges::of_kind(kind))
            }
        };
        self.changes = self.changes.union(changes);
    }

    /// Records that the API server does not have this kind. If this is the first answer, there are no objects of it. If
    /// there were some before, the API server is starting or its CRDs are being removed one by one: the known objects
    /// stay until it reports otherwise.
    pub(crate) fn mark_kind_absent(&mut self, watch: &WatchKey) {
        let list = self.kinds[watch.kind].lists.get_mut(&watch.scope);
        if let Some(list) = list.filter(|list| !list.is_complete) {
            list.is_complete = true;
            self.changes.objects = true;
        }
    }

    /// Records that the API server rejects a watch. If it has delivered a list before, its objects stay.
    pub(crate) fn mark_rejected(&mut self, watch: &WatchKey, reason: String) {
        let list = self.kinds[watch.kind].lists.get_mut(&watch.scope);
        if let Some(list) = list.filter(|list| !list.is_complete) {
            let is_new = list.rejection.as_ref() != Some(&reason);
            list.rejection = Some(reason);
            self.changes.objects |= is_new;
        }
    }

    /// Returns every object without an error, and the errors of all others.
    pub(crate) fn contents(&self) -> (Vec<ApiObject>, Vec<ObjectProblem>) {
        let held = || self.kinds.iter().flat_map(|kind| kind.objects.values());
        let objects = held().filter_map(|held| held.object.clone()).collect();
        (objects, held().flat_map(|held| held.problems.iter().cloned()).collect())
    }

    /// Returns the stored object.
    pub(crate) fn find(&self, kind: &str, namespace: &str, name: &str) -> Option<&StoredObject> {
        let of_kind = &self.kinds[WatchedKind::index_of(kind)?];
        of_kind.objects.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// Returns the pods at these addresses that do not terminate. An EndpointSlice counts for pods of its own namespace:
    /// its author may not name those of others.
    pub(crate) fn pods_at(&self, addresses: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, PodReference> {
        let mut pods = BTreeMap::new();
        for ((namespace, _), held) in self.all("EndpointSlice") {
            let Some(ApiObject::EndpointSlice(slice)) = &held.object else { continue };
            for endpoint in &slice.spec.endpoints {
                let Some(target) = &endpoint.target_ref else { continue };
                let is_meant = target.kind == "Pod"
                    && target.namespace == *namespace
                    && !target.uid.is_empty()
                    && endpoint.conditions.terminating != Some(true);
                let address = endpoint.addresses.first().and_then(|it| it.parse().ok());
                let Some(address) = address.filter(|it| is_meant && addresses.contains(it)) else {
                    continue;
                };
                let EndpointTargetRef { namespace, name, uid, .. } = target.clone();
                pods.insert(address, PodReference { namespace, name, uid });
            }
        }
        pods
    }

    /// Returns the version of Gateway API's CRDs, if they have one.
    pub(crate) fn bundle_version(&self) -> Option<&str> {
        let (_, held) = self.all(CRD_KIND).next()?;
        held.bundle_version.as_deref()
    }

    /// Returns all objects of a kind, by name.
    pub(crate) fn all(&self, kind: &str) -> impl Iterator<Item = (&ObjectName, &StoredObject)> {
        WatchedKind::index_of(kind).into_iter().flat_map(|index| &self.kinds[index].objects)
    }
}

impl KindStore {
    /// Replaces the objects of a watch with its list, which is complete; returns the changes.
    fn replace(&mut self, kind: &WatchedKind, scope: &WatchScope) -> PendingChanges {
        let Some(list) = self.lists.get_mut(scope) else { return PendingChanges::default() };
        let arrived = list.partial.take().unwrap_or_default();
        let was_complete = std::mem::replace(&mut list.is_complete, true);
        list.rejection = None;
        let is_covered = |name: &ObjectName| scope.covers(name);
        let known = self.objects.keys().filter(|name| is_covered(name));
        let are_same = was_complete && known.eq(arrived.keys());
        let names =
            if are_same { PendingChanges::default() } else { PendingChanges::of_kind(kind) };
        let change =
            |(name, is): (&ObjectName, &StoredObject)| is.changes(kind, self.objects.get(name));
        let changes = arrived.iter().map(change).fold(names, PendingChanges::union);
        self.objects.retain(|name, _| !is_covered(name));
        self.objects.extend(arrived);
        changes
    }

    fn apply(&mut self, watch: &WatchKey, object: DynamicObject, writer: &str) -> PendingChanges {
        let kind = &KINDS[watch.kind];
        let name = name_of(&object);
        let Some((name, held)) = to_stored(kind, &watch.scope, object, writer) else {
            let gone = self.objects.remove(&name);
            return gone.map_or_else(PendingChanges::default, |_| PendingChanges::of_kind(kind));
        };
        let changes = held.changes(kind, self.objects.get(&name));
        self.objects.insert(name, held);
        changes
    }
}

impl StoredObject {
    /// Returns the changes compared with the previous object; `None`: it did not exist.
    fn changes(&self, kind: &WatchedKind, before: Option<&Self>) -> PendingChanges {
        let has_same_content = before
            .is_some_and(|before| before.object == self.object && before.problems == self.problems);
        let has_same_content =
            has_same_content && before.and_then(Self::managed_service) == self.managed_service();
        let statuses = before.map_or((None, None), Self::status_inputs) != self.status_inputs();
        // A replica that is not the leader uses the addresses that the leader has assigned.
        let addresses = |held: &Self| kind.status_addresses(held.status.as_ref());
        let has_same = before.is_some_and(|before| addresses(before) == addresses(self));
        let is_same = has_same_content && has_same;
        let changes =
            if is_same { PendingChanges::default() } else { PendingChanges::of_kind(kind) };
        changes.union(PendingChanges { statuses, ..PendingChanges::default() })
    }

    /// Returns all inputs of a status.
    fn status_inputs(&self) -> (Option<&Value>, Option<&str>) {
        (self.status.as_ref(), self.bundle_version.as_deref())
    }
}

impl PendingChanges {
    fn of_kind(kind: &WatchedKind) -> Self {
        Self { objects: !kind.is_endpoints, endpoints: kind.is_endpoints, statuses: false }
    }

    fn union(self, other: Self) -> Self {
        Self {
            objects: self.objects || other.objects,
            endpoints: self.endpoints || other.endpoints,
            statuses: self.statuses || other.statuses,
        }
    }

    /// True if the changes need a translation or a new set of endpoints.
    pub(crate) fn needs_translation(self) -> bool {
        self.objects || self.endpoints
    }
}

/// Converts an object that is read once, with the errors in it; without an object if it is irrelevant.
pub(crate) fn read_object(
    kind: &WatchedKind,
    scope: &WatchScope,
    object: DynamicObject,
) -> (Option<ApiObject>, Vec<ObjectProblem>) {
    match to_stored(kind, scope, object, "") {
        Some((_, StoredObject { object, problems, .. })) => (object, problems),
        None => (None, Vec::new()),
    }
}

fn name_of(object: &DynamicObject) -> ObjectName {
    let metadata = &object.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// Converts an object to its stored form; `None` if it is irrelevant. An object with a watch of its own is one that
/// others refer to: it is kept whole, because users, keys and pages are under names of their authors.
fn to_stored(
    kind: &WatchedKind,
    scope: &WatchScope,
    mut object: DynamicObject,
    writer: &str,
) -> Option<(ObjectName, StoredObject)> {
    let is_referenced = matches!(scope, WatchScope::Object(_));
    if !is_referenced && !kind.is_relevant(&object.data) {
        return None;
    }
    let name = name_of(&object);
    let annotations = object.metadata.annotations.as_mut();
    let bundle_version = annotations.and_then(|it| it.remove(BUNDLE_VERSION));
    let says_ours = has_our_status(&object.metadata, writer);
    let front = gateway_services::managed_service(kind, &object);
    kind.trim(&mut object);
    if !is_referenced {
        kind.trim_values(&mut object);
    }
    let resource_version = object.metadata.resource_version.clone().unwrap_or_default();
    let uid = object.metadata.uid.clone().unwrap_or_default();
    let status = match kind.name {
        // Its status is what is read of it.
        NODE => None,
        _ => object.data.as_object_mut().and_then(|fields| fields.remove("status")),
    };
    let mut value = object.data;
    value["apiVersion"] = json!(kind.api_version());
    value["kind"] = json!(kind.name);
    value["metadata"] = json!(object.metadata);
    let origin = ObjectOrigin { file: Arc::from("kubernetes"), document: 0 };
    let (mut objects, problems) = gateway::objects::read(value, origin);
    let held = StoredObject {
        object: objects.pop(),
        problems,
        status,
        resource_version,
        has_our_status: says_ours,
        bundle_version,
        uid,
        managed_service: front,
    };
    Some((name, held))
}

/// True if we have applied a status that is still there, at least partly.
fn has_our_status(metadata: &ObjectMeta, writer: &str) -> bool {
    let mut writers = metadata.managed_fields.iter().flatten();
    writers.any(|it| {
        let (manager, part) = (it.manager.as_deref(), it.subresource.as_deref());
        (manager, part, it.operation.as_deref()) == (Some(writer), Some("status"), Some("Apply"))
    })
}

#[cfg(test)]
mod tests;
