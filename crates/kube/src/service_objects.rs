//! Services, their endpoints and nodes: what the layer-4 data path reads of a cluster. Nothing is written.

use std::sync::{Arc, Mutex};

use gateway::{ApiObject, ObjectProblem};
use tokio::sync::watch::{Receiver, channel};
use tokio::task::JoinHandle;

use crate::ClusterClient;
use crate::kind::{NODE, WatchedKind};
use crate::publish::{self, StatusAddresses};
use crate::store::{Store, WatchKey, WatchScope};
use crate::watch::{Reflector, SharedStore, lock};

/// Kinds that are watched.
const WATCHED: [&str; 3] = ["Service", "EndpointSlice", NODE];

/// The Services, EndpointSlices and Nodes of a cluster, watched. Dropping it ends that.
pub struct ServiceObjects {
    store: SharedStore,
    store_changes: Receiver<()>,
    reflectors: Vec<JoinHandle<()>>,
}

impl ServiceObjects {
    /// Starts to watch. Needs a running tokio runtime.
    #[must_use]
    pub fn watch(cluster: &ClusterClient) -> Self {
        let kinds = WATCHED.into_iter().filter_map(WatchedKind::index_of);
        let watches: Vec<_> =
            kinds.map(|kind| WatchKey { kind, scope: WatchScope::Cluster }).collect();
        let store = Arc::new(Mutex::new(Store::new(&watches, "")));
        let (notify, store_changes) = channel(());
        let reflector = Reflector::new(cluster, Arc::clone(&store), notify);
        let reflectors =
            watches.into_iter().map(|watch| tokio::spawn(reflector.clone().run(watch))).collect();
        Self { store, store_changes, reflectors }
    }

    /// Waits until the objects change, and not before the initial lists of all kinds are complete. Cancel-safe.
    pub async fn changed(&mut self) {
        while !self.has_changes() {
            // The tasks with the senders live as long as this object.
            if self.store_changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns the objects now, the errors of those that cannot be read, and the addresses in the statuses of Services.
    #[must_use]
    pub fn load(&mut self) -> (Vec<ApiObject>, Vec<ObjectProblem>, StatusAddresses) {
        let mut known = lock(&self.store);
        known.changes.objects = false;
        known.changes.endpoints = false;
        let (objects, problems) = known.contents();
        (objects, problems, publish::status_addresses(&known, "Service"))
    }

    fn has_changes(&self) -> bool {
        let known = lock(&self.store);
        known.has_synced() && known.changes.needs_translation()
    }
}

impl Drop for ServiceObjects {
    fn drop(&mut self) {
        self.reflectors.iter().for_each(JoinHandle::abort);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api_server::ApiServer;

    #[tokio::test(start_paused = true)]
    async fn services_and_nodes_are_read_with_their_statuses() {
        let server = ApiServer::default();
        server.put(
            "/api/v1/services",
            json!({
                "metadata": { "namespace": "shop", "name": "web" },
                "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }] },
                "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.65" }] } },
            }),
        );
        server.put(
            "/api/v1/nodes",
            json!({
                "metadata": { "name": "n1", "labels": { "a": "b" } },
                "spec": { "podCIDR": "10.1.0.0/24" },
                "status": {
                    "images": [{ "names": ["large"] }],
                    "addresses": [
                        { "type": "Hostname", "address": "n1" },
                        { "type": "InternalIP", "address": "192.0.2.1" },
                    ],
                },
            }),
        );
        let mut objects = ServiceObjects::watch(&server.cluster());
        objects.changed().await;
        let (found, problems, addresses) = objects.load();
        assert_eq!(problems, []);
        let nodes = found.iter().filter_map(|it| match it {
            ApiObject::Node(node) => Some(node.spec.internal_addresses().collect::<Vec<_>>()),
            _ => None,
        });
        assert_eq!(nodes.collect::<Vec<_>>(), [["192.0.2.1".parse::<std::net::IpAddr>().unwrap()]]);
        let name = ("shop".to_owned(), "web".to_owned());
        assert_eq!(addresses[&name], ["192.0.2.65".parse::<std::net::IpAddr>().unwrap()]);
    }
}
