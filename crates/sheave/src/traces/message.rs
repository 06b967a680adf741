//! Messages of OTLP for traces, as far as they are used, with the numbers of the `.proto` files of `opentelemetry-proto`.
//! Members of a oneof are optional fields.

use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use proxy::trace::{AttributeValue, RequestSpan, SpanKind};

/// Flag of a trace that is sampled.
const SAMPLED: u32 = 1;
/// Flag of a span of which it is known whether its parent is in another process.
const KNOWS_REMOTE: u32 = 0x100;
/// Flag of a span whose parent is in another process.
const IS_REMOTE: u32 = 0x200;
const STATUS_ERROR: i32 = 2;

/// `ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

/// `ExportTraceServiceResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<ProcessResource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

/// `Resource`.
#[derive(Clone, PartialEq, Message)]
struct ProcessResource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<SpanMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct InstrumentationScope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

/// `Span`.
#[derive(Clone, PartialEq, Message)]
struct SpanMessage {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<SpanStatus>,
}

/// `Status`.
#[derive(Clone, PartialEq, Message)]
struct SpanStatus {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    string_value: Option<String>,
    #[prost(int64, optional, tag = "3")]
    int_value: Option<i64>,
    #[prost(double, optional, tag = "4")]
    double_value: Option<f64>,
    #[prost(message, optional, tag = "5")]
    array_value: Option<ArrayValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ArrayValue {
    #[prost(message, repeated, tag = "1")]
    values: Vec<AnyValue>,
}

impl ExportRequest {
    /// Returns a message with these spans of this process.
    pub(super) fn new(resource: &[(String, String)], spans: Vec<RequestSpan>) -> Self {
        let attributes = resource.iter().map(|(key, value)| KeyValue {
            key: key.clone(),
            value: Some(AnyValue::text(value.clone())),
        });
        let scope = InstrumentationScope {
            name: "sheave".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let spans = spans.into_iter().map(SpanMessage::from).collect();
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        let resource = Some(ProcessResource { attributes: attributes.collect() });
        Self { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
    }
}

impl ExportResponse {
    /// Returns the number of spans that the collector rejected; 0 if the answer cannot be read: it was a success.
    pub(super) fn rejected(body: &[u8]) -> u64 {
        let partial = Self::decode(body).ok().and_then(|response| response.partial_success);
        partial.map_or(0, |partial| partial.rejected_spans.max(0).unsigned_abs())
    }
}

impl From<RequestSpan> for SpanMessage {
    fn from(span: RequestSpan) -> Self {
        let (kind, is_remote) = match span.kind {
            SpanKind::Internal => (1, 0),
            SpanKind::Server => (2, if span.parent.is_some() { IS_REMOTE } else { 0 }),
            SpanKind::Client => (3, 0),
        };
        let attributes = span
            .attributes
            .into_iter()
            .map(|(key, value)| KeyValue { key: key.to_owned(), value: Some(value.into()) });
        Self {
            trace_id: span.trace_id.0.to_vec(),
            span_id: span.span_id.0.to_vec(),
            trace_state: span.trace_state,
            parent_span_id: span.parent.map(|parent| parent.0.to_vec()).unwrap_or_default(),
            flags: SAMPLED | KNOWS_REMOTE | is_remote,
            name: span.name,
            kind,
            start_time_unix_nano: unix_nanos(span.started),
            end_time_unix_nano: unix_nanos(span.ended),
            attributes: attributes.collect(),
            status: span
                .error
                .map(|error| SpanStatus { message: error.0.to_owned(), code: STATUS_ERROR }),
        }
    }
}

impl AnyValue {
    fn text(text: String) -> Self {
        Self { string_value: Some(text), ..Self::default() }
    }
}

impl From<AttributeValue> for AnyValue {
    fn from(value: AttributeValue) -> Self {
        match value {
            AttributeValue::Text(text) => Self::text(text),
            AttributeValue::Texts(texts) => {
                let values = texts.into_iter().map(Self::text).collect();
                Self { array_value: Some(ArrayValue { values }), ..Self::default() }
            }
            AttributeValue::Integer(number) => {
                let number = i64::try_from(number).unwrap_or(i64::MAX);
                Self { int_value: Some(number), ..Self::default() }
            }
            AttributeValue::Number(number) => {
                Self { double_value: Some(number), ..Self::default() }
            }
        }
    }
}

fn unix_nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_spans_are_read_from_an_answer() {
        let partial = PartialSuccess { rejected_spans: 3 };
        let response = ExportResponse { partial_success: Some(partial) };
        assert_eq!(ExportResponse::rejected(&response.encode_to_vec()), 3);
        for no_message in [&b""[..], b"garbage", b"{}"] {
            assert_eq!(ExportResponse::rejected(no_message), 0);
        }
    }
}
