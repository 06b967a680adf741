//! Accepted connections, and their hand-over between workers.
//!
//! A connection moves between workers as a bare file descriptor, with its TLS session if it has
//! one. It is registered with the runtime of the worker that serves it and with no other.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use balance::Time;
use gateway::snapshot::UrlScheme;
use tls::TlsInfo;

use crate::accept::intercepted_client::InterceptedClient;
use crate::active_config::BoundListener;
use crate::demand::refusal_history::RefusalHistory;
use crate::forwarded::RequestOrigin;
use crate::resources::ResourceBudgets;
use crate::stream::{DetachedStream, PeerStream};
use crate::worker::{Worker, WorkerCommand, WorkerHandle};

/// Accepted client connection: its addresses, its listener and its state before the first request.
pub(crate) struct AcceptedConnection {
    pub(crate) peer: SocketAddr,
    /// Destination address that a trusted proxy gives in its PROXY protocol header, or that the client of an
    /// intercepted connection wanted.
    pub(crate) destination: Option<SocketAddr>,
    /// The client of an intercepted connection; `None`: it was accepted at the address of its listener.
    pub(crate) intercepted: Option<Arc<InterceptedClient>>,
    pub(crate) bound: Arc<BoundListener>,
    /// TLS handshake results; `None` before the handshake and on a connection without TLS.
    pub(crate) tls_info: Option<Arc<TlsInfo>>,
    pub(crate) accepted: Time,
    /// Requests of this client that were rejected for lack of a slot.
    pub(crate) refusals: RefusalHistory,
    /// True if another worker handed the connection over, between two requests.
    pub(crate) moved: bool,
}

impl AcceptedConnection {
    /// Returns the client address and URL scheme of the connection's requests.
    pub(super) fn origin(&self) -> RequestOrigin {
        let scheme = if self.tls_info.is_some() { UrlScheme::Https } else { UrlScheme::Http };
        RequestOrigin::new(self.peer, scheme)
    }
}

/// Connection on its way to another worker; it is registered with no runtime.
pub(crate) struct ConnectionHandover {
    pub(super) stream: DetachedStream,
    pub(super) connection: AcceptedConnection,
}

/// Sends the connection to the worker of that handle, which already counts it.
pub(crate) fn hand_over(
    handle: &WorkerHandle,
    stream: PeerStream,
    arrival: AcceptedConnection,
    budgets: &ResourceBudgets,
) {
    match stream.detach() {
        Some(stream) => {
            handle.send(WorkerCommand::Adopt(ConnectionHandover { stream, connection: arrival }))
        }
        None => {
            handle.connections.fetch_sub(1, Ordering::AcqRel);
            arrival.bound.release_connection();
            budgets.descriptors.remove_client();
        }
    }
}

/// Guard that counts the connection for its listener and its worker while it is served here.
pub(crate) struct ConnectionGuard {
    pub(crate) worker: Rc<Worker>,
    pub(crate) bound: Arc<BoundListener>,
    has_moved: bool,
    has_descriptor: bool,
}

impl ConnectionGuard {
    /// Creates the guard of a connection over TCP.
    pub(crate) fn new(worker: &Rc<Worker>, bound: &Arc<BoundListener>) -> Self {
        Self {
            worker: Rc::clone(worker),
            bound: Arc::clone(bound),
            has_moved: false,
            has_descriptor: true,
        }
    }

    /// Creates the guard of a connection over QUIC, which has no descriptor of its own.
    pub(crate) fn of_quic(worker: &Rc<Worker>, bound: &Arc<BoundListener>) -> Self {
        let mut guard = Self::new(worker, bound);
        guard.has_descriptor = false;
        guard
    }

    /// Moves the connection to the worker with that index, which counts it from now on.
    pub(crate) fn move_to_worker(&mut self, home: usize) -> &WorkerHandle {
        self.has_moved = true;
        let handle = &self.worker.shared.workers[home];
        handle.connections.fetch_add(1, Ordering::AcqRel);
        handle
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.worker.handle().connections.fetch_sub(1, Ordering::AcqRel);
        if !self.has_moved {
            self.bound.release_connection();
            if self.has_descriptor {
                self.worker.shared.budgets.descriptors.remove_client();
            }
            self.bound.counters[self.worker.index].closed.add(1);
        }
    }
}
