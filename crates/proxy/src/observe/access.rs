//! The record of one request, and its line in the access log.
//!
//! Each line is one JSON object; the keys follow OpenTelemetry's semantic conventions for HTTP. Each worker batches its
//! lines and hands them to one writer thread. If that thread is too slow, lines are dropped and counted: no request is
//! delayed.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use balance::Time;
use codec::head::{HttpVersion, KnownFieldName, RequestHead, RequestMethod};

use crate::accept::client::ClientConnection;
use crate::active_config::{ActiveListener, Route, WorkerConfig};
use crate::backend::{BackendRef, Slot};
use crate::clock;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::grpc::GrpcCall;
use crate::observe::json_line::JsonLine;
use crate::observe::{AttributeSink, RouteCounters, sampled_trace};
use crate::trace;
use crate::worker::Worker;

/// The record of one request, complete when the request is over.
pub(crate) struct AccessRecord {
    pub(crate) started: Time,
    /// Time at which the last byte of the answer was written.
    pub(crate) ended: Option<Time>,
    pub(crate) config: Option<Rc<WorkerConfig>>,
    pub(crate) rule: Option<usize>,
    pub(crate) backend: Option<BackendRef>,
    pub(crate) failure: Option<Failure>,
    /// 0: no response has been sent.
    pub(crate) status: u16,
    /// Place in the queue, counted from 1, when the request began to wait; 0: it did not wait.
    pub(crate) queue_position: u32,
    /// True if the call counts as a long stream.
    pub(crate) is_long: bool,
    pub(crate) endpoint: Option<std::net::SocketAddr>,
    pub(crate) attempts: u32,
    /// Time in the queue, before all attempts together.
    pub(crate) queued: Duration,
}

impl AccessRecord {
    pub(crate) fn new(started: Time) -> Self {
        Self {
            started,
            ended: None,
            config: None,
            rule: None,
            backend: None,
            failure: None,
            status: 0,
            queue_position: 0,
            is_long: false,
            endpoint: None,
            attempts: 0,
            queued: Duration::ZERO,
        }
    }

    /// Records the start of another attempt.
    pub(crate) fn attempt(&mut self, slot: &Slot) {
        self.attempts += 1;
        self.endpoint = Some(slot.endpoint.address);
    }

    /// Adds the time that the request has spent in the queue.
    pub(crate) fn add_queue_time(&mut self, worker: &Worker, backend: &BackendRef, wait: Duration) {
        self.queued += wait;
        backend.counters[worker.index].queued.add(wait);
    }

    /// Counts the call as a long stream, as long as it lasts.
    pub(crate) fn mark_long_stream(&mut self, worker: &Worker) {
        self.is_long = true;
        if let Some(route) = self.route() {
            route.counters[worker.index].streams.add(1);
        }
    }

    /// Counts the request, and logs it if it is sampled.
    pub(crate) fn close(&self, worker: &Worker, client: &ClientConnection, exchange: &Exchange) {
        let duration = self.duration(client);
        if let Some(route) = self.route() {
            let counters = &route.counters[worker.index];
            counters.responses[usize::from(self.status / 100).min(5)].add(1);
            if let Some(call) = &exchange.grpc_call {
                counters.calls[usize::from(call.code(self.failure).number())].add(1);
            }
            if self.is_long {
                counters.streams_ended.add(1);
            } else {
                let bucket = counters.duration.add(duration);
                if worker.shared.exemplars {
                    keep_exemplar(counters, bucket, duration, &exchange.request);
                }
            }
        }
        if let Some(failure) = self.failure {
            worker.counters().failures[failure.index()].add(1);
            if let (Some(backend), Some(refusal)) = (&self.backend, failure.refusal_index()) {
                backend.counters[worker.index].refused[refusal].add(1);
                if let Some(route) = self.route() {
                    route.counters[worker.index].refused.add(1);
                }
            }
        }
        let listener = &client.bound.counters[worker.index];
        listener.received_bytes.add(exchange.upload.body_bytes);
        listener.sent_bytes.add(exchange.download.body_bytes);
        if worker.records_requests {
            self.write(worker, client, exchange);
        }
    }

    /// Logs the request, and records its trace, if it is sampled.
    #[inline(never)]
    fn write(&self, worker: &Worker, client: &ClientConnection, exchange: &Exchange) {
        if worker.access_log.should_log(&mut worker.rng.borrow_mut()) {
            let describe = |line: &mut JsonLine<'_>| {
                line.plain("timestamp", humantime::format_rfc3339_micros(clock::wall()));
                line.seconds("duration_seconds", self.duration(client).as_secs_f64());
                self.describe(line, worker, client, exchange);
            };
            worker.access_log.write(describe, worker.counters());
        }
        trace::finish(self, worker, client, exchange);
    }

    /// Returns the time from the request's arrival to the end of its response.
    fn duration(&self, client: &ClientConnection) -> Duration {
        client.last_event_at.saturating_since(self.started)
    }

    pub(crate) fn route(&self) -> Option<&Route> {
        self.config.as_ref()?.routes.get(self.rule?).map(Arc::as_ref)
    }

    /// Describes the request; the keys follow OpenTelemetry's semantic conventions for HTTP.
    pub(crate) fn describe(
        &self,
        line: &mut impl AttributeSink,
        worker: &Worker,
        client: &ClientConnection,
        exchange: &Exchange,
    ) {
        let active_config = worker.config();
        let listener = client.listener(&active_config);
        let request = &exchange.request;
        describe_client(line, client, listener, request);
        if !request.method_bytes().is_empty() {
            line.plain("url.scheme", client.origin.scheme.text());
            describe_request(line, request);
        }
        if let Some(call) = &exchange.grpc_call {
            describe_call(line, request, call, self.failure);
        }
        line.integer("http.request.body.size", exchange.upload.body_bytes);
        line.integer("http.response.status_code", self.status);
        line.integer("http.response.body.size", exchange.download.body_bytes);
        if let Some(failure) = self.failure {
            line.plain("error.type", failure.attributes().label);
            if let Failure::InvalidToken(fault) = failure {
                line.plain("sheave.token.fault", fault.label());
            }
        }
        if let Some(listener) = listener {
            line.text("sheave.listener", listener.name.as_bytes());
        }
        if let Some(route) = self.route() {
            line.text("sheave.route", route.name.as_bytes());
        }
        if let Some(backend) = &self.backend {
            line.text("sheave.backend", backend.name.as_bytes());
        }
        if let Some(endpoint) = self.endpoint {
            line.plain("sheave.endpoint", endpoint);
            line.integer("sheave.attempts", self.attempts);
        }
        line.seconds("sheave.queue_seconds", self.queued.as_secs_f64());
        if self.queue_position > 0 {
            line.integer("sheave.queue_position", self.queue_position);
        }
    }
}

/// Keeps the request's trace as the exemplar of the bucket into which its duration falls.
fn keep_exemplar(
    counters: &RouteCounters,
    bucket: usize,
    duration: Duration,
    request: &RequestHead,
) {
    let trace = request.fields.get("traceparent").and_then(sampled_trace);
    if let Some(trace) = trace {
        counters.exemplars.keep(bucket, trace, duration.as_secs_f64(), clock::wall());
    }
}

/// Writes the client's address, as trusted proxies report it, and the peer's.
fn describe_client(
    line: &mut impl AttributeSink,
    client: &ClientConnection,
    listener: Option<&ActiveListener>,
    request: &RequestHead,
) {
    let named = listener.and_then(|it| client.origin.named_client(&request.fields, &it.client));
    match named {
        Some(address) => line.plain("client.address", address),
        None => {
            line.plain("client.address", client.origin.address_text());
            line.integer("client.port", client.peer.port());
        }
    }
    line.plain("network.peer.address", client.current_peer.ip().to_canonical());
    line.integer("network.peer.port", client.current_peer.port());
    if let Some(version) = client.tls_info.as_ref().and_then(|tls_info| tls_info.version) {
        line.plain("tls.protocol.version", version);
    }
}

/// Writes the method, the URL and the protocol.
fn describe_request(line: &mut impl AttributeSink, request: &RequestHead) {
    match request.method {
        RequestMethod::Other => {
            line.plain("http.request.method", "_OTHER");
            line.text("http.request.method_original", request.method_bytes());
        }
        RequestMethod::Get
        | RequestMethod::Head
        | RequestMethod::Post
        | RequestMethod::Put
        | RequestMethod::Delete
        | RequestMethod::Options
        | RequestMethod::Trace
        | RequestMethod::Patch
        | RequestMethod::Connect => line.text("http.request.method", request.method_bytes()),
    }
    line.text("server.address", request.host());
    let port = request.authority().get(request.host().len() + 1..);
    if let Some(port) = port.and_then(|port| str::from_utf8(port).ok()?.parse::<u16>().ok()) {
        line.integer("server.port", port);
    }
    let mut target = request.original_target().splitn(2, |byte| *byte == b'?');
    line.text("url.path", target.next().unwrap_or_default());
    if let Some(query) = target.next().filter(|query| !query.is_empty()) {
        line.text("url.query", query);
    }
    line.plain("network.protocol.name", "http");
    line.plain("network.protocol.version", version(request.version));
    if let Some(agent) = request.fields.get("user-agent") {
        line.text("user_agent.original", agent);
    }
    if request.fields.has(KnownFieldName::XRequestId) {
        let ids = request.fields.values(KnownFieldName::XRequestId);
        line.texts("http.request.header.x-request-id", ids);
    }
}

/// Writes the gRPC service, method and status; the path of a call is `/service/method`.
fn describe_call(
    line: &mut impl AttributeSink,
    request: &RequestHead,
    call: &GrpcCall,
    failure: Option<Failure>,
) {
    line.plain("rpc.system", "grpc");
    let mut parts = request.path().splitn(3, |byte| *byte == b'/').skip(1);
    if let (Some(service), Some(method)) = (parts.next(), parts.next()) {
        line.text("rpc.service", service);
        line.text("rpc.method", method);
    }
    line.integer("rpc.grpc.status_code", call.code(failure).number());
}

fn version(version: HttpVersion) -> &'static str {
    match version {
        HttpVersion::Http10 => "1.0",
        HttpVersion::Http11 => "1.1",
        HttpVersion::Http2 => "2",
        HttpVersion::Http3 => "3",
    }
}
