//! The Sheaves that share fixed caps with this one: over whom slots are dealt, and when those that others let go of may be
//! used.

use std::net::SocketAddr;
use std::sync::Arc;

use proxy::{Proxy, SlotAssigner, Time, clock};

use crate::due;

/// Keeps the data plane's deal up to date.
pub(crate) struct Replicas {
    proxy: Arc<Proxy>,
    dealer: SlotAssigner,
    /// When another deal is to be put in force.
    due: Option<Time>,
    /// Who was named last.
    members: Vec<SocketAddr>,
}

impl Replicas {
    /// Nobody else is known yet; `me` is how lists of replicas name this one.
    pub(crate) fn new(me: SocketAddr, proxy: Arc<Proxy>) -> Self {
        Self { proxy, dealer: SlotAssigner::new(me), due: None, members: Vec::new() }
    }

    /// These serve now.
    pub(crate) fn learn(&mut self, members: Vec<SocketAddr>) {
        if members == self.members {
            return;
        }
        self.members.clone_from(&members);
        self.dealer.update_members(members, clock::now());
        self.put_in_force();
    }

    /// Puts in force what is to be, as time goes by. May be dropped and called again.
    pub(crate) async fn settle(&mut self) {
        due::reached(self.due).await;
        self.put_in_force();
    }

    fn put_in_force(&mut self) {
        let now = clock::now();
        let deal = self.dealer.assignment(now);
        tracing::info!(
            replicas = deal.members(),
            takes_part = deal.takes_part(),
            "slots are dealt"
        );
        self.proxy.set_deal(deal);
        self.due = self.dealer.next_change(now);
    }
}
