//! HTTP/3 by the crates `quinn` and `h3`: a client of one connection, whose port may change.
//!
//! What `h3` would never send is for `Wire`.

use bytes::{BufMut, Bytes};
use h3::client::RequestStream;
use h3::error::StreamError;
use http::{HeaderValue, Request};

use crate::http2::Http2Body;

/// A client of one connection.
mod client;
/// Frame by frame.
mod raw_connection;

pub use crate::http2::CompleteResponse;
pub use client::Http3TestClient;
pub use raw_connection::{RawHttp3Connection, block, code, frame};

/// The way to send a request's body.
pub type Http3SendStream = RequestStream<h3_quinn::SendStream<Bytes>, Bytes>;
/// The way to read a response.
pub type Http3ReceiveStream = RequestStream<h3_quinn::RecvStream, Bytes>;

/// The rest of a stream.
pub async fn read(stream: &mut Http3ReceiveStream) -> Result<Http2Body, StreamError> {
    let mut bytes = Vec::new();
    while let Some(piece) = stream.recv_data().await? {
        bytes.put(piece);
    }
    let trailers = stream.recv_trailers().await?.unwrap_or_default();
    Ok(Http2Body { bytes: bytes.into(), trailers })
}

/// A GET of this path from the host `test`.
pub fn get(path: &str) -> Request<()> {
    Request::get(format!("https://test{path}")).body(()).expect("a path")
}

/// The same, as urgent as this says (RFC 9218): `u=0` before all else.
pub fn get_by_priority(path: &str, priority: &'static str) -> Request<()> {
    let mut request = get(path);
    request.headers_mut().insert("priority", HeaderValue::from_static(priority));
    request
}

/// A POST to this path of the host `test`.
pub fn post(path: &str) -> Request<()> {
    Request::post(format!("https://test{path}")).body(()).expect("a path")
}
