//! How a connection comes to the worker that serves it, and who takes it from there.
//!
//! A connection travels as a bare descriptor, with its TLS session if it has one: it is registered with the runtime that
//! serves it and with no other.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use balance::Time;
use gateway::snapshot::{ListenerProtocol, UrlScheme};

use crate::accept::client::ClientConnection;
use crate::accept::h1;
use crate::accept::handshake;
use crate::accept::proxy_protocol_step::{self, ProxyProtocolStep};
use crate::active_config::ListenerSocket;
use crate::demand::RefusalHistory;
use crate::forwarded::RequestOrigin;
use crate::observe::l4_record::L4Record;
use crate::stream::{DetachedStream, PeerStream};
use crate::tcp;
use crate::tls::TlsInfo;
use crate::worker::{Worker, WorkerCommand, WorkerHandle};

/// How a connection came here.
pub(crate) struct AcceptedConnection {
    pub(crate) peer: SocketAddr,
    /// Where a proxy before us says that the client has connected to.
    pub(crate) destination: Option<SocketAddr>,
    pub(crate) bound: Arc<ListenerSocket>,
    /// What its TLS has told; `None`: nothing yet, or there is none.
    pub(crate) tls_info: Option<Arc<TlsInfo>>,
    pub(crate) accepted: Time,
    /// What its client has been refused.
    pub(crate) refusals: RefusalHistory,
    /// It comes from another worker, between two requests.
    pub(crate) moved: bool,
}

impl AcceptedConnection {
    /// Where its requests come from.
    pub(super) fn origin(&self) -> RequestOrigin {
        let scheme = if self.tls_info.is_some() { UrlScheme::Https } else { UrlScheme::Http };
        RequestOrigin::new(self.peer, scheme)
    }
}

/// A connection on its way to another worker: registered with none.
pub(crate) struct ConnectionHandover {
    stream: DetachedStream,
    connection: AcceptedConnection,
}

/// Sends the connection to the worker of that seat, which counts it already.
pub(crate) fn hand_over(seat: &WorkerHandle, stream: PeerStream, arrival: AcceptedConnection) {
    match stream.detach() {
        Some(stream) => {
            seat.send(WorkerCommand::Adopt(ConnectionHandover { stream, connection: arrival }))
        }
        None => {
            seat.connections.fetch_sub(1, Ordering::AcqRel);
            arrival.bound.release_connection();
        }
    }
}

/// Takes in what another worker has sent.
pub(crate) fn adopt(worker: &Rc<Worker>, handover: ConnectionHandover) {
    let ConnectionHandover { stream, connection: arrival } = handover;
    match stream.attach() {
        Ok(stream) => spawn(worker, stream, arrival),
        Err(_) => drop(ConnectionGuard::new(worker, &arrival.bound)),
    }
}

/// Serves the connection on this worker from now on.
pub(crate) fn spawn(worker: &Rc<Worker>, stream: PeerStream, arrival: AcceptedConnection) {
    let presence = ConnectionGuard::new(worker, &arrival.bound);
    let moved = arrival.moved;
    let client = ClientConnection::new(stream, arrival);
    if moved {
        worker.counters().moved_in.add(1);
        return begin(presence, client);
    }
    match proxy_protocol_step::required_step(worker, &client) {
        Some(introduction) => {
            tokio::task::spawn_local(read_proxy_header(presence, client, introduction));
        }
        None => begin(presence, client),
    }
}

/// Learns who the client is before anything else.
async fn read_proxy_header(
    presence: ConnectionGuard,
    mut client: ClientConnection,
    introduction: ProxyProtocolStep,
) {
    let worker = Rc::clone(&presence.worker);
    match proxy_protocol_step::read_header(&worker, &mut client, introduction).await {
        Ok(()) => begin(presence, client),
        Err(failure) => {
            client.reset_on_close();
            L4Record::of_connection(&client).close_failed(&worker, failure);
        }
    }
}

/// Serves the client in the listener's protocol, in a task that does nothing else: each request wakes through all of it.
fn begin(presence: ConnectionGuard, client: ClientConnection) {
    let live = presence.worker.config();
    let listener = client.listener(&live);
    if listener.is_some_and(|listener| listener.sni_table.is_some()) && client.tls_info.is_none() {
        tokio::task::spawn_local(handshake::serve(presence, client));
        return;
    }
    match listener.map(|listener| &listener.protocol) {
        Some(ListenerProtocol::Http(_)) => {
            tokio::task::spawn_local(h1::serve(presence, client));
        }
        Some(ListenerProtocol::Tcp(_)) => {
            tokio::task::spawn_local(tcp::serve(presence, client));
        }
        // The address is not listened on any more, or not for connections.
        Some(ListenerProtocol::Udp(_)) | None => {}
    }
}

/// The connection in the counts of its listener and worker, for as long as it is here.
pub(crate) struct ConnectionGuard {
    pub(crate) worker: Rc<Worker>,
    pub(crate) bound: Arc<ListenerSocket>,
    has_moved: bool,
}

impl ConnectionGuard {
    pub(crate) fn new(worker: &Rc<Worker>, bound: &Arc<ListenerSocket>) -> Self {
        Self { worker: Rc::clone(worker), bound: Arc::clone(bound), has_moved: false }
    }

    /// It goes on on the worker of that seat, which counts it from now on.
    pub(crate) fn move_to_worker(&mut self, home: usize) -> &WorkerHandle {
        self.has_moved = true;
        let seat = &self.worker.shared.workers[home];
        seat.connections.fetch_add(1, Ordering::AcqRel);
        seat
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
