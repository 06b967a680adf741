//! Accepted connections: assignment to a worker and start of the listener's protocol.
//!
//! A connection moves between workers as a bare file descriptor, with its TLS session if it has
//! one. It is registered with the runtime of the worker that serves it and with no other.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use balance::Time;
use gateway::snapshot::{ListenerProtocol, UrlScheme};
use tls::TlsInfo;

use crate::accept::client::ClientConnection;
use crate::accept::h1;
use crate::accept::handshake;
use crate::accept::proxy_protocol_step::{self, ProxyProtocolStep};
use crate::active_config::ListenerSocket;
use crate::demand::refusal_history::RefusalHistory;
use crate::forwarded::RequestOrigin;
use crate::observe::l4_record::L4Record;
use crate::stream::{DetachedStream, PeerStream};
use crate::tcp;
use crate::worker::{Worker, WorkerCommand, WorkerHandle};

/// Accepted client connection: its addresses, its listener and its state before the first request.
pub(crate) struct AcceptedConnection {
    pub(crate) peer: SocketAddr,
    /// Destination address that a trusted proxy gives in its PROXY protocol header.
    pub(crate) destination: Option<SocketAddr>,
    pub(crate) bound: Arc<ListenerSocket>,
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
    stream: DetachedStream,
    connection: AcceptedConnection,
}

/// Sends the connection to the worker of that handle, which already counts it.
pub(crate) fn hand_over(handle: &WorkerHandle, stream: PeerStream, arrival: AcceptedConnection) {
    match stream.detach() {
        Some(stream) => {
            handle.send(WorkerCommand::Adopt(ConnectionHandover { stream, connection: arrival }))
        }
        None => {
            handle.connections.fetch_sub(1, Ordering::AcqRel);
            arrival.bound.release_connection();
        }
    }
}

/// Takes over a connection that another worker has handed over.
pub(crate) fn adopt(worker: &Rc<Worker>, handover: ConnectionHandover) {
    let ConnectionHandover { stream, connection: arrival } = handover;
    match stream.attach() {
        Ok(stream) => spawn(worker, stream, arrival),
        Err(_) => drop(ConnectionGuard::new(worker, &arrival.bound)),
    }
}

/// Serves the connection on this worker from now on.
pub(crate) fn spawn(worker: &Rc<Worker>, stream: PeerStream, arrival: AcceptedConnection) {
    let guard = ConnectionGuard::new(worker, &arrival.bound);
    let moved = arrival.moved;
    let client = ClientConnection::new(stream, arrival);
    if moved {
        worker.counters().moved_in.add(1);
        return begin(guard, client);
    }
    match proxy_protocol_step::required_step(worker, &client) {
        Some(step) => {
            tokio::task::spawn_local(read_proxy_header(guard, client, step));
        }
        None => begin(guard, client),
    }
}

/// Reads the PROXY protocol header, which gives the client address, before anything else.
async fn read_proxy_header(
    guard: ConnectionGuard,
    mut client: ClientConnection,
    step: ProxyProtocolStep,
) {
    let worker = Rc::clone(&guard.worker);
    match proxy_protocol_step::read_header(&worker, &mut client, step).await {
        Ok(()) => begin(guard, client),
        Err(failure) => {
            client.reset_on_close();
            L4Record::of_connection(&client).close_failed(&worker, failure);
        }
    }
}

/// Serves the client in the listener's protocol, in a task of its own: each wake-up of a request
/// polls the whole task.
fn begin(guard: ConnectionGuard, client: ClientConnection) {
    let live = guard.worker.config();
    let listener = client.listener(&live);
    if listener.is_some_and(|listener| listener.sni_table.is_some()) && client.tls_info.is_none() {
        tokio::task::spawn_local(handshake::serve(guard, client));
        return;
    }
    match listener.map(|listener| &listener.protocol) {
        Some(ListenerProtocol::Http(_)) => {
            tokio::task::spawn_local(h1::serve(guard, client));
        }
        Some(ListenerProtocol::Tcp(_)) => {
            tokio::task::spawn_local(tcp::serve(guard, client));
        }
        // The listener has been removed, or is no longer a TCP listener.
        Some(ListenerProtocol::Udp(_)) | None => {}
    }
}

/// Guard that counts the connection for its listener and its worker while it is served here.
pub(crate) struct ConnectionGuard {
    pub(crate) worker: Rc<Worker>,
    pub(crate) bound: Arc<ListenerSocket>,
    has_moved: bool,
}

impl ConnectionGuard {
    pub(crate) fn new(worker: &Rc<Worker>, bound: &Arc<ListenerSocket>) -> Self {
        Self { worker: Rc::clone(worker), bound: Arc::clone(bound), has_moved: false }
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
            self.bound.counters[self.worker.index].closed.add(1);
        }
    }
}
