//! The certificate of a client, as requests of its connection are judged by it.

use std::fmt::{self, Write};
use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::{BASE64, HEXLOWER};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, Error};
use x509_cert::der::Decode;

use crate::client_verifier::ListenerClientVerifier;

/// Maximum size of a certificate that policies accept, in bytes. It may be sent on in a header field.
const MOST_CERTIFICATE_BYTES: usize = 16 * 1024;

/// The certificate that a client has presented.
///
/// It is verified as of the beginning of the connection, also if its session is resumed: the authorities may have changed,
/// and the certificate may have expired. What nothing asks for is not computed, and the rest once.
pub struct ClientIdentity {
    /// The certificates that the client has presented, its own first.
    presented: Vec<CertificateDer<'static>>,
    verifier: Arc<ListenerClientVerifier>,
    begun: UnixTime,
    fault: OnceLock<Option<&'static str>>,
    names: OnceLock<CertificateNames>,
    sha256: OnceLock<String>,
    escaped_pem: OnceLock<String>,
}

/// The names in a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The distinguished name of the subject (RFC 4514), in ASCII.
    pub subject: String,
    /// The distinguished name of the issuer.
    pub issuer: String,
    /// Alternative names that are URIs.
    pub uris: Vec<String>,
    /// Alternative names that are DNS names.
    pub dns: Vec<String>,
}

impl ClientIdentity {
    /// Returns the identity of a client that has presented these certificates. `None`: it has presented none.
    pub(super) fn new(
        verifier: &Arc<ListenerClientVerifier>,
        mut presented: Vec<CertificateDer<'static>>,
    ) -> Option<Self> {
        let mut fault = OnceLock::new();
        if presented.first()?.len() > MOST_CERTIFICATE_BYTES {
            fault = OnceLock::from(Some("certificate is too large"));
            presented = vec![CertificateDer::from(Vec::new())];
        }
        let bytes: usize = presented.iter().map(|it| it.len()).sum();
        let mut identity = Self {
            presented,
            verifier: Arc::clone(verifier),
            begun: UnixTime::now(),
            fault,
            names: OnceLock::new(),
            sha256: OnceLock::new(),
            escaped_pem: OnceLock::new(),
        };
        if bytes > MOST_CERTIFICATE_BYTES {
            // The connection does not hold a long chain.
            identity.fault();
            identity.presented.truncate(1);
        }
        Some(identity)
    }

    /// Returns the certificate in DER; empty if it is too large to be sent on.
    pub fn der(&self) -> &[u8] {
        self.certificate()
    }

    /// Returns the reason why the certificate is not valid, if it is not.
    pub fn fault(&self) -> Option<&'static str> {
        *self.fault.get_or_init(|| {
            let (certificate, intermediates) = self.presented.split_first()?;
            let result = self.verifier.check(certificate, intermediates, self.begun);
            result.err().map(|error| reason(&error))
        })
    }

    /// Returns the SHA-256 digest of the certificate, in hexadecimal digits.
    pub fn sha256(&self) -> &str {
        self.sha256.get_or_init(|| HEXLOWER.encode(digest(&SHA256, self.der()).as_ref()))
    }

    /// Returns the certificate in PEM, with percent signs in place of what is no unreserved character (RFC 3986).
    pub fn escaped_pem(&self) -> &str {
        self.escaped_pem.get_or_init(|| escaped_pem(self.der()))
    }

    fn certificate(&self) -> &CertificateDer<'static> {
        self.presented.first().expect("a client with an identity has presented a certificate")
    }

    /// Returns the names in the certificate.
    pub fn names(&self) -> &CertificateNames {
        self.names.get_or_init(|| CertificateNames::of(self.certificate()))
    }
}

impl CertificateNames {
    /// Reads the names. What cannot be read is empty.
    fn of(der: &CertificateDer<'_>) -> Self {
        let mut names = Self::default();
        if let Ok(certificate) = x509_cert::Certificate::from_der(der) {
            let certificate = certificate.tbs_certificate();
            names.subject = ascii(&shown(certificate.subject()));
            names.issuer = ascii(&shown(certificate.issuer()));
        }
        if let Ok(certificate) = webpki::EndEntityCert::try_from(der) {
            names.uris = certificate.valid_uri_names().map(ascii).collect();
            names.dns = certificate.valid_dns_names().map(ascii).collect();
        }
        names
    }
}

/// Writes a name; one that cannot be written is empty.
fn shown(name: &impl fmt::Display) -> String {
    let mut text = String::new();
    match write!(text, "{name}") {
        Ok(()) => text,
        Err(_) => String::new(),
    }
}

/// Writes all bytes that a header field may not have, and those above ASCII, as `\C3` (RFC 4514 §2.4).
fn ascii(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\{byte:02X}")),
        }
    }
    out
}

/// Returns the certificate in PEM, with percent signs in place of what is no unreserved character (RFC 3986).
fn escaped_pem(der: &[u8]) -> String {
    let base64 = BASE64.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in base64.as_bytes().chunks(64) {
        pem.extend(line.iter().copied().map(char::from));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    let mut out = String::with_capacity(pem.len() * 5 / 4);
    for byte in pem.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Returns a reason as OpenSSL words it, which applications of ingress-nginx know.
fn reason(error: &Error) -> &'static str {
    let Error::InvalidCertificate(error) = error else { return "certificate verify failed" };
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "certificate has expired"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "certificate is not yet valid"
        }
        CertificateError::Revoked => "certificate revoked",
        CertificateError::UnknownIssuer => "unable to get local issuer certificate",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "unsuitable certificate purpose"
        }
        CertificateError::ApplicationVerificationFailure => "certificate chain too long",
        _ => "certificate verify failed",
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    #[test]
    fn names_are_read_and_are_safe_in_header_fields() {
        let mut params = CertificateParams::new(vec!["a.example.com".to_owned()]).unwrap();
        let uri = "spiffe://example/ns/a".try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "a, b");
        params.distinguished_name.push(DnType::CommonName, "M\u{fc}ller\r\nX: 1");
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let names = CertificateNames::of(certificate.der());
        assert_eq!(names.subject, "CN=M\\C3\\BCller\\0d\\0aX: 1,O=a\\, b");
        assert_eq!(names.issuer, names.subject);
        assert_eq!(names.uris, ["spiffe://example/ns/a"]);
        assert_eq!(names.dns, ["a.example.com"]);
    }

    #[test]
    fn pem_is_escaped() {
        assert!(escaped_pem(&[0xfb; 60]).starts_with("-----BEGIN%20CERTIFICATE-----%0A%2B%2Fv7"));
    }

    #[test]
    fn what_is_no_certificate_has_no_names() {
        let names = CertificateNames::of(&CertificateDer::from(vec![0x30, 0x82, 1]));
        assert_eq!(names, CertificateNames::default());
    }
}
