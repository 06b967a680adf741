//! HTTP/3 frame by frame, for sequences that no library sends: floods, starvation, protocol
//! violations.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, RecvStream, SendStream, TransportConfig,
};

use super::client;
use crate::tls::TlsClientOptions;
use crate::waiting::within;

/// Types of frames and streams, and error codes.
pub mod code {
    pub const DATA: u64 = 0;
    pub const HEADERS: u64 = 1;
    pub const SETTINGS: u64 = 4;
    pub const MAX_PUSH_ID: u64 = 0xd;
    /// Type of the control stream, which begins with SETTINGS.
    pub const CONTROL: u8 = 0;
    /// H3_EXCESSIVE_LOAD: the peer causes excessive load.
    pub const EXCESSIVE_LOAD: u64 = 0x107;
    /// H3_FRAME_UNEXPECTED: a frame is not permitted in this state or on this stream.
    pub const FRAME_UNEXPECTED: u64 = 0x105;
    /// H3_REQUEST_CANCELLED: the request is no longer needed.
    pub const REQUEST_CANCELLED: u32 = 0x10c;
}

/// Connection on which the test controls every byte; it is closed when dropped.
pub struct RawHttp3Connection {
    pub connection: Connection,
    _endpoint: Endpoint,
    /// Control stream of the client.
    pub control: SendStream,
}

impl RawHttp3Connection {
    /// Connects to the host `test`, with empty SETTINGS.
    pub async fn connect(address: SocketAddr, options: &TlsClientOptions) -> Result<Self> {
        Self::connect_with(address, options.quic_config()?).await
    }

    /// Like [`RawHttp3Connection::connect`], with a receive window of this many bytes for each stream of a request.
    pub async fn connect_with_stream_window(
        address: SocketAddr,
        options: &TlsClientOptions,
        window: u32,
    ) -> Result<Self> {
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(window.into());
        let mut config = options.quic_config()?;
        config.transport_config(Arc::new(transport));
        Self::connect_with(address, config).await
    }

    /// Like [`RawHttp3Connection::connect`], with this QUIC configuration.
    pub async fn connect_with(address: SocketAddr, config: ClientConfig) -> Result<Self> {
        let (endpoint, connecting) = client::begin_connection(address, config)?;
        let connection = within("a handshake", connecting).await??;
        let mut control = connection.open_uni().await?;
        control.write_all(&[code::CONTROL]).await?;
        control.write_all(&frame(code::SETTINGS, b"")).await?;
        Ok(Self { connection, _endpoint: endpoint, control })
    }

    /// Opens the stream of the next request, and sends these bytes on it.
    pub async fn open_request_stream(&self, bytes: &[u8]) -> Result<(SendStream, RecvStream)> {
        let (mut send_stream, receive_stream) =
            within("a stream", self.connection.open_bi()).await??;
        send_stream.write_all(bytes).await?;
        Ok((send_stream, receive_stream))
    }

    /// Waits for the end of the connection; returns the error code with which the server has closed
    /// it, if it has.
    pub async fn wait_for_close_code(&self) -> Result<Option<u64>> {
        let end = within("the end of the connection", self.connection.closed()).await?;
        Ok(match end {
            ConnectionError::ApplicationClosed(close) => Some(close.error_code.into_inner()),
            _ => None,
        })
    }
}

/// Returns a frame (RFC 9114 §7.1).
pub fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [kind, payload.len() as u64] {
        // Two bytes are enough for all numbers in tests (RFC 9000 §16).
        let number = u16::try_from(number).expect("a small number");
        bytes.extend_from_slice(&(number | 0x4000).to_be_bytes());
    }
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns a QPACK field section of literals only (RFC 9204 §4.5.6).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = vec![0, 0];
    for (name, value) in fields {
        put_integer(name.len(), 0x20, 3, &mut bytes);
        bytes.extend_from_slice(name.as_bytes());
        put_integer(value.len(), 0, 7, &mut bytes);
        bytes.extend_from_slice(value.as_bytes());
    }
    bytes
}

/// Appends an integer with a prefix of `bits` bits (RFC 9204 §4.1.1).
fn put_integer(number: usize, first: u8, bits: u32, bytes: &mut Vec<u8>) {
    let most = (1 << bits) - 1;
    if number < most {
        return bytes.push(first | number as u8);
    }
    bytes.push(first | most as u8);
    let mut rest = number - most;
    while rest >= 0x80 {
        bytes.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}
