//! Traces: spans of requests, for the endpoint's traces and for a collector.
//!
//! A sampled request has a `RequestTrace` in its filters; other requests have none. When the request is over, its spans
//! go to a batch of the worker, and from there to an exporter through a bounded channel. If the channel is full, spans
//! are dropped and counted: no request is delayed. This module does not know how spans are exported.

/// Spans and their attributes.
mod span;
/// The trace context that a request brings.
mod parent;
/// The choice of the requests that are traced.
mod sampler;
/// The record of a request that is traced.
mod request_trace;
/// The spans of a request that is over.
mod request_spans;
/// Batches of spans.
mod span_buffer;

pub use sampler::TraceSampling;
pub use span::{AttributeValue, RequestSpan, SpanError, SpanId, SpanKind, TraceId};
pub use span_buffer::{TraceExportCounts, TraceSettings};

pub(crate) use request_spans::finish;
pub(crate) use request_trace::{AttemptEnd, RequestTrace, begin, end_attempt, resume};
pub(crate) use sampler::TraceReason;
pub(crate) use span_buffer::SpanBuffer;
