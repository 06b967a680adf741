//! TLS: decrypts the connections of clients, and encrypts those to endpoints.
//!
//! Everything that takes time is built when a Snapshot is applied, off the workers, and shared by them: keys,
//! authorities, ticket keys. If a part cannot be built, only the connections that need it fail.
//! This crate knows no worker, no listener and no metric: callers hand in settings and sockets, and count by themselves.

/// A TLS session without its socket.
mod session;
/// A TLS session over a socket.
mod stream;
/// Parses the ClientHello.
mod client_hello;
/// TLS mode and configuration of a listener's connections, by server name (SNI).
mod sni;
/// Private keys with their certificates.
mod certificate;
/// Verification of client certificates.
mod client_verifier;
/// The certificate of a client.
mod client_identity;
/// Session resumption.
mod resumption;
/// Session tickets that other replicas can open too.
mod ticket_keys;
/// Endpoint TLS: server verification and our client certificate.
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

pub use client_hello::{ClientHelloParse, MOST_HELLO_BYTES};
pub use client_identity::{CertificateNames, ClientIdentity};
pub use endpoint_tls::{
    ClientTlsConfig, ConnectionSecurity, EndpointTlsContext, EndpointTlsFactory,
    QuicClientTlsConfig, load_system_roots,
};
pub use session::TlsSession;
pub use sni::{ServerTlsConfig, ServerTlsConfigs, ServerTlsMode, SniEntry, SniTable};
pub use stream::TlsStream;
pub use ticket_keys::{TicketKeyRing, new_secret};

/// Returns the cryptography provider that all of TLS uses.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Returns the part of QUIC's cryptography that is the same for all connections, and public (RFC 9001 §5.2).
pub fn quic_protocol() -> Arc<QuicServerConfig> {
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
    let config = QuicServerConfig::try_from(config);
    Arc::new(config.expect("the provider has the cipher of QUIC's first packets"))
}

/// Parses certificates of authorities in DER.
fn authorities(roots: &[Box<[u8]>]) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add((&**root).into())?;
    }
    Ok(store)
}

/// Facts of a client's TLS handshake.
pub struct TlsInfo {
    /// The server name that the client sent (SNI).
    pub server_name: Option<OwnedHostName>,
    /// The SNI entry of its handshake. `None`: it is not known yet, and the connection carries nothing.
    pub sni_entry: Option<Arc<SniEntry>>,
    /// The TLS version as logs write it; `None`: the connection is passed through, so the version is unknown.
    pub version: Option<&'static str>,
    /// The certificate that the client has presented; `None`: none was requested, or the client has none.
    pub client: Option<ClientIdentity>,
}

impl TlsInfo {
    /// Returns the facts for QUIC without a server name; QUIC has one version of TLS.
    pub fn of_quic() -> Self {
        let version = version_label(Some(ProtocolVersion::TLSv1_3));
        Self { server_name: None, sni_entry: None, version, client: None }
    }
}

/// Returns the word for `version` in logs.
pub fn version_label(version: Option<ProtocolVersion>) -> Option<&'static str> {
    match version? {
        ProtocolVersion::TLSv1_2 => Some("1.2"),
        ProtocolVersion::TLSv1_3 => Some("1.3"),
        _ => None,
    }
}

/// The reason why the TLS handshake of a client failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTlsError {
    /// The client speaks HTTP without TLS.
    PlainHttp,
    /// The client does not speak TLS, or violates the protocol.
    Protocol,
    /// No SNI entry matches the server name of the client.
    UnknownName,
    /// The sides have no version, algorithm or protocol in common.
    Incompatible,
    /// The client certificate is missing, or not accepted.
    ClientCertificate,
    /// The client rejected the handshake, perhaps because of our certificate.
    Refused,
    /// The configuration of the SNI entry is unusable; the log has the reason.
    UnusableConfig,
    /// The handshake took too long.
    Timeout,
    /// The client disconnected.
    Disconnected,
}

impl ClientTlsError {
    pub const ALL: [Self; 9] = [
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

    /// Returns the value of the metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::PlainHttp => "plain_http",
            Self::Protocol => "protocol",
            Self::UnknownName => "unknown_name",
            Self::Incompatible => "no_common_parameters",
            Self::ClientCertificate => "client_certificate",
            Self::Refused => "refused",
            Self::UnusableConfig => "unusable",
            Self::Timeout => "timeout",
            Self::Disconnected => "client_disconnected",
        }
    }

    /// Returns a description for logs.
    pub fn reason(self) -> &'static str {
        match self {
            Self::PlainHttp => "this port speaks TLS: use https",
            Self::Protocol => "client violates the TLS protocol",
            Self::UnknownName => "no listener matches the client's server name (SNI)",
            Self::Incompatible => {
                "client and listener have no version, algorithm or protocol in common"
            }
            Self::ClientCertificate => "client's certificate is missing or not trusted",
            Self::Refused => "client rejected the handshake",
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
            // The resolver found no certificate whose key the client can verify.
            Error::General(_) => Self::Incompatible,
            _ => Self::Protocol,
        }
    }
}

/// The reason why a TLS connection to an endpoint failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointTlsError {
    /// The endpoint's certificate failed verification.
    Certificate,
    /// The endpoint rejected the handshake.
    Alert,
    /// The endpoint does not speak TLS, violates the protocol, or has nothing in common with our settings.
    Protocol,
    /// The TLS settings of the backend are unusable; the log has the reason.
    UnusableConfig,
}

impl EndpointTlsError {
    /// Returns the status code of the response to the client.
    pub fn status(self) -> u16 {
        match self {
            Self::Certificate | Self::Alert | Self::Protocol => 502,
            Self::UnusableConfig => 500,
        }
    }

    /// Returns the error type (RFC 9209 §2.3).
    pub fn proxy_error(self) -> &'static str {
        match self {
            Self::Certificate => "tls_certificate_error",
            Self::Alert => "tls_alert_received",
            Self::Protocol => "tls_protocol_error",
            Self::UnusableConfig => "proxy_configuration_error",
        }
    }

    /// Returns a description for logs and Proxy-Status.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Certificate => "endpoint's certificate is not trusted",
            Self::Alert => "endpoint rejected the TLS handshake",
            Self::Protocol => "endpoint does not speak a compatible TLS",
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
