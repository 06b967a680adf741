//! TLS: with what we decrypt at a listener, and how we encrypt to endpoints. All PEM is decoded and checked by now.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use super::Rule;
use crate::matching::{HostName, HostPattern};

/// What becomes of TLS connections at a listener.
#[derive(Clone, Debug, Default)]
pub struct ListenerTls {
    /// By the name that the client asks for (SNI), the most specific first. A connection for which there is none is
    /// refused.
    pub sni_rules: Vec<SniRule>,
}

impl ListenerTls {
    /// Sorts the sites.
    pub(crate) fn new(mut sni_rules: Vec<SniRule>) -> Self {
        sni_rules.sort_by_key(|site| Reverse(specificity(&site.hosts)));
        Self { sni_rules }
    }

    /// What becomes of a connection that asks for a name, or for none.
    pub fn find(&self, name: Option<HostName<'_>>) -> Option<&SniRule> {
        self.sni_rules.iter().find(|site| match name {
            Some(name) => site.hosts.matches(name),
            None => site.hosts == HostPattern::Any,
        })
    }
}

/// A name goes before all names below one, and a longer one before a shorter one.
fn specificity(hosts: &HostPattern) -> (u8, usize) {
    match hosts {
        HostPattern::Any => (0, 0),
        HostPattern::Wildcard(name) => (1, name.len()),
        HostPattern::Exact(name) => (2, name.len()),
    }
}

/// The connections for some names.
#[derive(Clone, Debug)]
pub struct SniRule {
    /// The names. One that is `Any` also takes connections that ask for none.
    pub hosts: HostPattern,
    /// With what they are decrypted; `None`: they are passed through as they are, whatever the backend's TLS would be.
    pub terminate: Option<Arc<TlsTermination>>,
    /// What is in them.
    pub payload: TlsPayload,
}

/// What is in TLS connections.
#[derive(Clone, Debug)]
pub enum TlsPayload {
    /// Requests, by the listener's table of routes.
    Requests,
    /// Connections, all by one rule; without one they are closed.
    Connections(Option<Arc<Rule>>),
}

/// With what connections are decrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsTermination {
    /// What we show: the first that fits the name and the algorithms of the client, else the first. At least one.
    pub certificates: Vec<Arc<TlsCertificate>>,
    /// What clients show; `None`: they are not asked.
    pub clients: Option<ClientCertificates>,
}

/// A chain of certificates and the key of the first of them, which belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsCertificate {
    /// Who it is read from, for logs: `Secret namespace/name`.
    pub name: Box<str>,
    /// DER, that of the key first. At least one.
    pub chain: Vec<Box<[u8]>>,
    /// The key of the first.
    pub key: PrivateKey,
}

/// A private key in DER. Nobody gets to see it by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub enum PrivateKey {
    /// PKCS #8 (RFC 5958).
    Pkcs8(Box<[u8]>),
    /// PKCS #1, RSA alone (RFC 8017).
    Pkcs1(Box<[u8]>),
    /// SEC 1, elliptic curves alone (RFC 5915).
    Sec1(Box<[u8]>),
}

impl PrivateKey {
    /// In the encoding that the variant says.
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

/// What clients must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// Who may have issued it: certificates of authorities in DER. At least one.
    pub roots: Vec<Box<[u8]>>,
    /// Whether a client without a valid one is refused; if not, it is let in whatever it shows.
    pub required: bool,
}

/// How connections to endpoints are encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointTls {
    /// The name that is asked for (SNI).
    pub server_name: Box<str>,
    /// Whom the certificate of the endpoint must name, any of them; empty: `server_name`.
    pub subject_names: Vec<SubjectName>,
    /// Who may have issued it.
    pub roots: TrustAnchors,
    /// What we show when the endpoint asks; `None`: nothing.
    pub client: Option<Arc<TlsCertificate>>,
}

/// A name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectName {
    /// A name in DNS, perhaps with `*.` before it.
    Dns(Box<str>),
    /// A URI, as SPIFFE has it.
    Uri(Box<str>),
}

/// Who may have issued a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustAnchors {
    /// The authorities that the machine trusts.
    System,
    /// These, in DER; none: no endpoint is believed, and each connection fails.
    Given(Vec<Box<[u8]>>),
    /// Anybody: every certificate is believed, whomever it names. For a lab.
    AcceptAny,
}
