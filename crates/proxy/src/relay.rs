//! Sends the response to the client: the endpoint's, streamed, or one that the proxy makes itself.

use std::future::poll_fn;
use std::task::{Poll, ready};
use std::time::{Duration, SystemTime};

use balance::{AttemptResult, Time};
use codec::grpc::GrpcCallStatus;
use codec::h1::BadRequest;
use codec::head::{
    BodyFraming, HttpVersion, KnownFieldName, RequestMethod, ResponseFraming, ResponseHead,
};

use gateway::snapshot::{ClientSettings, UrlScheme};

use crate::accept::client::ClientConnection;
use crate::alt_svc;
use crate::backend::BackendRef;
use crate::body::{BodyError, BodySide, BodySource};
use crate::clock;
use crate::compression;
use crate::compression::encoder::BodyEncoder;
use crate::context::{AttemptContext, RequestContext};
use crate::credentials;
use crate::dial::abandon;
use crate::dial::attempt::AttemptConnection;
use crate::dial::pool::{self, CompletedExchange};
use crate::error_page;
use crate::exchange::{ConnectionOutcome, Exchange};
use crate::failure::Failure;
use crate::filter::RequestFilters;
use crate::filter::error_page::ErrorPage;
use crate::forwarded::{PSEUDONYM, via};
use crate::grpc::{self, GrpcCall};
use crate::load_report;
use crate::memory::stalled::HeldMemory;
use crate::outcome::AttemptConclusion;
use crate::rate_limit::RateLimitRejection;
use crate::tunnel;
use crate::worker::Worker;

/// Streams the response whose head `exchange` holds, and returns the connection to the pool.
pub(crate) async fn relay(
    context: &mut AttemptContext<'_>,
    mut attempt: AttemptConnection,
) -> Result<ConnectionOutcome, Failure> {
    let (worker, policy) = (context.worker, context.policy);
    let response = &mut context.exchange.response;
    context.record.status = response.status;
    // Evaluated before filters change the response.
    let end = attempt_end(response);
    let streams = context.exchange.grpc_call.is_some() && !context.exchange.upload.is_read();
    load_report::record(worker, &attempt.slot, policy, &response.fields);
    prepare(worker, policy.client, response);
    let encoder = match apply_filters(context, &attempt) {
        BodyChange::None => None,
        BodyChange::Encoded(encoder) => Some(encoder),
        // On the heap, so that the other requests need no memory for it.
        BodyChange::Replaced(page) => {
            return Ok(Box::pin(error_page::replace(context, attempt, page, end)).await);
        }
    };
    if context.exchange.response.upgrade {
        return tunnel::tunnel(context, attempt).await;
    }
    let keep_alive = start(context, &attempt, encoder)?;
    let streamed = stream(context, &mut attempt).await;
    let result = streamed
        .map_err(|failure| grpc::reclassify_late_reset(failure, context.exchange, context.policy));
    let end = result.map_or_else(Failure::attempt_end, |()| grpc::conclude(context.exchange, end));
    let end = policy.discount_late_timeout(end, &attempt.slot);
    if let Some(trailers) = context.exchange.download.trailers() {
        load_report::record(worker, &attempt.slot, policy, trailers);
    }
    let now = clock::now();
    let conclusion = AttemptConclusion {
        at: now,
        result: end,
        head_after: attempt.head_latency_by(now),
        // The duration of a message stream says nothing about the load of its endpoint.
        hold_time_is_signal: !streams,
    };
    attempt.slot.conclude(worker, &policy.backend_config, conclusion);
    let Err(failure) = result else {
        let whole = context.exchange.upload.is_read();
        context.record.ended = Some(now);
        return_to_pool(context, attempt, now);
        // A slow client no longer holds the slot: only its own connection waits.
        let mut taken = Ok(());
        if !context.exchange.download.is_done() {
            let (patience, until) = (policy.client.body_timeout, policy.deadline);
            taken = flush(context.client, context.exchange, patience, until).await;
            context.record.ended = Some(clock::now());
        }
        return Ok(match taken {
            Ok(()) if keep_alive && whole => ConnectionOutcome::KeepAlive,
            Ok(()) => ConnectionOutcome::Close,
            Err(failure) => {
                context.record.failure = Some(failure);
                abort(context.client)
            }
        });
    };
    let is_expired = grpc::is_expired(failure, context.exchange);
    if is_expired {
        context.client.stream.cancel_on_drop();
    }
    attempt.mark_suspect(failure);
    let sent_nothing = context.exchange.download.written == 0;
    if streamed != Err(Failure::ResponseCut) {
        abandon::abandon(context, attempt);
    }
    if is_expired {
        // Over HTTP/2 and 3 the head may have been sent though no byte of the body has.
        grpc::await_client_deadline(context.policy).await;
    }
    if sent_nothing {
        return Err(failure);
    }
    context.record.failure = Some(failure);
    Ok(abort(context.client))
}

/// Adds the fields that a proxy adds to a response: `Via`, unless the listener forwards messages unchanged, and `Date`.
fn prepare(worker: &Worker, settings: &ClientSettings, response: &mut ResponseHead) {
    if !settings.forwards_unchanged {
        response.fields.add_prepared(via(response.version));
    }
    if !response.fields.has(KnownFieldName::Date) && !response.is_interim() {
        response.fields.add(KnownFieldName::Date, worker.date());
    }
}

/// The change to the body of the endpoint's response that filters make.
enum BodyChange {
    None,
    Encoded(Box<BodyEncoder>),
    Replaced(ErrorPage),
}

/// Applies filters, session affinity and `Alt-Svc` to the endpoint's response. Returns the change to its body.
fn apply_filters(context: &mut AttemptContext<'_>, attempt: &AttemptConnection) -> BodyChange {
    let AttemptContext { worker, client, exchange, policy, .. } = context;
    let Exchange { request, response, filters: filtering, .. } = exchange;
    alt_svc::remove_from_endpoint(policy.alt_svc, response);
    let page = filtering.as_ref().and_then(|filtering| {
        filtering.change_response(request, response);
        filtering.error_page(response.status, false)
    });
    if let Some(affinity) = &policy.affinity {
        let (current, is_secure) =
            (&policy.backend_config, client.origin.scheme == UrlScheme::Https);
        affinity.apply_to_response(worker.index, current, &attempt.slot, response, is_secure);
    }
    alt_svc::advertise(policy.alt_svc, request, response);
    if filtering.is_none() {
        return BodyChange::None;
    }
    match page.filter(|_| error_page::is_replaceable(exchange)) {
        Some(page) => BodyChange::Replaced(page),
        None => compression::begin(context).map_or(BodyChange::None, BodyChange::Encoded),
    }
}

/// Writes the head into the pump. Returns true if the client may send another request.
fn start(
    context: &mut AttemptContext<'_>,
    attempt: &AttemptConnection,
    encoder: Option<Box<BodyEncoder>>,
) -> Result<bool, Failure> {
    let AttemptContext { worker, client, exchange, policy, .. } = context;
    let Exchange { request, response, grpc_call: call, upload, download, .. } = exchange;
    let translation =
        call.as_ref().and_then(|call| call.change_response(request.version, response));
    let framing = match (response.framing, request.version) {
        (known @ (BodyFraming::None | BodyFraming::Length(_)), _) if encoder.is_none() => known,
        (_, HttpVersion::Http10) => BodyFraming::UntilClose,
        (_, HttpVersion::Http11) => BodyFraming::Chunked,
        (_, HttpVersion::Http2 | HttpVersion::Http3) => BodyFraming::Stream,
    };
    // If the client got no 100 (Continue), it may or may not send the body: the next bytes cannot be interpreted.
    let expects = request.expect_continue && !upload.is_read();
    // An endpoint that rejects a request before it has read the body does not want the rest of it (RFC 9112 §9.6). A
    // success may come before the body's end too: an echo.
    let is_early = !upload.is_read() && (response.status >= 300 || framing.is_empty());
    let keep_alive = request.keep_alive
        && framing != BodyFraming::UntilClose
        && !expects
        && !is_early
        && client.may_keep_alive(worker, policy.config, policy.client);
    let from = attempt.connection.stream.framing(response.framing);
    download.start(from, client.stream.framing(framing));
    if let Some(translation) = translation {
        download.translate(translation);
    }
    if let Some(encoder) = encoder {
        download.encode(encoder);
    }
    let response_framing =
        ResponseFraming { version: request.version, framing, keep_alive, upgrade: false };
    client.stream.put_head(response, &response_framing, &mut download.out)?;
    Ok(keep_alive)
}

/// Streams the response's body and the rest of the request's. Ends when the endpoint is not needed any more: bytes that
/// have been read from the response may still have to be written to the client.
async fn stream(
    context: &mut AttemptContext<'_>,
    attempt: &mut AttemptConnection,
) -> Result<(), Failure> {
    let AttemptContext { worker, client, exchange, record, policy } = context;
    let Exchange { grpc_call: call, upload, download, .. } = exchange;
    let until = attempt.deadline;
    let (mut seen, mut due) = (u64::MAX, until);
    let mut taken = download.written;
    let mut held: Option<HeldMemory> = None;
    let mut long_from = if call.is_some() { clock::now() + grpc::LONG_STREAM } else { Time::MAX };
    poll_fn(|cx| {
        attempt.upload(cx, worker, client, upload)?;
        let connection = &mut attempt.connection;
        let mut source =
            BodySource { stream: &mut connection.stream, buffer: &mut connection.buffer };
        let sink = &mut client.stream;
        if let Poll::Ready(done) = download.poll(cx, &mut source, sink, &worker.scratch) {
            return Poll::Ready(done.map_err(response_failure));
        }
        if download.has_whole_body() && upload.is_done() {
            return Poll::Ready(Ok(()));
        }
        let slow_client = download.waiting_for == BodySide::Sink;
        if slow_client {
            let bytes = download.held_bytes() + connection.unread_bytes();
            let held = held.get_or_insert_with(|| client.held_memory(worker));
            if held.stall(bytes, cx.waker()) {
                return Poll::Ready(Err(Failure::OutOfMemory));
            }
        } else if let Some(held) = &mut held {
            held.advance();
        }
        if upload.is_read() && !slow_client && client.poll_disconnected(cx, worker).is_ready() {
            return Poll::Ready(Err(Failure::ClientGone));
        }
        let progress = upload.progress.wrapping_add(download.progress);
        if seen != progress {
            seen = progress;
            let most = if slow_client {
                policy.client.body_timeout
            } else {
                policy.backend_settings().idle_timeout
            };
            let now = clock::now();
            // The first pass comes directly after the head, while the response is not complete yet.
            attempt.head_latency_by(now);
            if taken != download.written {
                taken = download.written;
                client.note_write(now);
            }
            due = until.min(now + most);
            client.deadline.set(due.min(long_from));
        }
        let now = loop {
            ready!(client.deadline.poll(cx));
            let now = clock::now();
            if slow_client {
                due = due.max(until.min(client.write_deadline(policy.client.body_timeout)));
            }
            if now >= due {
                break now;
            }
            if now >= long_from {
                record.mark_long_stream(worker);
                long_from = Time::MAX;
            }
            client.deadline.set(due.min(long_from));
        };
        Poll::Ready(Err(if now >= policy.deadline {
            Failure::RequestTimeout
        } else if now >= until {
            Failure::AttemptTimeout
        } else if slow_client {
            Failure::BodyTimeout
        } else {
            Failure::EndpointIdle
        }))
    })
    .await
}

/// The result of the attempt, as the response's status and fields tell it.
pub(crate) fn attempt_end(response: &ResponseHead) -> AttemptResult {
    let retry_after =
        || parse_retry_after(response.fields.first(KnownFieldName::RetryAfter)?, clock::wall());
    match response.status {
        // Only a gRPC call has `grpc-status` in its head, and only if nothing follows the head (trailers-only).
        200 if response.version.has_streams() => GrpcCallStatus::of(&response.fields)
            .map_or(AttemptResult::Success, grpc::attempt_result),
        429 => AttemptResult::RateLimited { retry_after: retry_after() },
        503 if response.fields.has(KnownFieldName::RetryAfter) => {
            AttemptResult::Refused { retry_after: retry_after() }
        }
        500.. => AttemptResult::ServerError,
        _ => AttemptResult::Success,
    }
}

/// Parses `Retry-After`: seconds, or a date (RFC 9110 §10.2.3). `None`: it is neither.
fn parse_retry_after(value: &[u8], now: SystemTime) -> Option<Duration> {
    let value = str::from_utf8(value).ok()?.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that does not fit in a `u64` is longer than any client waits.
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    Some(until.duration_since(now).unwrap_or_default())
}

fn response_failure(stop: BodyError) -> Failure {
    match stop {
        BodyError::SinkFailed => Failure::ClientGone,
        BodyError::SourceEnded
        | BodyError::SourceBad(_)
        | BodyError::TooLarge
        | BodyError::Untranslatable
        | BodyError::Evicted => Failure::ResponseCut,
    }
}

/// Frees the slot after the endpoint has finished. If the connection can carry another request, it returns to the pool.
fn return_to_pool(context: &AttemptContext<'_>, attempt: AttemptConnection, now: Time) {
    let AttemptContext { worker, exchange, policy, .. } = context;
    let AttemptConnection { slot, mut connection, upload_broken, .. } = attempt;
    connection.count_written(exchange.upload.written);
    worker.scratch.buffer_pool.reclaim(&mut connection.buffer);
    let done = CompletedExchange {
        response: &exchange.response,
        request_sent: exchange.upload.is_done() && !upload_broken,
        response_read: exchange.download.has_whole_body(),
    };
    pool::give_back(&slot.endpoint, connection, &done, policy.is_capped(), now);
    // The slot is freed last: the request that gets it finds the idle connection, or may open another.
    slot.free(now);
}

/// Resets the connection, so that the client notices an incomplete response even if only the connection's end delimits
/// it.
fn abort(client: &ClientConnection) -> ConnectionOutcome {
    client.reset_on_close();
    ConnectionOutcome::Abort
}

/// Forwards an interim response, unless the client speaks HTTP/1.0.
pub(crate) async fn forward_interim(context: &mut AttemptContext<'_>) -> Result<(), Failure> {
    if context.exchange.request.version == HttpVersion::Http10 {
        return Ok(());
    }
    prepare(context.worker, context.policy.client, &mut context.exchange.response);
    let AttemptContext { client, exchange, policy, .. } = context;
    write_interim(client, exchange, policy.client.body_timeout, policy.deadline).await
}

/// Tells the client to send its body, in place of the endpoint.
pub(crate) async fn send_continue(
    client: &mut ClientConnection,
    exchange: &mut Exchange,
    patience: Duration,
    until: Time,
) -> Result<(), Failure> {
    exchange.response.clear();
    exchange.response.status = 100;
    write_interim(client, exchange, patience, until).await
}

async fn write_interim(
    client: &mut ClientConnection,
    exchange: &mut Exchange,
    patience: Duration,
    until: Time,
) -> Result<(), Failure> {
    let Exchange { request, response, download, .. } = exchange;
    download.start(BodyFraming::None, BodyFraming::None);
    client.stream.put_head(
        response,
        &ResponseFraming::without_body(request.version),
        &mut download.out,
    )?;
    flush(client, exchange, patience, until).await
}

/// Writes the buffered download. Fails if the client accepts no bytes for as long as `patience`.
async fn flush(
    client: &mut ClientConnection,
    exchange: &mut Exchange,
    patience: Duration,
    until: Time,
) -> Result<(), Failure> {
    client.deadline.set(until.min(clock::now() + patience));
    poll_fn(|cx| {
        if let Poll::Ready(done) = exchange.download.poll_flush(cx, &mut client.stream) {
            // A failed write is not noted: it would extend the write deadline of the connection's other requests.
            if done.is_ok() {
                client.note_write(clock::now());
            }
            return Poll::Ready(done.map_err(response_failure));
        }
        loop {
            ready!(client.deadline.poll(cx));
            let due = until.min(client.write_deadline(patience));
            if clock::now() >= due {
                return Poll::Ready(Err(Failure::BodyTimeout));
            }
            client.deadline.set(due);
        }
    })
    .await
}

/// Answers in place of the endpoint: describes the failure in the body and in `Proxy-Status`.
pub(crate) async fn answer(context: &mut RequestContext<'_>) -> ConnectionOutcome {
    let RequestContext { worker, client, exchange, record } = context;
    let Some(failure) = record.failure.filter(|failure| *failure != Failure::ClientGone) else {
        return ConnectionOutcome::Abort;
    };
    let Exchange { request, response, filters: filtering, grpc_call: call, .. } = exchange;
    if failure == Failure::Misdirected {
        // If the handshake is no longer valid even for its own name, an HTTP/1.1 connection is not kept alive.
        request.keep_alive &= client.has_valid_handshake(&worker.config());
    }
    response.clear();
    let overloaded =
        record.backend.as_ref().and_then(|backend| OverloadResponse::of(backend, failure));
    *call = call.or_else(|| GrpcCall::of(request));
    let rejection = filtering.as_ref().and_then(|it| it.rejection.as_deref());
    let retry_after = overloaded.as_ref().map(|it| it.retry_after);
    let retry_after = retry_after.or_else(|| rejection.map(RateLimitRejection::wait));
    let is_delayed =
        || (failure == Failure::CredentialOverload).then_some(credentials::RETRY_AFTER);
    let retry_after = retry_after.or_else(is_delayed);
    let body = match call {
        Some(call) => {
            call.refuse(failure, retry_after, response);
            String::new()
        }
        None => describe(response, failure, overloaded.as_ref()),
    };
    if let Some(rejection) = rejection {
        if call.is_none() {
            response.status = rejection.status();
        }
        rejection.describe(response);
    }
    match failure {
        Failure::Unauthenticated | Failure::InvalidToken(_) => {
            let security = filtering.as_ref().and_then(RequestFilters::security);
            let refused = match failure {
                Failure::InvalidToken(fault) => Some(fault),
                _ => None,
            };
            security.iter().for_each(|it| credentials::challenge(it, refused, response));
        }
        Failure::CredentialOverload if call.is_none() => credentials::describe_overload(response),
        _ => {}
    }
    let (error, details) = (failure.attributes().proxy_error, failure.details());
    let status = format!("{PSEUDONYM}; error={error}; details=\"{details}\"");
    response.fields.add(KnownFieldName::ProxyStatus, status);
    let page = filtering.as_ref().and_then(|filtering| {
        filtering.allow_origin(request, response);
        filtering.add_authorizer_fields(response);
        filtering.error_page(response.status, failure == Failure::NoEndpoint)
    });
    if let Some(page) = page.filter(|_| error_page::may_follow(failure, exchange)) {
        return Box::pin(error_page::send(context, &page, body.as_bytes())).await;
    }
    reply_with(context, body.as_bytes()).await
}

/// The answer of a backend without a free slot, or without an endpoint.
struct OverloadResponse {
    status: u16,
    retry_after: Duration,
}

impl OverloadResponse {
    /// Maximum of the expected queue wait in `Retry-After`.
    const LATEST: Duration = Duration::from_secs(300);

    /// Builds the answer. `Retry-After` is the larger of the configured value and the expected wait: in the queue, or for
    /// the first endpoint.
    fn of(backend: &BackendRef, failure: Failure) -> Option<Self> {
        let settings = &backend.config().settings;
        let (status, wait) = if failure.is_overload() {
            (settings.overload_status, backend.expected_wait())
        } else if failure == Failure::NoEndpoint {
            (failure.attributes().status, backend.cold_start.expected_rest(clock::now()))
        } else {
            return None;
        };
        let wait = wait.unwrap_or_default().min(Self::LATEST);
        Some(Self { status, retry_after: settings.overload_retry_after.max(wait) })
    }
}

/// Fills in the head for the failure, and returns the body that describes it.
fn describe(
    response: &mut ResponseHead,
    failure: Failure,
    overloaded: Option<&OverloadResponse>,
) -> String {
    response.status = failure.attributes().status;
    if let Some(OverloadResponse { status, retry_after }) = overloaded {
        response.status = *status;
        let seconds = retry_after.as_millis().div_ceil(1000);
        response.fields.add(KnownFieldName::RetryAfter, seconds.to_string());
    }
    if failure == Failure::BadRequest(BadRequest::Trace) {
        response.fields.append("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    }
    response.fields.append("Content-Type", "text/plain; charset=utf-8");
    format!("{}\n", failure.details())
}

/// Sends the head that `exchange` holds, and `body`, as a response of the proxy itself. The body may be empty: the
/// decision of a route filter.
pub(crate) async fn reply_with(context: &mut RequestContext<'_>, body: &[u8]) -> ConnectionOutcome {
    let RequestContext { worker, client, exchange, record } = context;
    let active_config = worker.config();
    let Some(listener) = client.listener(&active_config) else { return ConnectionOutcome::Abort };
    let keep_alive = exchange.request.keep_alive
        && exchange.upload.is_read()
        && client.may_keep_alive(worker, &active_config, &listener.client);
    record.status = exchange.response.status;
    let Exchange { request, response, .. } = exchange;
    if !response.fields.has(KnownFieldName::Date) {
        response.fields.add(KnownFieldName::Date, worker.date());
    }
    alt_svc::advertise(listener.alt_svc(), request, response);
    if put_local_response(client, exchange, body, keep_alive).is_err() {
        return ConnectionOutcome::Abort;
    }
    match flush(client, exchange, listener.client.body_timeout, Time::MAX).await {
        Ok(()) if keep_alive => ConnectionOutcome::KeepAlive,
        Ok(()) => ConnectionOutcome::Close,
        Err(_) => ConnectionOutcome::Abort,
    }
}

fn put_local_response(
    client: &mut ClientConnection,
    exchange: &mut Exchange,
    body: &[u8],
    keep_alive: bool,
) -> Result<(), Failure> {
    let Exchange { request, response, download, .. } = exchange;
    let length = body.len() as u64;
    // A 204 and a 304 have no body by definition (RFC 9110 §8.6), and the end of a stream needs no length. `grpc-status`
    // in a head is valid only if nothing follows the head.
    let ends_stream = body.is_empty() && request.version.has_streams();
    let has_length = !matches!(response.status, 204 | 304) && !ends_stream;
    let has_body = has_length && request.method != RequestMethod::Head;
    response.length_of_absent_body = has_length.then_some(length);
    let framing = if has_body { BodyFraming::Length(length) } else { BodyFraming::None };
    download.start(BodyFraming::None, client.stream.framing(framing));
    let response_framing =
        ResponseFraming { version: request.version, framing, keep_alive, upgrade: false };
    client.stream.put_head(response, &response_framing, &mut download.out)?;
    if has_body {
        download.out.extend_from_slice(body);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_parsed_as_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Fri, 20 Nov 2026 12:00:00 GMT").unwrap();
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (value, waits) in [
            ("7", seconds(7)),
            (" 0 ", seconds(0)),
            ("99999999999999999999", seconds(u64::MAX)),
            ("Fri, 20 Nov 2026 12:01:30 GMT", seconds(90)),
            ("Fri, 20 Nov 2026 11:00:00 GMT", seconds(0)),
            ("Friday, 20-Nov-26 12:01:30 GMT", seconds(90)),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(parse_retry_after(value.as_bytes(), now), waits, "{value}");
        }
    }
}
