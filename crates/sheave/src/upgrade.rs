//! Upgrade in place: another process takes over the listening sockets of this one, which then drains.
//!
//! The running process listens on a Unix socket (`--upgrade-socket`). A new process with the same flag connects there,
//! receives the sockets, and says when it serves. Until then nothing changes for the running process, so a new process
//! that fails does no harm.

/// Messages between the two processes.
mod message;
/// The side of the new process.
mod predecessor;
/// The side of the running process.
mod successor;

use std::future::pending;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use proxy::Proxy;
use tokio::sync::oneshot;

use crate::failure::Failure;
use message::ProcessRole;
use predecessor::PredecessorProcess;
use successor::{HandoverRequests, UpgradeServer};

/// A listening socket of the process beside those of its listeners.
#[derive(Debug)]
pub(crate) struct ProcessSocket {
    role: ProcessRole,
    socket: OwnedFd,
}

impl ProcessSocket {
    /// Returns a duplicate of the socket of this flag.
    pub(crate) fn of_flag(flag: &str, socket: &impl AsFd) -> io::Result<Self> {
        let role = ProcessRole::of_flag(flag);
        Ok(Self { role, socket: socket.as_fd().try_clone_to_owned()? })
    }
}

/// Sockets of the predecessor for the flags `--admin`, `--probes` and `--scaler`.
#[derive(Debug, Default)]
pub(crate) struct InheritedSockets(Vec<ProcessSocket>);

impl InheritedSockets {
    /// Returns the socket of this flag, if the predecessor had it.
    pub(crate) fn take(&mut self, flag: &str) -> Option<TcpListener> {
        let role = ProcessRole::of_flag(flag);
        let index = self.0.iter().position(|it| it.role == role)?;
        Some(self.0.swap_remove(index).socket.into())
    }
}

/// The processes before and after this one.
#[derive(Default)]
pub(crate) struct ProcessSuccession {
    /// The process that this one is to replace.
    predecessor: Option<PredecessorProcess>,
    /// Ends with the process that this one has replaced.
    predecessor_end: Option<oneshot::Receiver<()>>,
    server: Option<UpgradeServer>,
    requests: Option<HandoverRequests>,
    /// Open until this process ends, which the successor waits for.
    successor: Option<OwnedFd>,
}

impl ProcessSuccession {
    /// Receives the sockets of the process that listens at this path, if there is one, and gives those of listeners to
    /// the data plane. Returns the others.
    pub(crate) fn begin(path: &Path, proxy: &Proxy) -> Result<(Self, InheritedSockets), Failure> {
        proxy.keep_sockets();
        let connected = PredecessorProcess::connect(path).map_err(|error| {
            let path = path.display();
            Failure::input(format_args!(
                "cannot replace the process at --upgrade-socket {path}: {error}"
            ))
        })?;
        let Some((mut predecessor, sockets)) = connected else { return Ok(Default::default()) };
        predecessor.hand_sockets_to(proxy);
        Ok((Self { predecessor: Some(predecessor), ..Self::default() }, sockets))
    }

    /// Replaces the predecessor: this process serves. From now on it can itself be replaced, with these sockets of its
    /// own.
    pub(crate) fn take_over(
        &mut self,
        path: &Path,
        proxy: &Arc<Proxy>,
        sockets: Vec<ProcessSocket>,
    ) -> Result<(), Failure> {
        let fails = |error: io::Error| {
            let path = path.display();
            Failure::input(format_args!("cannot listen at --upgrade-socket {path}: {error}"))
        };
        if let Some(predecessor) = self.predecessor.take() {
            self.predecessor_end = Some(predecessor.replace().map_err(fails)?);
        }
        proxy.close_inherited_sockets();
        self.server = Some(UpgradeServer::bind(path, Arc::clone(proxy), sockets).map_err(fails)?);
        Ok(())
    }

    /// Waits until another process serves in place of this one, or forever if none can. Cancel-safe.
    ///
    /// Until the predecessor of this process has ended, another one has to wait: the kernel distinguishes the
    /// datagrams of two processes.
    pub(crate) async fn next_handover(&mut self, proxy: &Proxy) {
        if let Some(end) = &mut self.predecessor_end {
            end.await.ok();
            self.predecessor_end = None;
            proxy.forget_predecessor();
            tracing::info!("the previous process has ended");
        }
        if let Some(server) = self.server.take() {
            match server.start() {
                Ok(requests) => self.requests = Some(requests),
                Err(error) => tracing::error!(%error, "cannot start the thread for upgrades"),
            }
        }
        let connection = match &mut self.requests {
            Some(requests) => requests.recv().await,
            None => None,
        };
        match connection {
            Some(connection) => self.successor = Some(connection),
            None => pending().await,
        }
    }
}
