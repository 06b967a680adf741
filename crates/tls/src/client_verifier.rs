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

/// Verifier of the client certificates of a listener.
#[derive(Debug)]
pub(super) struct ListenerClientVerifier {
    webpki: Arc<dyn ClientCertVerifier>,
    roots: Vec<Box<[u8]>>,
    max_intermediates: Option<u8>,
    /// True if revoked certificates are unknown, so that none is valid.
    denies_all: bool,
    /// True if a handshake fails without a valid certificate. If not, every client is accepted (AllowInsecureFallback of
    /// Gateway API), and later decisions ask [`Self::check`].
    required: bool,
}

impl ListenerClientVerifier {
    /// Returns the verifier for the settings `asked`.
    pub(super) fn new(
        asked: &ClientCertificates,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, Error> {
        let roots = Arc::new(authorities(&asked.roots)?);
        let mut builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
        // Without a list rustls would check nothing.
        let denies_all = asked.revocation.as_ref().is_some_and(|check| check.lists.is_empty());
        if let Some(check) = asked.revocation.as_ref().filter(|_| asked.required || !denies_all) {
            builder = with_revocation(builder, check)?;
        }
        Ok(Self {
            webpki: builder.build().map_err(verifier_error)?,
            roots: asked.roots.clone(),
            max_intermediates: asked.max_intermediates,
            denies_all,
            required: asked.required,
        })
    }

    /// Checks certificates, even if the handshake does not depend on them. All certificates count as intermediate ones
    /// that a client sends, whether the path needs them or not, except trusted ones.
    pub(super) fn check(
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
        self.webpki.verify_client_cert(end_entity, intermediates, now)
    }
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

impl ClientCertVerifier for ListenerClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.required {
            true => self.check(end_entity, intermediates, now),
            false => Ok(ClientCertVerified::assertion()),
        }
    }

    // The handshake itself proves possession of the certificate's key.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
