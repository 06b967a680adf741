//! What the kernel offers and no safe interface carries, and what the compiler cannot know of threads.
#![allow(unsafe_code, reason = "the one file of this crate that may")]

use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::thread::{self, ThreadId};
use std::time::Duration;

// Where things stand in `struct tcp_info` (linux/tcp.h): eight bytes of flags, then `u32`s, then `u64`s (since 4.1).
const LAST_DATA_RECV: usize = 8 + 11 * 4;
const BYTES_ACKED: usize = 8 + 24 * 4 + 2 * 8;
// Since 4.6.
const MIN_RTT: usize = BYTES_ACKED + 2 * 8 + 3 * 4;
const INFO_BYTES: usize = MIN_RTT + 4;

/// As asm-generic/socket.h numbers it (since 4.5).
const SO_ATTACH_REUSEPORT_CBPF: libc::c_int = 51;

/// Bytes of ours that the peer's kernel has acknowledged on this connection, the SYN included.
///
/// `None` where the kernel does not say.
pub(crate) fn bytes_acked(socket: &impl AsRawFd) -> Option<u64> {
    tcp_info(socket, BYTES_ACKED).map(u64::from_ne_bytes)
}

/// The shortest round trip to the peer that was seen; `None` where there was none, or the kernel does not say.
pub(crate) fn round_trip(socket: &impl AsRawFd) -> Option<Duration> {
    let microseconds = tcp_info(socket, MIN_RTT).map(u32::from_ne_bytes)?;
    (microseconds < u32::MAX).then(|| Duration::from_micros(microseconds.into()))
}

/// From now on the kernel does not send a window at once but spreads it over the round trip: in slow start at twice the
/// window's rate, later at 1.2 times (net.ipv4.tcp_pacing_ss_ratio, tcp_pacing_ca_ratio).
pub(crate) fn enable_pacing(socket: &impl AsRawFd) -> io::Result<()> {
    // It does for whoever has a limit, however high; all bits set is none.
    set_option(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, u64::MAX - 1)
}

/// How long ago the last data came from the peer, however long it then lay unread; exact to a tick of the kernel.
pub(crate) fn since_last_data(socket: &impl AsRawFd) -> Option<Duration> {
    let milliseconds = tcp_info(socket, LAST_DATA_RECV).map(u32::from_ne_bytes)?;
    Some(Duration::from_millis(milliseconds.into()))
}

/// Datagrams may be fragmented on their way, as senders that know nothing of it expect.
pub(crate) fn allow_fragmentation(socket: &impl AsRawFd) -> io::Result<()> {
    // A socket for IPv4 alone refuses what is about IPv6.
    if set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 0).is_ok() {
        let how = libc::IPV6_PMTUDISC_DONT;
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, how)?;
    }
    set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)
}

/// The sockets that share the address of this one get each datagram by the worker in its connection id, of `workers`.
///
/// An id begins with the second byte of a datagram, or at `long_id` where the first has its highest bit set; the
/// worker's octet is at `worker_at` in it. What is too short for that goes to the first socket.
pub(crate) fn steer_by_worker(
    socket: &impl AsRawFd,
    long_id: usize,
    worker_at: usize,
    workers: usize,
) -> io::Result<()> {
    const LONG_HEADER: u32 = 0x80;
    let load = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    let step = |code: u32, if_set: u8, if_not: u8, operand: u32| libc::sock_filter {
        code: code as u16,
        jt: if_set,
        jf: if_not,
        k: operand,
    };
    let mut program = [
        step(load, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 2, LONG_HEADER),
        step(load, 0, 0, (long_id + worker_at) as u32),
        step(libc::BPF_JMP | libc::BPF_JA, 0, 0, 1),
        step(load, 0, 0, (1 + worker_at) as u32),
        step(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, 0, 0, workers as u32),
        step(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set_option(socket, libc::SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)
}

/// Datagrams are read one by one, not several of a sender as one.
pub(crate) fn disable_gro(socket: &impl AsRawFd) {
    // A kernel that does not know how to join them does not.
    drop(set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 0));
}

fn set_option<T>(socket: &impl AsRawFd, level: i32, option: i32, value: T) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `value`, which is as large.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What stands there in `struct tcp_info`; `None` where the kernel does not know it.
fn tcp_info<const SIZE: usize>(socket: &impl AsRawFd, at: usize) -> Option<[u8; SIZE]> {
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
    if result != 0 || (length as usize) < at + SIZE {
        return None;
    }
    let field: [MaybeUninit<u8>; SIZE] = info[at..at + SIZE].try_into().ok()?;
    // SAFETY: the kernel has just written `length` bytes of `info`.
    Some(field.map(|byte| unsafe { byte.assume_init() }))
}

thread_local! {
    /// Who we are: to ask the standard library each time takes ten times as long.
    static HERE: ThreadId = thread::current().id();
}

/// What no thread but the one that made it touches, though others may hold it: who else tries panics, and who else drops
/// it leaks it.
///
/// So what belongs to one worker (QUIC's streams) can stand beside what goes from worker to worker, at the price of a
/// comparison; a lock would take two locked instructions.
pub(crate) struct ThreadBound<T> {
    thread: ThreadId,
    value: ManuallyDrop<T>,
}

// SAFETY: `is_here` stands before each access to the value, and before its drop: no other thread gets at it.
unsafe impl<T> Send for ThreadBound<T> {}
// SAFETY: the same holds for who has a reference.
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
        assert!(self.is_owner_thread(), "it is used by the thread that made it");
        &self.value
    }
}

impl<T> DerefMut for ThreadBound<T> {
    fn deref_mut(&mut self) -> &mut T {
        assert!(self.is_owner_thread(), "it is used by the thread that made it");
        &mut self.value
    }
}

impl<T> Drop for ThreadBound<T> {
    fn drop(&mut self) {
        if self.is_owner_thread() {
            // SAFETY: it is dropped here alone, and nobody sees it afterwards.
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
        // The answer carries the acknowledgement of what it answers.
        theirs.write_all(b"x").unwrap();
        ours.read_exact(&mut received[..1]).unwrap();
        assert_eq!(bytes_acked(&ours).unwrap(), before + 5);
    }

    #[test]
    fn loopback_round_trip_is_short() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        // The handshake was one.
        let seen = round_trip(&ours).unwrap();
        assert!(seen > Duration::ZERO && seen < Duration::from_secs(60), "{seen:?}");
    }

    #[test]
    fn pacing_sets_an_unreachable_rate_limit() {
        // tcpi_max_pacing_rate, before what has been acknowledged.
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
        // It grows while nobody reads: what counts is when it came.
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
        assert_eq!(Rc::strong_count(&value), 2, "it is leaked");
        drop(ThreadBound::new(Rc::clone(&value)));
        assert_eq!(Rc::strong_count(&value), 2);
    }
}
