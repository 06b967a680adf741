//! The certificate of this replica: issued in memory by the current authority, and never written.

use std::fmt::{self, Debug};

use anyhow::Context;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};

use super::{AuthoritySet, CLOCK_SKEW, DAY, date};

/// Longest validity of a certificate. It is renewed after half of it.
pub(super) const LEAF_LIFETIME: u64 = DAY;

/// Issued certificate with its key, and the authorities that are trusted, in PEM.
pub(crate) struct IssuedCertificate {
    pub(crate) chain: String,
    pub(crate) key: String,
    pub(crate) bundle: String,
    /// End of its validity, in seconds since 1970.
    pub(crate) not_after: u64,
    issued_at: u64,
    renew_at: u64,
    issuer: String,
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
        let purpose = &authority.purpose;
        let mut params = CertificateParams::new([purpose.dns_name.clone()])?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, purpose.prefix);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        if purpose.has_clients {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (date(not_before), date(not_after));
        let chain = params.signed_by(&key, &authority.issuer()).context("cannot issue")?;
        Ok(Self {
            chain: chain.pem(),
            key: key.serialize_pem(),
            bundle: set.bundle(now),
            not_after,
            issued_at: now,
            renew_at: now + not_after.saturating_sub(now) / 2,
            issuer: authority.name(),
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

impl Debug for IssuedCertificate {
    /// The key is never printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { issuer, not_after, .. } = self;
        f.debug_struct("IssuedCertificate")
            .field("issuer", issuer)
            .field("not_after", not_after)
            .finish()
    }
}
