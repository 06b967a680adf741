//! Client of one connection.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use bytes::Bytes;
use h3::client::SendRequest;
use h3::error::{ConnectionError, StreamError};
use h3_quinn::OpenStreams;
use http::{Request, Response};
use quinn::Endpoint;
use tokio::task::JoinHandle;

use super::{CompleteResponse, Http3ReceiveStream, Http3SendStream, get, post, read};
use crate::http2::Http2Body;
use crate::tls::TlsClientOptions;
use crate::waiting::within;

/// One connection, with any number of concurrent requests; it is closed when dropped.
pub struct Http3TestClient {
    pub connection: quinn::Connection,
    endpoint: Endpoint,
    requests: SendRequest<OpenStreams, Bytes>,
    driver: JoinHandle<ConnectionError>,
}

impl Http3TestClient {
    /// Connects to the host `test`.
    pub async fn connect(address: SocketAddr, options: &TlsClientOptions) -> Result<Self> {
        Self::connect_with(address, options.quic_config()?).await
    }

    /// Like [`Http3TestClient::connect`], with this QUIC configuration.
    pub async fn connect_with(address: SocketAddr, config: quinn::ClientConfig) -> Result<Self> {
        let (endpoint, connecting) = begin_connection(address, config)?;
        Self::over(endpoint, within("a handshake", connecting).await??).await
    }

    /// Like [`Http3TestClient::connect`], with a receive window of this many bytes for all streams
    /// together.
    pub async fn connect_with_window(
        address: SocketAddr,
        options: &TlsClientOptions,
        window: u32,
    ) -> Result<Self> {
        let mut transport = quinn::TransportConfig::default();
        transport.receive_window(window.into());
        let mut config = options.quic_config()?;
        config.transport_config(Arc::new(transport));
        let (endpoint, connecting) = begin_connection(address, config)?;
        Self::over(endpoint, within("a handshake", connecting).await??).await
    }

    /// Like [`Http3TestClient::connect`], but resumes an earlier session: data sent at once is
    /// 0-RTT data. The second value tells later if the server has accepted it.
    pub async fn connect_early(
        address: SocketAddr,
        options: &TlsClientOptions,
    ) -> Result<(Self, quinn::ZeroRttAccepted)> {
        let (endpoint, connecting) = begin_connection(address, options.quic_config()?)?;
        let early = connecting.into_0rtt();
        let (connection, accepted) = early.map_err(|_none| anyhow!("no session to resume"))?;
        Ok((Self::over(endpoint, connection).await?, accepted))
    }

    async fn over(endpoint: Endpoint, connection: quinn::Connection) -> Result<Self> {
        let frames = h3_quinn::Connection::new(connection.clone());
        let (mut driver, requests) = h3::client::new(frames).await?;
        let driver = tokio::spawn(async move { driver.wait_idle().await });
        Ok(Self { connection, endpoint, requests, driver })
    }

    /// Moves the client to another port, like a NAT rebinding.
    pub fn change_port(&self) -> Result<()> {
        Ok(self.endpoint.rebind(UdpSocket::bind("127.0.0.1:0")?)?)
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
            let (mut send_stream, receive_stream) = self.send_request(request).await?;
            let sent = async {
                if !body.is_empty() {
                    send_stream.send_data(body).await?;
                }
                send_stream.finish().await
            };
            // A server that has answered may stop the request before its end.
            let (_sent, response) = tokio::join!(sent, Self::response(receive_stream));
            Ok(response?)
        };
        within("an exchange", exchange).await?
    }

    /// Sends the head of a request, as soon as the server allows another stream.
    pub async fn send_request(
        &self,
        request: Request<()>,
    ) -> Result<(Http3SendStream, Http3ReceiveStream), StreamError> {
        Ok(self.requests.clone().send_request(request).await?.split())
    }

    /// Reads the complete response.
    pub async fn response(
        mut receive_stream: Http3ReceiveStream,
    ) -> Result<CompleteResponse, StreamError> {
        let mut informational = Vec::new();
        let head: Response<()> = loop {
            let head = receive_stream.recv_response().await?;
            if !head.status().is_informational() {
                break head;
            }
            informational.push(head);
        };
        let Http2Body { bytes: body, trailers } = read(&mut receive_stream).await?;
        Ok(CompleteResponse { informational, head, body, trailers })
    }

    /// Waits for the end of the connection, and returns `h3`'s error.
    pub async fn wait_for_close(mut self) -> Result<ConnectionError> {
        Ok(within("the end of the connection", &mut self.driver).await??)
    }
}

impl Drop for Http3TestClient {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Opens a socket on a port of its own and starts the handshake.
pub(super) fn begin_connection(
    address: SocketAddr,
    config: quinn::ClientConfig,
) -> Result<(Endpoint, quinn::Connecting)> {
    let endpoint = Endpoint::client("127.0.0.1:0".parse()?)?;
    let connecting = endpoint.connect_with(config, address, "test")?;
    Ok((endpoint, connecting))
}
