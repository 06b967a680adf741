//! TLS: with what we decrypt what clients send, and encrypt what goes to endpoints.
//!
//! Everything that costs time is made when a Snapshot is put in force, off the workers, and shared by them: keys,
//! authorities, ticket keys. What of it cannot be made takes nothing down but what it is for.

/// A session without its socket.
mod session;
/// A session over a socket.
mod stream;
/// What a client says first.
mod client_hello;
/// What is decrypted, with what, by the name that a client asks for.
mod sni;
/// Keys with their certificates.
mod certificate;
/// Whom clients have to be.
mod client_verifier;
/// Sessions that go on where an earlier one ended.
mod resumption;
/// Whom endpoints have to be.
mod endpoint_tls;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use gateway::matching::OwnedHostName;
use quinn_proto::crypto::rustls::QuicServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::ResolvesServerCertUsingSni;
use rustls::version::TLS13;
use rustls::{Error, ProtocolVersion, RootCertStore, ServerConfig};

pub(crate) use client_hello::{ClientHelloParse, MOST_HELLO_BYTES};
pub(crate) use endpoint_tls::{
    ClientTlsConfig, ConnectionSecurity, EndpointTlsContext, EndpointTlsFactory,
    QuicClientTlsConfig,
};
pub(crate) use session::TlsSession;
pub(crate) use sni::{ServerTlsConfig, ServerTlsConfigs, ServerTlsMode, SniEntry, SniTable};
pub(crate) use stream::TlsStream;

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
pub(crate) struct TlsInfo {
    /// The name that it asked for (SNI).
    pub(crate) server_name: Option<OwnedHostName>,
    /// The site that its handshake was with. `None`: it is not known yet, and the connection carries nothing.
    pub(crate) sni_entry: Option<Arc<SniEntry>>,
    /// As logs write it; `None`: it is passed through, and not ours to know.
    pub(crate) version: Option<&'static str>,
}

impl TlsInfo {
    /// Of who asks for no name over QUIC, which has one version of TLS.
    pub(crate) fn of_quic() -> Self {
        let version = version_word(Some(ProtocolVersion::TLSv1_3));
        Self { server_name: None, sni_entry: None, version }
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
pub(crate) enum ClientTlsError {
    /// It speaks HTTP without TLS.
    PlainHttp,
    /// What it says is no TLS, or breaks its rules.
    Protocol,
    /// Nobody here has the name that it asks for.
    UnknownName,
    /// No version, algorithm or protocol in common.
    Incompatible,
    /// Its certificate is missing, or not one that we take.
    ClientCertificate,
    /// It has refused us, for our certificate perhaps.
    Refused,
    /// The site's configuration cannot be used, as the log said.
    UnusableConfig,
    /// The handshake took too long.
    Timeout,
    /// It has gone.
    Disconnected,
}

impl ClientTlsError {
    pub(crate) const ALL: [Self; 9] = [
        Self::PlainHttp,
        Self::Protocol,
        Self::UnknownName,
        Self::Incompatible,
        Self::ClientCertificate,
        Self::Refused,
        Self::UnusableConfig,
        Self::Timeout,
        Self::Disconnected,
    ];

    /// Metric label.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::PlainHttp => "plain_http",
            Self::Protocol => "protocol",
            Self::UnknownName => "unknown_name",
            Self::Incompatible => "nothing_in_common",
            Self::ClientCertificate => "client_certificate",
            Self::Refused => "refused",
            Self::UnusableConfig => "unusable",
            Self::Timeout => "timeout",
            Self::Disconnected => "client_disconnected",
        }
    }

    /// In words.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::PlainHttp => "this port speaks TLS: use https",
            Self::Protocol => "client breaks the rules of TLS",
            Self::UnknownName => "no listener has the name that the client asks for",
            Self::Incompatible => {
                "client and listener have no version, algorithm or protocol in common"
            }
            Self::ClientCertificate => "client's certificate is missing or not trusted",
            Self::Refused => "client has refused the handshake",
            Self::UnusableConfig => "listener's certificate cannot be used",
            Self::Timeout => "TLS handshake not complete in time",
            Self::Disconnected => "client disconnected",
        }
    }
}

impl From<&Error> for ClientTlsError {
    fn from(error: &Error) -> Self {
        match error {
            Error::InvalidCertificate(_)
            | Error::NoCertificatesPresented
            | Error::InvalidCertRevocationList(_) => Self::ClientCertificate,
            Error::AlertReceived(_) => Self::Refused,
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Self::Incompatible,
            // The resolver has found no certificate whose key the client can verify.
            Error::General(_) => Self::Incompatible,
            _ => Self::Protocol,
        }
    }
}

/// Why a connection to an endpoint is not secured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointTlsError {
    /// It is not whom it has to be.
    Certificate,
    /// It has refused us.
    Alert,
    /// What it says is no TLS, or breaks its rules, or has nothing in common with what we say.
    Protocol,
    /// What the policy asks for cannot be used, as the log said.
    UnusableConfig,
}

impl EndpointTlsError {
    /// Of the answer to the client.
    pub(crate) fn status(self) -> u16 {
        match self {
            Self::Certificate | Self::Alert | Self::Protocol => 502,
            Self::UnusableConfig => 500,
        }
    }

    /// Error type of RFC 9209 section 2.3.
    pub(crate) fn proxy_error(self) -> &'static str {
        match self {
            Self::Certificate => "tls_certificate_error",
            Self::Alert => "tls_alert_received",
            Self::Protocol => "tls_protocol_error",
            Self::UnusableConfig => "proxy_configuration_error",
        }
    }

    /// In words.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Certificate => "endpoint's certificate is not trusted",
            Self::Alert => "endpoint has refused the TLS handshake",
            Self::Protocol => "endpoint speaks no TLS that we know",
            Self::UnusableConfig => "the backend's TLS policy cannot be used",
        }
    }
}

impl From<&Error> for EndpointTlsError {
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
