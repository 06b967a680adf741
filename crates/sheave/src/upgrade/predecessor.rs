//! The side of the new process: it receives the sockets of the running one, and replaces it once it serves.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use gateway::snapshot::TransportProtocol;
use proxy::{GroupShape, ListeningSocket, Proxy};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use tokio::sync::oneshot;

use super::message::{self, UpgradeMessage, VERSION};
use super::{InheritedSockets, ProcessSocket};

/// Time limit for each message of the running process, which may have to wait for its own predecessor.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The running process, which this one replaces.
pub(crate) struct PredecessorProcess {
    connection: OwnedFd,
    listeners: Vec<ListeningSocket>,
    quic_groups: Vec<GroupShape>,
}

impl PredecessorProcess {
    /// Connects to the running process and receives its sockets; returns `None` if no process listens at this path.
    pub(crate) fn connect(path: &Path) -> io::Result<Option<(Self, InheritedSockets)>> {
        let flags = SocketFlags::CLOEXEC;
        let connection = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        match connect(&connection, &SocketAddrUnix::new(path)?) {
            Ok(()) => {}
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let owner = socket_peercred(&connection)?.uid;
        if owner != geteuid() && !owner.is_root() {
            return Err(io::Error::other("the process that listens there is another user's"));
        }
        set_socket_timeout(&connection, Timeout::Recv, Some(TIMEOUT))?;
        let (listeners, quic_groups) = (Vec::new(), Vec::new());
        let mut predecessor = Self { connection, listeners, quic_groups };
        let sockets = predecessor.receive_sockets()?;
        Ok(Some((predecessor, sockets)))
    }

    fn receive_sockets(&mut self) -> io::Result<InheritedSockets> {
        let mut sockets = InheritedSockets::default();
        loop {
            let (message, descriptor) = message::receive(&self.connection)?;
            let descriptor = || {
                descriptor.ok_or_else(|| io::Error::other("a message came without its descriptor"))
            };
            match message {
                UpgradeMessage::Hello { version: VERSION } => {}
                UpgradeMessage::Hello { version } => {
                    let message = format!("it speaks version {version} of the upgrade protocol");
                    return Err(io::Error::other(message));
                }
                UpgradeMessage::ProcessSocket(role) => {
                    sockets.0.push(ProcessSocket { role, socket: descriptor()? });
                }
                UpgradeMessage::TcpListener { requested_address } => {
                    let transport = TransportProtocol::Tcp;
                    let socket = descriptor()?;
                    self.listeners.push(ListeningSocket { transport, requested_address, socket });
                }
                UpgradeMessage::UdpListener { requested_address } => {
                    let transport = TransportProtocol::Udp;
                    let socket = descriptor()?;
                    self.listeners.push(ListeningSocket { transport, requested_address, socket });
                }
                UpgradeMessage::QuicGroup { address, first_octet, workers } => {
                    self.quic_groups.push(GroupShape { address, first_octet, workers });
                }
                UpgradeMessage::End => return Ok(sockets),
                UpgradeMessage::Ready => {
                    return Err(io::Error::other("it sent a message of the new process"));
                }
            }
        }
    }

    /// Gives the sockets of listeners to the data plane.
    pub(crate) fn hand_sockets_to(&mut self, proxy: &Proxy) {
        let listeners = std::mem::take(&mut self.listeners);
        proxy.inherit_sockets(listeners, std::mem::take(&mut self.quic_groups));
    }

    /// Tells the running process to drain: this one serves. The returned receiver ends with the running process, which
    /// keeps the connection open until then.
    pub(crate) fn replace(self) -> io::Result<oneshot::Receiver<()>> {
        message::send(&self.connection, &UpgradeMessage::Ready, None)?;
        set_socket_timeout(&self.connection, Timeout::Recv, None)?;
        let (running, ended) = oneshot::channel::<()>();
        thread::Builder::new().name("predecessor".to_owned()).spawn(move || {
            while message::receive(&self.connection).is_ok() {}
            drop(running);
        })?;
        Ok(ended)
    }
}
