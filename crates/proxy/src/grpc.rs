//! gRPC calls: their deadlines, their status, and the response when this proxy rejects one.
//!
//! A call is a request like any other, and is handled by the same code. Two things differ: its status is in the
//! trailers, or in a head that nothing follows (the HTTP status is always 200), and its client sends a deadline.
//! gRPC-Web, the dialect of browsers, is translated to gRPC if the endpoint speaks HTTP/2. This module does not know
//! the content of messages.

use std::time::Duration;

use balance::{AttemptResult, Time};
use codec::grpc::{GrpcCallStatus, GrpcCode, RetryPushback, timeout, web};
use codec::head::{BodyFraming, FieldSection, HttpVersion, RequestHead, ResponseHead};
use tokio::time::sleep_until;

use crate::clock;
use crate::exchange::{Exchange, RequestPolicy};
use crate::failure::Failure;

/// Health checks of endpoints.
pub(crate) mod health;

/// Largest difference between two sides' views of a deadline: one tick of our runtime's timer, and one of theirs.
const TIMER_RESOLUTION: Duration = Duration::from_millis(2);

/// If a response continues for this long after its head, the call is a long-lived stream, and its duration says nothing
/// about the endpoint's latency.
pub(crate) const LONG_STREAM: Duration = Duration::from_secs(10);
/// If the call waited here for less than this, its timeout is forwarded unchanged.
const NEGLIGIBLE_WAIT: Duration = Duration::from_millis(1);

/// Common prefix of all gRPC content types.
const CONTENT_TYPE: &str = "application/grpc";

/// A request that is a gRPC call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrpcCall {
    dialect: GrpcDialect,
    /// The client's timeout, counted from the arrival of the head; `None` if the client sent none.
    timeout: Option<Duration>,
    /// The status code, once it is known.
    code: Option<GrpcCode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrpcDialect {
    Grpc,
    Web,
    WebText,
}

impl GrpcDialect {
    /// Returns the dialect that a content type names, and the rest of the content type.
    fn parse_content_type(content_type: &[u8]) -> Option<(Self, &[u8])> {
        let (start, rest) = content_type.split_at_checked(CONTENT_TYPE.len())?;
        if !start.eq_ignore_ascii_case(CONTENT_TYPE.as_bytes()) {
            return None;
        }
        let (dialect, rest) = [Self::WebText, Self::Web]
            .into_iter()
            .find_map(|dialect| {
                let (infix, rest) = rest.split_at_checked(dialect.infix().len())?;
                infix.eq_ignore_ascii_case(dialect.infix().as_bytes()).then_some((dialect, rest))
            })
            .unwrap_or((Self::Grpc, rest));
        matches!(rest.first(), None | Some(b'+' | b';' | b' ')).then_some((dialect, rest))
    }

    /// Returns the infix that distinguishes the dialect in the content type.
    fn infix(self) -> &'static str {
        match self {
            Self::Grpc => "",
            Self::Web => "-web",
            Self::WebText => "-web-text",
        }
    }
}

/// Detects if the request is a call. That matters only if its client or its endpoint speaks HTTP/2 or HTTP/3.
pub(crate) fn begin_call(exchange: &mut Exchange, policy: &mut RequestPolicy<'_>, started: Time) {
    let endpoint = policy.endpoint_protocol;
    if !exchange.request.version.has_streams() && !endpoint.has_streams() {
        return;
    }
    let Some(call) = GrpcCall::of(&exchange.request) else { return };
    // An endpoint that speaks HTTP/1.1 may support gRPC-Web itself, and receives it untranslated.
    if call.dialect != GrpcDialect::Grpc && !endpoint.has_streams() {
        return;
    }
    if let Some(timeout) = call.timeout {
        policy.deadline = policy.deadline.min(started + timeout);
    }
    call.change_request(&mut exchange.request);
    exchange.grpc_call = Some(call);
}

/// Translates the rest of the upload into the dialect that the endpoint understands.
pub(crate) fn translate_upload(exchange: &mut Exchange) {
    let Exchange { grpc_call: Some(call), upload, .. } = exchange else { return };
    if call.dialect == GrpcDialect::WebText && !upload.is_read() {
        upload.translate(web::GrpcWebTranslator::from_text());
    }
}

/// Tells the endpoint how long the client still waits at `now`.
///
/// The client's timeout starts when the client sends it. After a wait in our queue, an endpoint that counts from the
/// arrival of the call would continue to work after the client's deadline, and so would every service that it calls in
/// turn.
pub(crate) fn update_timeout(exchange: &mut Exchange, started: Time, now: Time) {
    let Exchange { grpc_call: Some(GrpcCall { timeout: Some(timeout), .. }), request, .. } =
        exchange
    else {
        return;
    };
    let waited = now.saturating_since(started);
    if waited >= NEGLIGIBLE_WAIT {
        request.fields.remove_named(b"grpc-timeout");
        let left = timeout::write(timeout.saturating_sub(waited));
        request.fields.append("grpc-timeout", left);
    }
}

/// Returns the status of a call whose response consists only of a head.
pub(crate) fn trailers_only_status(exchange: &Exchange) -> Option<GrpcCallStatus> {
    let Exchange { grpc_call: Some(_), response, .. } = exchange else { return None };
    response.framing.is_empty().then(|| GrpcCallStatus::of(&response.fields)).flatten()
}

/// Reclassifies the failure of an attempt at a call. The endpoint knows the client's timeout, and may reset the stream
/// just before our own timer fires. Then the client's deadline has passed, and neither side has failed.
pub(crate) fn reclassify_late_reset(
    failure: Failure,
    exchange: &Exchange,
    policy: &RequestPolicy<'_>,
) -> Failure {
    let is_cut = matches!(failure, Failure::EndpointReset | Failure::ResponseCut);
    if is_cut && exchange.grpc_call.is_some() && clock::now() + TIMER_RESOLUTION >= policy.deadline
    {
        return Failure::RequestTimeout;
    }
    failure
}

/// True if a call failed because its client's deadline has passed. If its response has begun, the stream is reset with
/// CANCEL, as gRPC servers do: clients then report their deadline, and after INTERNAL_ERROR the status INTERNAL.
pub(crate) fn is_expired(failure: Failure, exchange: &Exchange) -> bool {
    failure == Failure::RequestTimeout
        && exchange.grpc_call.as_ref().is_some_and(|call| call.timeout.is_some())
}

/// Waits until the client of an expired call counts its deadline as passed, too. gRPC's C core reads CANCEL as
/// `DEADLINE_EXCEEDED` only after that, and its clock has steps of a millisecond; before, it reports `CANCELLED`.
pub(crate) async fn await_client_deadline(policy: &RequestPolicy<'_>) {
    sleep_until(clock::instant(policy.deadline + TIMER_RESOLUTION)).await;
}

/// Returns the result of an attempt whose response was relayed completely; `end` is the result according to the head
/// alone.
pub(crate) fn conclude(exchange: &mut Exchange, end: AttemptResult) -> AttemptResult {
    let Exchange { grpc_call: Some(call), response, download, .. } = exchange else { return end };
    let status = download
        .trailers()
        .and_then(GrpcCallStatus::of)
        .or_else(|| GrpcCallStatus::of(&response.fields));
    let (code, end) = match status {
        Some(status) => (status.code, attempt_result(status)),
        None if response.status == 200 => (GrpcCode::Unknown, AttemptResult::ServerError),
        None => (GrpcCode::of_http(response.status), end),
    };
    call.code = Some(code);
    end
}

/// Returns the result of the attempt for the health of the endpoint.
pub(crate) fn attempt_result(status: GrpcCallStatus) -> AttemptResult {
    match status.code {
        // An exception in a handler is the endpoint's fault, like a 500.
        GrpcCode::Unknown | GrpcCode::Internal | GrpcCode::Unavailable | GrpcCode::DataLoss => {
            AttemptResult::ServerError
        }
        // The code means "some resource has been exhausted, perhaps a per-user quota". A server that
        // says when to come back speaks of itself.
        GrpcCode::ResourceExhausted => match status.pushback {
            RetryPushback::After(pause) => AttemptResult::Refused { retry_after: Some(pause) },
            RetryPushback::Unspecified | RetryPushback::Never => {
                AttemptResult::RateLimited { retry_after: None }
            }
        },
        GrpcCode::DeadlineExceeded => AttemptResult::TimedOut,
        GrpcCode::Ok
        | GrpcCode::Cancelled
        | GrpcCode::InvalidArgument
        | GrpcCode::NotFound
        | GrpcCode::AlreadyExists
        | GrpcCode::PermissionDenied
        | GrpcCode::FailedPrecondition
        | GrpcCode::Aborted
        | GrpcCode::OutOfRange
        | GrpcCode::Unimplemented
        | GrpcCode::Unauthenticated => AttemptResult::Success,
    }
}

impl GrpcCall {
    /// Returns the call, if the request is one.
    pub(crate) fn of(request: &RequestHead) -> Option<Self> {
        let (dialect, _) = GrpcDialect::parse_content_type(request.fields.get("content-type")?)?;
        let timeout = request.fields.get("grpc-timeout").and_then(timeout::parse);
        Some(Self { dialect, timeout, code: None })
    }

    /// Returns the status code: the endpoint's, else that of our failure.
    pub(crate) fn code(&self, failure: Option<Failure>) -> GrpcCode {
        self.code.or_else(|| failure.map(Failure::grpc_code)).unwrap_or(GrpcCode::Unknown)
    }

    /// Translates the head of a gRPC-Web request to gRPC.
    fn change_request(&self, request: &mut RequestHead) {
        // The status is in trailers: some servers reject a call without `TE: trailers`.
        request.te_trailers = true;
        if self.dialect == GrpcDialect::Grpc {
            return;
        }
        change_content_type(&mut request.fields, GrpcDialect::Grpc);
        if self.dialect == GrpcDialect::WebText && request.framing != BodyFraming::None {
            // The length after Base64 decoding is not known in advance.
            request.framing = BodyFraming::Stream;
        }
    }

    /// Translates a gRPC head to the client's dialect; returns the translator for the body, if one is needed.
    ///
    /// A head without a body keeps its status, because gRPC-Web has trailers-only responses too.
    pub(crate) fn change_response(
        &self,
        client: HttpVersion,
        response: &mut ResponseHead,
    ) -> Option<web::GrpcWebTranslator> {
        let is_empty = response.framing.is_empty();
        if is_empty && client.has_streams() {
            // The end of the stream shows that no body follows, as in the endpoint's response: Content-Length would
            // become metadata.
            response.framing = BodyFraming::None;
        }
        if self.dialect == GrpcDialect::Grpc
            || !change_content_type(&mut response.fields, self.dialect)
            || is_empty
        {
            return None;
        }
        response.framing = BodyFraming::Stream;
        Some(web::GrpcWebTranslator::of_response(self.dialect == GrpcDialect::WebText))
    }

    /// Fills in the trailers-only response that reports a failure. `pushback` is the delay for the client's next
    /// attempt.
    pub(crate) fn refuse(
        &mut self,
        failure: Failure,
        pushback: Option<Duration>,
        response: &mut ResponseHead,
    ) {
        self.conclude_with(failure.grpc_code(), failure.details(), response);
        if let Some(pushback) = pushback {
            response.fields.append("grpc-retry-pushback-ms", pushback.as_millis().to_string());
        }
    }

    /// Fills in the trailers-only response with this status. The message contains nothing that needs percent-encoding.
    pub(crate) fn conclude_with(
        &mut self,
        code: GrpcCode,
        message: &str,
        response: &mut ResponseHead,
    ) {
        self.code = Some(code);
        response.status = 200;
        let kind = match self.dialect {
            GrpcDialect::Grpc => "application/grpc",
            GrpcDialect::Web => "application/grpc-web+proto",
            GrpcDialect::WebText => "application/grpc-web-text+proto",
        };
        let fields = &mut response.fields;
        fields.append("content-type", kind);
        fields.append("grpc-status", code.number().to_string());
        fields.append("grpc-message", message);
    }
}

/// Replaces the dialect in the content type; false if the content type is not one of gRPC.
fn change_content_type(fields: &mut FieldSection, dialect: GrpcDialect) -> bool {
    let known = fields.get("content-type").and_then(GrpcDialect::parse_content_type);
    let Some((_, rest)) = known else { return false };
    let named = [CONTENT_TYPE.as_bytes(), dialect.infix().as_bytes(), rest].concat();
    fields.remove_named(b"content-type");
    fields.append("content-type", named);
    true
}

#[cfg(test)]
mod tests;
