//! Socket options that no safe interface offers.
#![expect(unsafe_code, reason = "the only file of this crate with unsafe code")]

use std::io;
use std::os::fd::AsRawFd;

use crate::connection_id::{IN_LONG_HEADER, IN_SHORT_HEADER};

/// The number in asm-generic/socket.h (since 4.5).
const SO_ATTACH_REUSEPORT_CBPF: libc::c_int = 51;

/// Set in the first octet of a long header.
const LONG_HEADER: u32 = 0x80;

// Steps of classic BPF.
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
/// The octets of a word are in network order.
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const JUMP_IF_SET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JUMP_IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const ADD: u32 = libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K;
const SUBTRACT: u32 = libc::BPF_ALU | libc::BPF_SUB | libc::BPF_K;
const MODULO: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_A;

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
    let mut program = vec![
        step(LOAD_BYTE, 0, 0, 0),
        step(JUMP_IF_SET, 0, 2, LONG_HEADER),
        step(LOAD_BYTE, 0, 0, (long_id + worker_at) as u32),
        step(JUMP, 0, 0, 1),
        step(LOAD_BYTE, 0, 0, (1 + worker_at) as u32),
        step(MODULO, 0, 0, workers as u32),
        step(RETURN, 0, 0, 0),
    ];
    attach(socket, &mut program)
}

/// Steers datagrams among the sockets of two processes that share an address: an id that begins with `prefix`, and
/// whose next octet is one of the predecessor's (the first one and their number), to the socket of that octet, and
/// everything else to the sockets after those, by that octet modulo `workers`.
pub(super) fn steer_beside(
    socket: &impl AsRawFd,
    prefix: [u8; 5],
    (first_octet, octets): (u8, usize),
    workers: usize,
) -> io::Result<()> {
    let [first, server @ ..] = prefix;
    let (first_octet, octets) = (u32::from(first_octet), octets as u32);
    // Jumps are relative to the next step; the steps for the successor begin with the tenth.
    let by_id = |at: u32| {
        [
            step(LOAD_BYTE, 0, 0, at),
            step(JUMP_IF_EQUAL, 0, 7, first.into()),
            step(LOAD_WORD, 0, 0, at + 1),
            step(JUMP_IF_EQUAL, 0, 5, u32::from_be_bytes(server)),
            step(LOAD_BYTE, 0, 0, at + 5),
            step(JUMP_IF_AT_LEAST, 0, 3, first_octet),
            step(JUMP_IF_AT_LEAST, 2, 0, first_octet + octets),
            step(SUBTRACT, 0, 0, first_octet),
            step(RETURN, 0, 0, 0),
            step(LOAD_BYTE, 0, 0, at + 5),
            step(MODULO, 0, 0, workers as u32),
            step(ADD, 0, 0, octets),
            step(RETURN, 0, 0, 0),
        ]
    };
    let (short, long) = (by_id(IN_SHORT_HEADER as u32), by_id(IN_LONG_HEADER as u32));
    let mut program =
        vec![step(LOAD_BYTE, 0, 0, 0), step(JUMP_IF_SET, short.len() as u8, 0, LONG_HEADER)];
    program.extend(short.into_iter().chain(long));
    attach(socket, &mut program)
}

/// Stops the kernel from adding the time of its arrival to each datagram.
pub(super) fn disable_timestamps(socket: &impl AsRawFd) -> io::Result<()> {
    let off: libc::c_int = 0;
    set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, off)
}

fn step(code: u32, if_true: u8, if_false: u8, operand: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: if_true, jf: if_false, k: operand }
}

/// Attaches the program to all sockets that share this one's address. The kernel checks it.
fn attach(socket: &impl AsRawFd, program: &mut [libc::sock_filter]) -> io::Result<()> {
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
