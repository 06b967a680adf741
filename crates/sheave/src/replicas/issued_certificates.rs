//! Certificates of replicas that an authority in a Secret issues.

use std::sync::Arc;

use anyhow::Context;
use replica::{REPLICA_NAME, ReplicaCertificates};
use tokio::sync::watch::Sender;

use super::lease_status::ReplicaStatus;
use crate::authority::{AuthorityPurpose, CertificateRecipient, IssuedCertificate};

/// Returns the purpose of the authorities: connections between replicas.
pub(super) fn purpose() -> Arc<AuthorityPurpose> {
    Arc::new(AuthorityPurpose {
        secret_type: "sheave.dev/replica-authorities",
        prefix: "sheave-replicas",
        dns_name: REPLICA_NAME.to_owned(),
        has_clients: true,
    })
}

/// The channel's certificates, and their state.
pub(super) struct ChannelCertificates {
    pub(super) certificates: Sender<Option<Arc<ReplicaCertificates>>>,
    pub(super) status: Arc<ReplicaStatus>,
}

impl CertificateRecipient for ChannelCertificates {
    fn accept(&mut self, issued: &IssuedCertificate, now: u64) -> anyhow::Result<()> {
        let [chain, key, bundle] =
            [&issued.chain, &issued.key, &issued.bundle].map(|pem| pem.as_bytes());
        let certificates = ReplicaCertificates::from_pem(chain, key, bundle)?;
        certificates.verify_peer(&certificates, now).context("it does not trust itself")?;
        self.status.set_certificate_expiry(Some(issued.not_after));
        self.certificates.send_replace(Some(Arc::new(certificates)));
        Ok(())
    }

    fn report(&mut self, problem: Option<String>) {
        self.status.set_certificate_problem(problem);
    }
}
