//! Certificates with which replicas authenticate one another: TLS 1.3, and both sides show one.
//!
//! Each side requires that the other's certificate is for [`REPLICA_NAME`], so that another
//! certificate of the same authority is not a replica. Sessions are not resumed: each connection
//! verifies the certificates anew.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    NoServerSessionStorage, ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier,
};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error as TlsError, RootCertStore,
    ServerConfig, SignatureScheme,
};
use thiserror::Error;

/// DNS name that the certificate of each replica has among its subject alternative names.
pub const REPLICA_NAME: &str = "replica.sheave.dev";

/// Maximum size of each PEM file in bytes.
const MAX_PEM_BYTES: usize = 1 << 20;

/// Certificate and key of this replica, and the authorities of its peers.
#[derive(Clone)]
pub struct ReplicaCertificates {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) chain: Arc<[CertificateDer<'static>]>,
    pub(crate) peers: Arc<PeerVerifier>,
}

/// Reason why certificates cannot be used.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A file is larger than any with certificates.
    #[error("the {0} has more than {MAX_PEM_BYTES} bytes")]
    TooLarge(&'static str),
    /// A file is not PEM, or has nothing of what it should have.
    #[error("the {0} is not valid PEM")]
    Pem(&'static str, #[source] pem::Error),
    /// A file has no certificate.
    #[error("the {0} has no certificate")]
    Empty(&'static str),
    /// The certificate is not for replicas.
    #[error("the certificate is not for the name {REPLICA_NAME}")]
    Name(#[source] TlsError),
    /// Certificate, key and authorities do not fit together, or are of an unknown kind.
    #[error("certificate, key and authorities cannot be used together")]
    Unusable(#[source] TlsError),
    /// There is no usable authority.
    #[error("the authorities cannot be used")]
    Authorities(#[source] VerifierBuilderError),
}

impl ReplicaCertificates {
    /// Returns the certificates in PEM: the chain of this replica with its own certificate first,
    /// the key of that, and the authorities that issue the certificates of replicas. If the
    /// certificates limit their purposes, both server and client authentication must be among them.
    ///
    /// # Errors
    ///
    /// Returns the reason if they cannot be used. Whether a certificate is valid today is verified
    /// in each handshake.
    pub fn from_pem(
        chain: &[u8],
        key: &[u8],
        authorities: &[u8],
    ) -> Result<Self, CertificateError> {
        let chain = certificates("certificate", chain)?;
        let key = bounded("key", key).and_then(|key| {
            PrivateKeyDer::from_pem_slice(key).map_err(|error| CertificateError::Pem("key", error))
        })?;
        let authorities = certificates("authority", authorities)?;
        let own = ParsedCertificate::try_from(&chain[0]).map_err(CertificateError::Unusable)?;
        verify_server_name(&own, &replica_name()).map_err(CertificateError::Name)?;
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(CertificateError::Unusable)?;
        }
        Self::from_parts(chain, key, Arc::new(roots))
    }

    pub(crate) fn from_parts(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: Arc<RootCertStore>,
    ) -> Result<Self, CertificateError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let peers = Arc::new(PeerVerifier::new(Arc::clone(&roots), &provider)?);
        let own_chain = Arc::from(chain.as_slice());
        let servers = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let servers = servers.build().map_err(CertificateError::Authorities)?;
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has TLS 1.3")
            .with_webpki_verifier(servers)
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(CertificateError::Unusable)?;
        client.resumption = Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has TLS 1.3")
            .with_client_cert_verifier(Arc::<PeerVerifier>::clone(&peers))
            .with_single_cert(chain, key)
            .map_err(CertificateError::Unusable)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let (client, server) = (Arc::new(client), Arc::new(server));
        Ok(Self { client, server, chain: own_chain, peers })
    }

    /// Verifies the certificate of a peer at a time in seconds since 1970, as a handshake does.
    ///
    /// # Errors
    ///
    /// Returns the reason for which a handshake with the peer would fail.
    pub fn verify_peer(&self, peer: &Self, now: u64) -> Result<(), TlsError> {
        let (own, issuers) = peer.chain.split_first().ok_or(TlsError::NoCertificatesPresented)?;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        self.peers.verify_client_cert(own, issuers, now).map(|_| ())
    }
}

impl Debug for ReplicaCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaCertificates").finish_non_exhaustive()
    }
}

/// Returns the name of replicas in TLS.
pub(crate) fn replica_name() -> ServerName<'static> {
    ServerName::try_from(REPLICA_NAME).expect("a valid name")
}

fn bounded<'b>(name: &'static str, pem: &'b [u8]) -> Result<&'b [u8], CertificateError> {
    if pem.len() > MAX_PEM_BYTES { Err(CertificateError::TooLarge(name)) } else { Ok(pem) }
}

fn certificates(
    name: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let found = CertificateDer::pem_slice_iter(bounded(name, pem)?).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| CertificateError::Pem(name, error))?;
    if found.is_empty() { Err(CertificateError::Empty(name)) } else { Ok(found) }
}

/// Verifies the certificate of a peer that has connected: its authority, and its name.
#[derive(Debug)]
pub(crate) struct PeerVerifier(Arc<dyn ClientCertVerifier>);

impl PeerVerifier {
    fn new(
        roots: Arc<RootCertStore>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, CertificateError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
        Ok(Self(verifier.build().map_err(CertificateError::Authorities)?))
    }
}

impl ClientCertVerifier for PeerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &replica_name())?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
