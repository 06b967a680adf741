//! The table of failures: status, `Proxy-Status` error, label in metrics and logs, and effect on the endpoint's health.

use balance::AdmissionRejection;
use balance::AttemptResult::{self, Cancelled, ConnectFailed, ConnectionBroken, Refused, TimedOut};
use codec::grpc::GrpcCode::{self, DeadlineExceeded, ResourceExhausted, Unavailable};
use codec::h1::{BadChunk, BadRequest, BadResponse};
use codec::proxy_protocol::ProxyHeaderError;
use quic::DialError;
use tls::{ClientTlsError, EndpointTlsError};

use crate::credentials::jwt::fault::TokenFault;

/// Defines [`Failure`] and its table together, so that a failure is one row: its name, the keyword `rejection` if a
/// backend's slots and queue reject a request with it, and its attributes. A failure that carries a reason names an
/// example of it, for [`Failure::ALL`].
macro_rules! failures {
    ($(
        $name:ident $(($reason:ident: $kind:ident = $example:ident))? $($rejection:ident)? => $row:expr;
    )*) => {
        /// The reason why a request did not get its endpoint's complete response, or why a connection or flow failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Failure {
            $($name $(($kind))?,)*
        }

        impl Failure {
            /// All failures, for the metrics; bad requests share one label.
            pub(crate) const ALL: &[Self] = &[$(Self::$name $(($kind::$example))?,)*];

            /// The failures with which a backend's slots and queue reject a request.
            pub(crate) const REFUSALS: &[Self] =
                &[$($(failures!(@$rejection Self::$name),)?)*];

            /// Returns the failure's index in [`Failure::ALL`].
            pub(crate) fn index(self) -> usize {
                enum FailureIndex {
                    $($name,)*
                }
                match self {
                    $(Self::$name { .. } => FailureIndex::$name as usize,)*
                }
            }

            pub(crate) fn attributes(self) -> FailureAttributes {
                match self {
                    $(Self::$name $(($reason))? => $row,)*
                }
            }
        }
    };
    (@rejection $failure:expr) => {
        $failure
    };
}

failures! {
    // Name => status, error type of RFC 9209, label, details; then effect on the endpoint, gRPC code.
    BadRequest(reason: BadRequest = Target) =>
        row(reason.status(), "http_request_error", "bad_request", reason.reason());
    BadRequestBody(reason: BadChunk = Size) =>
        row(reason.status(), "http_request_error", "bad_request_body", reason.reason());
    BadWebText => row(400, "http_request_error", "bad_web_text",
        "request body is not valid base64 (grpc-web-text)");
    BodyTooLarge => row(413, "http_request_error", "body_too_large", "request body too large");
    HeadTimeout => row(408, "http_request_error", "head_timeout",
        "timeout while reading the request head");
    BodyTimeout => row(408, "http_request_error", "body_timeout",
        "client sent or accepted no body bytes in time");
    BodyRate => row(408, "http_request_error", "body_rate", "client sent the body too slowly");
    BodyBuffering => row(408, "http_request_error", "body_buffering",
        "request body did not arrive in time");
    BodyEvicted => row(503, "proxy_internal_error", "body_evicted",
        "proxy has no memory left for request bodies that arrive slowly");
    ConnectionShare => row(429, "http_request_denied", "connection_share",
        "too many requests of this connection have not sent their bodies").grpc(ResourceExhausted);
    AddressShare => row(429, "http_request_denied", "address_share",
        "too many requests of this client at once").grpc(ResourceExhausted);
    RateLimit => row(429, "http_request_denied", "rate_limit",
        "request exceeds its rate limit").grpc(ResourceExhausted);
    AccessDenied => row(403, "http_request_denied", "access_denied",
        "this client may not send requests here");
    ClientCertificate => row(400, "http_request_denied", "client_certificate",
        "a valid client certificate is required").grpc(GrpcCode::Unauthenticated);
    Unauthenticated => row(401, "http_request_denied", "unauthenticated",
        "valid credentials are required");
    InvalidToken(reason: TokenFault = Malformed) =>
        row(401, "http_request_denied", "invalid_token", reason.reason());
    CredentialOverload => row(503, "proxy_internal_error", "credential_overload",
        "too many passwords wait to be verified");
    SecurityPolicyInvalid => row(500, "proxy_configuration_error", "security_policy_invalid",
        "the route's SecurityPolicy is invalid");
    TrafficPolicyInvalid => row(500, "proxy_configuration_error", "traffic_policy_invalid",
        "the route's TrafficPolicy is invalid");
    RequestRules => row(500, "proxy_configuration_error", "request_rules",
        "the request rules of the route rewrite the path again and again, or make it too long");
    AuthorizationDenied => row(403, "http_request_denied", "authorization_denied",
        "the authorizer denied the request");
    AuthenticationRequired => row(401, "http_request_denied", "authentication_required",
        "the authorizer requires authentication");
    AuthorizerUnavailable => row(500, "proxy_internal_error", "authorizer_unavailable",
        "the authorizer cannot be reached").grpc(Unavailable);
    AuthorizerTimeout => row(500, "proxy_internal_error", "authorizer_timeout",
        "timeout: the authorizer did not answer in time").grpc(Unavailable);
    AuthorizerError => row(500, "proxy_internal_error", "authorizer_error",
        "the authorizer gave no usable answer").grpc(Unavailable);
    ClientGone => row(499, "http_request_error", "client_disconnected", "client disconnected");
    NoRoute => row(404, "destination_not_found", "no_route", "no route matches the request");
    // Gateway API requires this gRPC code.
    Unresolved => row(500, "proxy_configuration_error", "unresolved_backend",
        "the route's backend does not exist").grpc(Unavailable);
    NoEndpoint rejection => row(503, "destination_unavailable", "no_endpoint",
        "backend has no endpoint");
    Unreachable rejection => row(503, "destination_unavailable", "unreachable",
        "all endpoints of the backend are unreachable");
    NoSlot rejection => overload("no_slot",
        "all slots of the backend are assigned to other replicas of this proxy");
    QueueFull rejection =>
        overload("queue_full", "all endpoints are at their limit and the queue is full");
    QueueTimeout rejection =>
        overload("queue_timeout", "all endpoints are at their limit: timeout in the queue");
    QueueDeadline rejection =>
        overload("queue_deadline", "all endpoints are at their limit: expected wait is too long");
    QueueEvicted rejection =>
        overload("queue_evicted", "evicted from the queue in favor of another request");
    QueueShed rejection => overload("queue_shed", "shed from the queue: sustained overload");
    ConnectFailed => row(502, "connection_refused", "connect_failed",
        "endpoint refused the connection").attempt(ConnectFailed);
    ConnectTimeout => row(504, "connection_timeout", "connect_timeout",
        "timeout while connecting to the endpoint").attempt(ConnectFailed);
    ConnectSlow => row(504, "connection_timeout", "connect_slow",
        "endpoint is slow to accept the connection");
    EndpointClosed => row(502, "connection_terminated", "endpoint_closed",
        "endpoint closed the connection without a response").attempt(ConnectionBroken);
    BadResponse(reason: BadResponse = Status) =>
        row(502, "http_protocol_error", "bad_response", reason.reason()).attempt(ConnectionBroken);
    AttemptTimeout => row(504, "http_response_timeout", "attempt_timeout",
        "attempt timeout: endpoint did not respond in time")
        .attempt(TimedOut).grpc(DeadlineExceeded);
    RequestTimeout => row(504, "http_response_timeout", "request_timeout",
        "request timeout: response not complete in time")
        .attempt(TimedOut).grpc(DeadlineExceeded);
    EndpointIdle => row(504, "connection_read_timeout", "endpoint_idle",
        "idle timeout: endpoint sent or accepted no bytes in time").attempt(TimedOut);
    ResponseCut => row(502, "http_response_incomplete", "response_cut",
        "endpoint closed the connection before the end of its response").attempt(ConnectionBroken);
    OutOfMemory => row(503, "proxy_internal_error", "out_of_memory",
        "proxy is short of memory, and this transfer holds much of it without progress");
    OutOfDescriptors => row(503, "proxy_internal_error", "out_of_descriptors",
        "proxy is out of file descriptors");
    BadProxyHeader(reason: ProxyHeaderError = Missing) =>
        row(400, "http_request_error", "bad_proxy_header", reason.reason());
    ProxyHeaderTimeout => row(408, "http_request_error", "proxy_header_timeout",
        "timeout while reading the PROXY protocol header");
    UntrustedProxy => row(403, "http_request_denied", "untrusted_proxy",
        "peer is not a trusted proxy");
    EndpointReset => row(502, "connection_terminated", "endpoint_reset",
        "endpoint reset the connection").attempt(ConnectionBroken);
    StreamIdle => row(504, "connection_read_timeout", "stream_idle",
        "idle timeout: no bytes in either direction");
    ClientTls(reason: ClientTlsError = Protocol) =>
        row(400, "http_request_error", "client_tls", reason.reason());
    Misdirected => row(421, "http_request_error", "misdirected",
        "this connection does not serve the host: open another connection");
    TooEarly => row(425, "http_request_denied", "too_early",
        "TLS handshake not complete: send the request again after it");
    EndpointTls(reason: EndpointTlsError = Certificate) =>
        row(reason.status(), reason.proxy_error(), "endpoint_tls", reason.reason())
        .attempt(ConnectFailed);
    NotHttp2 => row(502, "http_protocol_error", "not_http2",
        "endpoint does not support HTTP/2").attempt(ConnectFailed);
    StreamRefused => row(503, "destination_unavailable", "stream_refused",
        "endpoint refused the request without processing it")
        .attempt(Refused { retry_after: None });
    UpgradeRefused => row(502, "http_upgrade_failed", "no_upgrade",
        "endpoint does not support this upgrade over HTTP/2");
    // A client can ask for a WebSocket where there is none: this says nothing about the endpoint's health.
    WebSocketNotOpened => row(502, "http_upgrade_failed", "websocket_not_opened",
        "endpoint answered a WebSocket request with success but without switching protocols");
}

/// One row of the table.
pub(crate) struct FailureAttributes {
    /// Status of the answer; the policy of an overloaded backend may replace it.
    pub(crate) status: u16,
    /// Error type of RFC 9209 section 2.3.
    pub(crate) proxy_error: &'static str,
    /// Label in metrics and logs.
    pub(crate) label: &'static str,
    /// Description that the client gets, in `Proxy-Status` and in the body.
    details: &'static str,
    /// Result of the attempt, for health, pickers and metrics.
    attempt_result: AttemptResult,
    /// True if the backend had no free slot.
    is_overload: bool,
    /// Status code of a gRPC call; `None`: it follows from `status`.
    grpc_code: Option<GrpcCode>,
}

/// Returns the row of a failure that says nothing about the endpoint.
fn row(
    status: u16,
    proxy_error: &'static str,
    label: &'static str,
    details: &'static str,
) -> FailureAttributes {
    let (attempt_result, is_overload, grpc_code) = (Cancelled, false, None);
    FailureAttributes {
        status,
        proxy_error,
        label,
        details,
        attempt_result,
        is_overload,
        grpc_code,
    }
}

/// Returns the row of a request that failed because the backend had no free slot.
fn overload(label: &'static str, details: &'static str) -> FailureAttributes {
    let row = row(429, "connection_limit_reached", label, details).grpc(ResourceExhausted);
    FailureAttributes { is_overload: true, ..row }
}

impl FailureAttributes {
    /// Sets what health and pickers learn about the endpoint.
    fn attempt(self, attempt_result: AttemptResult) -> Self {
        Self { attempt_result, ..self }
    }

    fn grpc(self, code: GrpcCode) -> Self {
        Self { grpc_code: Some(code), ..self }
    }
}

impl Failure {
    /// The result of the attempt that failed so, for health, pickers and metrics.
    pub(crate) fn attempt_end(self) -> AttemptResult {
        self.attributes().attempt_result
    }

    /// The status code of a gRPC call that fails so.
    pub(crate) fn grpc_code(self) -> GrpcCode {
        let FailureAttributes { status, grpc_code, .. } = self.attributes();
        grpc_code.unwrap_or_else(|| GrpcCode::of_http(status))
    }

    /// True if the request failed because the backend had no free slot.
    pub(crate) fn is_overload(self) -> bool {
        self.attributes().is_overload
    }

    /// True if the request failed by what its client asked for or did.
    pub(crate) fn is_of_client(self) -> bool {
        let error = self.attributes().proxy_error;
        matches!(error, "http_request_error" | "http_request_denied" | "destination_not_found")
    }

    /// The description that the client gets, in `Proxy-Status` and in the body.
    pub(crate) fn details(self) -> &'static str {
        self.attributes().details
    }

    /// Returns the failure's index in [`Failure::REFUSALS`], if it is one of them.
    pub(crate) fn refusal_index(self) -> Option<usize> {
        Self::REFUSALS.iter().position(|refusal| *refusal == self)
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
        let mut labels = HashSet::new();
        for (place, failure) in Failure::ALL.iter().enumerate() {
            assert_eq!(failure.index(), place);
            assert!(labels.insert(failure.attributes().label), "{failure:?}");
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
