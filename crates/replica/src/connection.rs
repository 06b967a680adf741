//! Connections: TCP, with or without TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::Error as TlsError;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::certificates::replica_name;
use crate::members::ChannelSecurity;
use crate::settings::SOCKET_BUFFER_BYTES;

/// Bytes in both directions.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {
    /// True if the bytes are encrypted, for a peer that has authenticated itself.
    fn is_encrypted(&self) -> bool;
}

impl ByteStream for TcpStream {
    fn is_encrypted(&self) -> bool {
        false
    }
}

impl ByteStream for tokio_rustls::client::TlsStream<TcpStream> {
    fn is_encrypted(&self) -> bool {
        true
    }
}

impl ByteStream for tokio_rustls::server::TlsStream<TcpStream> {
    fn is_encrypted(&self) -> bool {
        true
    }
}

/// Connection with a peer.
pub(crate) type PeerConnection = Box<dyn ByteStream>;

/// Opens a TCP connection. Its source is the address by which the peer knows us.
pub(crate) async fn connect(
    source: SocketAddr,
    target: SocketAddr,
    write_time: Duration,
) -> io::Result<TcpStream> {
    let socket = if target.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    set_buffers(&SockRef::from(&socket))?;
    if source.is_ipv4() == target.is_ipv4() {
        socket.bind(SocketAddr::new(source.ip(), 0))?;
    }
    let socket = socket.connect(target).await?;
    configure(&socket, write_time)?;
    Ok(socket)
}

/// Limits the buffers of a socket, or of those that a listening socket will accept.
pub(crate) fn set_buffers(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)
}

/// Sends small frames at once, and closes the connection if the peer acknowledges nothing for so
/// long.
pub(crate) fn configure(socket: &TcpStream, write_time: Duration) -> io::Result<()> {
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_tcp_user_timeout(Some(write_time))
}

/// Does the handshake of the side that has dialled.
pub(crate) async fn secure_dialled(
    socket: TcpStream,
    security: &ChannelSecurity,
) -> io::Result<PeerConnection> {
    Ok(match security {
        ChannelSecurity::Plaintext => Box::new(socket),
        ChannelSecurity::Tls(certificates) => {
            let connector = TlsConnector::from(Arc::clone(&certificates.client));
            Box::new(connector.connect(replica_name(), socket).await?)
        }
    })
}

/// Does the handshake of the side that has accepted.
pub(crate) async fn secure_accepted(
    socket: TcpStream,
    security: &ChannelSecurity,
) -> io::Result<PeerConnection> {
    Ok(match security {
        ChannelSecurity::Plaintext => Box::new(socket),
        ChannelSecurity::Tls(certificates) => {
            let acceptor = TlsAcceptor::from(Arc::clone(&certificates.server));
            Box::new(acceptor.accept(socket).await?)
        }
    })
}

/// True if a handshake has failed because of the peer's certificate.
pub(crate) fn is_certificate_error(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|source| source.downcast_ref::<TlsError>());
    matches!(error, Some(TlsError::InvalidCertificate(_) | TlsError::NoCertificatesPresented))
}
