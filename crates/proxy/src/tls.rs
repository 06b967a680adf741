//! TLS: with what we decrypt what clients send, and encrypt what goes to endpoints.
//!
//! Everything that costs time is made when a Snapshot is put in force, off the workers, and shared by them: keys,
//! authorities, ticket keys. What of it cannot be made takes nothing down but what it is for.

/// A session without its socket.
mod session;
/// A session over a socket.
mod stream;
/// What a client says first.
mod hello;
/// What is decrypted, with what, by the name that a client asks for.
mod sites;
/// Keys with their certificates.
mod certificate;
/// Whom clients have to be.
mod clients;
/// Sessions that go on where an earlier one ended.
mod resumption;
/// Whom endpoints have to be.
mod trust;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use gateway::matching::OwnedHostName;
use quinn_proto::crypto::rustls::QuicServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::ResolvesServerCertUsingSni;
use rustls::version::TLS13;
use rustls::{Error, ProtocolVersion, RootCertStore, ServerConfig};

pub(crate) use hello::{Hello, MOST_HELLO_BYTES};
pub(crate) use session::Session;
pub(crate) use sites::{Decryption, Servers, Site, Sites, Treatment};
pub(crate) use stream::TlsStream;
pub(crate) use trust::{QuicSecret, Secret, Security, Trust, Trusts};

/// The cryptography of everything here.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// What of QUIC's own cryptography is the same with everybody, and known to everybody (RFC 9001 §5.2).
pub(crate) fn quic_protocol() -> Arc<QuicServerConfig> {
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
    let config = QuicServerConfig::try_from(config);
    Arc::new(config.expect("the provider has the cipher of QUIC's first packets"))
}

/// Certificates of authorities in DER.
fn authorities(roots: &[Box<[u8]>]) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add((&**root).into())?;
    }
    Ok(store)
}

/// What a client's TLS has told of it.
pub(crate) struct Greeting {
    /// The name that it asked for (SNI).
    pub(crate) server_name: Option<OwnedHostName>,
    /// The site that its handshake was with. `None`: it is not known yet, and the connection carries nothing.
    pub(crate) site: Option<Arc<Site>>,
    /// As logs write it; `None`: it is passed through, and not ours to know.
    pub(crate) version: Option<&'static str>,
}

impl Greeting {
    /// Of who asks for no name over QUIC, which has one version of TLS.
    pub(crate) fn of_quic() -> Self {
        let version = version_word(Some(ProtocolVersion::TLSv1_3));
        Self { server_name: None, site: None, version }
    }
}

/// How `version` is written in logs.
pub(crate) fn version_word(version: Option<ProtocolVersion>) -> Option<&'static str> {
    match version? {
        ProtocolVersion::TLSv1_2 => Some("1.2"),
        ProtocolVersion::TLSv1_3 => Some("1.3"),
        _ => None,
    }
}

/// Why a client's connection is not secured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsecured {
    /// It speaks HTTP without TLS.
    PlainHttp,
    /// What it says is no TLS, or breaks its rules.
    Protocol,
    /// Nobody here has the name that it asks for.
    UnknownName,
    /// No version, algorithm or protocol in common.
    NothingInCommon,
    /// Its certificate is missing, or not one that we take.
    ClientCertificate,
    /// It has refused us, for our certificate perhaps.
    Refused,
    /// The site's configuration cannot be used, as the log said.
    Unusable,
    /// The handshake took too long.
    Late,
    /// It has gone.
    Gone,
}

impl Unsecured {
    pub(crate) const ALL: [Self; 9] = [
        Self::PlainHttp,
        Self::Protocol,
        Self::UnknownName,
        Self::NothingInCommon,
        Self::ClientCertificate,
        Self::Refused,
        Self::Unusable,
        Self::Late,
        Self::Gone,
    ];

    /// Metric label.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::PlainHttp => "plain_http",
            Self::Protocol => "protocol",
            Self::UnknownName => "unknown_name",
            Self::NothingInCommon => "nothing_in_common",
            Self::ClientCertificate => "client_certificate",
            Self::Refused => "refused",
            Self::Unusable => "unusable",
            Self::Late => "timeout",
            Self::Gone => "client_gone",
        }
    }

    /// In words.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::PlainHttp => "this port speaks TLS: use https",
            Self::Protocol => "client breaks the rules of TLS",
            Self::UnknownName => "no listener has the name that the client asks for",
            Self::NothingInCommon => {
                "client and listener have no version, algorithm or protocol in common"
            }
            Self::ClientCertificate => "client's certificate is missing or not trusted",
            Self::Refused => "client has refused the handshake",
            Self::Unusable => "listener's certificate cannot be used",
            Self::Late => "TLS handshake not complete in time",
            Self::Gone => "client has gone",
        }
    }
}

impl From<&Error> for Unsecured {
    fn from(error: &Error) -> Self {
        match error {
            Error::InvalidCertificate(_)
            | Error::NoCertificatesPresented
            | Error::InvalidCertRevocationList(_) => Self::ClientCertificate,
            Error::AlertReceived(_) => Self::Refused,
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Self::NothingInCommon,
            // The resolver has found no certificate whose key the client can verify.
            Error::General(_) => Self::NothingInCommon,
            _ => Self::Protocol,
        }
    }
}

/// Why a connection to an endpoint is not secured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untrusted {
    /// It is not whom it has to be.
    Certificate,
    /// It has refused us.
    Alert,
    /// What it says is no TLS, or breaks its rules, or has nothing in common with what we say.
    Protocol,
    /// What the policy asks for cannot be used, as the log said.
    Unusable,
}

impl Untrusted {
    /// Of the answer to the client.
    pub(crate) fn status(self) -> u16 {
        match self {
            Self::Certificate | Self::Alert | Self::Protocol => 502,
            Self::Unusable => 500,
        }
    }

    /// Error type of RFC 9209 section 2.3.
    pub(crate) fn proxy_error(self) -> &'static str {
        match self {
            Self::Certificate => "tls_certificate_error",
            Self::Alert => "tls_alert_received",
            Self::Protocol => "tls_protocol_error",
            Self::Unusable => "proxy_configuration_error",
        }
    }

    /// In words.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Certificate => "endpoint's certificate is not trusted",
            Self::Alert => "endpoint has refused the TLS handshake",
            Self::Protocol => "endpoint speaks no TLS that we know",
            Self::Unusable => "the backend's TLS policy cannot be used",
        }
    }
}

impl From<&Error> for Untrusted {
    fn from(error: &Error) -> Self {
        match error {
            Error::InvalidCertificate(_)
            | Error::NoCertificatesPresented
            | Error::UnsupportedNameType => Self::Certificate,
            Error::AlertReceived(_) => Self::Alert,
            _ => Self::Protocol,
        }
    }
}
