//! Resources that clients reject now, for the statuses of the routes from which they come.
//!
//! A resource is rejected from the NACK of a client until all such clients have accepted it, or have gone. A client that
//! goes is expected back: its rejection stays for [`REJECTION_HOLD`], so that a client that reconnects makes no status
//! flap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::message::ResourceType;
use crate::name;

/// Time for which the rejection of a client that has gone stays.
pub const REJECTION_HOLD: Duration = Duration::from_secs(60);
/// Maximum number of resources of which rejections are kept.
const MAX_REJECTED_RESOURCES: usize = 256;

pub(crate) type ResourceName = (ResourceType, Arc<str>);

/// The resources that clients reject.
#[derive(Debug, Default)]
pub(crate) struct RejectionTable {
    resources: Mutex<BTreeMap<ResourceName, RejectedResource>>,
}

#[derive(Debug)]
struct RejectedResource {
    /// The number of connected clients that reject it.
    clients: usize,
    /// The time until which it is kept without one.
    until: Instant,
    /// The first client, and its words: they stay, whatever others say of the same resource.
    client: String,
    words: String,
}

impl RejectionTable {
    /// Returns a sentence for each rejected resource that exists.
    pub(crate) fn current(
        &self,
        exists: impl Fn(&ResourceName) -> bool,
        now: Instant,
    ) -> Vec<(ResourceName, String)> {
        let mut resources = self.resources();
        resources.retain(|_, it| it.clients > 0 || now < it.until);
        let sentence = |(name, it): (&ResourceName, &RejectedResource)| {
            let RejectedResource { client, words, .. } = it;
            let client = if client.is_empty() { "a client" } else { client };
            (name.clone(), format!("{client:?} rejects {} {}: {words}", name.0.label(), name.1))
        };
        resources.iter().filter(|(name, _)| exists(name)).map(sentence).collect()
    }

    fn resources(&self) -> MutexGuard<'_, BTreeMap<ResourceName, RejectedResource>> {
        self.resources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The resources that one client rejects.
#[derive(Debug)]
pub(crate) struct ClientRejections {
    table: Arc<RejectionTable>,
    resources: BTreeSet<ResourceName>,
}

impl ClientRejections {
    pub(crate) fn new(table: Arc<RejectionTable>) -> Self {
        Self { table, resources: BTreeSet::new() }
    }

    /// Records that the client has rejected a response with these resources. Its words say which of them it means; if
    /// they name none, only a response with a single resource tells.
    pub(crate) fn reject(
        &mut self,
        kind: ResourceType,
        names: &[Arc<str>],
        client: &str,
        words: &str,
        now: Instant,
    ) {
        // No route has a part in the Listener of a server.
        let of_routes = names.iter().filter(|name| name::server_port(name).is_none());
        let meant = of_routes.filter(|name| names.len() == 1 || mentions(words, name));
        let mut rejected = self.table.resources();
        for name in meant {
            let resource = (kind, Arc::clone(name));
            if rejected.len() >= MAX_REJECTED_RESOURCES && !rejected.contains_key(&resource) {
                return;
            }
            let known = rejected.entry(resource.clone()).or_insert_with(|| RejectedResource {
                clients: 0,
                until: now,
                client: client.to_owned(),
                words: words.to_owned(),
            });
            if self.resources.insert(resource) {
                known.clients += 1;
            }
        }
    }

    /// Records that the client has accepted a response with these resources.
    pub(crate) fn accept(&mut self, kind: ResourceType, names: &[Arc<str>]) {
        let mut rejected = self.table.resources();
        if rejected.is_empty() {
            return;
        }
        for name in names {
            let resource = (kind, Arc::clone(name));
            let was_own = self.resources.remove(&resource);
            let Some(known) = rejected.get_mut(&resource) else { continue };
            known.clients -= usize::from(was_own && known.clients > 0);
            // If no connected client rejects it, one that accepts it decides.
            if known.clients == 0 {
                rejected.remove(&resource);
            }
        }
    }
}

impl Drop for ClientRejections {
    fn drop(&mut self) {
        let mut rejected = self.table.resources();
        for resource in &self.resources {
            if let Some(known) = rejected.get_mut(resource) {
                known.clients = known.clients.saturating_sub(1);
                known.until = Instant::now() + REJECTION_HOLD;
            }
        }
    }
}

/// True if the words name the resource as a whole, and not one whose name begins or ends with it.
fn mentions(words: &str, name: &str) -> bool {
    let is_part = |it: char| it.is_alphanumeric() || ['-', '.', '/'].contains(&it);
    words.match_indices(name).any(|(at, _)| {
        let (before, after) = (&words[..at], &words[at + name.len()..]);
        !before.ends_with(is_part) && !after.starts_with(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: ResourceType = ResourceType::RouteConfiguration;

    fn names(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|it| Arc::from(*it)).collect()
    }

    /// Returns the names of the resources that are rejected, with the words.
    fn rejected(table: &RejectionTable, now: Instant) -> Vec<String> {
        table.current(|_| true, now).into_iter().map(|(_, sentence)| sentence).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn resource_is_rejected_until_all_clients_accept_it() {
        let table = Arc::<RejectionTable>::default();
        let new = || ClientRejections::new(Arc::clone(&table));
        let (mut some, mut other) = (new(), new());
        let (all, now) = (names(&["shop/web:80", "shop/web:8080", "shop/api:80"]), Instant::now());
        some.reject(KIND, &all, "some", "route \"shop/web:80\" is bad", now);
        some.reject(KIND, &all, "some", "route \"shop/web:80\" is bad", now);
        other.reject(KIND, &names(&["shop/web:80"]), "other", "no", now);
        let expected =
            ["\"some\" rejects route_configuration shop/web:80: route \"shop/web:80\" is bad"];
        assert_eq!(rejected(&table, now), expected, "the first words stay");
        some.accept(KIND, &all);
        assert_eq!(rejected(&table, now), expected);
        some.accept(ResourceType::Cluster, &all);
        other.accept(KIND, &names(&["shop/api:80"]));
        assert_eq!(rejected(&table, now).len(), 1, "another resource, another type");
        other.accept(KIND, &all);
        assert_eq!(rejected(&table, now), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn rejection_outlives_its_client_for_a_while() {
        let table = Arc::<RejectionTable>::default();
        let new = || ClientRejections::new(Arc::clone(&table));
        let web = names(&["shop/web:80"]);
        let mut client = new();
        client.reject(KIND, &web, "some", "no", Instant::now());
        drop(client);
        assert_eq!(rejected(&table, Instant::now()).len(), 1);
        tokio::time::advance(REJECTION_HOLD).await;
        assert_eq!(rejected(&table, Instant::now()).len(), 0);
        let mut client = new();
        client.reject(KIND, &web, "some", "no", Instant::now());
        drop(client);
        new().accept(KIND, &web);
        assert_eq!(rejected(&table, Instant::now()).len(), 0, "it has come back and accepts");
        let mut client = new();
        client.reject(KIND, &web, "some", "no", Instant::now());
        assert!(table.current(|_| false, Instant::now()).is_empty(), "the resource is gone");
        client.accept(KIND, &web);
    }

    #[tokio::test(start_paused = true)]
    async fn rejections_are_bounded_and_those_of_no_name_are_of_no_resource() {
        let table = Arc::<RejectionTable>::default();
        let mut client = ClientRejections::new(Arc::clone(&table));
        let now = Instant::now();
        client.reject(KIND, &names(&["a:1", "b:1"]), "", "bad", now);
        assert_eq!(rejected(&table, now).len(), 0);
        for number in 0..MAX_REJECTED_RESOURCES + 9 {
            client.reject(KIND, &names(&[&format!("a:{number}")]), "", "bad", now);
        }
        assert_eq!(rejected(&table, now).len(), MAX_REJECTED_RESOURCES);
    }
}
