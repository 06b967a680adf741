//! Connections of xDS clients: plaintext, or TLS in which the client shows a certificate.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::xds::ConnectionNumber;
use axum::serve::Listener;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::admin::{BoundedConnection, BoundedListener};

/// A connection of a client.
pub(super) struct XdsConnection {
    number: ConnectionNumber,
    stream: ConnectionStream,
}

/// The bytes of a connection.
enum ConnectionStream {
    Plaintext(BoundedConnection),
    Tls(Box<TlsStream<BoundedConnection>>),
}

/// Accepts connections. Handshakes do not wait for one another; the bounds of the listener hold for them too.
pub(super) fn accept(
    mut listener: BoundedListener,
    configs: Option<watch::Receiver<Arc<ServerConfig>>>,
) -> (ReceiverStream<io::Result<XdsConnection>>, AbortHandle) {
    let (sender, connections) = mpsc::channel(1);
    let accepting = tokio::spawn(async move {
        for number in 0.. {
            let number = ConnectionNumber(number);
            let (connection, _) = listener.accept().await;
            let config = configs.as_ref().map(|configs| Arc::clone(&configs.borrow()));
            let sender = sender.clone();
            tokio::spawn(async move {
                let stream = match config {
                    None => ConnectionStream::Plaintext(connection),
                    Some(config) => match TlsAcceptor::from(config).accept(connection).await {
                        Ok(stream) => ConnectionStream::Tls(Box::new(stream)),
                        Err(error) => {
                            tracing::debug!(%error, "the handshake of an xDS client failed");
                            return;
                        }
                    },
                };
                drop(sender.send(Ok(XdsConnection { number, stream })).await);
            });
        }
    });
    (ReceiverStream::new(connections), accepting.abort_handle())
}

impl Connected for XdsConnection {
    type ConnectInfo = ConnectionNumber;

    fn connect_info(&self) -> ConnectionNumber {
        self.number
    }
}

impl AsyncRead for XdsConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            ConnectionStream::Plaintext(stream) => Pin::new(stream).poll_read(cx, buffer),
            ConnectionStream::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for XdsConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            ConnectionStream::Plaintext(stream) => Pin::new(stream).poll_write(cx, bytes),
            ConnectionStream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            ConnectionStream::Plaintext(stream) => Pin::new(stream).poll_flush(cx),
            ConnectionStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            ConnectionStream::Plaintext(stream) => Pin::new(stream).poll_shutdown(cx),
            ConnectionStream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
