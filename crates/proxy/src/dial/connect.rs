//! Opens connections to endpoints.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tls::{ClientTlsConfig, ConnectionSecurity, EndpointTlsError, TlsSession, TlsStream};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::clock;
use crate::dial::marked_socket::{self, MarkGuard};
use crate::dial::pool::{Endpoint, EndpointConnection};
use crate::failure::Failure;
use crate::interception::ClientMark;
use crate::stream::PeerStream;

/// The properties of a new connection to an endpoint.
pub(crate) struct DialOptions<'a> {
    /// The first bytes of the connection.
    pub(crate) header: &'a [u8],
    /// The mark of the client whose address the connection has; `None`: it comes from the node.
    pub(crate) client_mark: Option<&'a Arc<ClientMark>>,
    pub(crate) security: ConnectionSecurity<'a>,
    /// The kernel ends the connection if the endpoint acknowledges nothing for this time.
    pub(crate) unacknowledged: Duration,
}

/// Opens an HTTP/1.1 connection to the endpoint; the caller bounds the time.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    worker: usize,
    options: DialOptions<'_>,
) -> Result<Box<EndpointConnection>, Failure> {
    let stream = open(endpoint, worker, &options).await?;
    let unsealed = options.header.len() as u64;
    let mut connection = EndpointConnection::new(stream, unsealed, worker, clock::now());
    connection.client_mark = MarkGuard::of(endpoint, options.client_mark);
    Ok(Box::new(connection))
}

/// Opens a connection to the endpoint; the caller bounds the time, and keeps a [`MarkGuard`] beside the connection.
pub(crate) async fn open(
    endpoint: &Endpoint,
    worker: usize,
    options: &DialOptions<'_>,
) -> Result<PeerStream, Failure> {
    let DialOptions { header, client_mark, security, unacknowledged } = *options;
    let tls_config = match security {
        ConnectionSecurity::Plain => None,
        ConnectionSecurity::Tls(tls_config) => Some(tls_config),
        ConnectionSecurity::Unusable => {
            return Err(Failure::EndpointTls(EndpointTlsError::UnusableConfig));
        }
    };
    endpoint.data.counters[worker].connections.add(1);
    let begun = clock::now();
    let connecting = marked_socket::connect_endpoint(endpoint, client_mark);
    let mut stream = connecting.await.map_err(|error| connect_failure(&error))?;
    if !endpoint.data.budgets.descriptors.allows(&stream) {
        return Err(Failure::OutOfDescriptors);
    }
    // Heads and small bodies leave in one write: Nagle's algorithm has nothing to gather.
    drop(stream.set_nodelay(true));
    set_dead_peer_timeouts(&stream, unacknowledged);
    stream.write_all(header).await.map_err(|error| connect_failure(&error))?;
    let stream = match tls_config {
        None => PeerStream::Tcp(stream),
        // Boxed, so that connections without TLS do not reserve the space.
        Some(tls_config) => Box::pin(tls_handshake(stream, tls_config)).await?,
    };
    endpoint.data.reachability.record_connect_time(clock::now().saturating_since(begun));
    Ok(stream)
}

/// Time from a transmission to the kernel's first retransmission, apart from the tail loss probe: for short round
/// trips, twice the minimum retransmission timeout of 200 ms, as measured.
const FIRST_RETRANSMISSION: Duration = Duration::from_millis(400);

/// Makes the kernel detect a dead endpoint: one that acknowledges no bytes or, on an idle connection, no keepalive
/// probe.
fn set_dead_peer_timeouts(socket: &TcpStream, unacknowledged: Duration) {
    const SECOND: Duration = Duration::from_secs(1);
    let socket = SockRef::from(socket);
    // The first probe leaves time for a second one, after which the timeout has passed.
    let quiet = unacknowledged.saturating_sub(SECOND).max(SECOND);
    let keepalive = TcpKeepalive::new().with_time(quiet).with_interval(SECOND);
    // The kernel counts from the first retransmission.
    let since_retransmission = unacknowledged.saturating_sub(FIRST_RETRANSMISSION);
    let user_timeout = since_retransmission.max(unacknowledged / 2);
    // Without these options a dead endpoint is detected later, by the timeouts of requests.
    drop(socket.set_tcp_keepalive(&keepalive));
    drop(socket.set_tcp_user_timeout(Some(user_timeout)));
}

/// Authenticates the endpoint and encrypts the connection (TLS handshake).
pub(crate) async fn tls_handshake(
    socket: TcpStream,
    tls_config: &ClientTlsConfig,
) -> Result<PeerStream, Failure> {
    let ClientTlsConfig { config, name } = tls_config;
    let tls_failure = |error: rustls::Error| Failure::EndpointTls(EndpointTlsError::from(&error));
    let session = TlsSession::client(Arc::clone(config), name.clone()).map_err(tls_failure)?;
    let mut tls = TlsStream::new(socket, Box::new(session));
    loop {
        let handshake = tls.session.advance_handshake();
        // This sends an alert, too.
        let pushed = poll_fn(|cx| tls.poll_write_ciphertext(cx)).await;
        handshake.map_err(tls_failure)?;
        pushed.map_err(|error| connect_failure(&error))?;
        if !tls.session.common_state().is_handshaking() {
            break;
        }
        let received = poll_fn(|cx| tls.poll_read_ciphertext(cx, 0)).await;
        received.map_err(|_ended| Failure::EndpointTls(EndpointTlsError::Protocol))?;
    }
    // Without ALPN the protocol is HTTP/1.1.
    let asks_for_h2_alone = config.alpn_protocols == [b"h2"];
    if asks_for_h2_alone && tls.session.common_state().alpn_protocol() != Some(b"h2") {
        return Err(Failure::EndpointTls(EndpointTlsError::Protocol));
    }
    Ok(PeerStream::Tls(Box::new(tls)))
}

fn connect_failure(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        _ if is_out_of_descriptors(error) => Failure::OutOfDescriptors,
        Some(libc::ETIMEDOUT) => Failure::ConnectTimeout,
        _ => Failure::ConnectFailed,
    }
}

/// True if no file descriptor is left, which says nothing about the endpoint.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}
