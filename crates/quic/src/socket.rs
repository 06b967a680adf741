//! Datagrams from and to a socket: many in one system call, where the kernel supports it (GRO, GSO).

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use quinn_proto::EcnCodepoint;
use quinn_udp::{RecvMeta, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::sys;

/// Runs of datagrams that one system call reads; each buffer has room for the longest run that GRO joins.
pub(super) const BATCH: usize = 16;
const LONGEST_RUN: usize = 64 * 1024;
/// The longest run of datagrams that the kernel accepts at a time: the payload limit of IPv4.
const LONGEST_SENT: usize = 65_507;
/// The size of the kernel's buffer in either direction; the kernel lowers it to `net.core.rmem_max` and `wmem_max`.
const SOCKET_BUFFER: usize = 4 * 1024 * 1024;

/// A received datagram.
pub struct ReceivedDatagram {
    /// Memory of its own, so that a datagram which is read late does not keep the others allocated.
    pub(super) bytes: BytesMut,
    pub(super) peer: SocketAddr,
    /// The local address that it was sent to.
    pub(super) local_ip: Option<IpAddr>,
    pub(super) ecn: Option<EcnCodepoint>,
}

/// The reason why a datagram from or to a client was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramDropReason {
    /// It is not QUIC, or belongs to no known connection.
    Unknown,
    /// The queue of handshake steps is full.
    Handshakes,
    /// Too many datagrams are in transit to its worker.
    Handover,
    /// It is ours, and could not be sent.
    Send,
}

impl DatagramDropReason {
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Handshakes, Self::Handover, Self::Send];

    /// Metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Handshakes => "handshakes",
            Self::Handover => "handover",
            Self::Send => "send",
        }
    }
}

/// Buffers of a worker's sockets, used by one socket at a time.
pub(super) struct SocketBuffers {
    pub(super) receive: RefCell<ReceiveBuffer>,
    pub(super) transmit: RefCell<Vec<u8>>,
}

impl SocketBuffers {
    pub(super) fn new() -> Rc<Self> {
        // Untouched pages of it take no physical memory.
        let bytes = vec![0; BATCH * LONGEST_RUN].into();
        let inbox = RefCell::new(ReceiveBuffer { bytes, meta: [RecvMeta::default(); BATCH] });
        Rc::new(Self { receive: inbox, transmit: RefCell::default() })
    }
}

/// Receive buffer of a worker's sockets.
pub(super) struct ReceiveBuffer {
    bytes: Box<[u8]>,
    meta: [RecvMeta; BATCH],
}

impl ReceiveBuffer {
    /// Splits the first `count` runs into datagrams.
    pub(super) fn datagrams(&self, count: usize) -> impl Iterator<Item = ReceivedDatagram> {
        let runs = self.meta[..count].iter().zip(self.bytes.chunks_exact(LONGEST_RUN));
        runs.flat_map(|(meta, run)| {
            run[..meta.len].chunks(meta.stride.max(1)).map(|datagram| ReceivedDatagram {
                bytes: datagram.into(),
                peer: meta.addr,
                local_ip: meta.dst_ip,
                ecn: meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
            })
        })
    }
}

/// A UDP socket of this worker.
pub(super) struct QuicSocket {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl QuicSocket {
    /// Prepares a socket for QUIC: no fragmentation, and the kernel's metadata for each datagram.
    pub(super) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        // The library turns timestamps on, which nothing here reads. With them the metadata of datagrams that GRO has
        // joined exceeds the library's buffer, and the kernel leaves out the last part of it, the ECN codepoint.
        sys::disable_timestamps(&socket)?;
        // A smaller buffer works as well, with more losses in bursts.
        state.set_recv_buffer_size((&socket).into(), SOCKET_BUFFER).unwrap_or_default();
        state.set_send_buffer_size((&socket).into(), SOCKET_BUFFER).unwrap_or_default();
        Ok(Self { socket: UdpSocket::from_std(socket)?, state })
    }

    /// True if datagrams are never fragmented, so that their size probes the MTU of the path.
    pub(super) fn never_fragments(&self) -> bool {
        !self.state.may_fragment()
    }

    /// Returns the number of datagrams of that size that one system call accepts.
    pub(super) fn max_segments(&self, datagram: u16) -> usize {
        let fitting = LONGEST_SENT / usize::from(datagram.max(1));
        fitting.min(self.state.max_gso_segments()).max(1)
    }

    /// Reads once. Returns the number of runs of datagrams; if that is less than [`BATCH`], the socket is drained.
    pub(super) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        inbox: &mut ReceiveBuffer,
    ) -> Poll<io::Result<usize>> {
        ready!(self.socket.poll_recv_ready(cx))?;
        let ReceiveBuffer { bytes, meta } = inbox;
        let mut rooms = bytes.chunks_exact_mut(LONGEST_RUN).map(IoSliceMut::new);
        let mut rooms: [_; BATCH] =
            std::array::from_fn(|_| rooms.next().expect("the buffer has room for a batch"));
        let mut count = 0;
        let received = self.socket.try_io(Interest::READABLE, || {
            count = self.state.recv((&self.socket).into(), &mut rooms, meta)?;
            // The kernel has been asked for more already, and had none.
            if count < BATCH { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        Poll::Ready(match received {
            Ok(()) => Ok(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(count),
            Err(error) => Err(error),
        })
    }

    /// Sends the first `transmit.size` bytes of `contents`.
    pub(super) fn try_send(
        &self,
        transmit: &quinn_proto::Transmit,
        contents: &[u8],
    ) -> io::Result<()> {
        let transmit = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents: &contents[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        let send = || self.state.try_send((&self.socket).into(), &transmit);
        self.socket.try_io(Interest::WRITABLE, send)
    }

    /// Waits for an error on the socket (ICMP): an error makes the socket ready for nothing but the query for it.
    pub(super) async fn next_error(&self) -> io::Error {
        loop {
            if let Err(error) = self.socket.ready(Interest::ERROR).await {
                return error;
            }
            let would_block = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
            drop(self.socket.try_io(Interest::ERROR, would_block));
            match self.socket.take_error() {
                Ok(Some(error)) | Err(error) => return error,
                Ok(None) => {}
            }
        }
    }

    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_send_ready(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::tests::new_socket;

    const DATAGRAM: usize = 1200;

    fn bind(ip: IpAddr) -> (QuicSocket, u16) {
        let address = SocketAddr::new(ip, 0);
        let socket = new_socket(address).unwrap();
        socket.bind(&address.into()).unwrap();
        let port = socket.local_addr().unwrap().as_socket().unwrap().port();
        (QuicSocket::new(socket.into()).unwrap(), port)
    }

    /// Sends datagrams in one system call, each ECN-capable, and checks what is received.
    async fn check_codepoints(from: IpAddr, to: IpAddr, destination: IpAddr) {
        let (sender, _) = bind(from);
        let (receiver, port) = bind(to);
        for count in [1, 3] {
            let transmit = quinn_proto::Transmit {
                destination: SocketAddr::new(destination, port),
                ecn: Some(EcnCodepoint::Ect0),
                size: count * DATAGRAM,
                segment_size: Some(DATAGRAM),
                src_ip: None,
            };
            poll_fn(|cx| sender.poll_writable(cx)).await.unwrap();
            sender.try_send(&transmit, &vec![0; transmit.size]).unwrap();
            let buffers = Rc::into_inner(SocketBuffers::new()).unwrap();
            let mut inbox = buffers.receive.into_inner();
            let mut received = Vec::new();
            while received.len() < count {
                let runs = poll_fn(|cx| receiver.poll_receive(cx, &mut inbox)).await.unwrap();
                received.extend(inbox.datagrams(runs));
            }
            for datagram in received {
                assert_eq!(datagram.ecn, Some(EcnCodepoint::Ect0), "{count} to {destination}");
                assert_eq!(datagram.local_ip.map(|ip| ip.to_canonical()), Some(destination));
                assert_eq!(datagram.bytes.len(), DATAGRAM);
            }
        }
    }

    #[tokio::test]
    async fn joined_datagrams_keep_their_ecn_codepoint() {
        let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
        check_codepoints(v4, v4, v4).await;
        check_codepoints(v6, v6, v6).await;
        let every = Ipv6Addr::UNSPECIFIED.into();
        check_codepoints(v4, every, v4).await;
        check_codepoints(v6, every, v6).await;
    }
}
