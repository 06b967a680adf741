//! What the cluster holds, as far as it has been told: objects, what is wrong with them, and their present status.
//!
//! It knows what came in and whether that changed anything; it must not know how it comes in.

use std::collections::BTreeMap;
use std::sync::Arc;

use gateway::{Object, Origin, Problem};
use kube_core::DynamicObject;
use kube_runtime::watcher::Event;
use serde_json::{Value, json};

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
    /// Statuses, be it that they came back as we wrote them.
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
    object: Option<Object>,
    problems: Vec<Problem>,
    pub(crate) status: Option<Value>,
    /// Of optimistic writes.
    pub(crate) resource_version: String,
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
                let changed = of_kind.replace(arrived);
                if changed { Changes::of(kind) } else { Changes::default() }
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
    pub(crate) fn contents(&self) -> (Vec<Object>, Vec<Problem>) {
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
    /// A whole list has come. True: it differs from what was known.
    fn replace(&mut self, arrived: BTreeMap<Name, Held>) -> bool {
        let asks = |held: &Held| (held.object.clone(), held.problems.clone(), held.front().cloned());
        let is_same = self.is_complete
            && self.objects.len() == arrived.len()
            && self
                .objects
                .iter()
                .zip(&arrived)
                .all(|(was, is)| was.0 == is.0 && asks(was.1) == asks(is.1));
        self.objects = arrived;
        self.is_complete = true;
        !is_same
    }

    fn apply(&mut self, kind: &Kind, object: DynamicObject) -> Changes {
        let name = name_of(&object);
        let Some((name, held)) = hold(kind, object) else {
            let gone = self.objects.remove(&name);
            return gone.map_or_else(Changes::default, |_| Changes::of(kind));
        };
        let before = self.objects.get(&name);
        let said = before.and_then(|before| before.status.as_ref());
        let says_same = said == held.status.as_ref();
        let asks_same = before.is_some_and(|before| {
            before.object == held.object
                && before.problems == held.problems
                && before.front() == held.front()
        });
        self.objects.insert(name, held);
        let statuses = Changes { statuses: !says_same, ..Changes::default() };
        if asks_same { statuses } else { Changes::of(kind).and(statuses) }
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
    // Who wrote which field is most of an object's metadata, and nothing to us.
    object.metadata.managed_fields = None;
    let annotations = object.metadata.annotations.as_mut();
    let bundle_version = annotations.and_then(|it| it.remove(BUNDLE_VERSION));
    let resource_version = object.metadata.resource_version.clone().unwrap_or_default();
    let uid = object.metadata.uid.clone().unwrap_or_default();
    let status = object.data.as_object_mut().and_then(|fields| fields.remove("status"));
    let mut value = object.data;
    value["apiVersion"] = json!(kind.api_version());
    value["kind"] = json!(kind.name);
    value["metadata"] = json!(object.metadata);
    let origin = Origin { file: Arc::from("kubernetes"), document: 0 };
    let front = front::is_front(kind, &value).then(|| {
        let mut all = value.clone();
        all["status"] = json!(status);
        all
    });
    let (object, problems) = match forbidden(kind, &name, &value, &origin) {
        Some(problem) => (None, vec![problem]),
        None => {
            let (mut objects, problems) = gateway::objects::read(value, origin);
            (objects.pop(), problems)
        }
    };
    let held =
        Held { object, problems, status, resource_version, bundle_version, uid, front };
    Some((name, held))
}

/// A Service that stands for a name in DNS: whoever may write one could lead requests to what is not theirs
/// (CVE-2021-25740), so that it counts in files alone.
fn forbidden(kind: &Kind, name: &Name, value: &Value, origin: &Origin) -> Option<Problem> {
    let is_name = value.pointer("/spec/type").is_some_and(|it| it == "ExternalName");
    (kind.name == "Service" && is_name).then(|| Problem {
        origin: origin.clone(),
        object: format!("Service {}/{}", name.0, name.1),
        field: "spec.type".to_owned(),
        message: "ExternalName is honoured in files, not in a cluster (CVE-2021-25740)".to_owned(),
    })
}

#[cfg(test)]
mod tests;
