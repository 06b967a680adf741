//! State of leases, of reports and of the channel, which the thread of the leases writes and others read.

use std::sync::{Mutex, OnceLock};

use proxy::{LeaseStatus, LimitSharingStatus, ReportCounts};
use replica::ChannelSender;

/// The state.
#[derive(Debug, Default)]
pub(crate) struct ReplicaStatus {
    state: Mutex<(LeaseStatus, ReportCounts)>,
    limits: Mutex<LimitSharingStatus>,
    /// Set once the channel is open.
    channel: OnceLock<ChannelSender>,
}

impl ReplicaStatus {
    pub(super) fn set(&self, leases: LeaseStatus, reports: ReportCounts) {
        *self.state.lock().expect("no holder of the lock panics") = (leases, reports);
    }

    pub(super) fn set_limits(&self, status: LimitSharingStatus) {
        *self.limits.lock().expect("no holder of the lock panics") = status;
    }

    pub(super) fn set_channel(&self, channel: ChannelSender) {
        // A second channel of one thread does not exist.
        drop(self.channel.set(channel));
    }

    pub(crate) fn leases(&self) -> LeaseStatus {
        self.state.lock().expect("no holder of the lock panics").0
    }

    pub(crate) fn reports(&self) -> ReportCounts {
        self.state.lock().expect("no holder of the lock panics").1
    }

    pub(crate) fn limits(&self) -> LimitSharingStatus {
        *self.limits.lock().expect("no holder of the lock panics")
    }

    /// Returns the channel; `None` while its address is not free.
    pub(crate) fn channel(&self) -> Option<&ChannelSender> {
        self.channel.get()
    }
}
