//! `envoy.extensions.transport_sockets.tls.v3`: TLS of clients and servers. Those of gRPC have certificates that their
//! bootstrap files name (gRFC A29).

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
pub(crate) struct EndpointTlsContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) common_tls_context: Option<CommonTlsContext>,
    /// The server name, which gRPC clients take from their target.
    #[prost(string, tag = "2")]
    pub(crate) sni: String,
}

/// `DownstreamTlsContext`: TLS of a server.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServerTlsContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) common_tls_context: Option<CommonTlsContext>,
    #[prost(message, optional, tag = "2")]
    pub(crate) require_client_certificate: Option<BoolValue>,
}

/// `CommonTlsContext`: settings of both.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CommonTlsContext {
    #[prost(message, optional, tag = "3")]
    pub(crate) validation_context: Option<CertificateValidation>,
    #[prost(string, repeated, tag = "4")]
    pub(crate) alpn_protocols: Vec<String>,
    #[prost(message, optional, tag = "14")]
    pub(crate) tls_certificate_provider_instance: Option<CertificateProvider>,
}

/// `CertificateValidationContext`: which certificates of the other side are accepted.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CertificateValidation {
    /// The authorities that an Envoy trusts.
    #[prost(message, optional, tag = "1")]
    pub(crate) trusted_ca: Option<DataSource>,
    /// One of them must match a name of the certificate, if there are any.
    #[prost(message, repeated, tag = "9")]
    pub(crate) match_subject_alt_names: Vec<StringMatcher>,
    /// The verification of authorities by an Envoy; 0: certificates of others are rejected.
    #[prost(int32, tag = "10")]
    pub(crate) trust_chain_verification: i32,
    #[prost(message, optional, tag = "13")]
    pub(crate) ca_certificate_provider_instance: Option<CertificateProvider>,
    /// The same as `match_subject_alt_names`, for Envoys.
    #[prost(message, repeated, tag = "15")]
    pub(crate) match_typed_subject_alt_names: Vec<SubjectAltNameMatcher>,
}

impl CertificateValidation {
    /// Every certificate is accepted.
    pub(crate) const ACCEPT_UNTRUSTED: i32 = 1;
}

/// `DataSource`. One of the fields is set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DataSource {
    #[prost(string, optional, tag = "1")]
    pub(crate) filename: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) inline_string: Option<String>,
}

/// `SubjectAltNameMatcher`: a condition on a name of one type.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SubjectAltNameMatcher {
    #[prost(int32, tag = "1")]
    pub(crate) san_type: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) matcher: Option<StringMatcher>,
}

impl SubjectAltNameMatcher {
    /// A name in DNS.
    pub(crate) const DNS: i32 = 2;
    /// A URI.
    pub(crate) const URI: i32 = 3;
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

impl From<EndpointTlsContext> for TransportSocket {
    fn from(context: EndpointTlsContext) -> Self {
        Self::of("UpstreamTlsContext", &context)
    }
}

impl From<ServerTlsContext> for TransportSocket {
    fn from(context: ServerTlsContext) -> Self {
        Self::of("DownstreamTlsContext", &context)
    }
}
