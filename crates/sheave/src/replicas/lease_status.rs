//! State of leases, of reports and of the channel, which the thread of the leases writes and others read.

use std::sync::{Mutex, OnceLock};

use proxy::token_buckets::TokenRefusal;
use proxy::{LeaseStatus, LimitSharingStatus, ReportCounts, TicketKeyStatus};
use replica::ChannelSender;

/// The state.
#[derive(Debug, Default)]
pub(crate) struct ReplicaStatus {
    state: Mutex<(LeaseStatus, ReportCounts)>,
    limits: Mutex<LimitSharingStatus>,
    ticket_keys: Mutex<TicketKeyStatus>,
    /// Messages about rate limits refused for each reason.
    token_refusals: Mutex<[u64; TokenRefusal::ALL.len()]>,
    /// Set once the channel is open.
    channel: OnceLock<ChannelSender>,
    certificates: Mutex<CertificateStatus>,
}

/// State of the certificates with which replicas authenticate one another.
#[derive(Clone, Debug, Default)]
pub(crate) struct CertificateStatus {
    /// End of the validity of the certificate in use, in seconds since 1970.
    pub(crate) expiry: Option<u64>,
    /// Reason why the newest certificates cannot be used.
    pub(crate) problem: Option<String>,
}

impl ReplicaStatus {
    pub(super) fn set(&self, leases: LeaseStatus, reports: ReportCounts) {
        *self.state.lock().expect("no holder of the lock panics") = (leases, reports);
    }

    pub(super) fn set_limits(&self, status: LimitSharingStatus) {
        *self.limits.lock().expect("no holder of the lock panics") = status;
    }

    pub(super) fn set_ticket_keys(&self, status: TicketKeyStatus) {
        *self.ticket_keys.lock().expect("no holder of the lock panics") = status;
    }

    pub(super) fn set_token_refusals(&self, refused: [u64; TokenRefusal::ALL.len()]) {
        *self.token_refusals.lock().expect("no holder of the lock panics") = refused;
    }

    pub(super) fn set_channel(&self, channel: ChannelSender) {
        // A second channel of one thread does not exist.
        drop(self.channel.set(channel));
    }

    pub(super) fn set_certificate_expiry(&self, expiry: Option<u64>) {
        self.certificates.lock().expect("no holder of the lock panics").expiry = expiry;
    }

    pub(super) fn set_certificate_problem(&self, problem: Option<String>) {
        self.certificates.lock().expect("no holder of the lock panics").problem = problem;
    }

    /// Returns the state of the certificates.
    pub(crate) fn certificates(&self) -> CertificateStatus {
        self.certificates.lock().expect("no holder of the lock panics").clone()
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

    pub(crate) fn ticket_keys(&self) -> TicketKeyStatus {
        *self.ticket_keys.lock().expect("no holder of the lock panics")
    }

    pub(crate) fn token_refusals(&self) -> [u64; TokenRefusal::ALL.len()] {
        *self.token_refusals.lock().expect("no holder of the lock panics")
    }

    /// Returns the channel; `None` while its address is not free.
    pub(crate) fn channel(&self) -> Option<&ChannelSender> {
        self.channel.get()
    }
}
