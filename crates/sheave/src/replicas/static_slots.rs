//! Slot assignment: divides fixed limits among the replicas, and applies the slots that other replicas have released.

use std::net::SocketAddr;
use std::sync::Arc;

use proxy::leases::ReplicaIdentity;
use proxy::{Proxy, RateLimitSharing, SlotAssigner, Time, clock};

use crate::timer;

/// Keeps the slot assignment of the data plane up to date.
pub(crate) struct SlotAssignmentUpdater {
    proxy: Arc<Proxy>,
    assigner: SlotAssigner,
    /// This replica's part of rate limits, of which no tokens move.
    rate_limits: RateLimitSharing,
    /// Time at which the next assignment takes effect.
    due: Option<Time>,
    /// Members of the last list.
    members: Vec<SocketAddr>,
}

impl SlotAssignmentUpdater {
    /// Starts without other replicas; `me` is the entry of this replica in lists of replicas.
    pub(crate) fn new(me: SocketAddr, proxy: Arc<Proxy>) -> Self {
        let identity = ReplicaIdentity { member: me, incarnation: 1 };
        let rate_limits = RateLimitSharing::new(Arc::clone(&proxy), identity);
        let assigner = SlotAssigner::new(me);
        Self { proxy, assigner, rate_limits, due: None, members: Vec::new() }
    }

    /// Sets the replicas that serve now.
    pub(crate) fn set_members(&mut self, members: Vec<SocketAddr>) {
        if members == self.members {
            return;
        }
        self.members.clone_from(&members);
        self.rate_limits.update_members(members.iter().copied(), clock::now());
        self.assigner.update_members(members, clock::now());
        self.apply_assignment();
    }

    /// Waits until an assignment takes effect, and applies it. Cancel-safe.
    pub(crate) async fn wait_and_apply(&mut self) {
        timer::wait_until(self.due).await;
        self.apply_assignment();
    }

    fn apply_assignment(&mut self) {
        let now = clock::now();
        let assignment = self.assigner.assignment(now);
        tracing::info!(
            replicas = assignment.members(),
            takes_part = assignment.takes_part(),
            "slot assignment changed"
        );
        self.proxy.set_slot_assignment(assignment);
        self.rate_limits.apply_part(now);
        let changes = [self.assigner.next_change(now), self.rate_limits.next_change()];
        self.due = changes.into_iter().flatten().min();
    }
}
