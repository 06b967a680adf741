//! State of leases and of the channel, which the thread of the leases writes and others read.

use std::sync::{Mutex, OnceLock};

use proxy::{LeaseStatus, LimitSharingStatus};
use replica::ChannelSender;

/// The state.
#[derive(Debug, Default)]
pub(crate) struct ReplicaStatus {
    leases: Mutex<LeaseStatus>,
    limits: Mutex<LimitSharingStatus>,
    /// Set once the channel is open.
    channel: OnceLock<ChannelSender>,
}

impl ReplicaStatus {
    pub(super) fn set_leases(&self, status: LeaseStatus) {
        *self.leases.lock().expect("no holder of the lock panics") = status;
    }

    pub(super) fn set_limits(&self, status: LimitSharingStatus) {
        *self.limits.lock().expect("no holder of the lock panics") = status;
    }

    pub(super) fn set_channel(&self, channel: ChannelSender) {
        // A second channel of one thread does not exist.
        drop(self.channel.set(channel));
    }

    pub(crate) fn leases(&self) -> LeaseStatus {
        *self.leases.lock().expect("no holder of the lock panics")
    }

    pub(crate) fn limits(&self) -> LimitSharingStatus {
        *self.limits.lock().expect("no holder of the lock panics")
    }

    /// Returns the channel; `None` while its address is not free.
    pub(crate) fn channel(&self) -> Option<&ChannelSender> {
        self.channel.get()
    }
}
