//! What the kernel offers and no safe interface carries.
#![allow(unsafe_code, reason = "the one file of this crate that may")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::time::Duration;

// Where things stand in `struct tcp_info` (linux/tcp.h): eight bytes of flags, then `u32`s, then `u64`s (since 4.1).
const LAST_DATA_RECV: usize = 8 + 11 * 4;
const BYTES_ACKED: usize = 8 + 24 * 4 + 2 * 8;
const INFO_BYTES: usize = BYTES_ACKED + 8;

/// Bytes of ours that the peer's kernel has acknowledged on this connection, the SYN included.
///
/// `None` where the kernel does not say.
pub(crate) fn bytes_acked(socket: &impl AsRawFd) -> Option<u64> {
    tcp_info(socket)?[BYTES_ACKED..].try_into().ok().map(u64::from_ne_bytes)
}

/// How long ago the last data came from the peer, however long it then lay unread; exact to a tick of the kernel.
pub(crate) fn since_last_data(socket: &impl AsRawFd) -> Option<Duration> {
    let milliseconds = tcp_info(socket)?[LAST_DATA_RECV..LAST_DATA_RECV + 4].try_into().ok()?;
    Some(Duration::from_millis(u64::from(u32::from_ne_bytes(milliseconds))))
}

/// Datagrams may be fragmented on their way, as senders that know nothing of it expect.
pub(crate) fn let_fragment(socket: &impl AsRawFd) -> io::Result<()> {
    // A socket for IPv4 alone refuses what is about IPv6.
    if set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 0).is_ok() {
        let how = libc::IPV6_PMTUDISC_DONT;
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, how)?;
    }
    set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)
}

/// Datagrams are read one by one, not several of a sender as one.
pub(crate) fn read_each_datagram(socket: &impl AsRawFd) {
    // A kernel that does not know how to join them does not.
    drop(set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 0));
}

fn set_option(socket: &impl AsRawFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `value`, which is as large.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn tcp_info(socket: &impl AsRawFd) -> Option<[u8; INFO_BYTES]> {
    let mut info = [MaybeUninit::<u8>::uninit(); INFO_BYTES];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, and says in `length` how many it wrote.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 || (length as usize) < info.len() {
        return None;
    }
    // SAFETY: the kernel has just written all of `info`.
    Some(info.map(|byte| unsafe { byte.assume_init() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn counts_what_the_peer_has_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        let before = bytes_acked(&ours).unwrap();
        assert!(before <= 1, "only the SYN, not {before}");
        ours.write_all(b"hello").unwrap();
        let mut received = [0; 5];
        theirs.read_exact(&mut received).unwrap();
        // The answer carries the acknowledgement of what it answers.
        theirs.write_all(b"x").unwrap();
        ours.read_exact(&mut received[..1]).unwrap();
        assert_eq!(bytes_acked(&ours).unwrap(), before + 5);
    }

    #[test]
    fn tells_since_when_the_peer_has_been_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        theirs.write_all(b"x").unwrap();
        let first = since_last_data(&ours).unwrap();
        assert!(first < Duration::from_secs(5), "{first:?}");
        // It grows while nobody reads: what counts is when it came.
        while since_last_data(&ours).unwrap() <= first + Duration::from_millis(20) {
            std::thread::yield_now();
        }
    }
}
