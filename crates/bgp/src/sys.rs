//! Socket options that no safe interface offers.
#![expect(unsafe_code, reason = "the only file of this crate with unsafe code")]

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

/// linux/tcp.h: the password of a connection, `struct tcp_md5sig`.
const TCP_MD5SIG: libc::c_int = 14;
const MD5_STRUCT_BYTES: usize = 216;
/// Offsets of its fields: the length of the password, and the password. A `sockaddr_storage` is before them.
const KEY_LENGTH_AT: usize = 130;
const KEY_AT: usize = 136;

/// linux/in.h and linux/in6.h: packets with a lower hop limit are dropped.
const IP_MINTTL: libc::c_int = 21;
const IPV6_MINHOPCOUNT: libc::c_int = 73;

/// Sets the password (RFC 2385) of connections to an address. It is at most 80 bytes long.
pub(crate) fn set_password(socket: &impl AsRawFd, peer: IpAddr, password: &[u8]) -> io::Result<()> {
    let mut option = [0; MD5_STRUCT_BYTES];
    let (family, at, octets) = match peer {
        IpAddr::V4(ip) => (libc::AF_INET, 4, ip.octets().to_vec()),
        IpAddr::V6(ip) => (libc::AF_INET6, 8, ip.octets().to_vec()),
    };
    option[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
    option[at..at + octets.len()].copy_from_slice(&octets);
    let length = password.len() as u16;
    option[KEY_LENGTH_AT..KEY_LENGTH_AT + 2].copy_from_slice(&length.to_ne_bytes());
    option[KEY_AT..KEY_AT + password.len()].copy_from_slice(password);
    set(socket, libc::IPPROTO_TCP, TCP_MD5SIG, &option)
}

/// Makes the kernel drop packets of a connection whose hop limit is below this number (RFC 5082).
pub(crate) fn set_least_hop_limit(
    socket: &impl AsRawFd,
    peer: IpAddr,
    least: u8,
) -> io::Result<()> {
    let (level, option) = match peer {
        IpAddr::V4(_) => (libc::IPPROTO_IP, IP_MINTTL),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT),
    };
    set(socket, level, option, &i32::from(least).to_ne_bytes())
}

fn set(
    socket: &impl AsRawFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &[u8],
) -> io::Result<()> {
    let length = value.len() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes at the pointer, which are those of `value`.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, value.as_ptr().cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
