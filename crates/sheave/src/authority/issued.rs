//! The certificate of this replica: issued in memory by the current authority, and never written.

use std::sync::Arc;

use anyhow::Context;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use replica::{REPLICA_NAME, ReplicaCertificates};

use super::{AuthoritySet, CLOCK_SKEW, DAY, date};

/// Longest validity of a certificate. It is renewed after half of it.
pub(super) const LEAF_LIFETIME: u64 = DAY;

/// Issued certificate, with the authorities that are trusted.
#[derive(Debug)]
pub(super) struct IssuedCertificate {
    pub(super) certificates: Arc<ReplicaCertificates>,
    /// End of its validity, in seconds since 1970.
    pub(super) not_after: u64,
    issued_at: u64,
    renew_at: u64,
    issuer: String,
    bundle: String,
}

impl IssuedCertificate {
    /// Issues a certificate with a new key.
    ///
    /// # Errors
    /// If the authorities cannot be used.
    pub(super) fn issue(set: &AuthoritySet, now: u64) -> anyhow::Result<Self> {
        let authority = &set.current;
        let not_after = authority.certificate.not_after.min(now.saturating_add(LEAF_LIFETIME));
        let not_before = authority.certificate.not_before.max(now.saturating_sub(CLOCK_SKEW));
        let key = KeyPair::generate().context("cannot make a key")?;
        let mut params = CertificateParams::new([REPLICA_NAME.to_owned()])?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, REPLICA_NAME);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (date(not_before), date(not_after));
        let chain = params.signed_by(&key, &authority.issuer()).context("cannot issue")?;
        let bundle = set.bundle(now);
        let certificates = ReplicaCertificates::from_pem(
            chain.pem().as_bytes(),
            key.serialize_pem().as_bytes(),
            bundle.as_bytes(),
        )?;
        certificates.verify_peer(&certificates, now).context("it does not trust itself")?;
        Ok(Self {
            certificates: Arc::new(certificates),
            not_after,
            issued_at: now,
            renew_at: now + not_after.saturating_sub(now) / 2,
            issuer: authority.name(),
            bundle,
        })
    }

    /// True if another certificate has to be issued: half of the validity is over, the authorities are others, or the
    /// clock was wrong before.
    pub(super) fn is_outdated(&self, set: &AuthoritySet, now: u64) -> bool {
        now >= self.renew_at
            || now.saturating_add(CLOCK_SKEW) < self.issued_at
            || self.issuer != set.current.name()
            || self.bundle != set.bundle(now)
    }
}
