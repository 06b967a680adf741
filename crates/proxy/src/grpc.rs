//! Calls of gRPC among the requests: how long their clients wait, how they end, and how we refuse one.
//!
//! A call is a request like any other, and takes the same way. It differs in where its status stands (in trailers, or in
//! a head that nothing follows, while HTTP always says 200) and in the deadline that its client sends along. gRPC-Web,
//! which browsers speak, becomes gRPC where the endpoint speaks HTTP/2. Nothing here knows what is in a message.

use std::time::Duration;

use balance::{AttemptResult, Time};

use crate::clock;
use crate::exchange::{Exchange, RequestPolicy};
use crate::failure::Failure;
use crate::head::{BodyFraming, FieldSection, HttpVersion, RequestHead, ResponseHead};

/// How calls end.
mod code;
/// How long clients wait.
mod timeout;
/// What browsers speak.
pub(crate) mod web;
/// Asking an endpoint whether it serves.
pub(crate) mod health;
/// What is asked, and the answer, in bytes.
mod message;

pub(crate) use code::{GrpcCallStatus, GrpcCode, RetryPushback};

/// How late a timer may fire: one tick of the runtime's, and one of the endpoint's.
const TIMER_RESOLUTION: Duration = Duration::from_millis(2);

/// A call whose response goes on for so long after its head is a stream: how long it takes is not how fast it is.
pub(crate) const LONG_STREAM: Duration = Duration::from_secs(10);
/// A call that waited here for less is sent on as it came.
const NEGLIGIBLE_WAIT: Duration = Duration::from_millis(1);

/// What every kind of gRPC's content type begins with.
const CONTENT_TYPE: &str = "application/grpc";

/// A request that is a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrpcCall {
    dialect: GrpcDialect,
    /// How long its client waits, from the head on; `None`: it does not say.
    timeout: Option<Duration>,
    /// How it ended, once that is known.
    code: Option<GrpcCode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrpcDialect {
    Grpc,
    Web,
    WebText,
}

impl GrpcDialect {
    /// The dialect that a content type names, and what follows in it.
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

    /// What it adds to gRPC's content type.
    fn infix(self) -> &'static str {
        match self {
            Self::Grpc => "",
            Self::Web => "-web",
            Self::WebText => "-web-text",
        }
    }
}

/// Looks whether the request is a call, where that matters: its client or its endpoint speaks HTTP/2 or HTTP/3.
pub(crate) fn begin_call(exchange: &mut Exchange, terms: &mut RequestPolicy<'_>, started: Time) {
    let endpoint = terms.backend_settings().protocol;
    if !exchange.request.version.has_streams() && !endpoint.has_streams() {
        return;
    }
    let Some(call) = GrpcCall::of(&exchange.request) else { return };
    // An endpoint that speaks HTTP/1.1 may know gRPC-Web itself, and gets it as it is.
    if call.dialect != GrpcDialect::Grpc && !endpoint.has_streams() {
        return;
    }
    if let Some(timeout) = call.timeout {
        terms.deadline = terms.deadline.min(started + timeout);
    }
    call.change_request(&mut exchange.request);
    exchange.grpc_call = Some(call);
}

/// Makes what is sent of the body what an endpoint understands.
pub(crate) fn translate_upload(exchange: &mut Exchange) {
    let Exchange { grpc_call: Some(call), upload, .. } = exchange else { return };
    if call.dialect == GrpcDialect::WebText && !upload.is_read() {
        upload.translate(web::GrpcWebTranslator::from_text());
    }
}

/// Tells the endpoint how long the client still waits at `now`.
///
/// What the client said holds from when it said so. An endpoint that counts from when it hears it would work on for
/// nobody after a wait in the queue, and so would whoever it calls in turn.
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

/// How a call has ended of which only the head came, and nothing follows.
pub(crate) fn trailers_only_status(exchange: &Exchange) -> Option<GrpcCallStatus> {
    let Exchange { grpc_call: Some(_), response, .. } = exchange else { return None };
    response.framing.is_empty().then(|| GrpcCallStatus::of(&response.fields)).flatten()
}

/// What an attempt at a call has come to. The endpoint was told how long the client waits, and may give up in the moment
/// before our own timer fires: then the client's time is over, and nobody has failed.
pub(crate) fn reclassify_late_reset(
    failure: Failure,
    exchange: &Exchange,
    terms: &RequestPolicy<'_>,
) -> Failure {
    let gave_up = failure == Failure::EndpointReset && exchange.grpc_call.is_some();
    if gave_up && clock::now() + TIMER_RESOLUTION >= terms.deadline {
        return Failure::RequestTimeout;
    }
    failure
}

/// How an attempt has ended whose response was relayed whole; `end` is what the head says by itself.
pub(crate) fn conclude(exchange: &mut Exchange, end: AttemptResult) -> AttemptResult {
    let Exchange { grpc_call: Some(call), response, download, .. } = exchange else { return end };
    let said = download
        .trailers()
        .and_then(GrpcCallStatus::of)
        .or_else(|| GrpcCallStatus::of(&response.fields));
    let (code, end) = match said {
        Some(status) => (status.code, status.end()),
        None if response.status == 200 => (GrpcCode::Unknown, AttemptResult::ServerError),
        None => (GrpcCode::of_http(response.status), end),
    };
    call.code = Some(code);
    end
}

impl GrpcCall {
    /// The call that the request is.
    pub(crate) fn of(request: &RequestHead) -> Option<Self> {
        let (dialect, _) = GrpcDialect::parse_content_type(request.fields.get("content-type")?)?;
        let timeout = request.fields.get("grpc-timeout").and_then(timeout::parse);
        Some(Self { dialect, timeout, code: None })
    }

    /// How it ended: by its status, or by what we failed at.
    pub(crate) fn code(&self, failure: Option<Failure>) -> GrpcCode {
        self.code.or_else(|| failure.map(Failure::grpc_code)).unwrap_or(GrpcCode::Unknown)
    }

    /// Makes of a request in gRPC-Web one in gRPC.
    fn change_request(&self, request: &mut RequestHead) {
        // Its status is in trailers: some servers refuse a call that does not say so.
        request.te_trailers = true;
        if self.dialect == GrpcDialect::Grpc {
            return;
        }
        change_content_type(&mut request.fields, GrpcDialect::Grpc);
        if self.dialect == GrpcDialect::WebText && request.framing != BodyFraming::None {
            // How long it will be without base64 is not known beforehand.
            request.framing = BodyFraming::Stream;
        }
    }

    /// Makes of a head in gRPC one in the client's dialect; the body is to be translated as the result says.
    ///
    /// A head that nothing follows keeps its status: gRPC-Web has that too.
    pub(crate) fn change_response(
        &self,
        client: HttpVersion,
        response: &mut ResponseHead,
    ) -> Option<web::GrpcWebTranslator> {
        let is_empty = response.framing.is_empty();
        if is_empty && client.has_streams() {
            // The end of the stream says that nothing follows, as the endpoint's did: no length goes among the metadata.
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

    /// Makes the head that says what failed; nothing follows it. `pushback`: when to try again, if the client does.
    pub(crate) fn refuse(
        &mut self,
        failure: Failure,
        pushback: Option<Duration>,
        response: &mut ResponseHead,
    ) {
        let code = failure.grpc_code();
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
        // Words of ours: nothing in them has to be percent-encoded.
        fields.append("grpc-message", failure.details());
        if let Some(pushback) = pushback {
            fields.append("grpc-retry-pushback-ms", pushback.as_millis().to_string());
        }
    }
}

/// Names another dialect; false: the content type is none of gRPC's.
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
