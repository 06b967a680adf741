//! Authorities that issue certificates to the replicas of one installation, as a Secret holds them: the current one, the
//! next one before it issues, and the certificate of the previous one while replicas still have certificates of it.
//!
//! The module reads, makes and writes them. It knows no clock and no API server, and not what certificates are for.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, GeneralSubtree, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, NameConstraints, PublicKeyData,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use thiserror::Error;
use time::OffsetDateTime;
use x509_cert::der::{Decode, Encode};

/// Decisions: which authorities are used, and what has to change.
mod plan;
/// The certificate of this replica, issued by an authority.
mod issued;
/// One review of the Secret: what to issue, and what to write.
mod review;
/// The task that keeps the Secret and the certificate up to date.
mod keeper;

pub(crate) use issued::IssuedCertificate;
pub(crate) use keeper::{AuthorityKeeper, CertificateRecipient};

/// Time for which an authority is valid.
pub(super) const AUTHORITY_LIFETIME: u64 = 90 * DAY;

/// Tolerated difference between two clocks: certificates are valid from so long before they are made.
pub(super) const CLOCK_SKEW: u64 = 3600;

const DAY: u64 = 24 * 3600;

const CURRENT_CERTIFICATE: &str = "current.crt";
const CURRENT_KEY: &str = "current.key";
const NEXT_CERTIFICATE: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
const PREVIOUS_CERTIFICATE: &str = "previous.crt";
/// Time until which the previous authority is trusted, in seconds since 1970.
const PREVIOUS_UNTIL: &str = "previous.until";

/// Maximum size of a value in bytes.
const MAX_VALUE_BYTES: usize = 16 * 1024;

/// Values of the Secret by their names.
pub(super) type SecretData = BTreeMap<String, Vec<u8>>;

/// Purpose of authorities, which also tells them from those of another purpose.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AuthorityPurpose {
    /// Type of the Secret. A Secret of another type is never changed.
    pub(crate) secret_type: &'static str,
    /// Beginning of the names of authorities.
    pub(crate) prefix: &'static str,
    /// Only DNS name that their certificates may have, and the one that they have.
    pub(crate) dns_name: String,
    /// True if certificates are for clients too, and not for servers alone.
    pub(crate) has_clients: bool,
}

/// Authorities of one installation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AuthoritySet {
    /// Authority that issues.
    pub(super) current: CertificateAuthority,
    /// Authority that is trusted already, and issues later.
    pub(super) next: Option<CertificateAuthority>,
    /// Authority that has issued before.
    pub(super) previous: Option<PreviousAuthority>,
}

/// Certificate and key of an authority.
#[derive(Clone)]
pub(super) struct CertificateAuthority {
    pub(super) certificate: AuthorityCertificate,
    purpose: Arc<AuthorityPurpose>,
    key: Arc<KeyPair>,
}

/// Certificate of an authority, and its validity in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AuthorityCertificate {
    pub(super) pem: String,
    pub(super) not_before: u64,
    pub(super) not_after: u64,
}

/// Authority that no longer issues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PreviousAuthority {
    pub(super) certificate: AuthorityCertificate,
    /// Time until which it is trusted, in seconds since 1970.
    pub(super) until: u64,
}

/// Reason why the content of a Secret cannot be used. It shows nothing of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum AuthorityError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} has more than {MAX_VALUE_BYTES} bytes")]
    TooLarge(&'static str),
    #[error("{0} is not a certificate in PEM")]
    Certificate(&'static str),
    #[error("{0} is not a private key in PEM")]
    Key(&'static str),
    #[error("{0} is not the key of the certificate beside it, or that is not one of Sheave")]
    Mismatch(&'static str),
    #[error("{0} is not a time in seconds")]
    Time(&'static str),
}

impl AuthoritySet {
    /// Returns authorities of which the first issues.
    pub(super) const fn new(current: CertificateAuthority) -> Self {
        Self { current, next: None, previous: None }
    }

    /// Reads the values of a Secret. Others that it has are ignored.
    pub(super) fn read(
        purpose: &Arc<AuthorityPurpose>,
        data: &SecretData,
    ) -> Result<Self, AuthorityError> {
        let authority =
            |certificate, key| CertificateAuthority::read(purpose, data, certificate, key);
        let current = authority(CURRENT_CERTIFICATE, CURRENT_KEY)?;
        let current = current.ok_or(AuthorityError::Missing(CURRENT_CERTIFICATE))?;
        let next = authority(NEXT_CERTIFICATE, NEXT_KEY)?;
        let previous = match value(data, PREVIOUS_CERTIFICATE)? {
            None => None,
            Some(pem) => {
                let certificate = AuthorityCertificate::read(PREVIOUS_CERTIFICATE, pem)?;
                let until = value(data, PREVIOUS_UNTIL)?;
                let until = until.ok_or(AuthorityError::Missing(PREVIOUS_UNTIL))?.trim().parse();
                let until = until.ok().ok_or(AuthorityError::Time(PREVIOUS_UNTIL))?;
                Some(PreviousAuthority { certificate, until })
            }
        };
        Ok(Self { current, next, previous })
    }

    /// Returns the values of a Secret.
    pub(super) fn data(&self) -> SecretData {
        let mut data = self.current.data(CURRENT_CERTIFICATE, CURRENT_KEY);
        if let Some(next) = &self.next {
            data.extend(next.data(NEXT_CERTIFICATE, NEXT_KEY));
        }
        if let Some(PreviousAuthority { certificate, until }) = &self.previous {
            data.insert(PREVIOUS_CERTIFICATE.to_owned(), certificate.pem.clone().into_bytes());
            data.insert(PREVIOUS_UNTIL.to_owned(), until.to_string().into_bytes());
        }
        data
    }

    /// Returns the certificates of the authorities that are trusted now, in PEM.
    pub(super) fn bundle(&self, now: u64) -> String {
        let previous = self.previous.as_ref().filter(|it| now < it.until);
        let all = [Some(&self.current.certificate), self.next.as_ref().map(|it| &it.certificate)];
        let all = all.into_iter().chain([previous.map(|it| &it.certificate)]).flatten();
        // TLS does not verify when an authority is valid.
        all.filter(|it| now < it.not_after).map(|it| it.pem.as_str()).collect()
    }
}

impl CertificateAuthority {
    /// Makes an authority that is valid from now on.
    pub(super) fn generate(
        purpose: &Arc<AuthorityPurpose>,
        now: u64,
    ) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let (not_before, not_after) =
            (now.saturating_sub(CLOCK_SKEW), now.saturating_add(AUTHORITY_LIFETIME));
        let mut params = authority_params(purpose, &key);
        (params.not_before, params.not_after) = (date(not_before), date(not_after));
        let pem = params.self_signed(&key)?.pem();
        let certificate = AuthorityCertificate { pem, not_before, not_after };
        Ok(Self { certificate, purpose: Arc::clone(purpose), key: Arc::new(key) })
    }

    fn read(
        purpose: &Arc<AuthorityPurpose>,
        data: &SecretData,
        certificate_name: &'static str,
        key_name: &'static str,
    ) -> Result<Option<Self>, AuthorityError> {
        let Some(pem) = value(data, certificate_name)? else { return Ok(None) };
        let certificate = AuthorityCertificate::read(certificate_name, pem)?;
        let key = value(data, key_name)?.ok_or(AuthorityError::Missing(key_name))?;
        let key = KeyPair::from_pem(key).ok().ok_or(AuthorityError::Key(key_name))?;
        let parsed = parse(pem.as_bytes()).ok_or(AuthorityError::Certificate(certificate_name))?;
        let content = parsed.tbs_certificate();
        let public_key = content.subject_public_key_info().to_der();
        let is_of_key = public_key.is_ok_and(|it| it == key.subject_public_key_info());
        let name = authority_name(purpose, &key);
        if !is_of_key || content.subject().to_string() != format!("CN={name}") {
            return Err(AuthorityError::Mismatch(key_name));
        }
        Ok(Some(Self { certificate, purpose: Arc::clone(purpose), key: Arc::new(key) }))
    }

    fn data(&self, certificate: &str, key: &str) -> SecretData {
        let (pem, key_pem) = (self.certificate.pem.clone(), self.key.serialize_pem());
        [(certificate.to_owned(), pem.into_bytes()), (key.to_owned(), key_pem.into_bytes())].into()
    }

    /// Returns the issuer of certificates.
    pub(super) fn issuer(&self) -> Issuer<'static, &KeyPair> {
        Issuer::new(authority_params(&self.purpose, &self.key), &*self.key)
    }

    /// Returns a name that no other authority has.
    pub(super) fn name(&self) -> String {
        authority_name(&self.purpose, &self.key)
    }

    /// Returns the time at which it was made, in seconds since 1970.
    pub(super) const fn made_at(&self) -> u64 {
        self.certificate.not_before.saturating_add(CLOCK_SKEW)
    }
}

impl PartialEq for CertificateAuthority {
    fn eq(&self, other: &Self) -> bool {
        self.certificate == other.certificate
    }
}

impl Debug for CertificateAuthority {
    /// The key is never printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CertificateAuthority").field(&self.name()).finish()
    }
}

impl AuthorityCertificate {
    fn read(name: &'static str, pem: &str) -> Result<Self, AuthorityError> {
        let parsed = parse(pem.as_bytes()).ok_or(AuthorityError::Certificate(name))?;
        let validity = parsed.tbs_certificate().validity();
        Ok(Self {
            pem: pem.to_owned(),
            not_before: validity.not_before.to_unix_duration().as_secs(),
            not_after: validity.not_after.to_unix_duration().as_secs(),
        })
    }
}

/// Returns the end of the validity of the first certificate in PEM, in seconds since 1970.
pub(super) fn expiry(pem: &[u8]) -> Option<u64> {
    Some(parse(pem)?.tbs_certificate().validity().not_after.to_unix_duration().as_secs())
}

/// Returns the time in seconds since 1970 as certificates take it.
pub(super) fn date(seconds: u64) -> OffsetDateTime {
    OffsetDateTime::from(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

fn parse(pem: &[u8]) -> Option<x509_cert::Certificate> {
    let der = CertificateDer::from_pem_slice(pem).ok()?;
    x509_cert::Certificate::from_der(&der).ok()
}

fn value<'d>(data: &'d SecretData, name: &'static str) -> Result<Option<&'d str>, AuthorityError> {
    let Some(value) = data.get(name) else { return Ok(None) };
    if value.len() > MAX_VALUE_BYTES {
        return Err(AuthorityError::TooLarge(name));
    }
    // What is not text is not PEM either.
    Ok(Some(std::str::from_utf8(value).unwrap_or_default()))
}

/// Returns the parameters of an authority, without its validity. They follow from its purpose and its key.
fn authority_params(purpose: &AuthorityPurpose, key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, authority_name(purpose, key));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    // The authority is good for its purpose, and for nothing else that may come to trust it.
    let permitted_subtrees = vec![GeneralSubtree::DnsName(purpose.dns_name.clone())];
    params.name_constraints =
        Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
    params
}

/// Returns the name of the authority with this key: with two authorities, TLS finds the right one by it.
fn authority_name(purpose: &AuthorityPurpose, key: &KeyPair) -> String {
    let public = key.public_key_raw();
    let id: String =
        public[public.len().saturating_sub(8)..].iter().map(|it| format!("{it:02x}")).collect();
    format!("{}-{id}", purpose.prefix)
}

/// Returns the purpose of the authorities of tests.
#[cfg(test)]
fn test_purpose() -> Arc<AuthorityPurpose> {
    Arc::new(AuthorityPurpose {
        secret_type: "sheave.dev/test-authorities",
        prefix: "sheave-test",
        // The channel of replicas verifies this name.
        dns_name: replica::REPLICA_NAME.to_owned(),
        has_clients: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn generate(now: u64) -> CertificateAuthority {
        CertificateAuthority::generate(&test_purpose(), now).unwrap()
    }

    fn read(data: &SecretData) -> Result<AuthoritySet, AuthorityError> {
        AuthoritySet::read(&test_purpose(), data)
    }

    fn complete_set() -> AuthoritySet {
        let authority = generate;
        let previous = authority(NOW - DAY).certificate;
        AuthoritySet {
            current: authority(NOW),
            next: Some(authority(NOW + DAY)),
            previous: Some(PreviousAuthority { certificate: previous, until: NOW + 7 }),
        }
    }

    #[test]
    fn authorities_survive_the_secret() {
        for set in [complete_set(), AuthoritySet::new(generate(NOW))] {
            let read = read(&set.data()).unwrap();
            assert_eq!(read, set);
            assert_eq!(read.current.made_at(), NOW);
            assert_eq!(read.current.key.serialize_pem(), set.current.key.serialize_pem());
        }
    }

    #[test]
    fn malformed_secret_has_an_error_that_names_the_value() {
        let set = complete_set();
        let check = |name: &str, value: Option<&[u8]>, error: AuthorityError| {
            let mut data = set.data();
            match value {
                Some(value) => _ = data.insert(name.to_owned(), value.to_vec()),
                None => _ = data.remove(name).unwrap(),
            }
            assert_eq!(read(&data), Err(error));
        };
        let other = generate(NOW);
        let other_key = other.key.serialize_pem();
        check(CURRENT_CERTIFICATE, None, AuthorityError::Missing(CURRENT_CERTIFICATE));
        check(CURRENT_KEY, None, AuthorityError::Missing(CURRENT_KEY));
        check(CURRENT_CERTIFICATE, Some(b"?"), AuthorityError::Certificate(CURRENT_CERTIFICATE));
        check(CURRENT_KEY, Some(b"\xff"), AuthorityError::Key(CURRENT_KEY));
        check(CURRENT_KEY, Some(other_key.as_bytes()), AuthorityError::Mismatch(CURRENT_KEY));
        check(NEXT_KEY, Some(other_key.as_bytes()), AuthorityError::Mismatch(NEXT_KEY));
        check(NEXT_CERTIFICATE, Some(b""), AuthorityError::Certificate(NEXT_CERTIFICATE));
        check(PREVIOUS_UNTIL, None, AuthorityError::Missing(PREVIOUS_UNTIL));
        check(PREVIOUS_UNTIL, Some(b"soon"), AuthorityError::Time(PREVIOUS_UNTIL));
        let large = vec![b'x'; MAX_VALUE_BYTES + 1];
        check(CURRENT_KEY, Some(&large), AuthorityError::TooLarge(CURRENT_KEY));
        assert_eq!(read(&SecretData::new()), Err(AuthorityError::Missing(CURRENT_CERTIFICATE)));
    }

    #[test]
    fn certificate_of_another_issuer_with_the_same_key_is_refused() {
        let set = AuthoritySet::new(generate(NOW));
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "another");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&*set.current.key).unwrap().pem();
        let mut data = set.data();
        data.insert(CURRENT_CERTIFICATE.to_owned(), pem.into_bytes());
        assert_eq!(read(&data), Err(AuthorityError::Mismatch(CURRENT_KEY)));
    }

    #[test]
    fn bundle_has_no_authority_that_is_over() {
        let set = complete_set();
        let count = |now| set.bundle(now).matches("BEGIN CERTIFICATE").count();
        assert_eq!(count(NOW), 3);
        assert_eq!(count(NOW + 7), 2, "the previous one");
        assert_eq!(count(NOW + AUTHORITY_LIFETIME), 1, "the current one");
        assert_eq!(count(NOW + AUTHORITY_LIFETIME + DAY), 0);
    }

    #[test]
    fn keys_of_authorities_are_not_printed() {
        let set = complete_set();
        let text = format!("{set:?}");
        assert!(text.contains("sheave-test-") && !text.contains("PRIVATE"), "{text}");
    }
}
