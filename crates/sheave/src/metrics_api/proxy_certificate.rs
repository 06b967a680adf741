//! Verification of the certificate of the API server's proxy.
//!
//! A certificate that has expired does not end the handshake: then an autoscaler would show an error of TLS that does not
//! name the certificate. The connection goes on, and each request is rejected with a reason.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// Time for which a certificate is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValidityPeriod {
    not_before: u64,
    not_after: u64,
}

impl ValidityPeriod {
    pub(super) fn of(certificate: &Certificate) -> Self {
        let validity = certificate.tbs_certificate().validity();
        Self {
            not_before: validity.not_before.to_unix_duration().as_secs(),
            not_after: validity.not_after.to_unix_duration().as_secs(),
        }
    }

    /// Returns the reason if the certificate is not valid now. It has both times: a clock may be wrong.
    pub(super) fn problem(self, now: u64) -> Option<String> {
        let text = |seconds| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            humantime::format_rfc3339_seconds(time).to_string()
        };
        let of_proxy = "the certificate of the API server's proxy";
        let clock = text(now);
        if now < self.not_before {
            let from = text(self.not_before);
            return Some(format!(
                "{of_proxy} is not valid yet: before {from}; Sheave's clock has {clock}"
            ));
        }
        if now > self.not_after {
            let until = text(self.not_after);
            return Some(format!(
                "{of_proxy} has expired: after {until}; Sheave's clock has {clock}"
            ));
        }
        None
    }
}

/// Verifier that accepts a certificate whose time alone is wrong. `PeerIdentity` rejects that.
#[derive(Debug)]
pub(super) struct TimelessVerifier(pub(super) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for TimelessVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now);
        let error = match verified {
            Ok(verified) => return Ok(verified),
            Err(error) => error,
        };
        let Ok(certificate) = Certificate::from_der(end_entity) else { return Err(error) };
        let period = ValidityPeriod::of(&certificate);
        if !is_about_time(&error) || period.problem(now.as_secs()).is_none() {
            return Err(error);
        }
        // Everything but the time of this certificate has to be right, at a time when it was valid.
        let valid = now.as_secs().clamp(period.not_before, period.not_after.max(period.not_before));
        let valid = UnixTime::since_unix_epoch(Duration::from_secs(valid));
        self.0.verify_client_cert(end_entity, intermediates, valid)
    }

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

fn is_about_time(error: &Error) -> bool {
    let Error::InvalidCertificate(error) = error else { return false };
    matches!(
        error,
        CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_out_of_its_time_is_described_with_both_times() {
        let period = ValidityPeriod { not_before: 86_400, not_after: 172_800 };
        assert_eq!(period.problem(86_400), None);
        assert_eq!(period.problem(172_800), None);
        let early = period.problem(0).unwrap();
        assert!(early.contains("not valid yet: before 1970-01-02T00:00:00Z"), "{early}");
        assert!(early.contains("Sheave's clock has 1970-01-01T00:00:00Z"), "{early}");
        let late = period.problem(172_801).unwrap();
        assert!(late.contains("has expired: after 1970-01-03T00:00:00Z"), "{late}");
    }
}
