//! The right to be the agent of a node: two agents would undo each other's changes.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use tokio::time::sleep;

/// Name of an abstract socket. The kernel has one of this name in each network namespace, and frees it when the process
/// ends, however it ends.
const NAME: &str = "sheave-l4-agent";
/// Interval of attempts.
const INTERVAL: Duration = Duration::from_millis(200);

/// Proof that this process is the only agent in its network namespace.
pub(super) struct NodeLock {
    _socket: UnixListener,
}

impl NodeLock {
    /// Returns the lock, or `None` if another process has it.
    pub(super) fn try_take() -> io::Result<Option<Self>> {
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(NAME)?) {
            Ok(socket) => Ok(Some(Self { _socket: socket })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until no other process is the agent of this node. Cancel-safe.
    pub(super) async fn take() -> io::Result<Self> {
        let mut is_logged = false;
        loop {
            if let Some(lock) = Self::try_take()? {
                return Ok(lock);
            }
            if !std::mem::replace(&mut is_logged, true) {
                tracing::warn!("waiting for another agent of this node to end");
            }
            sleep(INTERVAL).await;
        }
    }
}
