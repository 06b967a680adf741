//! Binding addresses and accepting connections.
//!
//! One worker accepts for an address and hands each connection to the worker that has the fewest. One socket, and not
//! one per worker with `SO_REUSEPORT`, means that a port in use is noticed, and that no connection is lost in the queue
//! of a socket that closes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gateway::snapshot::TransportProtocol;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::accept::accepted_connection::{self, AcceptedConnection};
use crate::active_config::ListenerSocket;
use crate::clock;
use crate::demand::RefusalHistory;
use crate::stream::PeerStream;
use crate::worker::Worker;

/// Connections that the kernel may hold for us; it lowers this to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// How long to wait when there are no descriptors left.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(50);

/// Where to bind a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BindAddress {
    pub(crate) address: SocketAddr,
    /// The address may be another machine's now and come to this one later.
    pub(crate) free_bind: bool,
}

impl From<SocketAddr> for BindAddress {
    fn from(address: SocketAddr) -> Self {
        Self { address, free_bind: false }
    }
}

/// A socket on which connections or datagrams come in.
pub(crate) enum TcpOrUdpSocket {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl TcpOrUdpSocket {
    /// Listens at the spot; on every address of both families where it is unspecified.
    pub(crate) fn bind(transport: TransportProtocol, spot: BindAddress) -> io::Result<Self> {
        let address = spot.address;
        match Self::bind_one(transport, spot) {
            // A host without IPv6: "every address" is every IPv4 address there.
            Err(error)
                if error.raw_os_error() == Some(libc::EAFNOSUPPORT)
                    && address.ip().is_unspecified() =>
            {
                let every = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
                Self::bind_one(transport, every.into())
            }
            result => result,
        }
    }

    /// With the port that the kernel gave.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.local_addr(),
            Self::Udp(socket) => socket.local_addr(),
        }
    }

    fn bind_one(transport: TransportProtocol, spot: BindAddress) -> io::Result<Self> {
        match transport {
            TransportProtocol::Tcp => bind_tcp(spot).map(Self::Tcp),
            TransportProtocol::Udp => bind_udp(spot).map(Self::Udp),
        }
    }
}

fn bind_tcp(spot: BindAddress) -> io::Result<TcpListener> {
    let socket = socket(spot, Type::STREAM)?;
    socket.set_reuse_address(true)?;
    // Accepted connections inherit it.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&spot.address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Without the permission to share the address, which for UDP means that datagrams go to any one of those who do.
pub(crate) fn bind_udp(spot: BindAddress) -> io::Result<UdpSocket> {
    let socket = socket(spot, Type::DGRAM)?;
    socket.bind(&spot.address.into())?;
    Ok(socket.into())
}

/// A socket that does not wait, for both families where the address is unspecified.
pub(crate) fn socket(spot: BindAddress, kind: Type) -> io::Result<Socket> {
    let address = spot.address;
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    match address {
        SocketAddr::V4(_) if spot.free_bind => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) if spot.free_bind => socket.set_freebind_v6(true)?,
        SocketAddr::V4(_) | SocketAddr::V6(_) => {}
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Accepts until `closed`; what is in the kernel's queue then is accepted still, so that no client is reset.
pub(crate) async fn accept(
    worker: Rc<Worker>,
    bound: Arc<ListenerSocket>,
    socket: TcpListener,
    mut closed: oneshot::Receiver<()>,
) {
    let listener = match tokio::net::TcpListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(listener.address = %bound.address, %error, "cannot watch the listener");
            return;
        }
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut closed => break,
        };
        match accepted {
            Ok((stream, peer)) => dispatch_connection(&worker, &bound, stream, peer),
            Err(error) if is_out_of_descriptors(&error) => {
                tracing::warn!(listener.address = %bound.address, %error, "cannot accept");
                tokio::time::sleep(OUT_OF_DESCRIPTORS).await;
            }
            // The client left before it was accepted.
            Err(_) => {}
        }
    }
    if let Ok(listener) = listener.into_std() {
        drain_backlog(&listener, |stream, peer| dispatch_connection(&worker, &bound, stream, peer));
    }
}

/// Accepts what is in the kernel's queue, which the kernel alone knows: what a runtime has heard of may be less.
fn drain_backlog(listener: &TcpListener, mut welcome: impl FnMut(TcpStream, SocketAddr)) {
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                let stream =
                    stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                if let Ok(stream) = stream {
                    welcome(stream, peer);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if is_out_of_descriptors(&error) => return,
            // The client left before it was accepted.
            Err(_) => {}
        }
    }
}

/// Counts the connection and hands it to the worker that has the fewest.
fn dispatch_connection(
    worker: &Rc<Worker>,
    bound: &Arc<ListenerSocket>,
    stream: TcpStream,
    peer: SocketAddr,
) {
    let counters = &bound.counters[worker.index];
    let live = worker.config();
    let listener = live.listeners.get(bound.listener_index).and_then(Option::as_ref);
    // A listener that is being closed takes in what is left.
    let most = listener.map_or(u32::MAX, |listener| listener.client.max_connections);
    if !bound.admit_connection(most) {
        counters.refused.add(1);
        return;
    }
    counters.accepted.add(1);
    let home = worker.shared.least_connected(worker.index);
    let seat = &worker.shared.workers[home];
    seat.connections.fetch_add(1, Ordering::AcqRel);
    let arrival = AcceptedConnection {
        peer,
        destination: None,
        bound: Arc::clone(bound),
        tls_info: None,
        accepted: clock::now(),
        refusals: RefusalHistory::default(),
        moved: false,
    };
    let stream = PeerStream::Tcp(stream);
    if home == worker.index {
        accepted_connection::spawn(worker, stream, arrival);
    } else {
        accepted_connection::hand_over(seat, stream, arrival);
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
