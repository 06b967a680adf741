//! The links to an endpoint from one worker: when another is opened, and which carries a request.
//!
//! As few as may be: another link is opened only when all are full, one at a time, and whoever needs it meanwhile waits
//! for the same.

use std::net::SocketAddr;
use std::sync::Arc;

use balance::Time;
use gateway::snapshot::BackendSettings;
use tokio::sync::Notify;

use crate::dial::multiplex_connection::{ConnectionAvailability, MultiplexConnection};
use crate::failure::Failure;
use crate::observe::MultiplexCounters;
use crate::tls::EndpointTlsContext;

/// Links of one kind to one endpoint, from one worker, where the policy sets no other limit.
const MAX_CONNECTIONS: usize = 64;

/// Links that are opened alike.
pub(super) struct MultiplexPool<L> {
    proxy_protocol_client: Option<SocketAddr>,
    tls_context: Option<Arc<EndpointTlsContext>>,
    connections: Vec<L>,
    /// Since when another is being opened.
    dialing_since: Option<Time>,
    /// How often a link was to be opened so far, and what was in the way the last time.
    finished_dials: u64,
    failure: Option<Failure>,
    stream_available: Arc<Notify>,
}

/// What a link is opened with.
#[derive(Clone, Copy)]
pub(super) struct PoolKey<'a> {
    /// The client whose address it begins with (PROXY protocol), and whose requests alone it may carry.
    pub(super) proxy_protocol_client: Option<SocketAddr>,
    pub(super) tls_context: Option<&'a Arc<EndpointTlsContext>>,
}

/// Somebody who waits for a place on a link.
pub(crate) struct StreamWaiter {
    stream_available: Arc<Notify>,
    /// How many dials had ended when the wait began.
    dials_before: u64,
}

impl StreamWaiter {
    /// Until it is worth while to ask again.
    pub(super) async fn wait(&self) {
        self.stream_available.notified().await;
    }
}

/// The trunk of this kind, a new one if there is none.
pub(super) fn pool_for<'t, L: MultiplexConnection>(
    trunks: &'t mut Vec<MultiplexPool<L>>,
    kind: PoolKey<'_>,
) -> &'t mut MultiplexPool<L> {
    let place = trunks.iter().position(|trunk| trunk.has_key(kind)).unwrap_or_else(|| {
        trunks.push(MultiplexPool::new(kind));
        trunks.len() - 1
    });
    &mut trunks[place]
}

impl<L: MultiplexConnection> MultiplexPool<L> {
    fn new(kind: PoolKey<'_>) -> Self {
        Self {
            proxy_protocol_client: kind.proxy_protocol_client,
            tls_context: kind.tls_context.cloned(),
            connections: Vec::new(),
            dialing_since: None,
            finished_dials: 0,
            failure: None,
            stream_available: Arc::new(Notify::new()),
        }
    }

    fn has_key(&self, kind: PoolKey<'_>) -> bool {
        let address = |trust: Option<&Arc<EndpointTlsContext>>| trust.map(Arc::as_ptr);
        self.proxy_protocol_client == kind.proxy_protocol_client
            && address(self.tls_context.as_ref()) == address(kind.tls_context)
    }

    /// A link that may carry another request.
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
                ConnectionAvailability::Retired { goaway_received: said_goaway } => {
                    self.release(place, said_goaway, counters)
                }
            }
        }
        None
    }

    /// Its streams go on; it ends with the last of them.
    fn release(&mut self, place: usize, said_goaway: bool, counters: &MultiplexCounters) {
        counters.goaways.add(u64::from(said_goaway));
        drop(self.connections.remove(place));
    }

    fn sweep(&mut self, settings: &BackendSettings, counters: &MultiplexCounters, now: Time) {
        let mut place = 0;
        while let Some(link) = self.connections.get_mut(place) {
            match link.check_idle(settings, now) {
                ConnectionAvailability::Usable | ConnectionAvailability::Full => place += 1,
                ConnectionAvailability::Retired { goaway_received: said_goaway } => {
                    self.release(place, said_goaway, counters)
                }
            }
        }
    }

    /// Why there is no link for who waits, if one could not be opened since.
    pub(super) fn failure_since(&self, waiting: Option<&StreamWaiter>) -> Option<Failure> {
        self.failure
            .filter(|_| waiting.is_some_and(|waiting| self.finished_dials > waiting.dials_before))
    }

    /// A place in the line, for who waits already or from now on.
    pub(super) fn waiter(&self, already: Option<&StreamWaiter>) -> StreamWaiter {
        let since = already.map_or(self.finished_dials, |waiting| waiting.dials_before);
        StreamWaiter { stream_available: Arc::clone(&self.stream_available), dials_before: since }
    }

    /// Whether another link is to be opened now, by the caller.
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

    /// Since when a link is being opened.
    pub(super) fn dialing_since(&self) -> Option<Time> {
        self.dialing_since
    }

    /// Where who waits for a link that is being opened is told.
    pub(super) fn stream_available(&self) -> Arc<Notify> {
        Arc::clone(&self.stream_available)
    }

    /// What was to be opened is there, or is not to be had.
    pub(super) fn finish_dial(&mut self, opened: Result<L, Failure>) {
        self.dialing_since = None;
        self.finished_dials += 1;
        self.failure = opened.map(|link| self.connections.push(link)).err();
        self.stream_available.notify_waiters();
    }
}

/// A worker's share of the connections that the policy allows, but one at least: without any it could serve nobody.
fn max_connections(settings: &BackendSettings, workers: usize) -> usize {
    let share = |most: std::num::NonZeroU32| (most.get() as usize / workers).max(1);
    settings.connection_max.map_or(MAX_CONNECTIONS, share).min(MAX_CONNECTIONS)
}

/// Lets go of links that are spent, or that nobody has used for long.
pub(super) fn sweep<L: MultiplexConnection>(
    trunks: &mut Vec<MultiplexPool<L>>,
    settings: &BackendSettings,
    counters: &MultiplexCounters,
    now: Time,
) {
    trunks.iter_mut().for_each(|trunk| trunk.sweep(settings, counters, now));
    trunks.retain(|trunk| trunk.dialing_since.is_some() || !trunk.connections.is_empty());
}
