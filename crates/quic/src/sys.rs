//! Socket options that no safe interface offers.
#![expect(unsafe_code, reason = "the only file of this crate with unsafe code")]

use std::io;
use std::os::fd::AsRawFd;

/// The number in asm-generic/socket.h (since 4.5).
const SO_ATTACH_REUSEPORT_CBPF: libc::c_int = 51;

/// Steers each datagram among the sockets that share this one's address, by the worker in its connection id modulo
/// `workers`.
///
/// An id begins with the second byte of a datagram, or at `long_id` if the first byte has its highest bit set; the
/// octet of the worker is at `worker_at` in it. A datagram that is too short for that goes to the first socket.
pub(super) fn steer_by_worker(
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

fn set_option<T>(socket: &impl AsRawFd, level: i32, option: i32, value: T) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `value`, which is that large.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
