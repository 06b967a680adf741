//! The table of failures: status, `Proxy-Status` error, metric label and log word, and effect on the endpoint's health.

use balance::{AdmissionRejection, AttemptResult};
use quic::DialError;
use tls::{ClientTlsError, EndpointTlsError};

use crate::grpc::GrpcCode;
use crate::h1::{BadChunk, BadRequest, BadResponse};
use crate::proxy_protocol::ProxyHeaderError;

/// The reason why a request did not get its endpoint's complete response, or why a connection or flow failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    BadRequest(BadRequest),
    BadRequestBody(BadChunk),
    BadWebText,
    BodyTooLarge,
    HeadTimeout,
    BodyTimeout,
    ClientGone,
    NoRoute,
    Unresolved,
    NoEndpoint,
    Unreachable,
    NoSlot,
    QueueFull,
    QueueTimeout,
    QueueDeadline,
    QueueEvicted,
    QueueShed,
    ConnectFailed,
    ConnectTimeout,
    ConnectSlow,
    EndpointClosed,
    BadResponse(BadResponse),
    AttemptTimeout,
    RequestTimeout,
    EndpointIdle,
    ResponseCut,
    OutOfDescriptors,
    BadProxyHeader(ProxyHeaderError),
    ProxyHeaderTimeout,
    UntrustedProxy,
    EndpointReset,
    StreamIdle,
    ClientTls(ClientTlsError),
    Misdirected,
    TooEarly,
    EndpointTls(EndpointTlsError),
    NotHttp2,
    StreamRefused,
    UpgradeRefused,
}

/// One row of the table.
pub(crate) struct FailureAttributes {
    /// Status of the answer; the policy of an overloaded backend may replace it.
    pub(crate) status: u16,
    /// Error type of RFC 9209 section 2.3.
    pub(crate) proxy_error: &'static str,
    /// Metric label and word in the log.
    pub(crate) word: &'static str,
}

impl Failure {
    /// All failures, for the metrics; bad requests share one word.
    pub(crate) const ALL: [Self; 39] = [
        Self::BadRequest(BadRequest::Target),
        Self::BadRequestBody(BadChunk::Size),
        Self::BadWebText,
        Self::BodyTooLarge,
        Self::HeadTimeout,
        Self::BodyTimeout,
        Self::ClientGone,
        Self::NoRoute,
        Self::Unresolved,
        Self::NoEndpoint,
        Self::Unreachable,
        Self::NoSlot,
        Self::QueueFull,
        Self::QueueTimeout,
        Self::QueueDeadline,
        Self::QueueEvicted,
        Self::QueueShed,
        Self::ConnectFailed,
        Self::ConnectTimeout,
        Self::ConnectSlow,
        Self::EndpointClosed,
        Self::BadResponse(BadResponse::Status),
        Self::AttemptTimeout,
        Self::RequestTimeout,
        Self::EndpointIdle,
        Self::ResponseCut,
        Self::OutOfDescriptors,
        Self::BadProxyHeader(ProxyHeaderError::Missing),
        Self::ProxyHeaderTimeout,
        Self::UntrustedProxy,
        Self::EndpointReset,
        Self::StreamIdle,
        Self::ClientTls(ClientTlsError::Protocol),
        Self::Misdirected,
        Self::TooEarly,
        Self::EndpointTls(EndpointTlsError::Certificate),
        Self::NotHttp2,
        Self::StreamRefused,
        Self::UpgradeRefused,
    ];

    pub(crate) fn attributes(self) -> FailureAttributes {
        let row = |status, proxy_error, word| FailureAttributes { status, proxy_error, word };
        match self {
            Self::BadRequest(why) => row(why.status(), "http_request_error", "bad_request"),
            Self::BadRequestBody(why) => {
                row(why.status(), "http_request_error", "bad_request_body")
            }
            Self::BadWebText => row(400, "http_request_error", "bad_web_text"),
            Self::BadProxyHeader(_) => row(400, "http_request_error", "bad_proxy_header"),
            Self::ProxyHeaderTimeout => row(408, "http_request_error", "proxy_header_timeout"),
            Self::UntrustedProxy => row(403, "http_request_denied", "untrusted_proxy"),
            Self::EndpointReset => row(502, "connection_terminated", "endpoint_reset"),
            Self::StreamIdle => row(504, "connection_read_timeout", "stream_idle"),
            Self::ClientTls(_) => row(400, "http_request_error", "client_tls"),
            Self::Misdirected => row(421, "http_request_error", "misdirected"),
            Self::TooEarly => row(425, "http_request_denied", "too_early"),
            Self::EndpointTls(why) => row(why.status(), why.proxy_error(), "endpoint_tls"),
            Self::BodyTooLarge => row(413, "http_request_error", "body_too_large"),
            Self::HeadTimeout => row(408, "http_request_error", "head_timeout"),
            Self::BodyTimeout => row(408, "http_request_error", "body_timeout"),
            Self::ClientGone => row(499, "http_request_error", "client_disconnected"),
            Self::NoRoute => row(404, "destination_not_found", "no_route"),
            Self::Unresolved => row(500, "proxy_configuration_error", "unresolved_backend"),
            Self::NoEndpoint => row(503, "destination_unavailable", "no_endpoint"),
            Self::Unreachable => row(503, "destination_unavailable", "unreachable"),
            Self::NoSlot => row(429, "connection_limit_reached", "no_slot"),
            Self::QueueFull => row(429, "connection_limit_reached", "queue_full"),
            Self::QueueTimeout => row(429, "connection_limit_reached", "queue_timeout"),
            Self::QueueDeadline => row(429, "connection_limit_reached", "queue_deadline"),
            Self::QueueEvicted => row(429, "connection_limit_reached", "queue_evicted"),
            Self::QueueShed => row(429, "connection_limit_reached", "queue_shed"),
            Self::ConnectFailed => row(502, "connection_refused", "connect_failed"),
            Self::ConnectTimeout => row(504, "connection_timeout", "connect_timeout"),
            Self::ConnectSlow => row(504, "connection_timeout", "connect_slow"),
            Self::EndpointClosed => row(502, "connection_terminated", "endpoint_closed"),
            Self::BadResponse(_) => row(502, "http_protocol_error", "bad_response"),
            Self::AttemptTimeout => row(504, "http_response_timeout", "attempt_timeout"),
            Self::RequestTimeout => row(504, "http_response_timeout", "request_timeout"),
            Self::EndpointIdle => row(504, "connection_read_timeout", "endpoint_idle"),
            Self::ResponseCut => row(502, "http_response_incomplete", "response_cut"),
            Self::NotHttp2 => row(502, "http_protocol_error", "not_http2"),
            Self::StreamRefused => row(503, "destination_unavailable", "stream_refused"),
            Self::UpgradeRefused => row(502, "http_upgrade_failed", "no_upgrade"),
            Self::OutOfDescriptors => row(503, "proxy_internal_error", "out_of_descriptors"),
        }
    }

    /// The result of the attempt that failed so, for health, pickers and metrics.
    pub(crate) fn attempt_end(self) -> AttemptResult {
        match self {
            Self::ConnectFailed | Self::ConnectTimeout | Self::EndpointTls(_) | Self::NotHttp2 => {
                AttemptResult::ConnectFailed
            }
            Self::StreamRefused => AttemptResult::Refused { retry_after: None },
            Self::EndpointClosed
            | Self::EndpointReset
            | Self::BadResponse(_)
            | Self::ResponseCut => AttemptResult::ConnectionBroken,
            Self::AttemptTimeout | Self::RequestTimeout | Self::EndpointIdle => {
                AttemptResult::TimedOut
            }
            Self::BadRequest(_)
            | Self::BadRequestBody(_)
            | Self::BadWebText
            | Self::BodyTooLarge
            | Self::HeadTimeout
            | Self::BodyTimeout
            | Self::ClientGone
            | Self::NoRoute
            | Self::Unresolved
            | Self::NoEndpoint
            | Self::Unreachable
            | Self::ConnectSlow
            | Self::NoSlot
            | Self::QueueFull
            | Self::QueueTimeout
            | Self::QueueDeadline
            | Self::QueueEvicted
            | Self::QueueShed
            | Self::BadProxyHeader(_)
            | Self::ProxyHeaderTimeout
            | Self::UntrustedProxy
            | Self::ClientTls(_)
            | Self::Misdirected
            | Self::TooEarly
            | Self::StreamIdle
            | Self::UpgradeRefused
            | Self::OutOfDescriptors => AttemptResult::Cancelled,
        }
    }

    /// The status code of a gRPC call that fails so.
    pub(crate) fn grpc_code(self) -> GrpcCode {
        if self.is_overload() {
            return GrpcCode::ResourceExhausted;
        }
        if matches!(self, Self::AttemptTimeout | Self::RequestTimeout) {
            return GrpcCode::DeadlineExceeded;
        }
        if self == Self::Unresolved {
            // Gateway API requires it.
            return GrpcCode::Unavailable;
        }
        GrpcCode::of_http(self.attributes().status)
    }

    /// True if the request failed because the backend had no free slot.
    pub(crate) fn is_overload(self) -> bool {
        !matches!(self, Self::NoEndpoint | Self::Unreachable) && self.refusal_index().is_some()
    }

    /// The description that the client gets, in `Proxy-Status` and in the body.
    pub(crate) fn details(self) -> &'static str {
        match self {
            Self::BadRequest(why) => why.reason(),
            Self::BadRequestBody(why) => why.reason(),
            Self::BadWebText => "request body is not valid base64 (grpc-web-text)",
            Self::BodyTooLarge => "request body too large",
            Self::HeadTimeout => "timeout while reading the request head",
            Self::BodyTimeout => "client sent or accepted no body bytes in time",
            Self::ClientGone => "client disconnected",
            Self::NoRoute => "no route matches the request",
            Self::Unresolved => "the route's backend does not exist",
            Self::NoEndpoint => "backend has no endpoint",
            Self::Unreachable => "all endpoints of the backend are unreachable",
            Self::NoSlot => "all slots of the backend are assigned to other replicas of this proxy",
            Self::QueueFull => "all endpoints are at their limit and the queue is full",
            Self::QueueTimeout => "all endpoints are at their limit: timeout in the queue",
            Self::QueueDeadline => "all endpoints are at their limit: expected wait is too long",
            Self::QueueEvicted => "evicted from the queue in favor of another request",
            Self::QueueShed => "shed from the queue: sustained overload",
            Self::ConnectFailed => "endpoint refused the connection",
            Self::ConnectTimeout => "timeout while connecting to the endpoint",
            Self::ConnectSlow => "endpoint is slow to accept the connection",
            Self::EndpointClosed => "endpoint closed the connection without a response",
            Self::BadResponse(why) => why.reason(),
            Self::AttemptTimeout => "attempt timeout: endpoint did not respond in time",
            Self::RequestTimeout => "request timeout: response not complete in time",
            Self::EndpointIdle => "idle timeout: endpoint sent or accepted no bytes in time",
            Self::ResponseCut => "endpoint closed the connection before the end of its response",
            Self::OutOfDescriptors => "proxy is out of file descriptors",
            Self::BadProxyHeader(why) => why.reason(),
            Self::ProxyHeaderTimeout => "timeout while reading the PROXY protocol header",
            Self::UntrustedProxy => "peer is not a trusted proxy",
            Self::EndpointReset => "endpoint reset the connection",
            Self::StreamIdle => "idle timeout: no bytes in either direction",
            Self::ClientTls(why) => why.reason(),
            Self::Misdirected => "this connection does not serve the host: open another connection",
            Self::TooEarly => "TLS handshake not complete: send the request again after it",
            Self::EndpointTls(why) => why.reason(),
            Self::NotHttp2 => "endpoint does not support HTTP/2",
            Self::StreamRefused => "endpoint refused the request without processing it",
            Self::UpgradeRefused => "endpoint does not support this upgrade over HTTP/2",
        }
    }

    /// The failures with which a backend's slots and queue reject a request.
    pub(crate) const REFUSALS: [Self; 8] = [
        Self::NoEndpoint,
        Self::Unreachable,
        Self::NoSlot,
        Self::QueueFull,
        Self::QueueTimeout,
        Self::QueueDeadline,
        Self::QueueEvicted,
        Self::QueueShed,
    ];

    /// Returns the failure's index in [`Failure::REFUSALS`], if it is one of them.
    pub(crate) fn refusal_index(self) -> Option<usize> {
        Self::REFUSALS.iter().position(|refusal| *refusal == self)
    }

    /// Returns the failure's index in [`Failure::ALL`].
    pub(crate) fn index(self) -> usize {
        let same = |other: &Self| std::mem::discriminant(other) == std::mem::discriminant(&self);
        Self::ALL.iter().position(same).expect("ALL contains every failure")
    }
}

impl From<AdmissionRejection> for Failure {
    fn from(refusal: AdmissionRejection) -> Self {
        match refusal {
            AdmissionRejection::NoEndpoint => Self::NoEndpoint,
            AdmissionRejection::Unreachable => Self::Unreachable,
            AdmissionRejection::NoSlot => Self::NoSlot,
            AdmissionRejection::Full => Self::QueueFull,
            AdmissionRejection::WouldMissDeadline => Self::QueueDeadline,
            AdmissionRejection::Evicted => Self::QueueEvicted,
            AdmissionRejection::Shed => Self::QueueShed,
        }
    }
}

impl From<DialError> for Failure {
    fn from(error: DialError) -> Self {
        match error {
            DialError::OutOfDescriptors => Self::OutOfDescriptors,
            DialError::Socket(_) => Self::ConnectFailed,
            DialError::UnusableConfig(_) => Self::EndpointTls(EndpointTlsError::UnusableConfig),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::Failure;

    #[test]
    fn failure_indices_and_labels_are_unique() {
        let mut words = HashSet::new();
        for (place, failure) in Failure::ALL.iter().enumerate() {
            assert_eq!(failure.index(), place);
            assert!(words.insert(failure.attributes().word), "{failure:?}");
        }
    }

    #[test]
    fn details_need_no_escapes_between_quotes_or_as_grpc_message() {
        for failure in Failure::ALL {
            let details = failure.details();
            let fits = |byte: u8| matches!(byte, b' '..=b'~') && !b"\"\\%".contains(&byte);
            assert!(details.bytes().all(fits), "{details}");
        }
    }
}
