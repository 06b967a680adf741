//! What the cluster holds, as far as it has been told: objects, what is wrong with them, and their present status.
//!
//! It knows what came in and whether that changed anything; it must not know how it comes in.

use std::collections::BTreeMap;
use std::sync::Arc;

use gateway::{ApiObject, ObjectOrigin, ObjectProblem};
use kube_core::{DynamicObject, ObjectMeta};
use kube_runtime::watcher::Event;
use serde_json::{Value, json};

use crate::WRITER;
use crate::gateway_services;
use crate::kind::{CRD_KIND, KINDS, WatchedKind};

/// The annotation of Gateway API's definitions that tells their version.
const BUNDLE_VERSION: &str = "gateway.networking.k8s.io/bundle-version";

/// A namespace, which is empty for what has none, and a name.
pub(crate) type ObjectName = (String, String);

/// Everything that is known.
#[derive(Debug)]
pub(crate) struct Store {
    /// In the order of [`KINDS`].
    kinds: Vec<KindStore>,
    pub(crate) changes: PendingChanges,
}

/// What has changed since it was last looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingChanges {
    /// Something that takes a translation.
    pub(crate) objects: bool,
    /// Endpoints.
    pub(crate) endpoints: bool,
    /// Statuses, be it that they came back as we wrote them, or what they depend on.
    pub(crate) statuses: bool,
}

#[derive(Debug, Default)]
struct KindStore {
    objects: BTreeMap<ObjectName, StoredObject>,
    /// What has come of a list that is not complete; until it is, what was known before holds.
    partial_list: Option<BTreeMap<ObjectName, StoredObject>>,
    /// Whether a whole list has come.
    is_complete: bool,
}

/// One object.
#[derive(Debug)]
pub(crate) struct StoredObject {
    /// None if it has errors, or means nothing to us.
    object: Option<ApiObject>,
    problems: Vec<ObjectProblem>,
    pub(crate) status: Option<Value>,
    /// Of optimistic writes.
    pub(crate) resource_version: String,
    /// Whether some of the status is what we have said.
    pub(crate) has_our_status: bool,
    /// Of a definition.
    bundle_version: Option<String>,
    pub(crate) uid: String,
    /// All of it, with its status, if it is a Service of ours: what somebody else writes there matters to us.
    managed_service: Option<Value>,
}

impl StoredObject {
    /// All of it, if it is a Service of ours in front of a Gateway.
    pub(crate) const fn managed_service(&self) -> Option<&Value> {
        self.managed_service.as_ref()
    }
}

impl Store {
    pub(crate) fn new() -> Self {
        Self {
            kinds: KINDS.iter().map(|_| KindStore::default()).collect(),
            changes: PendingChanges::default(),
        }
    }

    /// Whether a whole list of each kind has come: before that, what is missing may just not have been told.
    pub(crate) fn has_synced(&self) -> bool {
        self.kinds.iter().all(|kind| kind.is_complete)
    }

    /// Takes what a watch says.
    pub(crate) fn apply_event(&mut self, place: usize, event: Event<DynamicObject>) {
        let kind = &KINDS[place];
        let of_kind = &mut self.kinds[place];
        let changes = match event {
            Event::Init => {
                of_kind.partial_list = Some(BTreeMap::new());
                PendingChanges::default()
            }
            Event::InitApply(object) => {
                if let Some((name, held)) = to_stored(kind, object) {
                    of_kind.partial_list.get_or_insert_default().insert(name, held);
                }
                PendingChanges::default()
            }
            Event::InitDone => {
                let arrived = of_kind.partial_list.take().unwrap_or_default();
                of_kind.replace(kind, arrived)
            }
            Event::Apply(object) => of_kind.apply(kind, object),
            Event::Delete(object) => {
                let gone = of_kind.objects.remove(&name_of(&object));
                gone.map_or_else(PendingChanges::default, |_| PendingChanges::of_kind(kind))
            }
        };
        self.changes = self.changes.union(changes);
    }

    /// The API server has no such kind. If that is the first answer, there are none; if it had some before, it is
    /// starting, or they are being taken away one by one: what is known holds until it says otherwise.
    pub(crate) fn mark_kind_absent(&mut self, place: usize) {
        let of_kind = &mut self.kinds[place];
        if !of_kind.is_complete {
            of_kind.is_complete = true;
            self.changes.objects = true;
        }
    }

    /// Every object without an error, and all that is wrong with the others.
    pub(crate) fn contents(&self) -> (Vec<ApiObject>, Vec<ObjectProblem>) {
        let held = || self.kinds.iter().flat_map(|kind| kind.objects.values());
        let objects = held().filter_map(|held| held.object.clone()).collect();
        (objects, held().flat_map(|held| held.problems.iter().cloned()).collect())
    }

    /// What is held of an object.
    pub(crate) fn find(&self, kind: &str, namespace: &str, name: &str) -> Option<&StoredObject> {
        let of_kind = &self.kinds[WatchedKind::index_of(kind)?];
        of_kind.objects.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The version of Gateway API's definitions, where they say it.
    pub(crate) fn bundle_version(&self) -> Option<&str> {
        let (_, held) = self.all(CRD_KIND).next()?;
        held.bundle_version.as_deref()
    }

    /// All objects of a kind, by name.
    pub(crate) fn all(&self, kind: &str) -> impl Iterator<Item = (&ObjectName, &StoredObject)> {
        WatchedKind::index_of(kind).into_iter().flat_map(|place| &self.kinds[place].objects)
    }
}

impl KindStore {
    /// A whole list has come; tells how it differs from what was known.
    fn replace(
        &mut self,
        kind: &WatchedKind,
        arrived: BTreeMap<ObjectName, StoredObject>,
    ) -> PendingChanges {
        let are_same = self.is_complete && self.objects.keys().eq(arrived.keys());
        let names =
            if are_same { PendingChanges::default() } else { PendingChanges::of_kind(kind) };
        let change =
            |(name, is): (&ObjectName, &StoredObject)| is.changes(kind, self.objects.get(name));
        let changes = arrived.iter().map(change).fold(names, PendingChanges::union);
        self.objects = arrived;
        self.is_complete = true;
        changes
    }

    fn apply(&mut self, kind: &WatchedKind, object: DynamicObject) -> PendingChanges {
        let name = name_of(&object);
        let Some((name, held)) = to_stored(kind, object) else {
            let gone = self.objects.remove(&name);
            return gone.map_or_else(PendingChanges::default, |_| PendingChanges::of_kind(kind));
        };
        let changes = held.changes(kind, self.objects.get(&name));
        self.objects.insert(name, held);
        changes
    }
}

impl StoredObject {
    /// What has changed since it was like this; none: it was not there.
    fn changes(&self, kind: &WatchedKind, before: Option<&Self>) -> PendingChanges {
        let asks_same = before
            .is_some_and(|before| before.object == self.object && before.problems == self.problems);
        let asks_same =
            asks_same && before.and_then(Self::managed_service) == self.managed_service();
        let statuses = before.map_or((None, None), Self::status_inputs) != self.status_inputs();
        // A replica that knows no better goes by the addresses that another one has given.
        let places = |held: &Self| kind.status_addresses(held.status.as_ref());
        let has_same = before.is_some_and(|before| places(before) == places(self));
        let is_same = asks_same && has_same;
        let asked = if is_same { PendingChanges::default() } else { PendingChanges::of_kind(kind) };
        asked.union(PendingChanges { statuses, ..PendingChanges::default() })
    }

    /// All that a status goes by.
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

    /// Whether something is asked for that was not.
    pub(crate) fn needs_translation(self) -> bool {
        self.objects || self.endpoints
    }
}

fn name_of(object: &DynamicObject) -> ObjectName {
    let metadata = &object.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// What is kept of an object; none if it cannot matter.
fn to_stored(kind: &WatchedKind, mut object: DynamicObject) -> Option<(ObjectName, StoredObject)> {
    if !kind.is_relevant(&object.data) {
        return None;
    }
    let name = name_of(&object);
    let annotations = object.metadata.annotations.as_mut();
    let bundle_version = annotations.and_then(|it| it.remove(BUNDLE_VERSION));
    let says_ours = has_our_status(&object.metadata);
    let front = gateway_services::managed_service(kind, &object);
    kind.trim(&mut object);
    let resource_version = object.metadata.resource_version.clone().unwrap_or_default();
    let uid = object.metadata.uid.clone().unwrap_or_default();
    let status = object.data.as_object_mut().and_then(|fields| fields.remove("status"));
    let mut value = object.data;
    value["apiVersion"] = json!(kind.api_version());
    value["kind"] = json!(kind.name);
    value["metadata"] = json!(object.metadata);
    let origin = ObjectOrigin { file: Arc::from("kubernetes"), document: 0 };
    let (object, problems) = match external_name_problem(kind, &name, &value, &origin) {
        Some(problem) => (None, vec![problem]),
        None => {
            let (mut objects, problems) = gateway::objects::read(value, origin);
            (objects.pop(), problems)
        }
    };
    let held = StoredObject {
        object,
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

/// Whether we have applied a status that is still there, as far as others have left it.
fn has_our_status(metadata: &ObjectMeta) -> bool {
    let mut writers = metadata.managed_fields.iter().flatten();
    writers.any(|it| {
        let (manager, part) = (it.manager.as_deref(), it.subresource.as_deref());
        (manager, part, it.operation.as_deref()) == (Some(WRITER), Some("status"), Some("Apply"))
    })
}

/// A Service that stands for a name in DNS: whoever may write one could lead requests to what is not theirs
/// (CVE-2021-25740), so that it counts in files alone.
fn external_name_problem(
    kind: &WatchedKind,
    name: &ObjectName,
    value: &Value,
    origin: &ObjectOrigin,
) -> Option<ObjectProblem> {
    let is_name = value.pointer("/spec/type").is_some_and(|it| it == "ExternalName");
    (kind.name == "Service" && is_name).then(|| ObjectProblem {
        origin: origin.clone(),
        object: format!("Service {}/{}", name.0, name.1),
        field: "spec.type".to_owned(),
        message: "ExternalName is honoured in files, not in a cluster (CVE-2021-25740)".to_owned(),
    })
}

#[cfg(test)]
mod tests;
