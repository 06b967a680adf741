//! Datagrams from and to a socket: many with one system call, where the kernel can (GRO, GSO).

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

/// Runs of datagrams that one system call reads; each has room for the longest that the kernel joins.
pub(super) const BATCH: usize = 16;
const LONGEST_RUN: usize = 64 * 1024;
/// The longest run of datagrams that the kernel takes at a time: what fits one of IPv4.
const LONGEST_SENT: usize = 65_507;
/// What the kernel may keep for us in either direction; it lowers this to `net.core.rmem_max` and `wmem_max`.
const SOCKET_BUFFER: usize = 4 * 1024 * 1024;

/// A datagram that has come.
pub(crate) struct ReceivedDatagram {
    /// In memory of its own, so that one which is read late keeps no others.
    pub(super) bytes: BytesMut,
    pub(super) peer: SocketAddr,
    /// Which of our addresses it came to.
    pub(super) local_ip: Option<IpAddr>,
    pub(super) ecn: Option<EcnCodepoint>,
}

/// Why a datagram from or to a client came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatagramDropReason {
    /// It is no QUIC, or of no connection that we know.
    Unknown,
    /// As many handshakes wait as may.
    Handshakes,
    /// As many datagrams are on their way to its worker as may.
    Handover,
    /// It is ours, and could not be sent.
    Send,
}

impl DatagramDropReason {
    pub(crate) const ALL: [Self; 4] = [Self::Unknown, Self::Handshakes, Self::Handover, Self::Send];

    /// Metric label.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Handshakes => "handshakes",
            Self::Handover => "handover",
            Self::Send => "send",
        }
    }
}

/// What a worker's sockets are read to and written from, one at a time.
pub(super) struct SocketBuffers {
    pub(super) receive: RefCell<ReceiveBuffer>,
    pub(super) transmit: RefCell<Vec<u8>>,
}

impl SocketBuffers {
    pub(super) fn new() -> Rc<Self> {
        // Takes no memory beyond what is ever used of it.
        let bytes = vec![0; BATCH * LONGEST_RUN].into();
        let inbox = RefCell::new(ReceiveBuffer { bytes, meta: [RecvMeta::default(); BATCH] });
        Rc::new(Self { receive: inbox, transmit: RefCell::default() })
    }
}

/// Where a worker's sockets are read to.
pub(super) struct ReceiveBuffer {
    bytes: Box<[u8]>,
    meta: [RecvMeta; BATCH],
}

impl ReceiveBuffer {
    /// The first `count` runs of datagrams, taken apart.
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

/// A socket of this worker's.
pub(super) struct QuicSocket {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl QuicSocket {
    /// Readies a socket for QUIC: whole datagrams, with what the kernel knows of each.
    pub(super) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        // Smaller ones do as well, with more losses when much comes at a time.
        state.set_recv_buffer_size((&socket).into(), SOCKET_BUFFER).unwrap_or_default();
        state.set_send_buffer_size((&socket).into(), SOCKET_BUFFER).unwrap_or_default();
        Ok(Self { socket: UdpSocket::from_std(socket)?, state })
    }

    /// Datagrams are never taken apart on their way, so that their size tells what the path carries.
    pub(super) fn never_fragments(&self) -> bool {
        !self.state.may_fragment()
    }

    /// How many datagrams of that size one system call takes.
    pub(super) fn max_segments(&self, datagram: u16) -> usize {
        let fitting = LONGEST_SENT / usize::from(datagram.max(1));
        fitting.min(self.state.max_gso_segments()).max(1)
    }

    /// Reads once. How many runs of datagrams have come; fewer than [`BATCH`]: the socket was emptied.
    pub(super) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        inbox: &mut ReceiveBuffer,
    ) -> Poll<io::Result<usize>> {
        ready!(self.socket.poll_recv_ready(cx))?;
        let ReceiveBuffer { bytes, meta } = inbox;
        let mut rooms = bytes.chunks_exact_mut(LONGEST_RUN).map(IoSliceMut::new);
        let mut rooms: [_; BATCH] =
            std::array::from_fn(|_| rooms.next().expect("the inbox has room for a batch"));
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

    /// Sends what is at the beginning of `contents`.
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

    /// Ready when the kernel has something to complain of, which makes a socket ready for nothing but to be asked for it.
    pub(super) async fn next_error(&self) -> io::Error {
        loop {
            if let Err(error) = self.socket.ready(Interest::ERROR).await {
                return error;
            }
            let told = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
            drop(self.socket.try_io(Interest::ERROR, told));
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
