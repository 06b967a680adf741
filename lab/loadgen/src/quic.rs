//! QUIC client for the lab: one connection over a UDP socket of its own, as real clients have. A library provides the
//! state machine; the event loop provides sockets and timers.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use bytes::{Bytes, BytesMut};
use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, Event,
    TransportConfig, VarInt,
};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustls::client::Resumption;

use crate::http::MessageError;
use crate::tls;

/// Size of a batch: the datagrams that the kernel joins in one receive buffer.
const BATCH_BYTES: usize = 64 * 1024;
/// Batches per system call.
const BATCHES: usize = 8;
/// Maximum number of segments per send (GSO): their total must not exceed one datagram.
const MAX_SEGMENTS: usize = 44;
/// Socket buffer size: a burst of a server must not be lost, because the loop has other work too.
const SOCKET_BYTES: usize = 8 << 20;
/// Flow-control window for the peer, so large that the peer never waits for it.
const OUR_WINDOW: VarInt = VarInt::from_u32(1 << 30);
/// Application error code of a close without an error (RFC 9114 §8.1).
const NO_ERROR: VarInt = VarInt::from_u32(0x100);

/// Configuration of all connections of a job.
pub(crate) struct QuicConnector {
    client: ClientConfig,
    endpoint: Arc<EndpointConfig>,
}

impl QuicConnector {
    pub(crate) fn new() -> Result<Self> {
        let mut tls = tls::client_config(&Arc::new(tls::provider()))?;
        tls.alpn_protocols = vec![b"h3".to_vec()];
        tls.resumption = Resumption::disabled();
        let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(OUR_WINDOW).receive_window(OUR_WINDOW);
        client.transport_config(Arc::new(transport));
        // Datagrams have at most 1472 bytes, as on Ethernet: the 64 KiB of loopback would match no real network.
        Ok(Self { client, endpoint: Arc::new(EndpointConfig::default()) })
    }

    /// Starts to connect.
    pub(crate) fn connect(
        &self,
        target: SocketAddr,
        host: &str,
        registry: &Registry,
        token: Token,
    ) -> Result<QuicClient> {
        let any =
            SocketAddr::new(if target.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() }, 0);
        let mut socket = UdpSocket::bind(any).context("cannot bind a UDP socket")?;
        // Only a connected socket receives the ICMP error of a closed port.
        socket.connect(target)?;
        enlarge(&socket)?;
        let state = UdpSocketState::new((&socket).into())?;
        registry.register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        let mut endpoint = Endpoint::new(Arc::clone(&self.endpoint), None, true, None);
        let (handle, connection) =
            endpoint.connect(Instant::now(), self.client.clone(), target, host)?;
        let outbox = Vec::new();
        Ok(QuicClient {
            socket,
            state,
            endpoint,
            handle,
            connection,
            outbox,
            unsent: None,
            due: None,
            drained: false,
        })
    }
}

/// Enlarges the receive buffer beyond the system limit, if permitted.
fn enlarge(socket: &UdpSocket) -> Result<()> {
    use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
    if set_socket_recv_buffer_size_force(socket, SOCKET_BYTES).is_err() {
        set_socket_recv_buffer_size(socket, SOCKET_BYTES)?;
    }
    Ok(())
}

/// One connection.
pub(crate) struct QuicClient {
    socket: UdpSocket,
    state: UdpSocketState,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    connection: Connection,
    outbox: Vec<u8>,
    /// The transmit in the outbox that the socket has not accepted yet.
    unsent: Option<quinn_proto::Transmit>,
    /// Time of the next timer; updated by each flush.
    due: Option<Instant>,
    /// True if the last read drained the socket, so that another one would find nothing.
    drained: bool,
}

impl QuicClient {
    /// Returns the connection with its streams. The caller must flush after using them.
    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// True if the server has confirmed the handshake.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.connection.stats().frame_rx.handshake_done > 0
    }

    /// Returns the next event of the connection, without events of datagrams.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.connection.poll()
    }

    /// Handles due timers, and writes as much as the socket accepts.
    pub(crate) fn flush(&mut self) -> Result<(), MessageError> {
        self.fire_timers(Instant::now());
        loop {
            if let Some(transmit) = self.unsent.take()
                && !self.send(&transmit)?
            {
                self.unsent = Some(transmit);
                return Ok(());
            }
            self.outbox.clear();
            let segments = self.state.max_gso_segments().min(MAX_SEGMENTS);
            self.unsent = self.connection.poll_transmit(Instant::now(), segments, &mut self.outbox);
            if self.unsent.is_none() {
                self.due = self.connection.poll_timeout();
                return Ok(());
            }
        }
    }

    fn send(&self, transmit: &quinn_proto::Transmit) -> Result<bool, MessageError> {
        let datagrams = Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents: &self.outbox[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: None,
        };
        match self.state.try_send((&self.socket).into(), &datagrams) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // The datagram was a path MTU probe larger than the path; its loss is the result.
            Err(error) if quinn_udp::is_msg_size_err(&error) => Ok(true),
            Err(error) => Err(MessageError::Io(error)),
        }
    }

    /// Reads once; false if the socket had nothing. A read of fewer batches than requested has drained the socket.
    pub(crate) fn fill(&mut self, scratch: &mut [u8]) -> Result<bool, MessageError> {
        if std::mem::take(&mut self.drained) {
            return Ok(false);
        }
        let mut batches =
            scratch.chunks_mut(BATCH_BYTES).take(BATCHES).map(IoSliceMut::new).collect::<Vec<_>>();
        let mut metas = [RecvMeta::default(); BATCHES];
        let count = match self.state.recv((&self.socket).into(), &mut batches, &mut metas) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(MessageError::Io(error)),
        };
        self.drained = count < batches.len();
        let now = Instant::now();
        for (batch, meta) in batches.iter().zip(&metas).take(count) {
            batch[..meta.len]
                .chunks(meta.stride)
                .for_each(|datagram| self.take(now, meta, datagram));
        }
        self.process_endpoint_events();
        Ok(true)
    }

    fn take(&mut self, now: Instant, meta: &RecvMeta, datagram: &[u8]) {
        let ecn = meta.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
        let datagram = BytesMut::from(datagram);
        let mut answer = Vec::new();
        let event = self.endpoint.handle(now, meta.addr, meta.dst_ip, ecn, datagram, &mut answer);
        // Datagrams of unknown connections are ignored.
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            self.connection.handle_event(event);
        }
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    fn fire_timers(&mut self, now: Instant) {
        if self.is_due(now) {
            self.due = None;
            self.connection.handle_timeout(now);
            self.process_endpoint_events();
        }
    }

    /// Exchanges events between the connection and its endpoint.
    fn process_endpoint_events(&mut self) {
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(event);
            }
        }
    }
}

impl Drop for QuicClient {
    /// Closes the connection, as clients do, without waiting for the delivery.
    fn drop(&mut self) {
        self.connection.close(Instant::now(), NO_ERROR, Bytes::new());
        self.flush().ok();
    }
}
