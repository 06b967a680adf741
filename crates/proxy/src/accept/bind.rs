//! Binding addresses.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use gateway::snapshot::TransportProtocol;
use socket2::{Domain, Socket, Type};

/// Accept queue length that we ask for; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

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

    /// Returns another descriptor of the same socket.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(socket) => socket.try_clone().map(Self::Tcp),
            Self::Udp(socket) => socket.try_clone().map(Self::Udp),
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
