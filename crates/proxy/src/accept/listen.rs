//! Binding addresses and accepting connections.
//!
//! For each address, one worker accepts and hands each connection to the worker with the fewest
//! connections. One socket, instead of one per worker with `SO_REUSEPORT`, means that a port in use
//! is noticed, and that no connection is lost in the accept queue of a socket that closes.

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
use crate::demand::refusal_history::RefusalHistory;
use crate::stream::PeerStream;
use crate::worker::Worker;

/// Accept queue length that we ask for; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// Pause after an accept that failed for lack of file descriptors.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(50);

/// Address to bind a socket to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BindAddress {
    pub(crate) address: SocketAddr,
    /// True if the address may belong to another machine now and move to this one later
    /// (`IP_FREEBIND`).
    pub(crate) free_bind: bool,
}

impl From<SocketAddr> for BindAddress {
    fn from(address: SocketAddr) -> Self {
        Self { address, free_bind: false }
    }
}

/// Socket on which connections or datagrams arrive.
pub(crate) enum TcpOrUdpSocket {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl TcpOrUdpSocket {
    /// Binds the address; an unspecified address covers both address families.
    pub(crate) fn bind(
        transport: TransportProtocol,
        bind_address: BindAddress,
    ) -> io::Result<Self> {
        let address = bind_address.address;
        match Self::bind_one(transport, bind_address) {
            // On a host without IPv6, the unspecified address covers IPv4 alone.
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

    /// Returns the bound address, with the port that the kernel assigned.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.local_addr(),
            Self::Udp(socket) => socket.local_addr(),
        }
    }

    fn bind_one(transport: TransportProtocol, bind_address: BindAddress) -> io::Result<Self> {
        match transport {
            TransportProtocol::Tcp => bind_tcp(bind_address).map(Self::Tcp),
            TransportProtocol::Udp => bind_udp(bind_address).map(Self::Udp),
        }
    }
}

fn bind_tcp(bind_address: BindAddress) -> io::Result<TcpListener> {
    let socket = socket(bind_address, Type::STREAM)?;
    socket.set_reuse_address(true)?;
    // Accepted connections inherit this option.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&bind_address.address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Binds without `SO_REUSEADDR`: for UDP, sharing an address delivers each datagram to an arbitrary
/// one of the sockets.
fn bind_udp(bind_address: BindAddress) -> io::Result<UdpSocket> {
    let socket = udp_socket(bind_address)?;
    socket.bind(&bind_address.address.into())?;
    Ok(socket.into())
}

/// Returns a socket for datagrams to the address, to which it is not bound yet.
pub(crate) fn udp_socket(bind_address: BindAddress) -> io::Result<Socket> {
    socket(bind_address, Type::DGRAM)
}

/// Returns a non-blocking socket, dual-stack if the address is unspecified.
fn socket(bind_address: BindAddress, kind: Type) -> io::Result<Socket> {
    let address = bind_address.address;
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    match address {
        SocketAddr::V4(_) if bind_address.free_bind => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) if bind_address.free_bind => socket.set_freebind_v6(true)?,
        SocketAddr::V4(_) | SocketAddr::V6(_) => {}
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Accepts until `closed`, then accepts what is in the kernel's accept queue, so that no client is
/// reset.
pub(crate) async fn accept(
    worker: Rc<Worker>,
    bound: Arc<ListenerSocket>,
    socket: TcpListener,
    mut closed: oneshot::Receiver<()>,
) {
    let listener = match tokio::net::TcpListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(listener.address = %bound.address, %error, "cannot register the listener socket");
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
                tracing::warn!(listener.address = %bound.address, %error, "cannot accept connections");
                tokio::time::sleep(OUT_OF_DESCRIPTORS).await;
            }
            // The client disconnected before it was accepted.
            Err(_) => {}
        }
    }
    if let Ok(listener) = listener.into_std() {
        drain_backlog(&listener, |stream, peer| dispatch_connection(&worker, &bound, stream, peer));
    }
}

/// Accepts everything in the kernel's accept queue. Only the kernel knows it all: the runtime may
/// have been notified of less.
fn drain_backlog(listener: &TcpListener, mut dispatch: impl FnMut(TcpStream, SocketAddr)) {
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                let stream =
                    stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                if let Ok(stream) = stream {
                    dispatch(stream, peer);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if is_out_of_descriptors(&error) => return,
            // The client disconnected before it was accepted.
            Err(_) => {}
        }
    }
}

/// Counts the connection and hands it to the worker with the fewest connections.
fn dispatch_connection(
    worker: &Rc<Worker>,
    bound: &Arc<ListenerSocket>,
    stream: TcpStream,
    peer: SocketAddr,
) {
    let counters = &bound.counters[worker.index];
    let live = worker.config();
    let listener = live.listeners.get(bound.listener_index).and_then(Option::as_ref);
    // A listener that is being closed accepts its remaining backlog without a limit.
    let most = listener.map_or(u32::MAX, |listener| listener.client.max_connections);
    if !bound.admit_connection(most) {
        counters.refused.add(1);
        return;
    }
    counters.accepted.add(1);
    let home = worker.shared.least_connected(worker.index);
    let handle = &worker.shared.workers[home];
    handle.connections.fetch_add(1, Ordering::AcqRel);
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
        accepted_connection::hand_over(handle, stream, arrival);
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
