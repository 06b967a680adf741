//! The reason why a connection is closed.

use quinn_proto::{ConnectionError, TransportErrorCode};
use tls::{ClientTlsError, EndpointTlsError};

/// Error codes from here on are TLS alerts (RFC 9001 §4.8).
const ALERTS: u64 = 0x100;

/// The reason why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer's application protocol has closed it, with this code.
    ByPeer { code: u64 },
    /// One side has violated the QUIC protocol, or says that the other has.
    Transport,
    /// No server listens at the address, or it refuses connections.
    Refused,
    /// The TLS handshake has failed.
    TlsFailed(EndpointTlsError),
    /// No packet arrived within the idle timeout.
    TimedOut,
    /// The peer no longer knows the connection (stateless reset).
    Reset,
    /// We have closed it.
    ByUs,
    /// We have closed it, because the client sent more frames without use than it may.
    Flood,
    /// The sides have no version in common.
    VersionMismatch,
}

impl From<&ConnectionError> for CloseReason {
    fn from(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::VersionMismatch => Self::VersionMismatch,
            ConnectionError::TransportError(ours) => match alert(ours.code) {
                Some(alert) => Self::TlsFailed(endpoint_tls_error(alert)),
                None => Self::Transport,
            },
            ConnectionError::ConnectionClosed(theirs) => match theirs.error_code {
                TransportErrorCode::CONNECTION_REFUSED => Self::Refused,
                code if alert(code).is_some() => Self::TlsFailed(EndpointTlsError::Alert),
                _ => Self::Transport,
            },
            ConnectionError::ApplicationClosed(theirs) => {
                Self::ByPeer { code: theirs.error_code.into_inner() }
            }
            ConnectionError::Reset => Self::Reset,
            ConnectionError::TimedOut => Self::TimedOut,
            ConnectionError::LocallyClosed => Self::ByUs,
            ConnectionError::CidsExhausted => Self::Refused,
        }
    }
}

/// Returns the reason why a client's handshake has failed.
pub(super) fn client_tls_error(error: &ConnectionError) -> ClientTlsError {
    match error {
        ConnectionError::TransportError(ours) => match alert(ours.code) {
            Some(description::UNRECOGNIZED_NAME) => ClientTlsError::UnknownName,
            Some(description::INTERNAL_ERROR) => ClientTlsError::UnusableConfig,
            Some(
                description::HANDSHAKE_FAILURE
                | description::PROTOCOL_VERSION
                | description::INSUFFICIENT_SECURITY
                | description::NO_APPLICATION_PROTOCOL,
            ) => ClientTlsError::Incompatible,
            Some(description::CERTIFICATE_REQUIRED) => ClientTlsError::ClientCertificate,
            Some(alert) if is_certificate_alert(alert) => ClientTlsError::ClientCertificate,
            Some(_) | None => ClientTlsError::Protocol,
        },
        ConnectionError::ConnectionClosed(theirs) if alert(theirs.error_code).is_some() => {
            ClientTlsError::Refused
        }
        ConnectionError::VersionMismatch | ConnectionError::ConnectionClosed(_) => {
            ClientTlsError::Protocol
        }
        ConnectionError::TimedOut => ClientTlsError::Timeout,
        ConnectionError::ApplicationClosed(_)
        | ConnectionError::Reset
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted => ClientTlsError::Disconnected,
    }
}

/// Returns the reason why we rejected an endpoint's handshake, from the alert that we sent.
fn endpoint_tls_error(alert: u8) -> EndpointTlsError {
    // DECRYPT_ERROR means an invalid signature: of a certificate, or by its key.
    if is_certificate_alert(alert) || alert == description::DECRYPT_ERROR {
        EndpointTlsError::Certificate
    } else {
        EndpointTlsError::Protocol
    }
}

/// True for bad_certificate to certificate_unknown, and unknown_ca (RFC 8446 §6.2).
fn is_certificate_alert(alert: u8) -> bool {
    matches!(alert, 42..=46 | 48)
}

/// Returns the TLS alert that the code stands for, if it stands for one.
fn alert(code: TransportErrorCode) -> Option<u8> {
    u64::from(code).checked_sub(ALERTS).and_then(|alert| u8::try_from(alert).ok())
}

/// TLS alerts (RFC 8446 §6.2).
pub(super) mod description {
    pub(crate) const UNEXPECTED_MESSAGE: u8 = 10;
    pub(super) const HANDSHAKE_FAILURE: u8 = 40;
    pub(crate) const DECODE_ERROR: u8 = 50;
    pub(super) const DECRYPT_ERROR: u8 = 51;
    pub(super) const PROTOCOL_VERSION: u8 = 70;
    pub(super) const INSUFFICIENT_SECURITY: u8 = 71;
    pub(crate) const INTERNAL_ERROR: u8 = 80;
    pub(crate) const UNRECOGNIZED_NAME: u8 = 112;
    pub(super) const CERTIFICATE_REQUIRED: u8 = 116;
    pub(super) const NO_APPLICATION_PROTOCOL: u8 = 120;
}

#[cfg(test)]
mod tests {
    use super::*;
    use quinn_proto::TransportError;

    fn of_alert(alert: u8) -> ConnectionError {
        let code = TransportErrorCode::crypto(alert);
        TransportError { code, frame: None, reason: String::new() }.into()
    }

    #[test]
    fn tls_alerts_map_to_handshake_failure_reasons() {
        for (alert, expected) in [
            (42, ClientTlsError::ClientCertificate),
            (48, ClientTlsError::ClientCertificate),
            (116, ClientTlsError::ClientCertificate),
            (112, ClientTlsError::UnknownName),
            (120, ClientTlsError::Incompatible),
            (80, ClientTlsError::UnusableConfig),
            (50, ClientTlsError::Protocol),
        ] {
            assert_eq!(client_tls_error(&of_alert(alert)), expected, "alert {alert}");
        }
    }

    #[test]
    fn only_certificate_alerts_are_endpoint_certificate_errors() {
        assert_eq!(
            CloseReason::from(&of_alert(48)),
            CloseReason::TlsFailed(EndpointTlsError::Certificate)
        );
        assert_eq!(
            CloseReason::from(&of_alert(120)),
            CloseReason::TlsFailed(EndpointTlsError::Protocol)
        );
    }
}
