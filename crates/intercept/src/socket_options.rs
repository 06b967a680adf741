//! Options of sockets that belong to transparent mode.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use socket2::SockRef;

use crate::SocketMark;

/// Returns the address that the client of an accepted connection connected to, before the kernel translated it
/// (SO_ORIGINAL_DST, IP6T_SO_ORIGINAL_DST); for a connection that was not translated, the socket's own address.
///
/// The caller must compare it with the addresses that it serves. Else the proxy is an open one, or connects to itself.
/// NotFound if the kernel does not track the connection.
pub fn original_destination(socket: &impl AsFd) -> io::Result<SocketAddr> {
    let socket = SockRef::from(socket);
    let local = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
    // A socket for both versions has IPv4 connections too, about which only the option of IPv4 tells.
    let original = match local.ip().to_canonical() {
        IpAddr::V4(_) => socket.original_dst_v4(),
        IpAddr::V6(_) => socket.original_dst_v6(),
    };
    original?.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Marks the packets that a socket sends (SO_MARK). Needs the capability NET_ADMIN, or NET_RAW since Linux 5.17.
pub fn mark_socket(socket: &impl AsFd, mark: SocketMark) -> io::Result<()> {
    SockRef::from(socket).set_mark(mark.value())
}
