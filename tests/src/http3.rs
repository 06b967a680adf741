//! HTTP/3 by the crates `quinn` and `h3`: a client of one connection, whose port may change.
//!
//! Sequences that `h3` never sends are in `RawHttp3Connection`.

use bytes::{BufMut, Bytes};
use h3::client::RequestStream;
use h3::error::StreamError;
use http::{HeaderValue, Request};

use crate::http2::Http2Body;

/// Client of one connection.
mod client;
/// Connection frame by frame.
mod raw_connection;
/// First flights of clients that send nothing more.
mod initial_flood;
/// Packets with frames of the test's choice.
mod packet_override;

pub use crate::http2::CompleteResponse;
pub use client::Http3TestClient;
pub use initial_flood::initial_datagrams;
pub use packet_override::PacketOverride;
pub use raw_connection::{RawHttp3Connection, block, code, frame};

/// Sending side of a request.
pub type Http3SendStream = RequestStream<h3_quinn::SendStream<Bytes>, Bytes>;
/// Receiving side of a response.
pub type Http3ReceiveStream = RequestStream<h3_quinn::RecvStream, Bytes>;

/// Reads the rest of a stream.
pub async fn read(stream: &mut Http3ReceiveStream) -> Result<Http2Body, StreamError> {
    let mut bytes = Vec::new();
    while let Some(piece) = stream.recv_data().await? {
        bytes.put(piece);
    }
    let trailers = stream.recv_trailers().await?.unwrap_or_default();
    Ok(Http2Body { bytes: bytes.into(), trailers })
}

/// Returns a GET of this path from the host `test`.
pub fn get(path: &str) -> Request<()> {
    Request::get(format!("https://test{path}")).body(()).expect("a path")
}

/// Like [`get`], with this priority (RFC 9218); `u=0` is the most urgent.
pub fn get_by_priority(path: &str, priority: &'static str) -> Request<()> {
    let mut request = get(path);
    request.headers_mut().insert("priority", HeaderValue::from_static(priority));
    request
}

/// Returns a POST to this path of the host `test`.
pub fn post(path: &str) -> Request<()> {
    Request::post(format!("https://test{path}")).body(()).expect("a path")
}
