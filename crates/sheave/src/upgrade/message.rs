//! Messages on the upgrade socket: JSON, at most one descriptor each. The socket keeps their boundaries
//! (`SOCK_SEQPACKET`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

/// Version of the messages. A process of another version is not replaced.
pub(super) const VERSION: u32 = 1;
/// Size limit of a message.
const MAX_MESSAGE_BYTES: usize = 4096;

/// A message; the comment says which process sends it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum UpgradeMessage {
    /// Running process, first: the version of the messages.
    Hello { version: u32 },
    /// Running process, with the descriptor: a socket of the process itself.
    ProcessSocket(ProcessRole),
    /// Running process, with the descriptor: a socket of a TCP listener.
    TcpListener { requested_address: SocketAddr },
    /// Running process, with the descriptor: a socket of a UDP listener.
    UdpListener { requested_address: SocketAddr },
    /// Running process: the new process binds sockets of its own at this address.
    QuicGroup { address: SocketAddr, first_octet: u8, workers: usize },
    /// Running process: there are no more sockets.
    End,
    /// New process: it serves.
    Ready,
}

/// The flag of a socket of the process itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ProcessRole {
    Admin,
    Probes,
    Scaler,
}

impl ProcessRole {
    pub(super) fn of_flag(flag: &str) -> Self {
        match flag {
            "--probes" => Self::Probes,
            "--scaler" => Self::Scaler,
            _ => Self::Admin,
        }
    }
}

/// Sends a message, with a descriptor or without.
pub(super) fn send(
    connection: impl AsFd,
    message: &UpgradeMessage,
    descriptor: Option<&OwnedFd>,
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let descriptors: Vec<_> = descriptor.iter().map(|it| it.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    sendmsg(connection, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message. An error of the kind `UnexpectedEof` says that the other process has closed the connection.
pub(super) fn receive(connection: impl AsFd) -> io::Result<(UpgradeMessage, Option<OwnedFd>)> {
    let mut text = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut text)];
    let received = recvmsg(connection, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((serde_json::from_slice(&text[..received.bytes])?, descriptor))
}
