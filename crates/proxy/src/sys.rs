//! Kernel interfaces without a safe wrapper, and a thread-bound value whose safety the compiler cannot prove.
#![expect(unsafe_code, reason = "the only file of this crate with unsafe code")]

use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::thread::{self, ThreadId};
use std::time::Duration;

// Offsets in `struct tcp_info` (linux/tcp.h): eight bytes of flags, then `u32`s, then `u64`s (since 4.1).
const LAST_DATA_RECV: usize = 8 + 11 * 4;
const BYTES_ACKED: usize = 8 + 24 * 4 + 2 * 8;
// Since 4.6.
const MIN_RTT: usize = BYTES_ACKED + 2 * 8 + 3 * 4;
const INFO_BYTES: usize = MIN_RTT + 4;

/// Returns the bytes that the peer's kernel has acknowledged on this connection, the SYN included.
///
/// `None` if the kernel does not report it.
pub(crate) fn bytes_acked(socket: &impl AsRawFd) -> Option<u64> {
    tcp_info(socket, BYTES_ACKED).map(u64::from_ne_bytes)
}

/// Returns the minimum round trip to the peer that was measured; `None` if there was none, or the kernel does not
/// report it.
pub(crate) fn round_trip(socket: &impl AsRawFd) -> Option<Duration> {
    let microseconds = tcp_info(socket, MIN_RTT).map(u32::from_ne_bytes)?;
    (microseconds < u32::MAX).then(|| Duration::from_micros(microseconds.into()))
}

/// Makes the kernel pace a window over the round trip instead of sending it at once: in slow start at twice the
/// window's rate, later at 1.2 times (net.ipv4.tcp_pacing_ss_ratio, tcp_pacing_ca_ratio).
pub(crate) fn enable_pacing(socket: &impl AsRawFd) -> io::Result<()> {
    // The kernel paces any socket with a rate limit, however high; all bits set means no limit.
    set_option(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, u64::MAX - 1)
}

/// Returns the time since the last data arrived from the peer, even if it was read later; precise to a tick of the
/// kernel.
pub(crate) fn since_last_data(socket: &impl AsRawFd) -> Option<Duration> {
    let milliseconds = tcp_info(socket, LAST_DATA_RECV).map(u32::from_ne_bytes)?;
    Some(Duration::from_millis(milliseconds.into()))
}

/// Allows fragmentation of datagrams on their way, as senders that do not probe the MTU expect.
pub(crate) fn allow_fragmentation(socket: &impl AsRawFd) -> io::Result<()> {
    // A socket for IPv4 alone rejects options of IPv6.
    if set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 0).is_ok() {
        let how = libc::IPV6_PMTUDISC_DONT;
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, how)?;
    }
    set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)
}

/// Disables GRO: datagrams of one sender are read one by one, not joined.
pub(crate) fn disable_gro(socket: &impl AsRawFd) {
    // A kernel without GRO rejects the option, and joins none.
    drop(set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 0));
}

fn set_option<T>(socket: &impl AsRawFd, level: i32, option: i32, value: T) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `value`, which is that large.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the field at offset `at` of `struct tcp_info`; `None` if the kernel does not know it.
fn tcp_info<const SIZE: usize>(socket: &impl AsRawFd, at: usize) -> Option<[u8; SIZE]> {
    let mut info = [MaybeUninit::<u8>::uninit(); INFO_BYTES];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, and stores the number written in `length`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 || (length as usize) < at + SIZE {
        return None;
    }
    let field: [MaybeUninit<u8>; SIZE] = info[at..at + SIZE].try_into().ok()?;
    // SAFETY: the kernel has just written `length` bytes of `info`.
    Some(field.map(|byte| unsafe { byte.assume_init() }))
}

thread_local! {
    /// The id of this thread: a query to the standard library takes ten times as long.
    static HERE: ThreadId = thread::current().id();
}

/// A value that only the thread that made it may use, though other threads may own it: access by another thread
/// panics, and a drop by another thread leaks the value.
///
/// So the state of one worker (QUIC's streams) can be stored beside values that move between workers, at the cost of a
/// comparison; a lock would cost two locked instructions.
pub(crate) struct ThreadBound<T> {
    thread: ThreadId,
    value: ManuallyDrop<T>,
}

// SAFETY: `is_owner_thread` guards each access to the value, and its drop: no other thread reaches it.
unsafe impl<T> Send for ThreadBound<T> {}
// SAFETY: the same holds for a shared reference.
unsafe impl<T> Sync for ThreadBound<T> {}

impl<T> ThreadBound<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { thread: HERE.with(|here| *here), value: ManuallyDrop::new(value) }
    }

    fn is_owner_thread(&self) -> bool {
        HERE.with(|here| *here == self.thread)
    }
}

impl<T> Deref for ThreadBound<T> {
    type Target = T;

    fn deref(&self) -> &T {
        assert!(self.is_owner_thread(), "it is used only by the thread that made it");
        &self.value
    }
}

impl<T> DerefMut for ThreadBound<T> {
    fn deref_mut(&mut self) -> &mut T {
        assert!(self.is_owner_thread(), "it is used only by the thread that made it");
        &mut self.value
    }
}

impl<T> Drop for ThreadBound<T> {
    fn drop(&mut self) {
        if self.is_owner_thread() {
            // SAFETY: it is dropped only here, and cannot be accessed afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::rc::Rc;

    #[test]
    fn bytes_acked_counts_acknowledged_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        let before = bytes_acked(&ours).unwrap();
        assert!(before <= 1, "only the SYN, not {before}");
        ours.write_all(b"hello").unwrap();
        let mut received = [0; 5];
        theirs.read_exact(&mut received).unwrap();
        // The response carries the acknowledgement of the data.
        theirs.write_all(b"x").unwrap();
        ours.read_exact(&mut received[..1]).unwrap();
        assert_eq!(bytes_acked(&ours).unwrap(), before + 5);
    }

    #[test]
    fn loopback_round_trip_is_short() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        // The handshake has measured one round trip.
        let seen = round_trip(&ours).unwrap();
        assert!(seen > Duration::ZERO && seen < Duration::from_secs(60), "{seen:?}");
    }

    #[test]
    fn pacing_sets_an_unreachable_rate_limit() {
        // tcpi_max_pacing_rate, the field before tcpi_bytes_acked.
        let most = |socket: &TcpStream| tcp_info(socket, BYTES_ACKED - 8).map(u64::from_ne_bytes);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        assert_eq!(most(&ours), Some(u64::MAX));
        enable_pacing(&ours).unwrap();
        assert_eq!(most(&ours), Some(u64::MAX - 1));
        let sent = [7; 100_000];
        let sending = thread::spawn(move || ours.write_all(&sent));
        let mut received = Vec::new();
        theirs.read_to_end(&mut received).unwrap();
        sending.join().unwrap().unwrap();
        assert_eq!(received, sent);
    }

    #[test]
    fn since_last_data_grows_while_the_peer_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        theirs.write_all(b"x").unwrap();
        let first = since_last_data(&ours).unwrap();
        assert!(first < Duration::from_secs(5), "{first:?}");
        // It grows while no data is read: the time of arrival counts.
        while since_last_data(&ours).unwrap() <= first + Duration::from_millis(20) {
            thread::yield_now();
        }
    }

    #[test]
    fn thread_bound_value_is_usable_only_on_its_thread() {
        let value = Rc::new(1);
        let tied = ThreadBound::new(Rc::clone(&value));
        let (tied, elsewhere) = thread::spawn(move || {
            let used = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| **tied));
            (tied, used.is_ok())
        })
        .join()
        .unwrap();
        assert!(!elsewhere);
        assert_eq!(**tied, 1);
        thread::spawn(move || drop(tied)).join().unwrap();
        assert_eq!(Rc::strong_count(&value), 2, "the value is leaked");
        drop(ThreadBound::new(Rc::clone(&value)));
        assert_eq!(Rc::strong_count(&value), 2);
    }
}
