//! The multiplexed connections to an endpoint from one worker: opens them, and selects one for a request.
//!
//! The pool keeps as few connections as possible: another one is opened only if all are full, one at a time, and all
//! requests that need it meanwhile wait for the same one.

use std::net::SocketAddr;
use std::sync::Arc;

use balance::Time;
use gateway::snapshot::BackendSettings;
use tls::EndpointTlsContext;
use tokio::sync::Notify;

use crate::dial::marked_socket::is_same_mark;
use crate::dial::multiplex_connection::{ConnectionAvailability, MultiplexConnection};
use crate::failure::Failure;
use crate::interception::ClientMark;
use crate::observe::MultiplexCounters;

/// Limit of connections with one key to one endpoint from one worker, unless the policy sets a lower one.
const MAX_CONNECTIONS: usize = 64;

/// Connections with the same pool key.
pub(super) struct MultiplexPool<L> {
    proxy_protocol_client: Option<SocketAddr>,
    client_mark: Option<Arc<ClientMark>>,
    tls_context: Option<Arc<EndpointTlsContext>>,
    connections: Vec<L>,
    /// The start of the current dial.
    dialing_since: Option<Time>,
    /// The number of finished dials, and the failure of the last one.
    finished_dials: u64,
    failure: Option<Failure>,
    stream_available: Arc<Notify>,
}

/// The properties that all connections of a pool share.
#[derive(Clone, Copy)]
pub(super) struct PoolKey<'a> {
    /// The client whose address a connection begins with (PROXY protocol); it may carry requests of this client only.
    pub(super) proxy_protocol_client: Option<SocketAddr>,
    /// The mark of the client whose address a connection has; it may carry requests of this client only.
    pub(super) client_mark: Option<&'a Arc<ClientMark>>,
    pub(super) tls_context: Option<&'a Arc<EndpointTlsContext>>,
}

/// A request that waits for a stream on a connection.
pub(crate) struct StreamWaiter {
    stream_available: Arc<Notify>,
    /// The number of finished dials when the wait began.
    dials_before: u64,
}

impl StreamWaiter {
    /// Waits until a retry may succeed.
    pub(super) async fn wait(&self) {
        self.stream_available.notified().await;
    }
}

/// Returns the pool with this key, a new one if there is none.
pub(super) fn pool_for<'t, L: MultiplexConnection>(
    pools: &'t mut Vec<MultiplexPool<L>>,
    key: PoolKey<'_>,
) -> &'t mut MultiplexPool<L> {
    let place = pools.iter().position(|pool| pool.has_key(key)).unwrap_or_else(|| {
        pools.push(MultiplexPool::new(key));
        pools.len() - 1
    });
    &mut pools[place]
}

impl<L: MultiplexConnection> MultiplexPool<L> {
    fn new(key: PoolKey<'_>) -> Self {
        Self {
            proxy_protocol_client: key.proxy_protocol_client,
            client_mark: key.client_mark.cloned(),
            tls_context: key.tls_context.cloned(),
            connections: Vec::new(),
            dialing_since: None,
            finished_dials: 0,
            failure: None,
            stream_available: Arc::new(Notify::new()),
        }
    }

    fn has_key(&self, key: PoolKey<'_>) -> bool {
        let address = |context: Option<&Arc<EndpointTlsContext>>| context.map(Arc::as_ptr);
        self.proxy_protocol_client == key.proxy_protocol_client
            && is_same_mark(self.client_mark.as_ref(), key.client_mark)
            && address(self.tls_context.as_ref()) == address(key.tls_context)
    }

    /// Returns a connection that can carry another request.
    pub(super) fn usable_connection(
        &mut self,
        settings: &BackendSettings,
        counters: &MultiplexCounters,
        now: Time,
    ) -> Option<&mut L> {
        let mut place = 0;
        while let Some(link) = self.connections.get_mut(place) {
            match link.availability(settings, now) {
                ConnectionAvailability::Usable => return self.connections.get_mut(place),
                ConnectionAvailability::Full => place += 1,
                ConnectionAvailability::Retired { goaway_received } => {
                    self.release(place, goaway_received, counters)
                }
            }
        }
        None
    }

    /// Releases the connection: its streams continue, and it ends with the last of them.
    fn release(&mut self, place: usize, goaway_received: bool, counters: &MultiplexCounters) {
        counters.goaways.add(u64::from(goaway_received));
        drop(self.connections.remove(place));
    }

    fn sweep(&mut self, sweep: &PoolSweep<'_>) {
        let PoolSweep { settings, counters, now, keeps_marked } = *sweep;
        let keeps_unused = keeps_marked || self.client_mark.is_none();
        let mut place = 0;
        while let Some(link) = self.connections.get_mut(place) {
            if !keeps_unused && link.usage().is_unused() {
                self.release(place, false, counters);
                continue;
            }
            match link.check_idle(settings, now) {
                ConnectionAvailability::Usable | ConnectionAvailability::Full => place += 1,
                ConnectionAvailability::Retired { goaway_received } => {
                    self.release(place, goaway_received, counters)
                }
            }
        }
    }

    /// Returns the failure of a dial that finished since the request began to wait, if it failed.
    pub(super) fn failure_since(&self, waiting: Option<&StreamWaiter>) -> Option<Failure> {
        self.failure
            .filter(|_| waiting.is_some_and(|waiting| self.finished_dials > waiting.dials_before))
    }

    /// Returns the waiter of a request that waits already, or from now on.
    pub(super) fn waiter(&self, already: Option<&StreamWaiter>) -> StreamWaiter {
        let since = already.map_or(self.finished_dials, |waiting| waiting.dials_before);
        StreamWaiter { stream_available: Arc::clone(&self.stream_available), dials_before: since }
    }

    /// Begins a dial. Returns true if the caller has to open another connection now.
    pub(super) fn try_begin_dial(
        &mut self,
        settings: &BackendSettings,
        workers: usize,
        now: Time,
    ) -> bool {
        let wanted = self.dialing_since.is_none()
            && self.connections.len() < max_connections(settings, workers);
        if wanted {
            self.dialing_since = Some(now);
        }
        wanted
    }

    /// Returns the start of the current dial.
    pub(super) fn dialing_since(&self) -> Option<Time> {
        self.dialing_since
    }

    /// Returns the notification for requests that wait for a new connection.
    pub(super) fn stream_available(&self) -> Arc<Notify> {
        Arc::clone(&self.stream_available)
    }

    /// Ends a dial: adds the connection, or records the failure, and wakes the waiting requests.
    pub(super) fn finish_dial(&mut self, opened: Result<L, Failure>) {
        self.dialing_since = None;
        self.finished_dials += 1;
        self.failure = opened.map(|link| self.connections.push(link)).err();
        self.stream_available.notify_waiters();
    }
}

/// Returns a worker's share of the connections that the policy allows, but at least one: without any, the worker could
/// serve no request.
fn max_connections(settings: &BackendSettings, workers: usize) -> usize {
    let share = |most: std::num::NonZeroU32| (most.get() as usize / workers).max(1);
    settings.connection_max.map_or(MAX_CONNECTIONS, share).min(MAX_CONNECTIONS)
}

/// The rules by which a sweep releases connections.
pub(super) struct PoolSweep<'a> {
    pub(super) settings: &'a BackendSettings,
    pub(super) counters: &'a MultiplexCounters,
    pub(super) now: Time,
    /// False if too many connections have the address of a client: then those without a stream are released.
    pub(super) keeps_marked: bool,
}

/// Releases connections that are retired, or that have been idle for long.
pub(super) fn sweep<L: MultiplexConnection>(
    pools: &mut Vec<MultiplexPool<L>>,
    sweep: &PoolSweep<'_>,
) {
    pools.iter_mut().for_each(|pool| pool.sweep(sweep));
    pools.retain(|pool| pool.dialing_since.is_some() || !pool.connections.is_empty());
}
