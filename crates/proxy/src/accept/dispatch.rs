//! Start of a connection on its worker, in the listener's protocol.

use std::rc::Rc;

use gateway::snapshot::ListenerProtocol;

use crate::accept::accepted_connection::{AcceptedConnection, ConnectionGuard, ConnectionHandover};
use crate::accept::client::ClientConnection;
use crate::accept::proxy_protocol_step::{self, ProxyProtocolStep};
use crate::accept::{detect, h1, handshake};
use crate::observe::l4_record::L4Record;
use crate::stream::PeerStream;
use crate::tcp;
use crate::worker::Worker;

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
        return resume(guard, client);
    }
    let needs_mark = client.intercepted.as_ref().is_some_and(|it| it.needs_mark());
    match proxy_protocol_step::required_step(worker, &client) {
        None if !needs_mark => begin(guard, client),
        step => {
            tokio::task::spawn_local(identify_client(guard, client, step));
        }
    }
}

/// Obtains the mark of an intercepted client, and reads the PROXY protocol header, which gives the client address,
/// before anything else.
async fn identify_client(
    guard: ConnectionGuard,
    mut client: ClientConnection,
    step: Option<ProxyProtocolStep>,
) {
    let worker = Rc::clone(&guard.worker);
    if let Some(intercepted) = client.intercepted.as_ref().filter(|it| it.needs_mark()) {
        intercepted.acquire_mark(&worker).await;
    }
    let Some(step) = step else { return begin(guard, client) };
    match proxy_protocol_step::read_header(&worker, &mut client, step).await {
        Ok(()) => begin(guard, client),
        Err(failure) => {
            client.reset_on_close();
            L4Record::of_connection(&client).close_failed(&worker, failure);
        }
    }
}

/// Continues a connection that has carried requests on another worker: its protocol is not detected again.
fn resume(guard: ConnectionGuard, client: ClientConnection) {
    let active_config = guard.worker.config();
    let protocol = client.listener(&active_config).map(|listener| &listener.protocol);
    match protocol {
        Some(ListenerProtocol::Detected { .. }) => {
            tokio::task::spawn_local(h1::serve(guard, client));
        }
        Some(ListenerProtocol::Http(_) | ListenerProtocol::Tcp(_) | ListenerProtocol::Udp(_))
        | None => begin(guard, client),
    }
}

/// Serves the client in the listener's protocol, in a task of its own: each wake-up of a request
/// polls the whole task.
fn begin(guard: ConnectionGuard, client: ClientConnection) {
    let active_config = guard.worker.config();
    let listener = client.listener(&active_config);
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
        Some(ListenerProtocol::Detected { .. }) => {
            tokio::task::spawn_local(detect::serve(guard, client));
        }
        // The listener has been removed, or is no longer a TCP listener.
        Some(ListenerProtocol::Udp(_)) | None => {}
    }
}
