//! Certificates and keys in PEM. A certificate that is read here matches its key, and TLS can use it.
//!
//! The module must not know which objects refer to a certificate, nor the current time: validity periods are returned
//! as [`CertificateValidity`], and the caller compares them with the clock.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error, InconsistentKeys, RootCertStore};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use webpki::OwnedCertRevocationList;
use x509_cert::der::Decode;

use crate::objects::{ConfigMapSpec, SecretSpec, TypedObject};
use crate::problem::ObjectProblem;
use crate::snapshot::{PrivateKey, TlsCertificate};

/// Names of values by Kubernetes convention.
const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITIES: &str = "ca.crt";
const REVOCATION_LISTS: &str = "ca.crl";

/// The validity period of a Secret's certificate that is in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateValidity {
    /// The problem to report outside of the validity period; its message is filled in then.
    problem_template: ObjectProblem,
    /// Start of the validity, in seconds since 1970.
    not_before: u64,
    /// End of the validity, in seconds since 1970.
    not_after: u64,
}

/// The certificate of a Secret with its matching key, and its validity period; or an error.
pub(super) type CertificateResult =
    Result<(Arc<TlsCertificate>, Option<CertificateValidity>), BadValue>;

/// An error in a value of a Secret or ConfigMap.
#[derive(Clone, Debug)]
pub(super) struct BadValue {
    /// The field path, such as `data.tls.crt`.
    pub(super) field: String,
    pub(super) message: String,
}

impl CertificateValidity {
    /// Returns the validity period of a Secret's certificate, or `None` if it cannot be read.
    fn of(secret: &TypedObject<SecretSpec>, leaf: &[u8]) -> Option<Self> {
        let certificate = x509_cert::Certificate::from_der(leaf).ok()?;
        let validity = certificate.tbs_certificate().validity();
        Some(Self {
            problem_template: secret.problem("Secret", format!("data.{CHAIN}"), ""),
            not_before: validity.not_before.to_unix_duration().as_secs(),
            not_after: validity.not_after.to_unix_duration().as_secs(),
        })
    }

    /// Returns the name of the certificate, as `Secret namespace/name`.
    pub fn name(&self) -> &str {
        &self.problem_template.object
    }

    /// Returns the end of the validity, in seconds since 1970.
    pub const fn not_after(&self) -> u64 {
        self.not_after
    }

    /// Returns the problem of the certificate at a time, in seconds since 1970, or `None` if it is valid then.
    pub fn problem(&self, now: u64) -> Option<ObjectProblem> {
        let message = if now > self.not_after {
            format!("the certificate expired {} ago", approximate_duration(now - self.not_after))
        } else if now < self.not_before {
            format!(
                "the certificate is not valid for another {}",
                approximate_duration(self.not_before - now)
            )
        } else {
            return None;
        };
        Some(ObjectProblem { message, ..self.problem_template.clone() })
    }
}

/// Formats a duration roughly, in its largest unit.
fn approximate_duration(seconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400, "day"), (3600, "hour"), (60, "minute")];
    let unit = UNITS.iter().find(|(length, _)| seconds >= *length);
    let (count, name) = unit.map_or((seconds, "second"), |(length, name)| (seconds / length, name));
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

/// Reads the certificate and the key of a Secret.
pub(super) fn of_secret(secret: &TypedObject<SecretSpec>) -> CertificateResult {
    let chain = certificates(value(secret, CHAIN)?).map_err(|message| bad_value(CHAIN, message))?;
    let key = PrivateKeyDer::from_pem_slice(value(secret, KEY)?)
        .map_err(|error| bad_value(KEY, pem_fault(&error, "a private key")))?;
    let made = TlsCertificate {
        name: format!("Secret {}/{}", secret.metadata.namespace, secret.metadata.name).into(),
        chain: chain.iter().map(|der| der.as_ref().into()).collect(),
        key: owned(&key)?,
    };
    CertifiedKey::from_der(chain, key, &default_provider())
        .map_err(|error| key_pair_fault(&error))?;
    let validity = CertificateValidity::of(secret, &made.chain[0]);
    Ok((Arc::new(made), validity))
}

/// Reads the CA certificates of a ConfigMap.
pub(super) fn authorities_of_map(
    map: &TypedObject<ConfigMapSpec>,
) -> Result<Vec<Box<[u8]>>, BadValue> {
    let pem = map.spec.data.get(AUTHORITIES).ok_or_else(|| missing(AUTHORITIES))?;
    authorities(pem.as_bytes())
}

/// Reads the CA certificates of a Secret.
pub(super) fn authorities_of_secret(
    secret: &TypedObject<SecretSpec>,
) -> Result<Vec<Box<[u8]>>, BadValue> {
    authorities(value(secret, AUTHORITIES)?)
}

fn authorities(pem: &[u8]) -> Result<Vec<Box<[u8]>>, BadValue> {
    let certificates = certificates(pem).map_err(|message| bad_value(AUTHORITIES, message))?;
    let mut store = RootCertStore::empty();
    for certificate in &certificates {
        let added = store.add(certificate.clone());
        added.map_err(|error| bad_value(AUTHORITIES, unusable(&error)))?;
    }
    Ok(certificates.iter().map(|der| der.as_ref().into()).collect())
}

/// Reads the certificate revocation lists of a ConfigMap.
pub(super) fn revocation_lists_of_map(
    map: &TypedObject<ConfigMapSpec>,
) -> Result<Vec<Box<[u8]>>, BadValue> {
    let pem = map.spec.data.get(REVOCATION_LISTS).ok_or_else(|| missing(REVOCATION_LISTS))?;
    revocation_lists(pem.as_bytes())
}

/// Reads the certificate revocation lists of a Secret.
pub(super) fn revocation_lists_of_secret(
    secret: &TypedObject<SecretSpec>,
) -> Result<Vec<Box<[u8]>>, BadValue> {
    revocation_lists(value(secret, REVOCATION_LISTS)?)
}

fn revocation_lists(pem: &[u8]) -> Result<Vec<Box<[u8]>>, BadValue> {
    let lists: Vec<_> = CertificateRevocationListDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| bad_value(REVOCATION_LISTS, pem_fault(&error, "a revocation list")))?;
    if lists.is_empty() {
        let message = pem_fault(&pem::Error::NoItemsFound, "a revocation list");
        return Err(bad_value(REVOCATION_LISTS, message));
    }
    for list in &lists {
        if let Err(error) = OwnedCertRevocationList::from_der(list) {
            let message = format!("has a revocation list that cannot be used: {error}");
            return Err(bad_value(REVOCATION_LISTS, message));
        }
    }
    Ok(lists.iter().map(|der| der.as_ref().into()).collect())
}

fn value<'s>(secret: &'s TypedObject<SecretSpec>, name: &str) -> Result<&'s [u8], BadValue> {
    secret.spec.value(name).ok_or_else(|| missing(name))
}

fn missing(name: &str) -> BadValue {
    bad_value(name, "is missing")
}

fn bad_value(name: &str, message: impl Into<String>) -> BadValue {
    BadValue { field: format!("data.{name}"), message: message.into() }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| pem_fault(&error, "a certificate"))?;
    if certificates.is_empty() {
        return Err(pem_fault(&pem::Error::NoItemsFound, "a certificate"));
    }
    Ok(certificates)
}

/// Returns the message of a PEM error. It never contains a part of the text, which may be of a key.
fn pem_fault(error: &pem::Error, wanted: &str) -> String {
    if let pem::Error::NoItemsFound = error {
        return format!("contains no PEM of {wanted}");
    }
    let message = if let pem::Error::MissingSectionEnd { .. } = error {
        "is PEM without its END line"
    } else if let pem::Error::Base64Decode(_) = error {
        "is PEM whose base64 is broken"
    } else {
        "is not PEM"
    };
    message.to_owned()
}

fn owned(key: &PrivateKeyDer<'_>) -> Result<PrivateKey, BadValue> {
    match key {
        PrivateKeyDer::Pkcs8(der) => Ok(PrivateKey::Pkcs8(der.secret_pkcs8_der().into())),
        PrivateKeyDer::Pkcs1(der) => Ok(PrivateKey::Pkcs1(der.secret_pkcs1_der().into())),
        PrivateKeyDer::Sec1(der) => Ok(PrivateKey::Sec1(der.secret_sec1_der().into())),
        _ => Err(bad_value(KEY, "is a key of an unknown kind")),
    }
}

/// Returns why TLS cannot use a certificate chain and a key that were both read.
fn key_pair_fault(error: &Error) -> BadValue {
    if let Error::InconsistentKeys(InconsistentKeys::KeyMismatch) = error {
        return bad_value(KEY, format!("is not the key of the certificate in {CHAIN}"));
    }
    let is_of_chain = matches!(error, Error::InvalidCertificate(_));
    bad_value(if is_of_chain { CHAIN } else { KEY }, unusable(error))
}

/// Returns a readable message for an error of rustls.
fn unusable(error: &Error) -> String {
    if let Error::InvalidCertificate(CertificateError::BadEncoding) = error {
        return "is PEM of something that is not a certificate".to_owned();
    }
    let why = if let Error::InvalidCertificate(why) = error {
        why.to_string()
    } else if let Error::General(why) = error {
        why.clone()
    } else {
        error.to_string()
    };
    format!("cannot be used: {why}")
}

#[cfg(test)]
mod tests;
