//! Collector of traces: a server of OTLP over HTTP that decodes the spans which it gets.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use prost::Message;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::http1::Http1Reader;
use crate::waiting::eventually;

/// A server that records spans; it stops when dropped.
pub struct TraceCollector {
    pub address: SocketAddr,
    received: Arc<Mutex<ReceivedTraces>>,
    accepting: AbortHandle,
}

#[derive(Default)]
struct ReceivedTraces {
    exports: Vec<ReceivedExport>,
    spans: Vec<ReceivedSpan>,
}

/// Request that brought spans.
#[derive(Clone, Debug)]
pub struct ReceivedExport {
    pub target: String,
    pub content_type: String,
    /// Attributes of the process that sent it.
    pub resource: Vec<KeyValue>,
}

/// `Span` of OTLP.
#[derive(Clone, PartialEq, Message)]
pub struct ReceivedSpan {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub status: Option<SpanStatus>,
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

/// `Status` of OTLP; code 2 is an error.
#[derive(Clone, PartialEq, Message)]
pub struct SpanStatus {
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(int32, tag = "3")]
    pub code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// `AnyValue` of OTLP, as far as spans have it.
#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    #[prost(string, optional, tag = "1")]
    pub text: Option<String>,
    #[prost(int64, optional, tag = "3")]
    pub integer: Option<i64>,
    #[prost(double, optional, tag = "4")]
    pub number: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<ProcessResource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessResource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<ReceivedSpan>,
}

impl ReceivedSpan {
    /// Roles of spans.
    pub const INTERNAL: i32 = 1;
    pub const SERVER: i32 = 2;
    pub const CLIENT: i32 = 3;

    /// Returns the text of an attribute, or its number as text.
    pub fn attribute(&self, key: &str) -> Option<String> {
        value_of(&self.attributes, key)
    }

    pub fn is_error(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.code == 2)
    }

    /// Returns `traceparent` of a request whose parent this span is.
    pub fn as_parent(&self) -> String {
        format!("00-{}-{}-01", hex(&self.trace_id), hex(&self.span_id))
    }
}

impl ReceivedExport {
    /// Returns an attribute of the process.
    pub fn resource(&self, key: &str) -> Option<String> {
        value_of(&self.resource, key)
    }
}

fn value_of(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|it| it.key == key)?.value.clone()?;
    let number = || Some(value.integer?.to_string());
    value.text.clone().or_else(number).or_else(|| Some(value.number?.to_string()))
}

/// Returns bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

impl TraceCollector {
    /// Starts a collector that accepts everything.
    pub async fn start() -> Result<Self> {
        let answer =
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
        Self::answering(answer).await
    }

    /// Starts a collector that answers each request with these bytes.
    pub async fn answering(answer: &'static str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let received = Arc::<Mutex<ReceivedTraces>>::default();
        let recorded = Arc::clone(&received);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, answer, Arc::clone(&recorded)));
            }
        });
        Ok(Self { address, received, accepting: accepting.abort_handle() })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn exports(&self) -> Vec<ReceivedExport> {
        self.received.lock().expect("no holder of the lock panics").exports.clone()
    }

    pub fn spans(&self) -> Vec<ReceivedSpan> {
        self.received.lock().expect("no holder of the lock panics").spans.clone()
    }

    /// Waits until it has got this many spans; returns all.
    pub async fn wait_for_spans(&self, count: usize) -> Result<Vec<ReceivedSpan>> {
        eventually("spans", async || Ok(self.spans()), |spans| spans.len() >= count).await
    }
}

impl Drop for TraceCollector {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl ReceivedTraces {
    fn add(&mut self, message: ExportRequest, target: String, content_type: String) {
        for group in message.resource_spans {
            let resource = group.resource.unwrap_or_default().attributes;
            let (target, content_type) = (target.clone(), content_type.clone());
            self.exports.push(ReceivedExport { target, content_type, resource });
            self.spans.extend(group.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
}

async fn serve(
    stream: TcpStream,
    answer: &'static str,
    received: Arc<Mutex<ReceivedTraces>>,
) -> Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = Http1Reader::new(reader);
    loop {
        let head = reader.head().await?;
        let body = reader.body(head.request_body()?).await?;
        let message = ExportRequest::decode(body.bytes.as_slice()).context("a message of OTLP")?;
        let target = head.target().to_owned();
        let content_type = head.field("content-type").unwrap_or_default();
        received.lock().expect("no holder of the lock panics").add(message, target, content_type);
        writer.write_all(answer.as_bytes()).await?;
    }
}
