//! Verification of client certificates.

use std::sync::Arc;

use gateway::snapshot::{ClientCertificates, RevocationCheck};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientCertVerifierBuilder, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::authorities;

/// Verifiers of client certificates.
pub(super) struct ClientVerifiers {
    /// The verifier of handshakes.
    pub(super) handshake: Arc<dyn ClientCertVerifier>,
    /// The verifier that tells if a certificate is valid, even if the handshake does not depend on it.
    pub(super) strict: Arc<dyn ClientCertVerifier>,
}

/// Returns the verifiers of client certificates for the settings `asked`.
pub(super) fn verifiers(
    asked: &ClientCertificates,
    provider: &Arc<CryptoProvider>,
) -> Result<ClientVerifiers, Error> {
    let roots = Arc::new(authorities(&asked.roots)?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
    // Without a list rustls would check nothing.
    let denies_all = asked.revocation.as_ref().is_some_and(|check| check.lists.is_empty());
    if let Some(check) = asked.revocation.as_ref().filter(|_| asked.required || !denies_all) {
        builder = with_revocation(builder, check)?;
    }
    let strict: Arc<dyn ClientCertVerifier> = Arc::new(BoundedClientVerifier {
        verifier: builder.build().map_err(verifier_error)?,
        roots: asked.roots.clone(),
        max_intermediates: asked.max_intermediates,
        denies_all,
    });
    let handshake: Arc<dyn ClientCertVerifier> = if asked.required {
        Arc::clone(&strict)
    } else {
        Arc::new(PermissiveClientVerifier(Arc::clone(&strict)))
    };
    Ok(ClientVerifiers { handshake, strict })
}

fn with_revocation(
    mut builder: ClientCertVerifierBuilder,
    check: &RevocationCheck,
) -> Result<ClientCertVerifierBuilder, Error> {
    if check.lists.is_empty() {
        // Without a list rustls would check nothing.
        return Err(Error::General("there is no revocation list".to_owned()));
    }
    builder = builder.with_crls(check.lists.iter().map(|list| list.to_vec().into()));
    if check.only_end_entity {
        builder = builder.only_check_end_entity_revocation();
    }
    if check.accepts_unknown {
        builder = builder.allow_unknown_revocation_status();
    }
    if !check.accepts_expired {
        builder = builder.enforce_revocation_expiration();
    }
    Ok(builder)
}

fn verifier_error(error: VerifierBuilderError) -> Error {
    match error {
        VerifierBuilderError::InvalidCrl(error) => error.into(),
        other => Error::General(other.to_string()),
    }
}

/// Rejects chains with too many intermediate certificates.
///
/// All certificates count that a client sends, whether the path needs them or not, except trusted ones.
#[derive(Debug)]
struct BoundedClientVerifier {
    verifier: Arc<dyn ClientCertVerifier>,
    roots: Vec<Box<[u8]>>,
    max_intermediates: Option<u8>,
    /// True if revoked certificates are unknown, so that none is valid.
    denies_all: bool,
}

impl ClientCertVerifier for BoundedClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.denies_all {
            return Err(CertificateError::UnknownRevocationStatus.into());
        }
        let is_root = |sent: &CertificateDer<'_>| self.roots.iter().any(|root| **root == **sent);
        let sent = intermediates.iter().filter(|it| !is_root(it)).count();
        if self.max_intermediates.is_some_and(|most| sent > usize::from(most)) {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        self.verifier.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Accepts a client without a certificate, and one whose certificate no authority has issued: AllowInsecureFallback of
/// Gateway API.
#[derive(Debug)]
struct PermissiveClientVerifier(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for PermissiveClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Later decisions ask the strict verifier: see `ClientIdentity`.
        Ok(ClientCertVerified::assertion())
    }

    // The handshake itself proves possession of the certificate's key.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
