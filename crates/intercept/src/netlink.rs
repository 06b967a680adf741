//! A socket to the kernel's netfilter (linux/netfilter/nfnetlink.h): transactions of nftables, questions, dumps.
//!
//! The kernel answers while it takes a message, so an answer is there when `send` returns, and nothing here waits. The
//! socket belongs to the network namespace of the thread that opens it.

use std::io;

use libc::{
    NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFNL_SUBSYS_NFTABLES, NFNL_SUBSYS_NONE, NLM_F_ACK,
    NLM_F_DUMP, NLM_F_REQUEST,
};
use netlink_packet_core::{ErrorBuffer, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};
use rustix::net::sockopt::{set_socket_send_buffer_size_force, socket_send_buffer_size};

use crate::attributes::AttributeList;

/// Length of `struct nlmsghdr`.
const NETLINK_HEADER_LEN: usize = 16;
/// Length of `struct nfgenmsg`, which precedes the attributes.
const FAMILY_HEADER_LEN: usize = 4;
/// Part of a send buffer that the kernel keeps for its own use, and more.
const SEND_BUFFER_RESERVE: usize = 4096;

/// A message to a part of netfilter.
#[derive(Clone, Debug)]
pub(crate) struct NetfilterMessage {
    /// NFNL_SUBSYS_*.
    pub(crate) subsystem: i32,
    /// NFT_MSG_* or IPCTNL_MSG_CT_*.
    pub(crate) operation: i32,
    /// NLM_F_*, besides those of every request.
    pub(crate) flags: i32,
    /// NFPROTO_*.
    pub(crate) family: i32,
    pub(crate) attributes: AttributeList,
}

impl NetfilterMessage {
    fn write(&self, sequence: u32, flags: i32, to: &mut Vec<u8>) {
        let attributes = self.attributes.as_bytes();
        let length = NETLINK_HEADER_LEN + FAMILY_HEADER_LEN + attributes.len();
        let kind = (self.subsystem << 8) | self.operation;
        let flags = self.flags | flags | NLM_F_REQUEST;
        let is_batch_limit = self.subsystem == NFNL_SUBSYS_NONE;
        let resource = if is_batch_limit { NFNL_SUBSYS_NFTABLES } else { 0 };
        to.extend(u32::try_from(length).expect("attributes are short").to_ne_bytes());
        to.extend((kind as u16).to_ne_bytes());
        to.extend((flags as u16).to_ne_bytes());
        to.extend(sequence.to_ne_bytes());
        to.extend(0_u32.to_ne_bytes());
        to.extend([self.family as u8, 0]);
        to.extend((resource as u16).to_be_bytes());
        to.extend(attributes);
    }

    fn batch_limit(operation: i32) -> Self {
        Self {
            subsystem: NFNL_SUBSYS_NONE,
            operation,
            flags: 0,
            family: 0,
            attributes: AttributeList::default(),
        }
    }
}

/// The kernel's refusal of a transaction, of which nothing is in force then.
#[derive(Debug)]
pub(crate) struct TransactionRefusal {
    /// Position of the message that was refused; `None` if all were.
    pub(crate) position: Option<usize>,
    pub(crate) error: io::Error,
}

impl From<io::Error> for TransactionRefusal {
    fn from(error: io::Error) -> Self {
        Self { position: None, error }
    }
}

/// The kernel's answer to one message.
enum KernelAnswer<'b> {
    Object(&'b [u8]),
    Error { sequence: u32, error: io::Error },
    Done { sequence: u32 },
}

/// A netlink socket to netfilter.
pub(crate) struct NetfilterSocket {
    socket: Socket,
    sequence: u32,
}

impl NetfilterSocket {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddress::new(0, 0))?;
        socket.set_non_blocking(true)?;
        // An error does not repeat the message that it is about.
        socket.set_cap_ack(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends messages to nftables that take effect together or not at all.
    pub(crate) fn commit(
        &mut self,
        messages: &[NetfilterMessage],
    ) -> Result<(), TransactionRefusal> {
        let begin = self.take_sequence(messages.len() + 2);
        let number = |position: usize| begin.wrapping_add(position as u32 + 1);
        let mut bytes = Vec::new();
        NetfilterMessage::batch_limit(NFNL_MSG_BATCH_BEGIN).write(begin, 0, &mut bytes);
        for (position, message) in messages.iter().enumerate() {
            let is_last = position + 1 == messages.len();
            let flags = if is_last { NLM_F_ACK } else { 0 };
            message.write(number(position), flags, &mut bytes);
        }
        let end = number(messages.len());
        NetfilterMessage::batch_limit(NFNL_MSG_BATCH_END).write(end, 0, &mut bytes);
        self.send(&bytes)?;

        let mut rejection = None;
        let mut is_acknowledged = false;
        self.read(|answer| match answer {
            KernelAnswer::Error { sequence, error } => {
                let position = sequence.wrapping_sub(begin).checked_sub(1);
                let position = position.map(|it| it as usize);
                rejection.get_or_insert(TransactionRefusal { position, error });
            }
            KernelAnswer::Done { sequence } => is_acknowledged |= sequence == end.wrapping_sub(1),
            KernelAnswer::Object(_) => {}
        })?;
        match rejection {
            Some(rejection) => Err(rejection),
            None if is_acknowledged => Ok(()),
            None => Err(no_answer().into()),
        }
    }

    /// Sends one message, outside of transactions.
    pub(crate) fn execute(&mut self, message: &NetfilterMessage) -> io::Result<()> {
        self.ask(message, NLM_F_ACK, |_| {})
    }

    /// Asks for one object, and returns its attributes.
    pub(crate) fn request(&mut self, message: &NetfilterMessage) -> io::Result<Vec<u8>> {
        let mut found = None;
        self.ask(message, NLM_F_ACK, |object| found = Some(object.to_vec()))?;
        found.ok_or_else(no_answer)
    }

    /// Asks for all objects, and calls `each` with the attributes of each.
    pub(crate) fn dump(
        &mut self,
        message: &NetfilterMessage,
        each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.ask(message, NLM_F_DUMP, each)
    }

    fn ask(
        &mut self,
        message: &NetfilterMessage,
        flags: i32,
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let number = self.take_sequence(1);
        let mut bytes = Vec::new();
        message.write(number, flags, &mut bytes);
        self.send(&bytes)?;
        let mut result = None;
        self.read(|answer| match answer {
            KernelAnswer::Object(attributes) => each(attributes),
            KernelAnswer::Error { error, .. } => result = Some(Err(error)),
            KernelAnswer::Done { sequence } if sequence == number => {
                result.get_or_insert(Ok(()));
            }
            KernelAnswer::Done { .. } => {}
        })?;
        result.unwrap_or_else(|| Err(no_answer()))
    }

    fn take_sequence(&mut self, count: usize) -> u32 {
        let first = self.sequence;
        self.sequence = first.wrapping_add(count as u32);
        first
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let wanted = bytes.len() + SEND_BUFFER_RESERVE;
        if socket_send_buffer_size(&self.socket)? < wanted {
            set_socket_send_buffer_size_force(&self.socket, wanted)?;
        }
        self.socket.send(bytes, 0).map(|_| ())
    }

    /// Reads all answers that are there.
    fn read(&self, mut each: impl FnMut(KernelAnswer<'_>)) -> io::Result<()> {
        loop {
            match self.socket.recv_from_full() {
                Ok((datagram, _)) => read_datagram(&datagram, &mut each)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn read_datagram(mut rest: &[u8], each: &mut impl FnMut(KernelAnswer<'_>)) -> io::Result<()> {
    while !rest.is_empty() {
        let message = NetlinkBuffer::new_checked(rest).map_err(io::Error::other)?;
        let sequence = message.sequence_number();
        let payload = message.payload();
        match message.message_type() {
            NLMSG_DONE => each(KernelAnswer::Done { sequence }),
            NLMSG_ERROR => {
                let code = ErrorBuffer::new_checked(payload).map_err(io::Error::other)?.code();
                match code {
                    None => each(KernelAnswer::Done { sequence }),
                    Some(code) => {
                        let error = io::Error::from_raw_os_error(code.get().wrapping_neg());
                        each(KernelAnswer::Error { sequence, error });
                    }
                }
            }
            _ => each(KernelAnswer::Object(payload.get(FAMILY_HEADER_LEN..).unwrap_or_default())),
        }
        rest = &rest[rest.len().min((message.length() as usize).next_multiple_of(4))..];
    }
    Ok(())
}

fn no_answer() -> io::Error {
    io::Error::other("the kernel gave no answer")
}
