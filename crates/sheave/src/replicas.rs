//! Fixed limits of endpoints that several replicas share: each has a static part of the slots, or they lease slots to
//! one another by demand.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use ::xds::{LimitReplicas, ResourcePublisher};
use kube::OwnSecret;
use proxy::Proxy;
use proxy::leases::CutOffPolicy;

use crate::failure::Failure;
use crate::flags::{CutOffRule, ReplicaFlags};

/// Certificates of replicas, from files.
mod certificate_files;
/// Certificates of replicas, from authorities in a Secret.
mod issued_certificates;
/// The thread that leases slots.
mod lease_thread;
/// The state of leases and of the channel, for readers.
mod lease_status;
/// Metrics of replicas.
mod metrics;
/// Static division of slots.
mod static_slots;

pub(crate) use lease_status::ReplicaStatus;
use lease_thread::SlotLeaseThread;
pub(crate) use metrics::REPLICA_METRICS;
use static_slots::SlotAssignmentUpdater;

/// The slots of this replica.
pub(crate) enum ReplicaSlots {
    /// A static part.
    Static(Box<SlotAssignmentUpdater>),
    /// Slots that are leased.
    Leased(Box<SlotLeaseThread>),
}

impl ReplicaSlots {
    /// Starts without other replicas; `None` if no flag names this one. `secret` is that of `--replica-secret`.
    ///
    /// # Errors
    /// If slots are to be leased, and the certificates or the address cannot be used.
    pub(crate) fn start(
        flags: &ReplicaFlags,
        secret: Option<OwnSecret>,
        proxy: &Arc<Proxy>,
        has_predecessor: bool,
    ) -> Result<Option<Self>, Failure> {
        let Some(me) = flags.replica else { return Ok(None) };
        if !flags.lease_slots {
            let updater = SlotAssignmentUpdater::new(me, Arc::clone(proxy));
            return Ok(Some(Self::Static(Box::new(updater))));
        }
        let thread = SlotLeaseThread::start(me, flags, secret, proxy, has_predecessor)?;
        Ok(Some(Self::Leased(Box::new(thread))))
    }

    /// Sets the replicas that serve now, which also divide limits among xDS clients.
    pub(crate) fn set_members(
        &mut self,
        members: Vec<SocketAddr>,
        xds: Option<&ResourcePublisher>,
    ) {
        let count = u32::try_from(members.len()).ok().and_then(NonZeroU32::new);
        if let Some((publisher, count)) = xds.zip(count) {
            let share_demand = matches!(self, Self::Leased(_));
            publisher.set_replicas(LimitReplicas { count, share_demand });
        }
        match self {
            Self::Static(updater) => updater.set_members(members),
            Self::Leased(thread) => thread.set_members(members),
        }
    }

    /// Waits until something changes by time or by files, and applies it. Cancel-safe.
    pub(crate) async fn wait_and_apply(&mut self) {
        match self {
            Self::Static(updater) => updater.wait_and_apply().await,
            Self::Leased(thread) => thread.wait_and_apply().await,
        }
    }

    /// Gives up the address for peers, for the next process.
    pub(crate) fn close_channel(&mut self) {
        match self {
            Self::Static(_) => {}
            Self::Leased(thread) => thread.close_channel(),
        }
    }

    /// Returns the state of leases, if there are any.
    pub(crate) fn status(&self) -> Option<Arc<ReplicaStatus>> {
        match self {
            Self::Static(_) => None,
            Self::Leased(thread) => Some(thread.status()),
        }
    }
}

impl From<CutOffRule> for CutOffPolicy {
    fn from(rule: CutOffRule) -> Self {
        match rule {
            CutOffRule::Strict => Self::Strict,
            CutOffRule::Available => Self::Available,
        }
    }
}
