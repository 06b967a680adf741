//! One connection to an endpoint that multiplexes requests, for any protocol: its availability for another request,
//! and the state that it shares with its streams.
//!
//! A connection accepts requests until the endpoint sends GOAWAY or the backend's policy retires it; then the pool
//! releases it, and it ends with the last of its streams.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use balance::Time;
use gateway::snapshot::BackendSettings;
use tokio::sync::Notify;

use crate::clock;

/// If an endpoint does not answer a PING within this time, it is dead.
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// Minimum interval of PINGs to an endpoint that answers them: the limit that grpc-go allows.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(300);

/// Operations that each protocol implements.
pub(crate) trait MultiplexConnection {
    fn usage(&mut self) -> &mut ConnectionUsage;

    /// Returns the availability for further requests, as the protocol reports it.
    fn protocol_availability(&mut self) -> ConnectionAvailability;

    /// True if one more stream may begin now.
    fn has_stream_capacity(&mut self) -> bool;

    /// Returns the availability for another request.
    fn availability(&mut self, settings: &BackendSettings, now: Time) -> ConnectionAvailability {
        if self.usage().is_expired(settings, now) {
            return ConnectionAvailability::Retired { goaway_received: false };
        }
        match self.protocol_availability() {
            ConnectionAvailability::Usable if !self.has_stream_capacity() => {
                ConnectionAvailability::Full
            }
            other => other,
        }
    }

    /// Checks if the connection is to be kept, full or not; called periodically.
    fn check_idle(&mut self, settings: &BackendSettings, now: Time) -> ConnectionAvailability {
        let usage = self.usage();
        if usage.is_idle(settings, now) || usage.is_expired(settings, now) {
            return ConnectionAvailability::Retired { goaway_received: false };
        }
        self.protocol_availability()
    }
}

/// Availability of a connection.
pub(crate) enum ConnectionAvailability {
    Usable,
    /// The endpoint's limit of open streams is reached.
    Full,
    /// It carries no more requests.
    Retired {
        goaway_received: bool,
    },
}

/// Usage of a connection.
pub(crate) struct ConnectionUsage {
    pub(super) state: Arc<MultiplexState>,
    opened: Time,
    /// Requests that it has carried.
    served: u32,
    /// The value of `served` at the last sweep, and the start of the idle time.
    served_at_sweep: u32,
    idle_since: Time,
}

impl ConnectionUsage {
    pub(super) fn new(state: Arc<MultiplexState>) -> Self {
        let opened = clock::now();
        Self { state, opened, served: 0, served_at_sweep: 0, idle_since: opened }
    }

    /// True if it is too old or has carried too many requests by the backend's policy.
    fn is_expired(&self, settings: &BackendSettings, now: Time) -> bool {
        let too_old = settings.connection_max_age;
        let too_used = settings.connection_max_requests;
        too_old.is_some_and(|most| now.saturating_since(self.opened) >= most)
            || too_used.is_some_and(|most| self.served >= most.get())
    }

    /// True if no stream is open.
    pub(super) fn is_unused(&self) -> bool {
        self.state.streams.load(Ordering::Relaxed) == 0
    }

    fn is_idle(&mut self, settings: &BackendSettings, now: Time) -> bool {
        let is_used = self.state.streams.load(Ordering::Relaxed) > 0;
        if is_used || self.served != self.served_at_sweep {
            (self.served_at_sweep, self.idle_since) = (self.served, now);
        }
        now.saturating_since(self.idle_since) >= settings.connection_idle_timeout
    }

    /// Reserves a place for one more stream.
    pub(super) fn begin_stream(&mut self, fresh: bool) -> StreamGuard {
        let was_idle = self.state.streams.fetch_add(1, Ordering::Relaxed) == 0 && self.served > 0;
        self.state.counts.streams.fetch_add(1, Ordering::Relaxed);
        self.served = self.served.saturating_add(1);
        let responses_before = self.state.responses_received.load(Ordering::Relaxed);
        let written_before = self.state.delivery.written.load(Ordering::Relaxed);
        StreamGuard {
            state: Arc::clone(&self.state),
            was_idle,
            fresh,
            responses_before,
            written_before,
        }
    }
}

/// State that a connection and its streams share. Only one worker writes it.
pub(super) struct MultiplexState {
    /// Streams that are open now.
    pub(super) streams: AtomicU32,
    /// The endpoint's limit of open streams.
    pub(super) max_streams: AtomicU32,
    /// Response heads that have arrived.
    responses_received: AtomicU32,
    /// Notified if a response did not arrive in time.
    pub(super) response_overdue: Notify,
    /// Notified when the pool has released the connection, and the last of its streams has ended.
    pub(super) drained: Notify,
    is_released: AtomicBool,
    /// Wakes requests that wait for a stream on any connection of the pool.
    pub(super) stream_available: Arc<Notify>,
    counts: Arc<ConnectionCounts>,
    delivery: Arc<DeliveryProgress>,
}

impl MultiplexState {
    pub(super) fn new(
        most: u32,
        room: Arc<Notify>,
        counts: Arc<ConnectionCounts>,
        delivery: Arc<DeliveryProgress>,
    ) -> Arc<Self> {
        Arc::new(Self {
            streams: AtomicU32::new(0),
            max_streams: AtomicU32::new(most),
            responses_received: AtomicU32::new(0),
            response_overdue: Notify::new(),
            drained: Notify::new(),
            is_released: AtomicBool::new(false),
            stream_available: room,
            counts,
            delivery,
        })
    }

    /// Releases the connection: it ends with the last of its streams.
    pub(super) fn release(&self) {
        self.is_released.store(true, Ordering::Relaxed);
        if self.streams.load(Ordering::Relaxed) == 0 {
            self.drained.notify_one();
        }
    }

    pub(super) fn has_stream_capacity(&self) -> bool {
        self.streams.load(Ordering::Relaxed) < self.max_streams.load(Ordering::Relaxed)
    }
}

/// Delivery of the bytes written on a connection. Only the connection's driver writes it.
#[derive(Default)]
pub(super) struct DeliveryProgress {
    /// Bytes given to the kernel.
    pub(super) written: AtomicU64,
    /// The upper bound of the bytes that the endpoint has received; set when the connection ends.
    pub(super) received_at_most: OnceLock<u64>,
}

/// Counts of connections and streams to an endpoint from one worker, by one protocol.
#[derive(Default)]
pub(crate) struct ConnectionCounts {
    pub(crate) connections: AtomicU32,
    pub(crate) streams: AtomicU32,
}

/// Counts a connection as long as it is open.
pub(super) struct OpenConnectionGuard(Arc<MultiplexState>);

impl OpenConnectionGuard {
    pub(super) fn new(state: &Arc<MultiplexState>) -> Self {
        state.counts.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(state))
    }
}

impl Drop for OpenConnectionGuard {
    fn drop(&mut self) {
        self.0.counts.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The place of one stream on its connection; released when dropped.
pub(crate) struct StreamGuard {
    state: Arc<MultiplexState>,
    /// True if the connection had carried requests before, and had none when this stream began.
    pub(crate) was_idle: bool,
    /// True if the request had just failed on another connection.
    pub(crate) fresh: bool,
    /// Response heads that had arrived on the connection when this stream began.
    responses_before: u32,
    /// Bytes that had been written on the connection when this stream began.
    written_before: u64,
}

impl StreamGuard {
    /// True if the connection has ended before the endpoint's kernel received any byte of this stream.
    pub(crate) fn is_unacknowledged(&self) -> bool {
        let received = self.state.delivery.received_at_most.get();
        received.is_some_and(|&received| received <= self.written_before)
    }

    /// Records that a response head has arrived.
    pub(crate) fn record_response(&self) {
        self.state.responses_received.fetch_add(1, Ordering::Relaxed);
    }

    /// Marks the connection as suspect, if no response has arrived on it since this one is awaited: it sends a PING,
    /// and closes the connection if the endpoint does not answer.
    pub(crate) fn mark_suspect(&self) {
        if self.state.responses_received.load(Ordering::Relaxed) == self.responses_before {
            // The notification is lost while a PING is in progress, or was answered recently.
            self.state.response_overdue.notify_waiters();
        }
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let state = &self.state;
        state.counts.streams.fetch_sub(1, Ordering::Relaxed);
        let open = state.streams.fetch_sub(1, Ordering::Relaxed);
        if open >= state.max_streams.load(Ordering::Relaxed) {
            state.stream_available.notify_one();
        }
        if open == 1 && state.is_released.load(Ordering::Relaxed) {
            state.drained.notify_one();
        }
    }
}
