//! A client of one connection.

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

use super::{Exchange, Receiving, Sending, get, post, read};
use crate::http2::Body;
use crate::patience::within;
use crate::tls::Terms;

/// One connection, with any number of requests at once; it is closed when dropped.
pub struct Client {
    pub connection: quinn::Connection,
    endpoint: Endpoint,
    requests: SendRequest<OpenStreams, Bytes>,
    driver: JoinHandle<ConnectionError>,
}

impl Client {
    /// A connection to the host `test`.
    pub async fn connect(address: SocketAddr, terms: &Terms) -> Result<Self> {
        Self::connect_with(address, terms.quic()?).await
    }

    /// The same, with this configuration of QUIC.
    pub async fn connect_with(address: SocketAddr, config: quinn::ClientConfig) -> Result<Self> {
        let (endpoint, connecting) = begin(address, config)?;
        Self::over(endpoint, within("a handshake", connecting).await??).await
    }

    /// The same, by a client that lets so many bytes be under way to it, on all streams together.
    pub async fn connect_narrowly(address: SocketAddr, terms: &Terms, window: u32) -> Result<Self> {
        let mut transport = quinn::TransportConfig::default();
        transport.receive_window(window.into());
        let mut config = terms.quic()?;
        config.transport_config(Arc::new(transport));
        let (endpoint, connecting) = begin(address, config)?;
        Self::over(endpoint, within("a handshake", connecting).await??).await
    }

    /// The same, by what an earlier connection has left: what is sent at once is sent before the handshake is over.
    /// Whether the server has taken it is known later.
    pub async fn connect_early(
        address: SocketAddr,
        terms: &Terms,
    ) -> Result<(Self, quinn::ZeroRttAccepted)> {
        let (endpoint, connecting) = begin(address, terms.quic()?)?;
        let early = connecting.into_0rtt();
        let (connection, accepted) = early.map_err(|_none| anyhow!("nothing was left"))?;
        Ok((Self::over(endpoint, connection).await?, accepted))
    }

    async fn over(endpoint: Endpoint, connection: quinn::Connection) -> Result<Self> {
        let frames = h3_quinn::Connection::new(connection.clone());
        let (mut driver, requests) = h3::client::new(frames).await?;
        let driver = tokio::spawn(async move { driver.wait_idle().await });
        Ok(Self { connection, endpoint, requests, driver })
    }

    /// From now on it is at another port, as after a rebinding of NAT.
    pub fn change_port(&self) -> Result<()> {
        Ok(self.endpoint.rebind(UdpSocket::bind("127.0.0.1:0")?)?)
    }

    pub async fn get(&self, path: &str) -> Result<Exchange> {
        self.exchange(get(path), Bytes::new()).await
    }

    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Result<Exchange> {
        self.exchange(post(path), body.into()).await
    }

    /// Sends a request and reads its response, which may begin before the request has ended.
    pub async fn exchange(&self, request: Request<()>, body: Bytes) -> Result<Exchange> {
        let exchange = async {
            let (mut sending, receiving) = self.begin(request).await?;
            let sent = async {
                if !body.is_empty() {
                    sending.send_data(body).await?;
                }
                sending.finish().await
            };
            // Who has answered may be done with the request before its end.
            let (_sent, response) = tokio::join!(sent, Self::response(receiving));
            Ok(response?)
        };
        within("an exchange", exchange).await?
    }

    /// Sends the head of a request, as soon as the server allows another stream.
    pub async fn begin(&self, request: Request<()>) -> Result<(Sending, Receiving), StreamError> {
        Ok(self.requests.clone().send_request(request).await?.split())
    }

    /// The whole response.
    pub async fn response(mut receiving: Receiving) -> Result<Exchange, StreamError> {
        let mut informational = Vec::new();
        let head: Response<()> = loop {
            let head = receiving.recv_response().await?;
            if !head.status().is_informational() {
                break head;
            }
            informational.push(head);
        };
        let Body { bytes: body, trailers } = read(&mut receiving).await?;
        Ok(Exchange { informational, head, body, trailers })
    }

    /// Waits for the end of the connection, and says what `h3` says of it.
    pub async fn ended(mut self) -> Result<ConnectionError> {
        Ok(within("the end of the connection", &mut self.driver).await??)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A port of its own, and the first packets.
pub(super) fn begin(
    address: SocketAddr,
    config: quinn::ClientConfig,
) -> Result<(Endpoint, quinn::Connecting)> {
    let endpoint = Endpoint::client("127.0.0.1:0".parse()?)?;
    let connecting = endpoint.connect_with(config, address, "test")?;
    Ok((endpoint, connecting))
}
