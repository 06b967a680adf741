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
use crate::front;
use crate::kind::{DEFINITION, KINDS, Kind};

/// The annotation of Gateway API's definitions that tells their version.
const BUNDLE_VERSION: &str = "gateway.networking.k8s.io/bundle-version";

/// A namespace, which is empty for what has none, and a name.
pub(crate) type Name = (String, String);

/// Everything that is known.
#[derive(Debug)]
pub(crate) struct Known {
    /// In the order of [`KINDS`].
    kinds: Vec<OfKind>,
    pub(crate) changes: Changes,
}

/// What has changed since it was last looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Something that takes a translation.
    pub(crate) objects: bool,
    /// Endpoints.
    pub(crate) endpoints: bool,
    /// Statuses, be it that they came back as we wrote them, or what they depend on.
    pub(crate) statuses: bool,
}

#[derive(Debug, Default)]
struct OfKind {
    objects: BTreeMap<Name, Held>,
    /// What has come of a list that is not complete; until it is, what was known before holds.
    arriving: Option<BTreeMap<Name, Held>>,
    /// Whether a whole list has come.
    is_complete: bool,
}

/// One object.
#[derive(Debug)]
pub(crate) struct Held {
    /// None if it has errors, or means nothing to us.
    object: Option<ApiObject>,
    problems: Vec<ObjectProblem>,
    pub(crate) status: Option<Value>,
    /// Of optimistic writes.
    pub(crate) resource_version: String,
    /// Whether some of the status is what we have said.
    pub(crate) says_ours: bool,
    /// Of a definition.
    bundle_version: Option<String>,
    pub(crate) uid: String,
    /// All of it, with its status, if it is a Service of ours: what somebody else writes there matters to us.
    front: Option<Value>,
}

impl Held {
    /// All of it, if it is a Service of ours in front of a Gateway.
    pub(crate) const fn front(&self) -> Option<&Value> {
        self.front.as_ref()
    }
}

impl Known {
    pub(crate) fn new() -> Self {
        Self {
            kinds: KINDS.iter().map(|_| OfKind::default()).collect(),
            changes: Changes::default(),
        }
    }

    /// Whether a whole list of each kind has come: before that, what is missing may just not have been told.
    pub(crate) fn is_complete(&self) -> bool {
        self.kinds.iter().all(|kind| kind.is_complete)
    }

    /// Takes what a watch says.
    pub(crate) fn take(&mut self, place: usize, event: Event<DynamicObject>) {
        let kind = &KINDS[place];
        let of_kind = &mut self.kinds[place];
        let changes = match event {
            Event::Init => {
                of_kind.arriving = Some(BTreeMap::new());
                Changes::default()
            }
            Event::InitApply(object) => {
                if let Some((name, held)) = hold(kind, object) {
                    of_kind.arriving.get_or_insert_default().insert(name, held);
                }
                Changes::default()
            }
            Event::InitDone => {
                let arrived = of_kind.arriving.take().unwrap_or_default();
                of_kind.replace(kind, arrived)
            }
            Event::Apply(object) => of_kind.apply(kind, object),
            Event::Delete(object) => {
                let gone = of_kind.objects.remove(&name_of(&object));
                gone.map_or_else(Changes::default, |_| Changes::of(kind))
            }
        };
        self.changes = self.changes.and(changes);
    }

    /// The API server has no such kind. If that is the first answer, there are none; if it had some before, it is
    /// starting, or they are being taken away one by one: what is known holds until it says otherwise.
    pub(crate) fn is_absent(&mut self, place: usize) {
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
    pub(crate) fn find(&self, kind: &str, namespace: &str, name: &str) -> Option<&Held> {
        let of_kind = &self.kinds[Kind::place(kind)?];
        of_kind.objects.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The version of Gateway API's definitions, where they say it.
    pub(crate) fn bundle_version(&self) -> Option<&str> {
        let (_, held) = self.all(DEFINITION).next()?;
        held.bundle_version.as_deref()
    }

    /// All objects of a kind, by name.
    pub(crate) fn all(&self, kind: &str) -> impl Iterator<Item = (&Name, &Held)> {
        Kind::place(kind).into_iter().flat_map(|place| &self.kinds[place].objects)
    }
}

impl OfKind {
    /// A whole list has come; tells how it differs from what was known.
    fn replace(&mut self, kind: &Kind, arrived: BTreeMap<Name, Held>) -> Changes {
        let are_same = self.is_complete && self.objects.keys().eq(arrived.keys());
        let names = if are_same { Changes::default() } else { Changes::of(kind) };
        let change = |(name, is): (&Name, &Held)| is.changes(kind, self.objects.get(name));
        let changes = arrived.iter().map(change).fold(names, Changes::and);
        self.objects = arrived;
        self.is_complete = true;
        changes
    }

    fn apply(&mut self, kind: &Kind, object: DynamicObject) -> Changes {
        let name = name_of(&object);
        let Some((name, held)) = hold(kind, object) else {
            let gone = self.objects.remove(&name);
            return gone.map_or_else(Changes::default, |_| Changes::of(kind));
        };
        let changes = held.changes(kind, self.objects.get(&name));
        self.objects.insert(name, held);
        changes
    }
}

impl Held {
    /// What has changed since it was like this; none: it was not there.
    fn changes(&self, kind: &Kind, before: Option<&Self>) -> Changes {
        let asks_same = before
            .is_some_and(|before| before.object == self.object && before.problems == self.problems);
        let asks_same = asks_same && before.and_then(Self::front) == self.front();
        let statuses = before.map_or((None, None), Self::says) != self.says();
        // A replica that knows no better goes by the addresses that another one has given.
        let places = |held: &Self| kind.places(held.status.as_ref());
        let has_same = before.is_some_and(|before| places(before) == places(self));
        let is_same = asks_same && has_same;
        let asked = if is_same { Changes::default() } else { Changes::of(kind) };
        asked.and(Changes { statuses, ..Changes::default() })
    }

    /// All that a status goes by.
    fn says(&self) -> (Option<&Value>, Option<&str>) {
        (self.status.as_ref(), self.bundle_version.as_deref())
    }
}

impl Changes {
    fn of(kind: &Kind) -> Self {
        Self { objects: !kind.is_endpoints, endpoints: kind.is_endpoints, statuses: false }
    }

    fn and(self, other: Self) -> Self {
        Self {
            objects: self.objects || other.objects,
            endpoints: self.endpoints || other.endpoints,
            statuses: self.statuses || other.statuses,
        }
    }

    /// Whether something is asked for that was not.
    pub(crate) fn ask(self) -> bool {
        self.objects || self.endpoints
    }
}

fn name_of(object: &DynamicObject) -> Name {
    let metadata = &object.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// What is kept of an object; none if it cannot matter.
fn hold(kind: &Kind, mut object: DynamicObject) -> Option<(Name, Held)> {
    if !kind.may_matter(&object.data) {
        return None;
    }
    let name = name_of(&object);
    let annotations = object.metadata.annotations.as_mut();
    let bundle_version = annotations.and_then(|it| it.remove(BUNDLE_VERSION));
    let says_ours = says_ours(&object.metadata);
    let front = front::whole(kind, &object);
    kind.trim(&mut object);
    let resource_version = object.metadata.resource_version.clone().unwrap_or_default();
    let uid = object.metadata.uid.clone().unwrap_or_default();
    let status = object.data.as_object_mut().and_then(|fields| fields.remove("status"));
    let mut value = object.data;
    value["apiVersion"] = json!(kind.api_version());
    value["kind"] = json!(kind.name);
    value["metadata"] = json!(object.metadata);
    let origin = ObjectOrigin { file: Arc::from("kubernetes"), document: 0 };
    let (object, problems) = match forbidden(kind, &name, &value, &origin) {
        Some(problem) => (None, vec![problem]),
        None => {
            let (mut objects, problems) = gateway::objects::read(value, origin);
            (objects.pop(), problems)
        }
    };
    let held =
        Held { object, problems, status, resource_version, says_ours, bundle_version, uid, front };
    Some((name, held))
}

/// Whether we have applied a status that is still there, as far as others have left it.
fn says_ours(metadata: &ObjectMeta) -> bool {
    let mut writers = metadata.managed_fields.iter().flatten();
    writers.any(|it| {
        let (manager, part) = (it.manager.as_deref(), it.subresource.as_deref());
        (manager, part, it.operation.as_deref()) == (Some(WRITER), Some("status"), Some("Apply"))
    })
}

/// A Service that stands for a name in DNS: whoever may write one could lead requests to what is not theirs
/// (CVE-2021-25740), so that it counts in files alone.
fn forbidden(
    kind: &Kind,
    name: &Name,
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
