//! The record of a request that is traced, from its routing to its end.
//!
//! It is in the request's filters, so that a request that is not traced has no memory for it and makes no decision.

use std::net::SocketAddr;
use std::time::Duration;

use balance::Time;
use codec::head::FieldSection;
use gateway::snapshot::EndpointProtocol;

use super::parent::{self, IncomingContext};
use super::sampler::{SamplingResult, TraceReason};
use super::span::{SpanId, TraceId};
use crate::body::BodyPump;
use crate::clock;
use crate::context::{AttemptContext, RequestContext};
use crate::dial::attempt::AttemptConnection;
use crate::exchange::{Exchange, RequestPolicy};
use crate::failure::Failure;
use crate::filter::RequestFilters;
use crate::worker::Worker;

/// Maximum number of failed attempts that are recorded one by one.
const MAX_RECORDED_ATTEMPTS: usize = 16;

/// The record of one request.
pub(crate) struct RequestTrace {
    pub(super) incoming: IncomingContext,
    pub(super) trace_state: String,
    pub(super) trace: TraceId,
    /// Span of the request.
    pub(super) server: SpanId,
    /// `None`: it is traced only if it turns out to be slow, or to fail.
    pub(super) reason: Option<TraceReason>,
    /// True if endpoints get the context of the attempt's span.
    propagates: bool,
    /// The first attempts that are over.
    pub(super) ended: Vec<EndedAttempt>,
    /// Number of attempts that are over.
    pub(super) ended_attempts: u32,
    pub(super) current: CurrentAttempt,
}

/// An attempt that is over, after which the request was tried again.
pub(super) struct EndedAttempt {
    pub(super) attempt: CurrentAttempt,
    pub(super) endpoint: Option<SocketAddr>,
    pub(super) protocol: EndpointProtocol,
    /// Time that the request had spent in the queue by then, before all attempts together.
    pub(super) queued: Duration,
    pub(super) ended: Time,
    pub(super) end: AttemptEnd,
}

/// The attempt that is made, or that begins once the request has a slot.
#[derive(Clone, Copy)]
pub(super) struct CurrentAttempt {
    pub(super) span: SpanId,
    /// Time from which the request has asked for a slot.
    pub(super) asked: Time,
    /// Time that the request had spent in the queue before.
    pub(super) queued_before: Duration,
    /// The head of the response, once it has arrived.
    pub(super) head: Option<AttemptHead>,
}

/// The arrival of a response's head.
#[derive(Clone, Copy)]
pub(super) struct AttemptHead {
    /// Start of the attempt.
    pub(super) started: Time,
    pub(super) arrived: Time,
    pub(super) status: u16,
    pub(super) protocol: EndpointProtocol,
}

/// The reason for another attempt.
#[derive(Clone, Copy)]
pub(crate) enum AttemptEnd {
    Failure(Failure),
    /// A response with this status, which the client does not get.
    Discarded(u16),
}

/// Decides whether a request is traced. If it is and `propagates` is true, its endpoint gets the context of a span of
/// this proxy.
pub(crate) fn begin(
    context: &mut RequestContext<'_>,
    policy: &RequestPolicy<'_>,
    propagates: bool,
) {
    let worker = context.worker;
    let Exchange { request, filters, .. } = &mut *context.exchange;
    let Some((mut trace, reason)) = RequestTrace::sampled(worker, &request.fields, policy.ready)
    else {
        return;
    };
    (trace.reason, trace.propagates) = (Some(reason), propagates);
    if propagates {
        trace.incoming.replace(&mut request.fields, trace.trace, trace.current.span, trace.server);
    }
    let rule = &policy.config.rules[policy.route as usize];
    let filters = filters.get_or_insert_with(|| RequestFilters::without_changes(rule));
    filters.trace = Some(Box::new(trace));
}

/// Records that the request asks for a slot only now.
pub(crate) fn resume(exchange: &mut Exchange, now: Time) {
    if let Some(trace) = exchange.filters.as_mut().and_then(|filters| filters.trace.as_mut()) {
        trace.current.asked = now;
    }
}

/// Records the end of an attempt that another one follows, whose endpoint gets the context of another span.
pub(crate) fn end_attempt(context: &mut AttemptContext<'_>, end: AttemptEnd) {
    let AttemptContext { worker, exchange, record, policy, .. } = context;
    let Some(traces) = &worker.traces else { return };
    let Exchange { request, filters, upload, .. } = &mut **exchange;
    let is_recorded = filters.as_ref().is_some_and(|filters| filters.trace.is_some());
    if !is_recorded && !traces.sampler.decides_at_end() {
        return;
    }
    let rule = &policy.config.rules[policy.route as usize];
    let filters = filters.get_or_insert_with(|| RequestFilters::without_changes(rule));
    let trace = filters
        .trace
        .get_or_insert_with(|| Box::new(RequestTrace::new(worker, &request.fields, policy.ready)));
    let now = clock::now();
    let span = SpanId::random(&mut worker.rng.borrow_mut());
    let next = CurrentAttempt { span, asked: now, queued_before: record.queued, head: None };
    let attempt = std::mem::replace(&mut trace.current, next);
    trace.ended_attempts += 1;
    if trace.ended.len() < MAX_RECORDED_ATTEMPTS {
        trace.ended.push(EndedAttempt {
            attempt,
            endpoint: record.endpoint,
            protocol: policy.endpoint_protocol,
            queued: record.queued,
            ended: now,
            end,
        });
    }
    if trace.propagates {
        let spans = (attempt.span, span);
        parent::replace_span(&mut request.fields, trace.trace, spans, trace.server);
        if policy.endpoint_protocol == EndpointProtocol::Http1 {
            replace_in_head(upload, attempt.span, span);
        }
    }
}

impl RequestTrace {
    /// Returns the record of a request that was not chosen at its start.
    pub(super) fn new(worker: &Worker, fields: &FieldSection, asked: Time) -> Self {
        Self::of(worker, IncomingContext::of_request(fields), fields, asked)
    }

    /// Returns the record of a request and the reason why it is traced, if it is chosen.
    pub(super) fn sampled(
        worker: &Worker,
        fields: &FieldSection,
        now: Time,
    ) -> Option<(Self, TraceReason)> {
        let traces = worker.traces.as_ref()?;
        let incoming = IncomingContext::of_request(fields);
        // Most requests need no more than this number.
        let own = TraceId::random(&mut worker.rng.borrow_mut());
        let id = incoming.parent.map_or(own, |(trace, _)| trace);
        match traces.sampler.begin(&incoming, own, now) {
            SamplingResult::NotTraced => None,
            SamplingResult::Limited => {
                worker.counters().traces_limited.add(1);
                None
            }
            SamplingResult::Traced(reason) => {
                let trace = Self { trace: id, ..Self::of(worker, incoming, fields, now) };
                Some((trace, reason))
            }
        }
    }

    fn of(worker: &Worker, incoming: IncomingContext, fields: &FieldSection, asked: Time) -> Self {
        let mut rng = worker.rng.borrow_mut();
        let trace = incoming.parent.map(|(trace, _)| trace);
        let trace = trace.unwrap_or_else(|| TraceId::random(&mut rng));
        let (server, span) = (SpanId::random(&mut rng), SpanId::random(&mut rng));
        let trace_state = incoming.trace_state(fields);
        let current = CurrentAttempt { span, asked, queued_before: Duration::ZERO, head: None };
        Self {
            incoming,
            trace_state,
            trace,
            server,
            reason: None,
            propagates: false,
            ended: Vec::new(),
            ended_attempts: 0,
            current,
        }
    }

    /// Records the arrival of the head of the response that the client gets.
    pub(crate) fn note_head(
        &mut self,
        attempt: &AttemptConnection,
        status: u16,
        protocol: EndpointProtocol,
    ) {
        let (started, arrived) = (attempt.slot.started, clock::now());
        self.current.head = Some(AttemptHead { started, arrived, status, protocol });
    }
}

/// Replaces the ID of a span in the head of HTTP/1.1 that is kept for another attempt: it was written once.
fn replace_in_head(upload: &mut BodyPump, old: SpanId, new: SpanId) {
    let bytes = &mut upload.out;
    let end = bytes.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(0);
    let (old, new) = (old.to_string(), new.to_string());
    let mut from = 0;
    while let Some(at) = find(&bytes[from..end], old.as_bytes()) {
        let at = from + at;
        from = at + new.len();
        bytes[at..from].copy_from_slice(new.as_bytes());
    }
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|part| part == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_is_replaced_in_the_head_only() {
        let (old, new) = (SpanId([1; 8]), SpanId([2; 8]));
        let mut upload = BodyPump::for_requests();
        let text = |span| format!("POST / HTTP/1.1\r\ntraceparent: {span}\r\nb3: {span}\r\n\r\n");
        upload.out = format!("{}{old}", text(old)).into_bytes();
        replace_in_head(&mut upload, old, new);
        assert_eq!(String::from_utf8_lossy(&upload.out), format!("{}{old}", text(new)));
    }
}
