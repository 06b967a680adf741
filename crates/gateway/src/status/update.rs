//! Updates of the statuses in a cluster that are out of date. An unchanged status is not written, and entries of other
//! controllers are kept.
//!
//! In Kubernetes, lists of conditions and of listeners are maps: only Sheave's entries are written, by server-side
//! apply. Lists of a route's parents and of a policy's ancestors are not: they are written as a whole, with the entries
//! of other controllers in their places.

use serde_json::{Value, json};

use super::{ConditionType, ResourceStatus, StatusDetail, status_json};

/// Maximum number of entries in a list of conditions.
const MAX_CONDITIONS: usize = 8;
/// Maximum number of entries in a route's list of parents.
const MAX_PARENTS: usize = 32;
/// Maximum number of entries in a policy's list of ancestors.
const MAX_ANCESTORS: usize = 16;

/// A status to write. The content is the value of `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusUpdate {
    /// Sheave's part of the status, for server-side apply.
    Apply(Value),
    /// The whole status, which replaces the one that it was made from.
    Replace(Value),
}

/// Returns the update of the object's `status`, which is `current`, or `None` if it is up to date.
///
/// `now` is a time in RFC 3339. It becomes the `lastTransitionTime` of each condition whose `status` changes; the other
/// conditions keep theirs. `controller` is the name of our entries in lists that several controllers write.
pub fn status_update(
    status: &ResourceStatus,
    controller: &str,
    current: Option<&Value>,
    now: &str,
) -> Option<StatusUpdate> {
    let current = current.unwrap_or(&Value::Null);
    let ours = status_json(status, controller);
    let namespace = &*status.object.namespace;
    match &status.detail {
        StatusDetail::GatewayClass(_)
        | StatusDetail::Gateway(_)
        | StatusDetail::AddressPool(_)
        | StatusDetail::BgpPeer(_)
        | StatusDetail::ListenerSet(..) => {
            let ours = with_transition_times(ours, current, now);
            (!is_up_to_date(&ours, current)).then_some(StatusUpdate::Apply(ours))
        }
        StatusDetail::Route(_) => {
            let list = SharedStatusList {
                name: "parents",
                reference: "parentRef",
                max_entries: MAX_PARENTS,
                namespace,
                controller,
            };
            list.update(&ours, current, now)
        }
        StatusDetail::Policy(_) => {
            let list = SharedStatusList {
                name: "ancestors",
                reference: "ancestorRef",
                max_entries: MAX_ANCESTORS,
                namespace,
                controller,
            };
            list.update(&ours, current, now)
        }
    }
}

/// Returns the update for a route or a policy that no longer belongs to Sheave, or `None` if `current` has no entry of
/// this controller.
pub fn status_removal(current: &Value, controller: &str) -> Option<StatusUpdate> {
    let mut status = current.clone();
    let mut is_changed = false;
    for name in ["parents", "ancestors"] {
        if let Some(Value::Array(entries)) = status.get_mut(name) {
            let before = entries.len();
            entries.retain(|entry| !is_ours(entry, controller));
            is_changed |= entries.len() < before;
        }
    }
    is_changed.then_some(StatusUpdate::Replace(status))
}

fn is_ours(entry: &Value, controller: &str) -> bool {
    entry["controllerName"] == controller
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the item of a list that has this name.
fn named<'a>(list: &'a Value, key: &str, name: &Value) -> &'a Value {
    items(list).iter().find(|item| item[key] == *name).unwrap_or(&Value::Null)
}

/// Returns Sheave's status with the times of all conditions.
fn with_transition_times(mut ours: Value, current: &Value, now: &str) -> Value {
    set_transition_times(&mut ours["conditions"], &current["conditions"], now);
    if let Some(Value::Array(listeners)) = ours.get_mut("listeners") {
        // An API server accepts no two listeners of one name. With both, neither could be written.
        let mut names = Vec::new();
        listeners.retain(|listener| {
            let is_new = !names.contains(&listener["name"]);
            names.push(listener["name"].clone());
            is_new
        });
        for listener in listeners {
            let known = named(&current["listeners"], "name", &listener["name"]);
            let known = known["conditions"].clone();
            set_transition_times(&mut listener["conditions"], &known, now);
        }
    }
    ours
}

/// Sets the time of each condition, and keeps as many conditions as fit beside those of other controllers.
fn set_transition_times(ours: &mut Value, current: &Value, now: &str) {
    let Value::Array(conditions) = ours else { return };
    let others = items(current).iter().filter(|it| !is_known(it)).count();
    conditions.truncate(MAX_CONDITIONS.saturating_sub(others));
    for condition in conditions {
        let known = named(current, "type", &condition["type"]);
        let is_unchanged = known["status"] == condition["status"];
        let since = known["lastTransitionTime"].as_str().filter(|_| is_unchanged).unwrap_or(now);
        condition["lastTransitionTime"] = json!(since);
    }
}

/// True if Sheave writes conditions of this type.
fn is_known(condition: &Value) -> bool {
    condition["type"]
        .as_str()
        .is_some_and(|name| ConditionType::ALL.iter().any(|known| known.name() == name))
}

/// True if `current` contains all of `ours`, and no outdated entry of Sheave.
fn is_up_to_date(ours: &Value, current: &Value) -> bool {
    let fields = ours.as_object().into_iter().flatten();
    fields.into_iter().all(|(name, value)| {
        let written = &current[name];
        match name.as_str() {
            "conditions" => are_conditions_up_to_date(value, written),
            "listeners" => {
                items(value).len() == items(written).len()
                    && items(value).iter().all(|listener| {
                        is_up_to_date(listener, named(written, "name", &listener["name"]))
                    })
            }
            _ => {
                value == written
                    || (items(value).is_empty() && items(written).is_empty() && value.is_array())
            }
        }
    })
}

fn are_conditions_up_to_date(ours: &Value, current: &Value) -> bool {
    let is_stale = |it: &&Value| is_known(it) && named(ours, "type", &it["type"]).is_null();
    items(ours).iter().all(|it| named(current, "type", &it["type"]) == it)
        && items(current).iter().all(|it| !is_stale(&it))
}

/// A list to which several controllers write, each its own entries.
struct SharedStatusList<'a> {
    name: &'a str,
    /// The field of an entry that names its subject.
    reference: &'a str,
    /// Maximum number of entries.
    max_entries: usize,
    /// The namespace of the object.
    namespace: &'a str,
    /// The name of our entries.
    controller: &'a str,
}

impl SharedStatusList<'_> {
    fn update(&self, ours: &Value, current: &Value, now: &str) -> Option<StatusUpdate> {
        let written = items(&current[self.name]);
        let others = written.iter().filter(|entry| !is_ours(entry, self.controller)).count();
        let ours = items(&ours[self.name]);
        let ours = &ours[..ours.len().min(self.max_entries.saturating_sub(others))];
        let mut new: Vec<Option<Value>> = ours.iter().cloned().map(Some).collect();
        let mut entries: Vec<Value> = Vec::new();
        for entry in written {
            if !is_ours(entry, self.controller) {
                entries.push(entry.clone());
                continue;
            }
            let same =
                |own: &Option<Value>| own.as_ref().is_some_and(|own| self.are_same(own, entry));
            let place = new.iter().position(same);
            if let Some(mut own) = place.and_then(|place| new[place].take()) {
                set_transition_times(&mut own["conditions"], &entry["conditions"], now);
                entries.push(own);
            }
        }
        for mut own in new.into_iter().flatten() {
            set_transition_times(&mut own["conditions"], &Value::Null, now);
            entries.push(own);
        }
        if entries == written {
            return None;
        }
        let mut status = if current.is_object() { current.clone() } else { json!({}) };
        status[self.name] = Value::Array(entries);
        Some(StatusUpdate::Replace(status))
    }

    /// True if two entries have the same subject, with every default filled in.
    fn are_same(&self, some: &Value, other: &Value) -> bool {
        self.target(&some[self.reference]) == self.target(&other[self.reference])
    }

    fn target<'v>(&'v self, reference: &'v Value) -> ([&'v str; 5], Option<u64>) {
        let text = |name: &str, default: &'v str| reference[name].as_str().unwrap_or(default);
        let texts = [
            text("group", "gateway.networking.k8s.io"),
            text("kind", "Gateway"),
            text("namespace", self.namespace),
            text("name", ""),
            text("sectionName", ""),
        ];
        (texts, reference["port"].as_u64())
    }
}
