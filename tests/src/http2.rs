//! HTTP/2 by the crate `h2`: a client of one connection, and a server whose behaviour is a function.
//!
//! Both leave settings and flow control to the test. What `h2` would never send is for [`frames`](crate::frames).

use bytes::Bytes;
use http::{HeaderMap, Request, Response};

/// A client of one connection.
mod client;
/// A server whose behaviour is a function.
mod endpoint;

pub use client::{CompleteResponse, Http2TestClient};
pub use endpoint::{Http2EndpointCounts, Http2EndpointOptions, Http2TestEndpoint, ReceivedRequest};

/// A whole message body, and what came after it.
#[derive(Clone, Debug, Default)]
pub struct Http2Body {
    pub bytes: Bytes,
    pub trailers: HeaderMap,
}

/// The rest of a stream; what is read is given back to flow control.
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

/// Sends all of it as flow control lets it, without ending the stream.
pub async fn send(stream: &mut h2::SendStream<Bytes>, mut bytes: Bytes) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let room = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
        let room = room.ok_or(h2::Reason::STREAM_CLOSED)??;
        stream.send_data(bytes.split_to(room.min(bytes.len())), false)?;
    }
    Ok(())
}

/// A GET of this path from the host `test`.
pub fn get(path: &str) -> Request<()> {
    Request::get(format!("http://test{path}")).body(()).expect("a path")
}

/// A POST to this path of the host `test`.
pub fn post(path: &str) -> Request<()> {
    Request::post(format!("http://test{path}")).body(()).expect("a path")
}

/// A head with this status and nothing else.
pub fn status(status: u16) -> Response<()> {
    Response::builder().status(status).body(()).expect("a status")
}
