//! Clients of this node. Replies to their addresses come back to the node, so connections to endpoints may have them.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use intercept::{InterceptError, is_routed_to_node};
use ipnet::IpNet;

/// Addresses of this node's pods, as far as the API server has told.
#[derive(Default)]
pub(super) struct LocalClients(Mutex<PodAddresses>);

#[derive(Default)]
struct PodAddresses {
    pods: HashSet<IpAddr>,
    ranges: Vec<IpNet>,
}

impl LocalClients {
    /// Sets the addresses of the pods, and the networks from which they come (`spec.podCIDRs` of the Node).
    pub(super) fn set(&self, pods: HashSet<IpAddr>, ranges: Vec<IpNet>) {
        *self.lock() = PodAddresses { pods, ranges };
    }

    /// True if replies to a client come back to this node.
    ///
    /// A pod that has just started is not in the list yet, so the networks of the pods and the kernel's routes count
    /// too. An error is that of the kernel.
    pub(super) fn contains(&self, client: IpAddr) -> Result<bool, InterceptError> {
        let known = self.lock();
        if known.pods.contains(&client) || known.ranges.iter().any(|it| it.contains(&client)) {
            return Ok(true);
        }
        drop(known);
        is_routed_to_node(client)
    }

    fn lock(&self) -> MutexGuard<'_, PodAddresses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
