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

use balance::Time;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::accept::accepted_connection::{self, AcceptedConnection};
use crate::accept::intercepted_client::InterceptedClient;
use crate::accept::{dispatch, intercepted};
use crate::active_config::BoundListener;
use crate::clock;
use crate::demand::refusal_history::RefusalHistory;
use crate::dial::connect::is_out_of_descriptors;
use crate::resources::ResourceBudgets;
use crate::stream::PeerStream;
use crate::worker::Worker;

/// Pause after an accept that failed, and interval of the check if connections can be accepted again.
const PAUSE: Duration = Duration::from_millis(20);

/// Time without a pause after which pauses count as over.
const QUIET_PERIOD: Duration = Duration::from_secs(10);

/// Reason that no connections are accepted for a while. Clients wait in the kernel's accept queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcceptPause {
    /// Memory is nearly exhausted.
    Memory,
    /// Client connections have all their share of the file descriptors.
    Descriptors,
    /// The kernel reported an error.
    Error,
}

impl AcceptPause {
    /// All reasons, for the metrics.
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Descriptors, Self::Error];

    /// Returns the metric label and word in the log.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Descriptors => "descriptors",
            Self::Error => "error",
        }
    }

    /// Returns the reason for which the process accepts no connections now, if there is one.
    fn now(budgets: &ResourceBudgets) -> Option<Self> {
        if !budgets.memory.accepts_connections() {
            return Some(Self::Memory);
        }
        (!budgets.descriptors.has_room_for_client()).then_some(Self::Descriptors)
    }
}

/// The way in which connections of a socket find their listener.
pub(crate) enum ListenerLookup {
    /// All belong to this one.
    Bound(Arc<BoundListener>),
    /// They are intercepted, and each belongs to the listener of the address that its client wanted. The address here
    /// is that of the socket.
    ByDestination(SocketAddr),
}

impl ListenerLookup {
    /// Returns the address of the socket.
    fn address(&self) -> SocketAddr {
        match self {
            Self::Bound(bound) => bound.address,
            Self::ByDestination(address) => *address,
        }
    }

    fn dispatch(&self, worker: &Rc<Worker>, stream: TcpStream, peer: SocketAddr) {
        match self {
            Self::Bound(bound) => {
                let addresses = ConnectionAddresses { peer, destination: None, intercepted: None };
                dispatch_connection(worker, bound, stream, addresses);
            }
            Self::ByDestination(_) => intercepted::dispatch(worker, stream, peer),
        }
    }
}

/// The addresses of a connection that has just been accepted.
pub(super) struct ConnectionAddresses {
    pub(super) peer: SocketAddr,
    /// The address that the client of an intercepted connection wanted.
    pub(super) destination: Option<SocketAddr>,
    /// `None`: the connection was not intercepted.
    pub(super) intercepted: Option<Arc<InterceptedClient>>,
}

/// The pauses of one socket. Those that follow one another closely are counted and logged once.
struct PauseState {
    worker: Rc<Worker>,
    lookup: ListenerLookup,
    current: Option<AcceptPause>,
    last_pause: Time,
}

impl PauseState {
    /// Begins, or prolongs, a pause for this reason.
    async fn pause(&mut self, reason: AcceptPause, error: Option<&io::Error>) {
        self.last_pause = clock::now();
        if self.current.replace(reason) != Some(reason) {
            self.worker.counters().accept_pauses[reason as usize].add(1);
            let (address, reason) = (self.lookup.address(), reason.label());
            let error = error.map(tracing::field::display);
            tracing::warn!(listener.address = %address, reason, error, "connections have to wait");
        }
        tokio::time::sleep(PAUSE).await;
    }

    /// Records that a connection has been accepted.
    fn end(&mut self) {
        let Some(reason) = self.current else { return };
        if clock::now().saturating_since(self.last_pause) >= QUIET_PERIOD {
            self.current = None;
            let (address, reason) = (self.lookup.address(), reason.label());
            tracing::info!(listener.address = %address, reason, "connections are accepted again");
        }
    }
}

/// Accepts until `closed`, then accepts what is in the kernel's accept queue, so that no client is
/// reset.
pub(crate) async fn accept(
    worker: Rc<Worker>,
    lookup: ListenerLookup,
    socket: TcpListener,
    mut closed: oneshot::Receiver<()>,
) {
    let listener = match tokio::net::TcpListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => {
            let address = lookup.address();
            tracing::error!(listener.address = %address, %error, "cannot register the listener socket");
            return;
        }
    };
    let mut state = PauseState { worker, lookup, current: None, last_pause: clock::now() };
    loop {
        tokio::select! {
            () = accept_next(&listener, &mut state) => {}
            _ = &mut closed => break,
        }
    }
    if let Ok(listener) = listener.into_std() {
        let PauseState { worker, lookup, .. } = state;
        drain_backlog(&listener, |stream, peer| lookup.dispatch(&worker, stream, peer));
    }
}

/// Accepts the next connection, or pauses. Cancel-safe.
async fn accept_next(listener: &tokio::net::TcpListener, state: &mut PauseState) {
    if let Some(reason) = AcceptPause::now(&state.worker.shared.budgets) {
        return state.pause(reason, None).await;
    }
    match listener.accept().await {
        Ok((stream, peer)) => {
            state.end();
            state.lookup.dispatch(&state.worker, stream, peer);
        }
        Err(error) if concerns_one_connection(&error) => {}
        Err(error) if is_out_of_descriptors(&error) => {
            state.pause(AcceptPause::Descriptors, Some(&error)).await;
        }
        Err(error) => state.pause(AcceptPause::Error, Some(&error)).await,
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
            Err(error) if concerns_one_connection(&error) => {}
            // Nothing is left, or nothing more can be accepted.
            Err(_) => return,
        }
    }
}

/// Counts the connection and hands it to the worker with the fewest connections.
pub(super) fn dispatch_connection(
    worker: &Rc<Worker>,
    bound: &Arc<BoundListener>,
    stream: TcpStream,
    addresses: ConnectionAddresses,
) {
    let counters = &bound.counters[worker.index];
    let active_config = worker.config();
    let listener = active_config.listeners.get(bound.listener_index).and_then(Option::as_ref);
    if !listener.is_none_or(|listener| listener.admits_source(addresses.peer.ip())) {
        counters.refused_sources.add(1);
        return;
    }
    // A listener that is being closed accepts its remaining backlog without a limit.
    let most = listener.map_or(u32::MAX, |listener| listener.client.max_connections);
    if !bound.admit_connection(most) {
        counters.refused.add(1);
        return;
    }
    counters.accepted.add(1);
    worker.shared.budgets.descriptors.add_client();
    let home = worker.shared.least_connected(worker.index);
    let handle = &worker.shared.workers[home];
    handle.connections.fetch_add(1, Ordering::AcqRel);
    let ConnectionAddresses { peer, destination, intercepted } = addresses;
    let arrival = AcceptedConnection {
        peer,
        destination,
        intercepted,
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
        accepted_connection::hand_over(handle, stream, arrival, &worker.shared.budgets);
    }
}

/// True if the error concerns the connection that was to be accepted, and not the next one: its client has disconnected,
/// or a signal has interrupted the call.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::ECONNRESET | libc::EINTR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_a_single_connection_are_passed_over_without_a_pause() {
        let passed_over = |error| concerns_one_connection(&io::Error::from_raw_os_error(error));
        let single = [libc::ECONNABORTED, libc::ECONNRESET, libc::EINTR];
        assert!(single.into_iter().all(passed_over));
        let lasting = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EPROTO];
        assert!(!lasting.into_iter().chain([libc::EBADF, libc::EPERM]).any(passed_over));
    }
}
