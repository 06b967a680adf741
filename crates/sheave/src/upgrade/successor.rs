//! The side of the running process: a thread that hands the sockets to a new process.
//!
//! One new process at a time: a second one waits until the first has taken over or has failed. A process that still
//! drains for its own successor hands over nothing.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use gateway::snapshot::TransportProtocol;
use proxy::{GroupShape, ListeningSocket, Proxy};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use rustix::process::geteuid;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::ProcessSocket;
use super::message::{self, UpgradeMessage, VERSION};

/// Connections that may wait for the thread.
const BACKLOG: i32 = 4;

/// Requests of new processes that serve: this one is to drain. The connection shows the new process when this one ends.
pub(crate) type HandoverRequests = UnboundedReceiver<OwnedFd>;

/// The listening socket for new processes, and what it hands to them.
pub(crate) struct UpgradeServer {
    listener: OwnedFd,
    proxy: Arc<Proxy>,
    sockets: Vec<ProcessSocket>,
}

impl UpgradeServer {
    /// Listens at this path, in place of any other process. Only the same user can connect.
    pub(crate) fn bind(
        path: &Path,
        proxy: Arc<Proxy>,
        sockets: Vec<ProcessSocket>,
    ) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // Renaming replaces the socket of the predecessor, and one that was left over.
        let own = own_path(path);
        // It may be left over from a process of the same number.
        fs::remove_file(&own).ok();
        bind(&listener, &SocketAddrUnix::new(&*own)?)?;
        fs::set_permissions(&own, Permissions::from_mode(0o600))?;
        listen(&listener, BACKLOG)?;
        fs::rename(&own, path)?;
        Ok(Self { listener, proxy, sockets })
    }

    /// Starts the thread, which ends with the process.
    pub(crate) fn start(self) -> io::Result<HandoverRequests> {
        let (sender, requests) = unbounded_channel();
        thread::Builder::new().name("upgrade".to_owned()).spawn(move || self.run(&sender))?;
        Ok(requests)
    }

    fn run(&self, requests: &UnboundedSender<OwnedFd>) {
        loop {
            let connection = match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(connection) => connection,
                Err(error) => {
                    tracing::error!(%error, "cannot accept on the upgrade socket: no process can replace this one");
                    return;
                }
            };
            match self.hand_over(&connection) {
                Ok(()) => {
                    drop(requests.send(connection));
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "a new process has not taken over: this one stays");
                }
            }
        }
    }

    /// Sends the sockets, and waits until the new process serves.
    fn hand_over(&self, connection: &OwnedFd) -> io::Result<()> {
        let peer = socket_peercred(connection)?;
        if peer.uid != geteuid() && !peer.uid.is_root() {
            return Err(io::Error::other("it is another user's"));
        }
        let process = peer.pid.as_raw_pid();
        tracing::info!(process, "handing the sockets to a new process");
        message::send(connection, &UpgradeMessage::Hello { version: VERSION }, None)?;
        for ProcessSocket { role, socket } in &self.sockets {
            message::send(connection, &UpgradeMessage::ProcessSocket(*role), Some(socket))?;
        }
        for ListeningSocket { transport, requested_address, socket } in
            self.proxy.listening_sockets()?
        {
            let message = match transport {
                TransportProtocol::Tcp => UpgradeMessage::TcpListener { requested_address },
                TransportProtocol::Udp => UpgradeMessage::UdpListener { requested_address },
            };
            message::send(connection, &message, Some(&socket))?;
        }
        for GroupShape { address, first_octet, workers } in self.proxy.quic_groups() {
            let message = UpgradeMessage::QuicGroup { address, first_octet, workers };
            message::send(connection, &message, None)?;
        }
        message::send(connection, &UpgradeMessage::End, None)?;
        match message::receive(connection)?.0 {
            UpgradeMessage::Ready => Ok(()),
            other => Err(io::Error::other(format!("unexpected message {other:?}"))),
        }
    }
}

/// Returns the path of this process's socket until it is renamed.
fn own_path(path: &Path) -> PathBuf {
    let mut own = path.as_os_str().to_owned();
    own.push(format!(".{}", std::process::id()));
    own.into()
}
