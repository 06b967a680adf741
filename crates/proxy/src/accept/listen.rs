//! Accepting connections.
//!
//! For each address, one worker accepts and hands each connection to the worker with the fewest
//! connections. One socket, instead of one per worker with `SO_REUSEPORT`, means that a port in use
//! is noticed, and that no connection is lost in the accept queue of a socket that closes.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::accept::accepted_connection::{self, AcceptedConnection};
use crate::accept::dispatch;
use crate::active_config::BoundListener;
use crate::clock;
use crate::demand::refusal_history::RefusalHistory;
use crate::stream::PeerStream;
use crate::worker::Worker;

/// Pause after an accept that failed for lack of file descriptors.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(50);

/// Accepts until `closed`, then accepts what is in the kernel's accept queue, so that no client is
/// reset.
pub(crate) async fn accept(
    worker: Rc<Worker>,
    bound: Arc<BoundListener>,
    socket: TcpListener,
    mut closed: oneshot::Receiver<()>,
) {
    let listener = match tokio::net::TcpListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(listener.address = %bound.address, %error, "cannot register the listener socket");
            return;
        }
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut closed => break,
        };
        match accepted {
            Ok((stream, peer)) => dispatch_connection(&worker, &bound, stream, peer),
            Err(error) if is_out_of_descriptors(&error) => {
                tracing::warn!(listener.address = %bound.address, %error, "cannot accept connections");
                tokio::time::sleep(OUT_OF_DESCRIPTORS).await;
            }
            // The client disconnected before it was accepted.
            Err(_) => {}
        }
    }
    if let Ok(listener) = listener.into_std() {
        drain_backlog(&listener, |stream, peer| dispatch_connection(&worker, &bound, stream, peer));
    }
}

/// Accepts everything in the kernel's accept queue. Only the kernel knows it all: the runtime may
/// have been notified of less.
fn drain_backlog(listener: &TcpListener, mut dispatch: impl FnMut(TcpStream, SocketAddr)) {
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                let stream =
                    stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                if let Ok(stream) = stream {
                    dispatch(stream, peer);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if is_out_of_descriptors(&error) => return,
            // The client disconnected before it was accepted.
            Err(_) => {}
        }
    }
}

/// Counts the connection and hands it to the worker with the fewest connections.
fn dispatch_connection(
    worker: &Rc<Worker>,
    bound: &Arc<BoundListener>,
    stream: TcpStream,
    peer: SocketAddr,
) {
    let counters = &bound.counters[worker.index];
    let active_config = worker.config();
    let listener = active_config.listeners.get(bound.listener_index).and_then(Option::as_ref);
    // A listener that is being closed accepts its remaining backlog without a limit.
    let most = listener.map_or(u32::MAX, |listener| listener.client.max_connections);
    if !bound.admit_connection(most) {
        counters.refused.add(1);
        return;
    }
    counters.accepted.add(1);
    let home = worker.shared.least_connected(worker.index);
    let handle = &worker.shared.workers[home];
    handle.connections.fetch_add(1, Ordering::AcqRel);
    let arrival = AcceptedConnection {
        peer,
        destination: None,
        bound: Arc::clone(bound),
        tls_info: None,
        accepted: clock::now(),
        refusals: RefusalHistory::default(),
        moved: false,
    };
    let stream = PeerStream::Tcp(stream);
    if home == worker.index {
        dispatch::spawn(worker, stream, arrival);
    } else {
        accepted_connection::hand_over(handle, stream, arrival);
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
