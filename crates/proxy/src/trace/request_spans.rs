//! The spans of a request that is over: the request itself, its waits in the queue, and its attempts.
//!
//! Names and attributes are those of OpenTelemetry's semantic conventions for HTTP; the span of the request has the keys
//! of the access log.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use balance::Time;
use codec::grpc::GrpcCode;
use codec::head::{KnownFieldName, RequestMethod};
use gateway::snapshot::EndpointProtocol;

use super::request_trace::{AttemptEnd, CurrentAttempt, RequestTrace};
use super::sampler::{SamplingResult, TraceReason};
use super::span::{RequestSpan, SpanAttributes, SpanError, SpanId, SpanKind};
use crate::accept::client::ClientConnection;
use crate::clock;
use crate::exchange::Exchange;
use crate::observe::AttributeSink;
use crate::observe::access::AccessRecord;
use crate::worker::Worker;

/// Name of the span of a wait in the queue.
const QUEUE_SPAN: &str = "sheave.queue";

/// Records the spans of a request that is over, if it is traced.
pub(crate) fn finish(
    record: &AccessRecord,
    worker: &Worker,
    client: &ClientConnection,
    exchange: &Exchange,
) {
    let Some(traces) = &worker.traces else { return };
    if exchange.request.method_bytes().is_empty() {
        return;
    }
    let recorded = exchange.filters.as_ref().and_then(|filters| filters.trace.as_deref());
    let (made, reason) = match recorded.and_then(|trace| trace.reason) {
        Some(reason) => (None, reason),
        None => match sample_at_end(record, worker, client, exchange) {
            Some(sampled) => sampled,
            None => return,
        },
    };
    let Some(trace) = recorded.or(made.as_ref()) else { return };
    worker.counters().traces[reason as usize].add(1);
    let now = (clock::now(), clock::wall());
    let builder = SpanBuilder { record, client, exchange, trace, now, spans: Vec::new() };
    traces.add(builder.build(worker, reason), worker.counters());
}

/// Decides at the end of a request whether it is traced; returns its record, unless it may have one.
fn sample_at_end(
    record: &AccessRecord,
    worker: &Worker,
    client: &ClientConnection,
    exchange: &Exchange,
) -> Option<(Option<RequestTrace>, TraceReason)> {
    let fields = &exchange.request.fields;
    // It got its answer here before it was decided.
    if record.backend.is_none()
        && let Some((trace, reason)) = RequestTrace::sampled(worker, fields, record.started)
    {
        return Some((Some(trace), reason));
    }
    let traces = worker.traces.as_ref()?;
    // Streams and upgraded connections last as long as their ends want.
    let is_stream = record.is_long || exchange.response.upgrade;
    let duration = if is_stream { Duration::ZERO } else { duration(record, client) };
    match traces.sampler.end(duration, is_fault(record, exchange), client.last_event_at) {
        SamplingResult::NotTraced => None,
        SamplingResult::Limited => {
            worker.counters().traces_limited.add(1);
            None
        }
        SamplingResult::Traced(reason) => {
            Some((Some(RequestTrace::new(worker, fields, record.started)), reason))
        }
    }
}

fn duration(record: &AccessRecord, client: &ClientConnection) -> Duration {
    client.last_event_at.saturating_since(record.started)
}

/// True if the request failed, and not by its client's fault.
fn is_fault(record: &AccessRecord, exchange: &Exchange) -> bool {
    let code = exchange.grpc_call.as_ref().map(|call| call.code(record.failure));
    record.status >= 500
        || record.failure.is_some_and(|failure| !failure.is_of_client())
        || code.is_some_and(is_server_error)
}

/// True if the status of a gRPC call is an error of its server (OpenTelemetry's semantic conventions for gRPC).
fn is_server_error(code: GrpcCode) -> bool {
    matches!(
        code,
        GrpcCode::Unknown
            | GrpcCode::DeadlineExceeded
            | GrpcCode::Unimplemented
            | GrpcCode::Internal
            | GrpcCode::Unavailable
            | GrpcCode::DataLoss
    )
}

/// The spans of one request.
struct SpanBuilder<'r> {
    record: &'r AccessRecord,
    client: &'r ClientConnection,
    exchange: &'r Exchange,
    trace: &'r RequestTrace,
    /// One moment on both clocks.
    now: (Time, SystemTime),
    spans: Vec<RequestSpan>,
}

/// One attempt for its span.
struct AttemptView<'r> {
    attempt: &'r CurrentAttempt,
    endpoint: Option<SocketAddr>,
    protocol: Option<EndpointProtocol>,
    /// Time that the request spent in the queue before this attempt alone.
    queued: Duration,
    ended: Time,
    status: Option<u16>,
    error: Option<&'static str>,
    number: u32,
}

impl SpanBuilder<'_> {
    fn build(mut self, worker: &Worker, reason: TraceReason) -> Vec<RequestSpan> {
        let (record, trace) = (self.record, self.trace);
        self.add_request(worker, reason);
        for (number, ended) in trace.ended.iter().enumerate() {
            let (status, error) = match ended.end {
                AttemptEnd::Failure(failure) => (None, Some(failure.attributes().label)),
                AttemptEnd::Discarded(status) => (Some(status), None),
            };
            self.add_attempt(
                worker,
                &AttemptView {
                    attempt: &ended.attempt,
                    endpoint: ended.endpoint,
                    protocol: Some(ended.protocol),
                    queued: ended.queued.saturating_sub(ended.attempt.queued_before),
                    ended: ended.ended,
                    status,
                    error,
                    number: number as u32,
                },
            );
        }
        let current = &trace.current;
        let queued = record.queued.saturating_sub(current.queued_before);
        if record.attempts > trace.ended_attempts {
            let protocol = || Some(record.backend.as_ref()?.config().settings.protocol);
            self.add_attempt(
                worker,
                &AttemptView {
                    attempt: current,
                    endpoint: record.endpoint,
                    protocol: current.head.map(|head| head.protocol).or_else(protocol),
                    queued,
                    ended: self.ended(),
                    status: current.head.map(|head| head.status),
                    error: record.failure.map(|failure| failure.attributes().label),
                    number: trace.ended_attempts,
                },
            );
        } else {
            self.add_wait(worker, current, queued);
        }
        self.spans
    }

    fn ended(&self) -> Time {
        self.record.ended.unwrap_or(self.client.last_event_at)
    }

    fn wall(&self, time: Time) -> SystemTime {
        let (now, wall) = self.now;
        wall - now.saturating_since(time)
    }

    fn add_request(&mut self, worker: &Worker, reason: TraceReason) {
        let (record, exchange) = (self.record, self.exchange);
        let mut attributes = SpanAttributes::default();
        record.describe(&mut attributes, worker, self.client, exchange);
        let statuses = &exchange.response.fields;
        if statuses.has(KnownFieldName::ProxyStatus) {
            let values = statuses.values(KnownFieldName::ProxyStatus);
            attributes.texts("http.response.header.proxy-status", values);
        }
        attributes.plain("sheave.sampled_by", reason.label());
        let method = method(exchange);
        let name = match record.route() {
            Some(route) => format!("{method} {}", route.name),
            None => method,
        };
        let details = record.failure.map_or("", |failure| failure.details());
        let error = is_fault(record, exchange).then_some(SpanError(details));
        self.add(RequestSpan {
            trace_id: self.trace.trace,
            span_id: self.trace.server,
            parent: self.trace.incoming.parent.map(|(_, span)| span),
            trace_state: self.trace.trace_state.clone(),
            kind: SpanKind::Server,
            name,
            started: self.wall(record.started),
            ended: self.wall(self.ended()),
            attributes: attributes.0,
            error,
        });
    }

    /// Adds the span of a wait in the queue, if the request has waited.
    fn add_wait(&mut self, worker: &Worker, attempt: &CurrentAttempt, queued: Duration) {
        if queued.is_zero() {
            return;
        }
        let mut attributes = SpanAttributes::default();
        if let Some(backend) = &self.record.backend {
            attributes.text("sheave.backend", backend.name.as_bytes());
        }
        if self.record.queue_position > 0 {
            attributes.integer("sheave.queue_position", self.record.queue_position);
        }
        let span = SpanId::random(&mut worker.rng.borrow_mut());
        let times = (attempt.asked, attempt.asked + queued);
        self.add_step(SpanKind::Internal, QUEUE_SPAN.to_owned(), span, times, attributes, None);
    }

    fn add_attempt(&mut self, worker: &Worker, view: &AttemptView<'_>) {
        let attempt = view.attempt;
        self.add_wait(worker, attempt, view.queued);
        let started = attempt.head.map_or(attempt.asked + view.queued, |head| head.started);
        let mut attributes = SpanAttributes::default();
        let request = &self.exchange.request;
        attributes.plain("http.request.method", method(self.exchange));
        if let Some(endpoint) = view.endpoint {
            attributes.plain("server.address", endpoint.ip());
            attributes.integer("server.port", endpoint.port());
            attributes.plain("network.peer.address", endpoint.ip());
            attributes.integer("network.peer.port", endpoint.port());
            attributes.plain("sheave.endpoint", endpoint);
        }
        attributes.text("url.path", request.path());
        attributes.plain("network.protocol.name", "http");
        if let Some(protocol) = view.protocol {
            attributes.plain("network.protocol.version", version(protocol));
        }
        if view.number > 0 {
            attributes.integer("http.request.resend_count", view.number);
        }
        if let Some(head) = attempt.head {
            let wait = head.arrived.saturating_since(started);
            attributes.seconds("sheave.head_seconds", wait.as_secs_f64());
        }
        let mut error = None;
        if let Some(status) = view.status {
            attributes.integer("http.response.status_code", status);
            if status >= 400 && view.error.is_none() {
                attributes.plain("error.type", status);
                error = Some(SpanError(""));
            }
        }
        if let Some(label) = view.error {
            attributes.plain("error.type", label);
            error = Some(SpanError(label));
        }
        let (name, times) = (method(self.exchange), (started, view.ended));
        self.add_step(SpanKind::Client, name, attempt.span, times, attributes, error);
    }

    fn add_step(
        &mut self,
        kind: SpanKind,
        name: String,
        span_id: SpanId,
        (started, ended): (Time, Time),
        attributes: SpanAttributes,
        error: Option<SpanError>,
    ) {
        self.add(RequestSpan {
            trace_id: self.trace.trace,
            span_id,
            parent: Some(self.trace.server),
            trace_state: self.trace.trace_state.clone(),
            kind,
            name,
            started: self.wall(started),
            ended: self.wall(ended.max(started)),
            attributes: attributes.0,
            error,
        });
    }

    fn add(&mut self, span: RequestSpan) {
        self.spans.push(span);
    }
}

/// Returns the method for names of spans: clients cannot make up any number of them.
fn method(exchange: &Exchange) -> String {
    match exchange.request.method {
        RequestMethod::Other => "HTTP".to_owned(),
        RequestMethod::Get
        | RequestMethod::Head
        | RequestMethod::Post
        | RequestMethod::Put
        | RequestMethod::Delete
        | RequestMethod::Options
        | RequestMethod::Trace
        | RequestMethod::Patch
        | RequestMethod::Connect => {
            String::from_utf8_lossy(exchange.request.method_bytes()).into_owned()
        }
    }
}

fn version(protocol: EndpointProtocol) -> &'static str {
    match protocol {
        EndpointProtocol::Http1 => "1.1",
        EndpointProtocol::Http2 => "2",
        EndpointProtocol::Http3 => "3",
    }
}
