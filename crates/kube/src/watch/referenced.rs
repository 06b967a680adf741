//! Watches of the Secrets and ConfigMaps that objects refer to: each has its own watch, so that Roles with
//! `resourceNames` suffice, and no other is ever held in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gateway::{
    ApiObject, CertificateObject, CertificateObjectKind, ControllerNames, certificate_objects,
};
use tokio::sync::watch::Receiver;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Reflector, SharedStore, lock};
use crate::kind::{CONFIG_MAP, SECRET, WatchedKind};
use crate::store::{WatchKey, WatchScope};

/// Maximum number of watches of single objects: each is a connection to the API server.
const MAX_WATCHES: usize = 2_000;
/// Longest time that a change waits for the Secrets and ConfigMaps to which it refers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The watched Secrets and ConfigMaps.
pub(super) struct ReferencedObjects {
    reflector: Reflector,
    /// Watched namespaces; if it is empty, all.
    namespaces: Vec<String>,
    /// Objects of other sources whose references are followed.
    others: Vec<ApiObject>,
    watches: BTreeMap<CertificateObject, ObjectWatch>,
    /// Objects that are too many to be watched.
    excess: Vec<CertificateObject>,
}

/// The watch of one object; dropping it ends it.
struct ObjectWatch {
    key: WatchKey,
    store: SharedStore,
    task: JoinHandle<()>,
}

impl Drop for ObjectWatch {
    fn drop(&mut self) {
        self.task.abort();
        lock(&self.store).remove_watch(&self.key);
    }
}

impl ReferencedObjects {
    /// Starts without a watch.
    pub(super) fn new(reflector: Reflector, namespaces: Vec<String>) -> Self {
        let (others, watches, excess) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self { reflector, namespaces, others, watches, excess }
    }

    /// True if the objects of other sources differ from those that are followed.
    pub(super) fn has_new_others(&self, others: &[ApiObject]) -> bool {
        self.others != others
    }

    /// Watches what these objects refer to, and nothing else.
    pub(super) fn follow(
        &mut self,
        mut objects: Vec<ApiObject>,
        others: &[ApiObject],
        controllers: &ControllerNames,
    ) {
        others.clone_into(&mut self.others);
        objects.extend_from_slice(others);
        let mut wanted = certificate_objects(&objects, controllers);
        if !self.namespaces.is_empty() {
            wanted.retain(|it| self.namespaces.contains(&it.namespace));
        }
        let mut wanted = in_fair_order(wanted);
        self.excess = wanted.split_off(wanted.len().min(MAX_WATCHES));
        let wanted: BTreeSet<_> = wanted.into_iter().collect();
        self.watches.retain(|object, _| wanted.contains(object));
        for object in wanted {
            if !self.watches.contains_key(&object) {
                let watch = self.start(&object);
                self.watches.insert(object, watch);
            }
        }
    }

    fn start(&self, object: &CertificateObject) -> ObjectWatch {
        let kind = WatchedKind::index_of(kind_name(object.kind)).expect("the kind is watched");
        let scope = WatchScope::Object((object.namespace.clone(), object.name.clone()));
        let key = WatchKey { kind, scope };
        let store = Arc::clone(&self.reflector.store);
        lock(&store).add_watch(key.clone());
        let task = tokio::spawn(self.reflector.clone().run(key.clone()));
        ObjectWatch { key, store, task }
    }

    /// Waits until the API server has answered every watch, but only for a short time.
    pub(super) async fn wait_for_answers(&self, mut store_changes: Receiver<()>) {
        let answers = async {
            while self.unanswered().next().is_some() && store_changes.changed().await.is_ok() {}
        };
        // Those without an answer are unreadable for now.
        drop(timeout(ANSWER_TIMEOUT, answers).await);
    }

    fn unanswered(&self) -> impl Iterator<Item = &CertificateObject> {
        let is_unanswered = |watch: &ObjectWatch| !lock(&watch.store).has_answer(&watch.key);
        self.watches.iter().filter(move |(_, watch)| is_unanswered(watch)).map(|(it, _)| it)
    }

    /// Returns the objects that cannot be read, each with the reason.
    pub(super) fn unreadable(&self) -> BTreeMap<CertificateObject, String> {
        let unanswered =
            self.unanswered().map(|it| (it, "the API server has not answered".to_owned()));
        let excess = format!("there are references to more than {MAX_WATCHES} others");
        let excess = self.excess.iter().map(|it| (it, excess.clone()));
        let mut unreadable: BTreeMap<_, _> =
            unanswered.chain(excess).map(|(object, reason)| (object.clone(), reason)).collect();
        let rejections: BTreeMap<_, _> =
            lock(&self.reflector.store).rejections().into_iter().collect();
        let rejected = self.watches.iter();
        unreadable.extend(rejected.filter_map(|(object, watch)| {
            Some((object.clone(), rejections.get(&watch.key)?.clone()))
        }));
        unreadable
    }
}

/// Returns the objects in an order that takes one of each namespace in turn, so that the references of one namespace
/// cannot use up all watches.
fn in_fair_order(objects: BTreeSet<CertificateObject>) -> Vec<CertificateObject> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut ranked: Vec<_> = objects
        .into_iter()
        .map(|object| {
            let count = counts.entry(object.namespace.clone()).or_default();
            *count += 1;
            (*count, object)
        })
        .collect();
    ranked.sort();
    ranked.into_iter().map(|(_, object)| object).collect()
}

const fn kind_name(kind: CertificateObjectKind) -> &'static str {
    match kind {
        CertificateObjectKind::ConfigMap => CONFIG_MAP,
        CertificateObjectKind::Secret => SECRET,
    }
}

#[cfg(test)]
mod tests;
