//! gRPC over HTTP/2, as far as the tests need it: length-prefixed messages, and a status in the
//! trailers.

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request};

use crate::http2::{CompleteResponse, Http2TestClient, ReceivedRequest, post, status};

pub const OK: u32 = 0;
pub const CANCELLED: u32 = 1;
pub const UNKNOWN: u32 = 2;
pub const DEADLINE_EXCEEDED: u32 = 4;
pub const PERMISSION_DENIED: u32 = 7;
pub const RESOURCE_EXHAUSTED: u32 = 8;
pub const UNIMPLEMENTED: u32 = 12;
pub const UNAVAILABLE: u32 = 14;
pub const UNAUTHENTICATED: u32 = 16;

/// Result of a call.
#[derive(Clone, Debug)]
pub struct GrpcReply {
    pub exchange: CompleteResponse,
    pub code: u32,
    pub messages: Vec<Bytes>,
    /// True if the status arrived in the head: there is no body and there are no trailers.
    pub trailers_only: bool,
}

/// Returns a length-prefixed message.
pub fn message(content: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(content.len() + 5);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(content.len()).expect("a test's message is small"));
    bytes.put_slice(content);
    bytes.freeze()
}

/// Returns the messages in a body.
pub fn messages(mut body: Bytes) -> Result<Vec<Bytes>> {
    let mut messages = Vec::new();
    while !body.is_empty() {
        ensure!(body.len() >= 5 && body[0] == 0, "the head of a message: {body:?}");
        body.advance(1);
        let length = body.get_u32() as usize;
        ensure!(body.len() >= length, "a whole message of {length}: {body:?}");
        messages.push(body.split_to(length));
    }
    Ok(messages)
}

/// Returns the head of a call: `/package.Service/Method`.
pub fn head(path: &str) -> Request<()> {
    let mut request = post(path);
    let fields = request.headers_mut();
    fields.insert("content-type", HeaderValue::from_static("application/grpc"));
    fields.insert("te", HeaderValue::from_static("trailers"));
    request
}

impl Http2TestClient {
    /// Calls a method with one message.
    pub async fn call(&self, path: &str, content: &[u8]) -> Result<GrpcReply> {
        self.call_with(head(path), content).await
    }

    /// Like [`Http2TestClient::call`], with this head.
    pub async fn call_with(&self, head: Request<()>, content: &[u8]) -> Result<GrpcReply> {
        GrpcReply::from_response(self.exchange(head, message(content)).await?)
    }
}

impl GrpcReply {
    pub fn from_response(exchange: CompleteResponse) -> Result<Self> {
        ensure!(exchange.status() == 200, "every answer to a call is 200: {exchange:?}");
        let trailers_only = exchange.trailers.is_empty();
        let code = exchange.trailer("grpc-status").or_else(|| exchange.field("grpc-status"));
        let code = code.with_context(|| format!("a status: {exchange:?}"))?.parse()?;
        Ok(Self { messages: messages(exchange.body.clone())?, exchange, code, trailers_only })
    }

    /// Returns the value of the field or trailer with this name.
    pub fn metadata_value(&self, name: &str) -> Option<&str> {
        self.exchange.trailer(name).or_else(|| self.exchange.field(name))
    }
}

/// Returns the trailers of a call with this status.
pub fn trailers(code: u32) -> HeaderMap {
    HeaderMap::from_iter([("grpc-status".parse().expect("a name"), code.into())])
}

impl ReceivedRequest {
    /// Answers with one message and the status OK.
    pub async fn reply(self, content: &[u8]) -> Result<(), h2::Error> {
        let mut head = status(200);
        head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        self.answer_with(head, message(content), trailers(OK)).await
    }

    /// Answers without a message, with this status in the only head (trailers-only).
    pub async fn fail(self, code: u32) -> Result<(), h2::Error> {
        let mut head = status(200);
        head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        head.headers_mut().insert("grpc-status", code.into());
        self.end_with(head)
    }
}
