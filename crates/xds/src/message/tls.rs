//! `envoy.extensions.transport_sockets.tls.v3`: TLS of clients and servers, by certificates that their bootstrap files
//! name (gRFC A29).

use prost::Message;

use super::route::StringMatcher;
use super::well_known::{AnyMessage, BoolValue};

/// `TransportSocket`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TransportSocket {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) typed_config: Option<AnyMessage>,
}

/// `UpstreamTlsContext`: TLS of a client.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UpstreamTlsContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) common_tls_context: Option<CommonTlsContext>,
}

/// `DownstreamTlsContext`: TLS of a server.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DownstreamTlsContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) common_tls_context: Option<CommonTlsContext>,
    #[prost(message, optional, tag = "2")]
    pub(crate) require_client_certificate: Option<BoolValue>,
}

/// What both have.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CommonTlsContext {
    #[prost(message, optional, tag = "3")]
    pub(crate) validation_context: Option<CertificateValidation>,
    #[prost(message, optional, tag = "14")]
    pub(crate) tls_certificate_provider_instance: Option<CertificateProvider>,
}

/// `CertificateValidationContext`: which certificates of the other side are accepted.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CertificateValidation {
    /// One of them must match a name of the certificate, if there are any.
    #[prost(message, repeated, tag = "9")]
    pub(crate) match_subject_alt_names: Vec<StringMatcher>,
    #[prost(message, optional, tag = "13")]
    pub(crate) ca_certificate_provider_instance: Option<CertificateProvider>,
}

/// `CertificateProviderPluginInstance`: an entry of `certificate_providers` in the bootstrap file.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CertificateProvider {
    #[prost(string, tag = "1")]
    pub(crate) instance_name: String,
}

impl TransportSocket {
    /// Returns TLS with a context of this type.
    fn of(context: &str, message: &impl Message) -> Self {
        let name = format!("envoy.extensions.transport_sockets.tls.v3.{context}");
        Self {
            name: "envoy.transport_sockets.tls".to_owned(),
            typed_config: Some(AnyMessage::of(&name, message)),
        }
    }
}

impl From<UpstreamTlsContext> for TransportSocket {
    fn from(context: UpstreamTlsContext) -> Self {
        Self::of("UpstreamTlsContext", &context)
    }
}

impl From<DownstreamTlsContext> for TransportSocket {
    fn from(context: DownstreamTlsContext) -> Self {
        Self::of("DownstreamTlsContext", &context)
    }
}
