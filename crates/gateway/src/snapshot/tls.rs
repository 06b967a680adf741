//! TLS termination at a listener, and TLS to endpoints. All PEM has been decoded and checked.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use super::Rule;
use crate::matching::{HostName, HostPattern};

/// TLS settings of a listener.
#[derive(Clone, Debug, Default)]
pub struct ListenerTls {
    /// The SNI rules, the most specific first. A connection that matches none is rejected.
    pub sni_rules: Vec<SniRule>,
}

impl ListenerTls {
    /// Sorts the SNI rules.
    pub(crate) fn new(mut sni_rules: Vec<SniRule>) -> Self {
        sni_rules.sort_by_key(|site| Reverse(specificity(&site.hosts)));
        Self { sni_rules }
    }

    /// Returns the rule for a connection with this server name, or without one.
    pub fn find(&self, name: Option<HostName<'_>>) -> Option<&SniRule> {
        self.sni_rules.iter().find(|site| match name {
            Some(name) => site.hosts.matches(name),
            None => site.hosts == HostPattern::Any,
        })
    }
}

/// Returns the sort key: a name comes before all names below a domain, and a longer domain before a shorter one.
fn specificity(hosts: &HostPattern) -> (u8, usize) {
    match hosts {
        HostPattern::Any => (0, 0),
        HostPattern::Wildcard(name) => (1, name.len()),
        HostPattern::Exact(name) => (2, name.len()),
    }
}

/// TLS settings for some server names (SNI).
#[derive(Clone, Debug)]
pub struct SniRule {
    /// The server names. `Any` also matches connections without a server name.
    pub hosts: HostPattern,
    /// The certificates for TLS termination; `None`: TLS passthrough, whatever the TLS settings of the backend.
    pub terminate: Option<Arc<TlsTermination>>,
    /// The content of the connections.
    pub payload: TlsPayload,
}

/// The content of TLS connections.
#[derive(Clone, Debug)]
pub enum TlsPayload {
    /// HTTP requests, routed by the listener's route table.
    Requests,
    /// Byte streams. All use one rule; without a rule the connections are closed.
    Connections(Option<Arc<Rule>>),
}

/// Certificates for TLS termination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsTermination {
    /// The certificates, at least one. A client gets the first that matches its server name and algorithms, else the
    /// first of all.
    pub certificates: Vec<Arc<TlsCertificate>>,
    /// Verification of client certificates; `None`: no certificate is requested.
    pub clients: Option<ClientCertificates>,
}

/// A certificate chain and the private key of its first certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsCertificate {
    /// The object that it is read from, for logs: `Secret namespace/name`.
    pub name: Box<str>,
    /// The chain in DER, with the certificate of the key first. At least one certificate.
    pub chain: Vec<Box<[u8]>>,
    /// The private key.
    pub key: PrivateKey,
}

/// A private key in DER. `Debug` never shows it.
#[derive(Clone, PartialEq, Eq)]
pub enum PrivateKey {
    /// PKCS #8 (RFC 5958).
    Pkcs8(Box<[u8]>),
    /// PKCS #1, RSA only (RFC 8017).
    Pkcs1(Box<[u8]>),
    /// SEC 1, elliptic curves only (RFC 5915).
    Sec1(Box<[u8]>),
}

impl PrivateKey {
    /// Returns the DER bytes, in the encoding of the variant.
    pub fn der(&self) -> &[u8] {
        match self {
            Self::Pkcs8(der) | Self::Pkcs1(der) | Self::Sec1(der) => der,
        }
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey")
    }
}

/// Verification of client certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// The trusted CA certificates in DER. At least one.
    pub roots: Vec<Box<[u8]>>,
    /// True if a client without a valid certificate is rejected. If false, every client is accepted, and policies may
    /// judge its requests.
    pub required: bool,
    /// Revocation lists; `None`: revoked certificates are not recognised.
    pub revocation: Option<Arc<RevocationCheck>>,
    /// Maximum number of intermediate certificates that a client may send; `None`: as many as path building allows.
    pub max_intermediates: Option<u8>,
}

/// Check of client certificates against revocation lists (RFC 5280 §5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevocationCheck {
    /// The lists in DER. None: they cannot be read, so no certificate is valid, and handshakes do not depend on one.
    pub lists: Vec<Box<[u8]>>,
    /// True if only the client's own certificate is checked, and no intermediate one.
    pub only_end_entity: bool,
    /// True if a certificate is accepted whose issuer has no list.
    pub accepts_unknown: bool,
    /// True if a list counts after the time of its next update.
    pub accepts_expired: bool,
}

/// TLS settings for connections to endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointTls {
    /// The server name (SNI).
    pub server_name: Box<str>,
    /// Accepted subject names: the certificate must have one of them. Empty: `server_name`.
    pub subject_names: Vec<SubjectName>,
    /// The trusted CA certificates.
    pub roots: TrustAnchors,
    /// The client certificate that Sheave presents if the endpoint requests one; `None`: no certificate.
    pub client: Option<Arc<TlsCertificate>>,
}

/// A subject name of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectName {
    /// A DNS name, optionally with a leading `*.`.
    Dns(Box<str>),
    /// A URI, as in SPIFFE.
    Uri(Box<str>),
}

/// The CA certificates that are trusted to issue endpoint certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustAnchors {
    /// The CA certificates that the machine trusts.
    System,
    /// These, in DER. If empty, no endpoint is trusted, and every connection fails.
    Given(Vec<Box<[u8]>>),
    /// No verification: every certificate is accepted, whatever its issuer and name. For a lab only.
    AcceptAny,
}
