//! Verification of client certificates.

use std::sync::Arc;

use gateway::snapshot::{ClientCertificates, RevocationCheck};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientCertVerifierBuilder, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::authorities;

/// Returns the verifier of client certificates for the settings `asked`.
pub(super) fn verifier(
    asked: &ClientCertificates,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let roots = Arc::new(authorities(&asked.roots)?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
    if let Some(check) = &asked.revocation {
        builder = with_revocation(builder, check)?;
    }
    let strict = builder.build().map_err(verifier_error)?;
    Ok(if asked.required { strict } else { Arc::new(PermissiveClientVerifier(strict)) })
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
        // No later decision depends on the certificate.
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
