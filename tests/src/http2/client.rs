//! Client of one connection.

use std::future::poll_fn;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{PingPong, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{Http2Body, get, post, read, send};
use crate::tls::TlsClientOptions;
use crate::waiting::within;

/// One connection, with any number of concurrent requests; it is closed when dropped.
pub struct Http2TestClient {
    requests: SendRequest<Bytes>,
    pub pings: PingPong,
    driver: JoinHandle<Result<(), h2::Error>>,
}

/// Complete response.
#[derive(Clone, Debug)]
pub struct CompleteResponse {
    /// The 1xx responses that came before it.
    pub informational: Vec<Response<()>>,
    pub head: Response<()>,
    pub body: Bytes,
    pub trailers: HeaderMap,
}

impl Http2TestClient {
    /// Connects without TLS, with prior knowledge.
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        Self::connect_with(address, &Builder::new()).await
    }

    /// Like [`Http2TestClient::connect`], with these settings.
    pub async fn connect_with(address: SocketAddr, settings: &Builder) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Self::over(stream, settings).await
    }

    /// Connects over TLS, to the host `test`.
    pub async fn connect_tls(address: SocketAddr, options: &TlsClientOptions) -> Result<Self> {
        let stream = options.clone().with_alpn(&["h2"]).connect(address, "test").await?;
        Self::over(stream, &Builder::new()).await
    }

    /// Starts a connection over any stream.
    pub async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        settings: &Builder,
    ) -> Result<Self> {
        let (requests, mut connection) = settings.handshake(stream).await?;
        let pings = connection.ping_pong().context("it was not taken before")?;
        Ok(Self { requests, pings, driver: tokio::spawn(connection) })
    }

    pub async fn get(&self, path: &str) -> Result<CompleteResponse> {
        self.exchange(get(path), Bytes::new()).await
    }

    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Result<CompleteResponse> {
        self.exchange(post(path), body.into()).await
    }

    /// Sends a request and reads its response, which may begin before the request has ended.
    pub async fn exchange(&self, request: Request<()>, body: Bytes) -> Result<CompleteResponse> {
        let exchange = async {
            let (response, mut send_stream) = self.send_request(request, body.is_empty()).await?;
            let sent = async {
                if !body.is_empty() {
                    send(&mut send_stream, body).await?;
                    send_stream.send_data(Bytes::new(), true)?;
                }
                Ok(())
            };
            // A server that has answered may reset the request before its end.
            let (_sent, response): (Result<(), h2::Error>, _) =
                tokio::join!(sent, Self::response(response));
            Ok(response?)
        };
        within("an exchange", exchange).await?
    }

    /// Sends the head of a request, as soon as the server allows another stream.
    pub async fn send_request(
        &self,
        request: Request<()>,
        ends: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let mut requests = self.requests.clone().ready().await?;
        requests.send_request(request, ends)
    }

    /// Reads the complete response.
    pub async fn response(mut response: ResponseFuture) -> Result<CompleteResponse, h2::Error> {
        let mut informational = Vec::new();
        while let Some(head) = poll_fn(|context| response.poll_informational(context)).await {
            informational.push(head?);
        }
        let (head, mut stream) = response.await?.into_parts();
        let Http2Body { bytes: body, trailers } = read(&mut stream).await?;
        Ok(CompleteResponse { informational, head: Response::from_parts(head, ()), body, trailers })
    }

    /// Returns the number of concurrent streams that the server allows, as far as its settings are
    /// known.
    pub fn max_concurrent_streams(&self) -> usize {
        self.requests.current_max_send_streams()
    }

    /// True if the server supports extended CONNECT (RFC 8441), once its settings have arrived.
    pub fn supports_extended_connect(&self) -> bool {
        self.requests.is_extended_connect_protocol_enabled()
    }

    /// Waits for the end of the connection, and returns h2's result.
    pub async fn wait_for_close(mut self) -> Result<Result<(), h2::Error>> {
        Ok(within("the end of the connection", &mut self.driver).await??)
    }
}

impl Drop for Http2TestClient {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl CompleteResponse {
    pub fn status(&self) -> u16 {
        self.head.status().as_u16()
    }

    /// Returns the value of the field with this name, if it is text.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.headers().get(name)?.to_str().ok()
    }

    /// Returns the value of the trailer with this name, if it is text.
    pub fn trailer(&self, name: &str) -> Option<&str> {
        self.trailers.get(name)?.to_str().ok()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}
