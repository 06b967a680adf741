//! Sheave and its client, of either version.

use std::future::Future;
use std::net::SocketAddr;

use anyhow::Context;
use bytes::{Buf, Bytes};
use h3::error::{Code, StreamError};
use http::{HeaderMap, Request, Response};
use serde_json::Value;
use tests::http2::{self, CompleteResponse, Http2TestClient};
use tests::http3::{self, Http3TestClient};
use tests::{Result, SheaveProcess, objects, within};

use crate::http2::Http2Fixture;
use crate::http3::Http3Fixture;

/// Sheave with one listener for a version, and the Service `app` behind it.
pub(crate) trait MultiplexedFixture: Sized {
    type Client: MultiplexedClient;

    /// Bounds of the memory that connections cost.
    const MEMORY: MemoryBounds;

    /// Starts Sheave with HTTP/1.1 endpoints.
    async fn start(endpoints: &[SocketAddr]) -> Result<Self>;

    /// Starts Sheave with HTTP/1.1 endpoints and a ClientPolicy with these fields.
    async fn start_with_policy(endpoints: &[SocketAddr], fields: Value) -> Result<Self>;

    /// Starts Sheave with HTTP/2 endpoints.
    async fn start_with_http2_endpoints(endpoints: &[SocketAddr]) -> Result<Self>;

    async fn connect(&self) -> Result<Self::Client>;

    fn sheave(&self) -> &SheaveProcess;

    fn sheave_mut(&mut self) -> &mut SheaveProcess;
}

/// Memory that the connections of a version may cost.
pub(crate) struct MemoryBounds {
    /// Length of the response that a slow client reads.
    pub(crate) response: u64,
    /// Memory that this response may cost while it passes: windows and buffers of a megabyte each,
    /// and memory kept by the allocator.
    pub(crate) growth: u64,
    /// Number of idle connections.
    pub(crate) connections: usize,
    /// Memory that each of them may cost after it has served requests, which allocate its buffers.
    pub(crate) each: u64,
}

/// Client of one connection that carries many requests.
pub(crate) trait MultiplexedClient: Send + Sync + 'static {
    /// Name of the version, as metrics and pages write it.
    const NAME: &'static str;
    /// Field of a ClientPolicy with the settings of this version.
    const SETTINGS: &'static str;
    const SCHEME: &'static str;
    /// The field `Via` that a request of this version gets.
    const VIA: &'static str;

    /// Sending side of a request.
    type SendStream: Send;
    /// Response of which nothing has been read.
    type PendingResponse: Send;
    /// Response after its head.
    type ResponseBody: Send;

    fn exchange(
        &self,
        request: Request<()>,
        body: Bytes,
    ) -> impl Future<Output = Result<CompleteResponse>> + Send;

    /// Sends the head of a request; its body follows.
    fn begin(
        &self,
        head: Request<()>,
    ) -> impl Future<Output = Result<(Self::SendStream, Self::PendingResponse)>> + Send;

    /// Sends a whole GET.
    fn begin_get(&self) -> impl Future<Output = Result<Self::PendingResponse>> + Send;

    /// Sends a GET and reads its response; `None` if the server is closing the connection and has
    /// not processed the request.
    fn get_unless_closing(&self) -> impl Future<Output = Result<Option<CompleteResponse>>> + Send;

    /// Sends a part of a body.
    fn send(
        sending: &mut Self::SendStream,
        bytes: &'static [u8],
    ) -> impl Future<Output = Result> + Send;

    /// Ends a request, perhaps with trailers.
    fn end(
        sending: Self::SendStream,
        trailers: Option<HeaderMap>,
    ) -> impl Future<Output = Result> + Send;

    /// Waits for an interim response.
    fn interim(
        response: &mut Self::PendingResponse,
    ) -> impl Future<Output = Result<Response<()>>> + Send;

    /// Reads the complete response.
    fn response(
        response: Self::PendingResponse,
    ) -> impl Future<Output = Result<CompleteResponse>> + Send;

    /// Reads the head of a response, whose status must be 200.
    fn head(
        response: Self::PendingResponse,
    ) -> impl Future<Output = Result<Self::ResponseBody>> + Send;

    /// Reads a part of the body, and releases its flow-control window. Returns its length; `None`
    /// at the end.
    fn read(body: &mut Self::ResponseBody) -> impl Future<Output = Result<Option<u64>>> + Send;

    /// Returns a request to the host `test`.
    fn request(method: &str, path: &str) -> Request<()> {
        let uri = format!("{}://test{path}", Self::SCHEME);
        Request::builder().method(method).uri(uri).body(()).expect("a method and a path")
    }

    fn get(&self, path: &str) -> impl Future<Output = Result<CompleteResponse>> + Send {
        self.exchange(Self::request("GET", path), Bytes::new())
    }

    fn post(
        &self,
        path: &str,
        body: impl Into<Bytes>,
    ) -> impl Future<Output = Result<CompleteResponse>> + Send {
        self.exchange(Self::request("POST", path), body.into())
    }
}

impl MultiplexedFixture for Http2Fixture {
    type Client = Http2TestClient;

    const MEMORY: MemoryBounds =
        MemoryBounds { response: 1 << 30, growth: 16 << 20, connections: 1000, each: 64 << 10 };

    async fn start(endpoints: &[SocketAddr]) -> Result<Self> {
        Self::of(endpoints, &[]).await
    }

    async fn start_with_policy(endpoints: &[SocketAddr], fields: Value) -> Result<Self> {
        Self::of(endpoints, &[objects::client_policy(fields)]).await
    }

    async fn start_with_http2_endpoints(endpoints: &[SocketAddr]) -> Result<Self> {
        Self::of_http2(endpoints, &[]).await
    }

    async fn connect(&self) -> Result<Http2TestClient> {
        self.client().await
    }

    fn sheave(&self) -> &SheaveProcess {
        &self.sheave
    }

    fn sheave_mut(&mut self) -> &mut SheaveProcess {
        &mut self.sheave
    }
}

impl MultiplexedClient for Http2TestClient {
    const NAME: &'static str = "HTTP/2";
    const SETTINGS: &'static str = "http2";
    const SCHEME: &'static str = "http";
    const VIA: &'static str = "2 sheave";

    type SendStream = h2::SendStream<Bytes>;
    type PendingResponse = h2::client::ResponseFuture;
    type ResponseBody = h2::RecvStream;

    async fn exchange(&self, request: Request<()>, body: Bytes) -> Result<CompleteResponse> {
        self.exchange(request, body).await
    }

    async fn begin(&self, head: Request<()>) -> Result<(Self::SendStream, Self::PendingResponse)> {
        let (response, sending) = self.send_request(head, false).await?;
        Ok((sending, response))
    }

    async fn begin_get(&self) -> Result<Self::PendingResponse> {
        Ok(self.send_request(http2::get("/"), true).await?.0)
    }

    async fn get_unless_closing(&self) -> Result<Option<CompleteResponse>> {
        let (response, _) = match self.send_request(http2::get("/"), true).await {
            Ok(begun) => begun,
            Err(error) if error.is_go_away() || error.is_io() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        match within("an answer", Self::response(response)).await? {
            Ok(response) => Ok(Some(response)),
            // The request was not processed at all, so a client may send it elsewhere.
            Err(error) if error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn send(sending: &mut Self::SendStream, bytes: &'static [u8]) -> Result {
        Ok(http2::send(sending, Bytes::from_static(bytes)).await?)
    }

    async fn end(mut sending: Self::SendStream, trailers: Option<HeaderMap>) -> Result {
        match trailers {
            Some(trailers) => sending.send_trailers(trailers)?,
            None => sending.send_data(Bytes::new(), true)?,
        }
        Ok(())
    }

    async fn interim(response: &mut Self::PendingResponse) -> Result<Response<()>> {
        let interim = std::future::poll_fn(|context| response.poll_informational(context));
        Ok(interim.await.context("no interim response")??)
    }

    async fn response(response: Self::PendingResponse) -> Result<CompleteResponse> {
        Ok(Self::response(response).await?)
    }

    async fn head(response: Self::PendingResponse) -> Result<Self::ResponseBody> {
        let response = response.await?;
        anyhow::ensure!(response.status() == 200, "{response:?}");
        Ok(response.into_body())
    }

    async fn read(body: &mut Self::ResponseBody) -> Result<Option<u64>> {
        let Some(piece) = body.data().await.transpose()? else { return Ok(None) };
        body.flow_control().release_capacity(piece.len())?;
        Ok(Some(piece.len() as u64))
    }
}

impl MultiplexedFixture for Http3Fixture {
    type Client = Http3TestClient;

    /// Most of the memory of an idle connection is QUIC's state.
    const MEMORY: MemoryBounds =
        MemoryBounds { response: 256 << 20, growth: 24 << 20, connections: 300, each: 160 << 10 };

    async fn start(endpoints: &[SocketAddr]) -> Result<Self> {
        Self::of(endpoints).await
    }

    async fn start_with_policy(endpoints: &[SocketAddr], fields: Value) -> Result<Self> {
        Self::with_client_policy(endpoints, fields).await
    }

    async fn start_with_http2_endpoints(endpoints: &[SocketAddr]) -> Result<Self> {
        Self::of_http2(endpoints).await
    }

    async fn connect(&self) -> Result<Http3TestClient> {
        self.client().await
    }

    fn sheave(&self) -> &SheaveProcess {
        &self.sheave
    }

    fn sheave_mut(&mut self) -> &mut SheaveProcess {
        &mut self.sheave
    }
}

impl MultiplexedClient for Http3TestClient {
    const NAME: &'static str = "HTTP/3";
    const SETTINGS: &'static str = "http3";
    const SCHEME: &'static str = "https";
    const VIA: &'static str = "3 sheave";

    type SendStream = http3::Http3SendStream;
    type PendingResponse = http3::Http3ReceiveStream;
    type ResponseBody = http3::Http3ReceiveStream;

    async fn exchange(&self, request: Request<()>, body: Bytes) -> Result<CompleteResponse> {
        self.exchange(request, body).await
    }

    async fn begin(&self, head: Request<()>) -> Result<(Self::SendStream, Self::PendingResponse)> {
        Ok(self.send_request(head).await?)
    }

    async fn begin_get(&self) -> Result<Self::PendingResponse> {
        let (mut sending, receiving) = self.send_request(http3::get("/")).await?;
        sending.finish().await?;
        Ok(receiving)
    }

    async fn get_unless_closing(&self) -> Result<Option<CompleteResponse>> {
        let (mut sending, receiving) = match self.send_request(http3::get("/")).await {
            Ok(begun) => begun,
            Err(StreamError::RemoteClosing { .. }) => return Ok(None),
            Err(error) if error.is_h3_no_error() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // If the request is rejected, reading the response gives the error.
        drop(sending.finish().await);
        match within("an answer", Self::response(receiving)).await? {
            Ok(response) => Ok(Some(response)),
            // The request was not processed at all, so a client may send it elsewhere.
            Err(StreamError::RemoteTerminate { code: Code::H3_REQUEST_REJECTED, .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn send(sending: &mut Self::SendStream, bytes: &'static [u8]) -> Result {
        Ok(sending.send_data(Bytes::from_static(bytes)).await?)
    }

    async fn end(mut sending: Self::SendStream, trailers: Option<HeaderMap>) -> Result {
        if let Some(trailers) = trailers {
            sending.send_trailers(trailers).await?;
        }
        Ok(sending.finish().await?)
    }

    async fn interim(response: &mut Self::PendingResponse) -> Result<Response<()>> {
        Ok(response.recv_response().await?)
    }

    async fn response(response: Self::PendingResponse) -> Result<CompleteResponse> {
        Ok(Self::response(response).await?)
    }

    async fn head(mut response: Self::PendingResponse) -> Result<Self::ResponseBody> {
        let head = response.recv_response().await?;
        anyhow::ensure!(head.status() == 200, "{head:?}");
        Ok(response)
    }

    async fn read(body: &mut Self::ResponseBody) -> Result<Option<u64>> {
        Ok(body.recv_data().await?.map(|piece| piece.remaining() as u64))
    }
}
