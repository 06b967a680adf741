//! HTTP/2 by the crate `h2`: a client of one connection, and a server whose behaviour is a
//! function.
//!
//! Both leave settings and flow control to the test. Sequences that `h2` never sends are in
//! [`frames`](crate::frames).

use bytes::Bytes;
use http::{HeaderMap, Request, Response};

/// Client of one connection.
mod client;
/// Server whose behaviour is a function.
mod endpoint;

pub use client::{CompleteResponse, Http2TestClient};
pub use endpoint::{Http2EndpointCounts, Http2EndpointOptions, Http2TestEndpoint, ReceivedRequest};

/// Complete message body, with its trailers.
#[derive(Clone, Debug, Default)]
pub struct Http2Body {
    pub bytes: Bytes,
    pub trailers: HeaderMap,
}

/// Reads the rest of a stream, and releases its flow-control window.
pub async fn read(stream: &mut h2::RecvStream) -> Result<Http2Body, h2::Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = stream.data().await {
        let piece = piece?;
        stream.flow_control().release_capacity(piece.len())?;
        bytes.extend_from_slice(&piece);
    }
    let trailers = stream.trailers().await?.unwrap_or_default();
    Ok(Http2Body { bytes: bytes.into(), trailers })
}

/// Sends all bytes as flow control allows, without ending the stream.
pub async fn send(stream: &mut h2::SendStream<Bytes>, mut bytes: Bytes) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let capacity = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
        let capacity = capacity.ok_or(h2::Reason::STREAM_CLOSED)??;
        stream.send_data(bytes.split_to(capacity.min(bytes.len())), false)?;
    }
    Ok(())
}

/// Returns a GET of this path from the host `test`.
pub fn get(path: &str) -> Request<()> {
    Request::get(format!("http://test{path}")).body(()).expect("a path")
}

/// Returns a POST to this path of the host `test`.
pub fn post(path: &str) -> Request<()> {
    Request::post(format!("http://test{path}")).body(()).expect("a path")
}

/// Returns a head with this status and no fields.
pub fn status(status: u16) -> Response<()> {
    Response::builder().status(status).body(()).expect("a status")
}
