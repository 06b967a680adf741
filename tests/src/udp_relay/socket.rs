//! Sockets of a relay: they keep the ECN codepoint of each datagram.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Room for the longest run of datagrams that the kernel joins (GRO).
const LONGEST_RUN: usize = 64 * 1024;
/// Size of the kernel's buffers: losses are those of the line, if the kernel grants it.
const SOCKET_BUFFER: usize = 4 << 20;

/// A datagram on its way.
pub(super) struct RelayedDatagram {
    pub(super) bytes: Vec<u8>,
    /// Address that it came from.
    pub(super) peer: SocketAddr,
    pub(super) ecn: Option<EcnCodepoint>,
}

/// A UDP socket.
pub(super) struct RelaySocket {
    socket: UdpSocket,
    state: UdpSocketState,
}

/// Returns a buffer for [`RelaySocket::receive`].
pub(super) fn buffer() -> Vec<u8> {
    vec![0; LONGEST_RUN]
}

impl RelaySocket {
    /// Binds a free port of this address.
    pub(super) fn bind(address: IpAddr) -> io::Result<Self> {
        let socket = std::net::UdpSocket::bind((address, 0))?;
        let state = UdpSocketState::new((&socket).into())?;
        state.set_recv_buffer_size((&socket).into(), SOCKET_BUFFER).unwrap_or_default();
        state.set_send_buffer_size((&socket).into(), SOCKET_BUFFER).unwrap_or_default();
        socket.set_nonblocking(true)?;
        Ok(Self { socket: UdpSocket::from_std(socket)?, state })
    }

    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits for datagrams and returns those of one system call.
    pub(super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<Vec<RelayedDatagram>> {
        let mut meta = [RecvMeta::default()];
        let read = || {
            let mut rooms = [IoSliceMut::new(buffer)];
            self.state.recv((&self.socket).into(), &mut rooms, &mut meta)
        };
        self.socket.async_io(Interest::READABLE, read).await?;
        let [meta] = meta;
        let run = buffer[..meta.len].chunks(meta.stride.max(1));
        let datagram = |bytes: &[u8]| RelayedDatagram {
            bytes: bytes.to_vec(),
            peer: meta.addr,
            ecn: meta.ecn,
        };
        Ok(run.map(datagram).collect())
    }

    /// Sends a datagram.
    pub(super) async fn send(
        &self,
        datagram: &RelayedDatagram,
        destination: SocketAddr,
    ) -> io::Result<()> {
        let transmit = Transmit {
            destination,
            ecn: datagram.ecn,
            contents: &datagram.bytes,
            segment_size: None,
            src_ip: None,
        };
        let write = || self.state.try_send((&self.socket).into(), &transmit);
        self.socket.async_io(Interest::WRITABLE, write).await
    }
}
