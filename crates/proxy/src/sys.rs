//! What the kernel offers and no safe interface carries.
#![allow(unsafe_code, reason = "the one file of this crate that may")]

use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// Where `tcpi_bytes_acked` stands in `struct tcp_info` (linux/tcp.h, since 4.1): eight bytes of flags, 24 `u32`s, two
/// `u64`s of pacing rates.
const BYTES_ACKED: usize = 8 + 24 * 4 + 2 * 8;

/// Bytes of ours that the peer's kernel has acknowledged on this connection, the SYN included.
///
/// `None` where the kernel does not say.
pub(crate) fn bytes_acked(socket: &impl AsRawFd) -> Option<u64> {
    let mut info = [MaybeUninit::<u8>::uninit(); BYTES_ACKED + 8];
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
    let written = info.map(|byte| unsafe { byte.assume_init() });
    written[BYTES_ACKED..].try_into().ok().map(u64::from_ne_bytes)
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
}
