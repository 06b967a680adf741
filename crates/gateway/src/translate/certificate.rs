//! From PEM to certificates: what is read here has a key that belongs to it, and TLS can use it.
//!
//! It must not know who refers to it, nor what time it is: [`CertificateValidity`] says when it holds, for who knows.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error, InconsistentKeys, RootCertStore};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_cert::der::Decode;

use crate::objects::{ConfigMapSpec, SecretSpec, TypedObject};
use crate::problem::ObjectProblem;
use crate::snapshot::{PrivateKey, TlsCertificate};

/// The names of values that Kubernetes agreed upon.
const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITIES: &str = "ca.crt";

/// A certificate of a Secret that somebody refers to, and when it holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateValidity {
    /// What is wrong with it once it does not hold; the message is still to be written.
    problem_template: ObjectProblem,
    /// Seconds since 1970.
    not_before: u64,
    /// Seconds since 1970.
    not_after: u64,
}

/// The certificate of a Secret and its key, which belong together, and when they hold; or what is wrong with it.
pub(super) type CertificateResult =
    Result<(Arc<TlsCertificate>, Option<CertificateValidity>), BadValue>;

/// What is wrong with a value of a Secret or ConfigMap.
#[derive(Clone, Debug)]
pub(super) struct BadValue {
    /// Where, as in `data.tls.crt`.
    pub(super) field: String,
    pub(super) message: String,
}

impl CertificateValidity {
    /// When the certificate of a Secret holds. `None` if that cannot be read.
    fn of(secret: &TypedObject<SecretSpec>, leaf: &[u8]) -> Option<Self> {
        let certificate = x509_cert::Certificate::from_der(leaf).ok()?;
        let validity = certificate.tbs_certificate().validity();
        Some(Self {
            problem_template: secret.problem("Secret", format!("data.{CHAIN}"), ""),
            not_before: validity.not_before.to_unix_duration().as_secs(),
            not_after: validity.not_after.to_unix_duration().as_secs(),
        })
    }

    /// Which certificate it is, as `Secret namespace/name`.
    pub fn name(&self) -> &str {
        &self.problem_template.object
    }

    /// Until when it holds, in seconds since 1970.
    pub const fn not_after(&self) -> u64 {
        self.not_after
    }

    /// What is wrong at a time, in seconds since 1970.
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

/// Roughly, as a person would say it.
fn approximate_duration(seconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400, "day"), (3600, "hour"), (60, "minute")];
    let unit = UNITS.iter().find(|(length, _)| seconds >= *length);
    let (count, name) = unit.map_or((seconds, "second"), |(length, name)| (seconds / length, name));
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

/// Reads a Secret.
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
    let dated = CertificateValidity::of(secret, &made.chain[0]);
    Ok((Arc::new(made), dated))
}

/// The certificates of authorities of a ConfigMap.
pub(super) fn authorities_of_map(
    map: &TypedObject<ConfigMapSpec>,
) -> Result<Vec<Box<[u8]>>, BadValue> {
    let pem = map.spec.data.get(AUTHORITIES).ok_or_else(|| missing(AUTHORITIES))?;
    authorities(pem.as_bytes())
}

/// The certificates of authorities of a Secret.
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

/// Never with a piece of the text: it may be one of a key.
fn pem_fault(error: &pem::Error, wanted: &str) -> String {
    if let pem::Error::NoItemsFound = error {
        return format!("holds no PEM of {wanted}");
    }
    let message = if let pem::Error::MissingSectionEnd { .. } = error {
        "is PEM without its END line"
    } else if let pem::Error::Base64Decode(_) = error {
        "is PEM whose base64 is broken"
    } else {
        "is no PEM"
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

/// Why TLS cannot use a chain and a key that could both be read.
fn key_pair_fault(error: &Error) -> BadValue {
    if let Error::InconsistentKeys(InconsistentKeys::KeyMismatch) = error {
        return bad_value(KEY, format!("is not the key of the certificate in {CHAIN}"));
    }
    let is_of_chain = matches!(error, Error::InvalidCertificate(_));
    bad_value(if is_of_chain { CHAIN } else { KEY }, unusable(error))
}

/// What rustls says, as a person would.
fn unusable(error: &Error) -> String {
    if let Error::InvalidCertificate(CertificateError::BadEncoding) = error {
        return "is PEM of something that is no certificate".to_owned();
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
