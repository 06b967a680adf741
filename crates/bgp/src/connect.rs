//! TCP connections to routers. Sheave opens them and accepts none.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::settings::PeerSettings;
use crate::sys;

/// Time limit of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Hop limit of packets that a router of another AS, one hop away, must send and accept (RFC 5082).
const HIGHEST_HOP_LIMIT: u8 = 255;

/// Connects to a router.
pub(crate) async fn connect(peer: &PeerSettings) -> io::Result<TcpStream> {
    let socket = prepare(peer)?;
    let connecting = socket.connect(SocketAddr::new(peer.address, peer.port));
    let silent = |_| {
        let hint = if peer.password.is_some() { ", or has another password" } else { "" };
        let message = format!("the router does not answer{hint}");
        io::Error::new(io::ErrorKind::TimedOut, message)
    };
    let stream = timeout(CONNECT_TIMEOUT, connecting).await.map_err(silent)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn prepare(peer: &PeerSettings) -> io::Result<TcpSocket> {
    let socket = Socket::new(
        Domain::for_address(SocketAddr::new(peer.address, 0)),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    if let Some(limit) = hop_limit(peer) {
        match peer.address {
            IpAddr::V4(_) => socket.set_ttl_v4(limit.into())?,
            IpAddr::V6(_) => socket.set_unicast_hops_v6(limit.into())?,
        }
    }
    if peer.is_ttl_checked {
        sys::set_least_hop_limit(&socket, peer.address, HIGHEST_HOP_LIMIT)?;
    }
    if let Some(password) = &peer.password {
        sys::set_password(&socket, peer.address, password.bytes())?;
    }
    if let Some(source) = peer.source {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    Ok(TcpSocket::from_std_stream(socket.into()))
}

/// Returns the hop limit of our packets; `None`: the default of the system.
const fn hop_limit(peer: &PeerSettings) -> Option<u8> {
    if peer.is_ttl_checked {
        Some(HIGHEST_HOP_LIMIT)
    } else if peer.is_internal() || peer.is_multihop {
        None
    } else {
        Some(1)
    }
}
