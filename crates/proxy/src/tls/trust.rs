//! Whom endpoints have to be, and as whom we come to them.

use std::sync::{Arc, OnceLock};

use gateway::snapshot::{BackendSettings, EndpointProtocol, EndpointTls, Roots, SubjectName};
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

use crate::tls::certificate::certified_key;
use crate::tls::{authorities, provider};

/// How connections to the endpoints of one backend are secured.
pub(crate) struct Trust {
    asked: Arc<EndpointTls>,
    protocol: EndpointProtocol,
    /// `None`: what is asked for cannot be used, as the log has said.
    secrets: Option<Secrets>,
}

struct Secrets {
    for_requests: Secret,
    for_connections: Secret,
}

/// What one kind of connection is secured with.
#[derive(Clone)]
pub(crate) struct Secret {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

/// How one connection is secured.
#[derive(Clone, Copy)]
pub(crate) enum Security<'t> {
    Plain,
    Tls(&'t Secret),
    /// It has to be, and cannot.
    Impossible,
}

impl Security<'_> {
    /// Of connections that carry requests.
    pub(crate) fn of_requests(trust: Option<&Arc<Trust>>) -> Security<'_> {
        Self::of(trust, |secrets| &secrets.for_requests)
    }

    /// Of connections that carry what we know nothing of.
    pub(crate) fn of_connections(trust: Option<&Arc<Trust>>) -> Security<'_> {
        Self::of(trust, |secrets| &secrets.for_connections)
    }

    fn of(trust: Option<&Arc<Trust>>, choose: impl FnOnce(&Secrets) -> &Secret) -> Security<'_> {
        let Some(trust) = trust else { return Security::Plain };
        trust
            .secrets
            .as_ref()
            .map_or(Security::Impossible, |secrets| Security::Tls(choose(secrets)))
    }
}

impl Trust {
    fn is_for(&self, asked: &Arc<EndpointTls>, protocol: EndpointProtocol) -> bool {
        self.protocol == protocol && self.asked == *asked
    }
}

/// Makes [`Trust`].
pub(crate) struct Trusts {
    provider: Arc<CryptoProvider>,
    /// Those that the machine trusts, read when they are first needed.
    system: OnceLock<Arc<RootCertStore>>,
}

impl Trusts {
    pub(crate) fn new() -> Self {
        Self { provider: provider(), system: OnceLock::new() }
    }

    /// What `settings` ask for: `known`, if it is that.
    pub(crate) fn of(
        &self,
        settings: &BackendSettings,
        known: Option<&Arc<Trust>>,
    ) -> Option<Arc<Trust>> {
        let (asked, protocol) = (settings.tls.as_ref()?, settings.protocol);
        if let Some(known) = known.filter(|known| known.is_for(asked, protocol)) {
            return Some(Arc::clone(known));
        }
        let secrets = self.secrets(asked, protocol).inspect_err(|error| {
            let name = &*asked.server_name;
            tracing::error!(server.name = name, %error, "no connection to these endpoints can be secured");
        });
        Some(Arc::new(Trust { asked: Arc::clone(asked), protocol, secrets: secrets.ok() }))
    }

    fn secrets(&self, asked: &EndpointTls, protocol: EndpointProtocol) -> Result<Secrets, Error> {
        let name = ServerName::try_from(&*asked.server_name)
            .map_err(|_invalid| Error::UnsupportedNameType)?
            .to_owned();
        let roots = match &asked.roots {
            Roots::System => Arc::clone(self.system.get_or_init(system)),
            Roots::Given(roots) => Arc::new(authorities(roots)?),
        };
        let algorithms = self.provider.signature_verification_algorithms;
        let verifier = Verifier { roots, names: asked.subject_names.clone(), algorithms };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match &asked.client {
            Some(certificate) => {
                let key = certified_key(certificate, &self.provider)?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)))
            }
            None => builder.with_no_client_auth(),
        };
        let mut requests = config.clone();
        requests.alpn_protocols = vec![alpn(protocol).to_vec()];
        Ok(Secrets {
            for_requests: Secret { config: Arc::new(requests), name: name.clone() },
            for_connections: Secret { config: Arc::new(config), name },
        })
    }
}

fn alpn(protocol: EndpointProtocol) -> &'static [u8] {
    match protocol {
        EndpointProtocol::Http1 => b"http/1.1",
        EndpointProtocol::Http2 => b"h2",
    }
}

/// The authorities that the machine trusts: without any, nobody is.
fn system() -> Arc<RootCertStore> {
    let mut store = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "cannot read an authority that the machine trusts");
    }
    store.add_parsable_certificates(found.certs);
    Arc::new(store)
}

/// Checks who issued a certificate, and whom it names.
#[derive(Debug)]
struct Verifier {
    roots: Arc<RootCertStore>,
    /// Any of them; empty: the name that we ask for.
    names: Vec<SubjectName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
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
            // What a certificate says for many names at once is asked for as it is written.
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

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
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
