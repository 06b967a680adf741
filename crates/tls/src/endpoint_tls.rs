//! Endpoint TLS: server verification and our client certificate.

use std::sync::{Arc, OnceLock};

use gateway::snapshot::{
    BackendSettings, EndpointProtocol, EndpointTls, SubjectName, TrustAnchors,
};
use quinn_proto::crypto::rustls::QuicClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use crate::certificate::certified_key;
use crate::{authorities, provider};

/// TLS settings and configurations for the endpoints of one backend.
pub struct EndpointTlsContext {
    settings: Arc<EndpointTls>,
    protocol: EndpointProtocol,
    /// `None`: the settings are unusable, as the log has said.
    configs: Option<ClientTlsConfigs>,
}

struct ClientTlsConfigs {
    /// For the protocol of the backend; for HTTP/3, its fallback over TCP.
    for_requests: ClientTlsConfig,
    for_http1: ClientTlsConfig,
    for_connections: ClientTlsConfig,
    /// For HTTP/3, if that is the protocol.
    for_http3: Option<QuicClientTlsConfig>,
}

/// The TLS configuration of QUIC connections.
#[derive(Clone)]
pub struct QuicClientTlsConfig {
    pub config: Arc<QuicClientConfig>,
    pub name: Box<str>,
}

/// The TLS configuration of one kind of connection.
#[derive(Clone)]
pub struct ClientTlsConfig {
    pub config: Arc<ClientConfig>,
    pub name: ServerName<'static>,
}

/// The security of one connection.
#[derive(Clone, Copy)]
pub enum ConnectionSecurity<'t> {
    Plain,
    Tls(&'t ClientTlsConfig),
    /// TLS is required, and cannot be configured.
    Unusable,
}

impl ConnectionSecurity<'_> {
    /// Returns the security of connections that carry requests.
    pub fn of_requests(context: Option<&Arc<EndpointTlsContext>>) -> ConnectionSecurity<'_> {
        Self::of(context, |configs| &configs.for_requests)
    }

    /// Returns the security of connections that carry HTTP/1.1 requests, one after the other.
    pub fn of_http1(context: Option<&Arc<EndpointTlsContext>>) -> ConnectionSecurity<'_> {
        Self::of(context, |configs| &configs.for_http1)
    }

    /// Returns the security of connections with an opaque payload.
    pub fn of_connections(context: Option<&Arc<EndpointTlsContext>>) -> ConnectionSecurity<'_> {
        Self::of(context, |configs| &configs.for_connections)
    }

    fn of(
        context: Option<&Arc<EndpointTlsContext>>,
        choose: impl FnOnce(&ClientTlsConfigs) -> &ClientTlsConfig,
    ) -> ConnectionSecurity<'_> {
        let Some(context) = context else { return ConnectionSecurity::Plain };
        context.configs.as_ref().map_or(ConnectionSecurity::Unusable, |configs| {
            ConnectionSecurity::Tls(choose(configs))
        })
    }
}

impl EndpointTlsContext {
    /// Returns the configuration of HTTP/3 connections; `None` if there is none.
    pub fn quic(&self) -> Option<&QuicClientTlsConfig> {
        self.configs.as_ref()?.for_http3.as_ref()
    }

    fn is_for(&self, asked: &Arc<EndpointTls>, protocol: EndpointProtocol) -> bool {
        self.protocol == protocol && self.settings == *asked
    }
}

/// Builds each [`EndpointTlsContext`].
pub struct EndpointTlsFactory {
    provider: Arc<CryptoProvider>,
    /// The trust anchors of the system, read at the first use.
    system_roots: OnceLock<Arc<RootCertStore>>,
}

impl Default for EndpointTlsFactory {
    fn default() -> Self {
        Self { provider: provider(), system_roots: OnceLock::new() }
    }
}

impl EndpointTlsFactory {
    /// Returns the context for `settings`: `known`, if it has these settings.
    pub fn context_for(
        &self,
        settings: &BackendSettings,
        known: Option<&Arc<EndpointTlsContext>>,
    ) -> Option<Arc<EndpointTlsContext>> {
        let (asked, protocol) = (settings.tls.as_ref()?, settings.protocol);
        if let Some(known) = known.filter(|known| known.is_for(asked, protocol)) {
            return Some(Arc::clone(known));
        }
        let configs = self.build_configs(asked, protocol).inspect_err(|error| {
            let name = &*asked.server_name;
            tracing::error!(server.name = name, %error, "unusable TLS configuration: connections to these endpoints fail");
        });
        Some(Arc::new(EndpointTlsContext {
            settings: Arc::clone(asked),
            protocol,
            configs: configs.ok(),
        }))
    }

    fn build_configs(
        &self,
        asked: &EndpointTls,
        protocol: EndpointProtocol,
    ) -> Result<ClientTlsConfigs, Error> {
        let name = ServerName::try_from(&*asked.server_name)
            .map_err(|_invalid| Error::UnsupportedNameType)?
            .to_owned();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier(asked)?);
        let config = match &asked.client {
            Some(certificate) => {
                let key = certified_key(certificate, &self.provider)?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)))
            }
            None => builder.with_no_client_auth(),
        };
        let offering = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            ClientTlsConfig { config: Arc::new(config), name: name.clone() }
        };
        let for_http1 = offering(&[b"http/1.1"]);
        let (for_requests, for_http3) = match protocol {
            EndpointProtocol::Http1 => (for_http1.clone(), None),
            EndpointProtocol::Http2 => (offering(&[b"h2"]), None),
            EndpointProtocol::Http3 => {
                let config = quic_config(&offering(&[b"h3"]).config)?;
                let name = asked.server_name.clone();
                (offering(&[b"h2", b"http/1.1"]), Some(QuicClientTlsConfig { config, name }))
            }
        };
        let for_connections = offering(&[]);
        Ok(ClientTlsConfigs { for_requests, for_http1, for_connections, for_http3 })
    }

    fn verifier(&self, asked: &EndpointTls) -> Result<Arc<dyn ServerCertVerifier>, Error> {
        let algorithms = self.provider.signature_verification_algorithms;
        let roots = match &asked.roots {
            TrustAnchors::System => {
                Some(Arc::clone(self.system_roots.get_or_init(load_system_roots)))
            }
            TrustAnchors::Given(roots) => Some(Arc::new(authorities(roots)?)),
            TrustAnchors::AcceptAny => {
                let name = &*asked.server_name;
                tracing::warn!(
                    server.name = name,
                    "any certificate of these endpoints is accepted"
                );
                None
            }
        };
        Ok(Arc::new(EndpointCertVerifier { roots, names: asked.subject_names.clone(), algorithms }))
    }
}

/// Returns the same configuration for QUIC, which uses TLS 1.3 only.
fn quic_config(config: &Arc<ClientConfig>) -> Result<Arc<QuicClientConfig>, Error> {
    let config = QuicClientConfig::try_from(Arc::clone(config));
    config.map(Arc::new).map_err(|error| Error::General(error.to_string()))
}

/// Reads the trust anchors of the system: without any, no endpoint is trusted.
pub fn load_system_roots() -> Arc<RootCertStore> {
    let mut store = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "cannot read a trust anchor of the system");
    }
    store.add_parsable_certificates(found.certs);
    Arc::new(store)
}

/// Verifies the issuer and the names of a certificate. In any case the handshake proves possession of its key.
#[derive(Debug)]
struct EndpointCertVerifier {
    /// `None`: any certificate is accepted.
    roots: Option<Arc<RootCertStore>>,
    /// One of these has to match; empty: the server name.
    names: Vec<SubjectName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl EndpointCertVerifier {
    fn check_name(
        &self,
        certificate: &CertificateDer<'_>,
        parsed: &ParsedCertificate<'_>,
        asked: &ServerName<'_>,
    ) -> Result<(), Error> {
        if self.names.is_empty() {
            return verify_server_name(parsed, asked);
        }
        let bare = webpki::EndEntityCert::try_from(certificate)
            .map_err(|_bad| Error::from(CertificateError::BadEncoding))?;
        let is_named = |name: &SubjectName| match name {
            // A wildcard name is compared literally with the names in the certificate.
            SubjectName::Dns(name) if name.starts_with("*.") => {
                bare.valid_dns_names().any(|named| named.eq_ignore_ascii_case(name))
            }
            SubjectName::Dns(name) => ServerName::try_from(&**name)
                .is_ok_and(|name| verify_server_name(parsed, &name).is_ok()),
            SubjectName::Uri(name) => bare.valid_uri_names().any(|named| named == &**name),
        };
        let is_named = self.names.iter().any(is_named);
        if is_named { Ok(()) } else { Err(CertificateError::NotValidForName.into()) }
    }
}

impl ServerCertVerifier for EndpointCertVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            roots,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        self.check_name(end_entity, &parsed, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
