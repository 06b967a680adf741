//! Pods of this node, in transparent mode: the data plane needs their namespaces, the rules need their addresses.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use kube::{NodeDescription, NodeWatch, PodNamespaces};
use proxy::Proxy;
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use crate::transparent::AgentHandle;

/// Time for which the first list is waited for: without it, connections of pods come from the node.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);

/// Hands over the pods of this node as they come and go.
pub(crate) struct NodePods {
    proxy: Arc<Proxy>,
    agent: AgentHandle,
    namespaces: Receiver<PodNamespaces>,
    description: Receiver<Option<NodeDescription>>,
    /// True once the API server can no longer change anything: the process ends.
    has_ended: bool,
}

impl NodePods {
    pub(crate) fn new(node: &NodeWatch, proxy: &Arc<Proxy>, agent: &AgentHandle) -> Self {
        Self {
            proxy: Arc::clone(proxy),
            agent: agent.clone(),
            namespaces: node.pod_namespaces.clone(),
            description: node.description.clone(),
            has_ended: false,
        }
    }

    /// Waits for the first list of pods, but not for long, and hands it over.
    pub(crate) async fn load(&mut self) {
        if timeout(LIST_TIMEOUT, self.namespaces.changed()).await.is_err() {
            tracing::warn!(
                "the pods of this node are not known yet: some connections come from the node"
            );
        }
        self.apply();
    }

    /// Waits until pods come or go, and hands them over. Cancel-safe.
    pub(crate) async fn wait_and_apply(&mut self) {
        if self.has_ended {
            return pending().await;
        }
        let changed = tokio::select! {
            changed = self.namespaces.changed() => changed,
            // It ends when all is known of the node.
            Ok(()) = self.description.changed() => Ok(()),
        };
        self.has_ended = changed.is_err();
        self.apply();
    }

    fn apply(&mut self) {
        let namespaces = self.namespaces.borrow_and_update().clone();
        let description = self.description.borrow_and_update().clone().unwrap_or_default();
        let pods = namespaces.keys().copied().collect();
        self.agent.set_local_clients(pods, description.pod_ranges);
        self.proxy.set_client_namespaces(namespaces);
    }
}
