//! Acceptance of intercepted connections (transparent mode).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;

use socket2::SockRef;

use super::Proxy;
use crate::active_config::ActiveListener;
use crate::interception::InterceptionCounts;
use crate::worker::WorkerCommand;

impl Proxy {
    /// Accepts intercepted connections from these sockets, one for each IP version, beside those of listeners. Each
    /// connection belongs to the listener of the address that its client wanted.
    ///
    /// # Errors
    /// If there is no interceptor, or a socket cannot be used.
    pub fn accept_intercepted(&self, sockets: Vec<TcpListener>) -> io::Result<()> {
        if self.shared.interception.interceptor.is_none() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "there is no interceptor"));
        }
        let mut prepared = Vec::new();
        for socket in sockets {
            socket.set_nonblocking(true)?;
            // Accepted connections inherit this option.
            SockRef::from(&socket).set_tcp_nodelay(true)?;
            prepared.push((socket.local_addr()?, socket));
        }
        for (index, (address, socket)) in prepared.into_iter().enumerate() {
            self.accepting_worker(index).send(WorkerCommand::Intercept(address, socket));
        }
        Ok(())
    }

    /// Ends that: accepts what is in the accept queues, then closes the sockets.
    pub fn stop_intercepted(&self) {
        self.broadcast(|| WorkerCommand::StopIntercepting);
    }

    /// Returns counts of interception since the start.
    #[must_use]
    pub fn interception_counts(&self) -> InterceptionCounts {
        let counters = || self.shared.workers.iter().map(|handle| &handle.counters);
        InterceptionCounts {
            accepted: counters().map(|it| it.intercepted.value()).sum(),
            unknown: counters().map(|it| it.intercepted_unknown.value()).sum(),
            worker_ticks: counters().map(|it| it.ticks.value()).collect(),
        }
    }

    /// Sets the namespace of each client on this node, by its address: it selects the consumer routes of its requests,
    /// from the next one on.
    pub fn set_client_namespaces(&self, namespaces: HashMap<IpAddr, Arc<str>>) {
        self.shared.interception.namespaces.store(Arc::new(namespaces));
    }
}

/// Returns the indices of the listeners whose connections are intercepted, by address.
pub(super) fn by_address(listeners: &[Option<ActiveListener>]) -> HashMap<SocketAddr, usize> {
    let intercepted = listeners.iter().flatten().filter(|it| it.interception.is_some());
    intercepted.map(|it| (it.bound.address, it.bound.listener_index)).collect()
}
