//! The Sheaves that share fixed caps with this one: over whom slots are dealt, and when those that others let go of may be
//! used.

use std::net::SocketAddr;
use std::sync::Arc;

use proxy::{Proxy, SlotAssigner, Time, clock};

use crate::timer;

/// Keeps the data plane's deal up to date.
pub(crate) struct SlotAssignmentUpdater {
    proxy: Arc<Proxy>,
    assigner: SlotAssigner,
    /// When another deal is to be put in force.
    due: Option<Time>,
    /// Who was named last.
    members: Vec<SocketAddr>,
}

impl SlotAssignmentUpdater {
    /// Nobody else is known yet; `me` is how lists of replicas name this one.
    pub(crate) fn new(me: SocketAddr, proxy: Arc<Proxy>) -> Self {
        Self { proxy, assigner: SlotAssigner::new(me), due: None, members: Vec::new() }
    }

    /// These serve now.
    pub(crate) fn set_members(&mut self, members: Vec<SocketAddr>) {
        if members == self.members {
            return;
        }
        self.members.clone_from(&members);
        self.assigner.update_members(members, clock::now());
        self.apply_assignment();
    }

    /// Puts in force what is to be, as time goes by. May be dropped and called again.
    pub(crate) async fn wait_and_apply(&mut self) {
        timer::wait_until(self.due).await;
        self.apply_assignment();
    }

    fn apply_assignment(&mut self) {
        let now = clock::now();
        let deal = self.assigner.assignment(now);
        tracing::info!(
            replicas = deal.members(),
            takes_part = deal.takes_part(),
            "slots are dealt"
        );
        self.proxy.set_slot_assignment(deal);
        self.due = self.assigner.next_change(now);
    }
}
