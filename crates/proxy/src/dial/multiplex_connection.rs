//! One connection to an endpoint that carries many requests at a time, whatever protocol does it: when it may carry
//! another, and what it and its streams know of each other.
//!
//! A link takes requests until the endpoint says GOAWAY or it is spent by the backend's policy; then whoever holds it lets
//! go of it, and it ends with the last of its streams.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use balance::Time;
use gateway::snapshot::BackendSettings;
use tokio::sync::Notify;

use crate::clock;

/// An endpoint that does not answer a PING for so long has gone.
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// One that does is not asked again for so long: what grpc-go allows.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(300);

/// What each protocol says for itself.
pub(crate) trait MultiplexConnection {
    fn usage(&mut self) -> &mut ConnectionUsage;

    /// Whether the connection is one for more requests.
    fn protocol_availability(&mut self) -> ConnectionAvailability;

    /// Whether one more may begin now.
    fn has_stream_capacity(&mut self) -> bool;

    /// Whether it may carry another request.
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

    /// Whether it is to be kept, full or not; to be asked now and then.
    fn check_idle(&mut self, settings: &BackendSettings, now: Time) -> ConnectionAvailability {
        let wear = self.usage();
        if wear.is_idle(settings, now) || wear.is_expired(settings, now) {
            return ConnectionAvailability::Retired { goaway_received: false };
        }
        self.protocol_availability()
    }
}

/// What can be done with a link.
pub(crate) enum ConnectionAvailability {
    Usable,
    /// As many streams are open as the endpoint allows.
    Full,
    /// It carries no more requests.
    Retired {
        goaway_received: bool,
    },
}

/// How much a link has been used.
pub(crate) struct ConnectionUsage {
    pub(super) state: Arc<MultiplexState>,
    opened: Time,
    /// Requests it has carried.
    served: u32,
    /// What `served` was when the link was last looked over, and since when nothing has happened.
    served_at_sweep: u32,
    idle_since: Time,
}

impl ConnectionUsage {
    pub(super) fn new(state: Arc<MultiplexState>) -> Self {
        let opened = clock::now();
        Self { state, opened, served: 0, served_at_sweep: 0, idle_since: opened }
    }

    /// Too old or too much used by the backend's policy.
    fn is_expired(&self, settings: &BackendSettings, now: Time) -> bool {
        let too_old = settings.connection_max_age;
        let too_used = settings.connection_max_requests;
        too_old.is_some_and(|most| now.saturating_since(self.opened) >= most)
            || too_used.is_some_and(|most| self.served >= most.get())
    }

    fn is_idle(&mut self, settings: &BackendSettings, now: Time) -> bool {
        let is_used = self.state.streams.load(Ordering::Relaxed) > 0;
        if is_used || self.served != self.served_at_sweep {
            (self.served_at_sweep, self.idle_since) = (self.served, now);
        }
        now.saturating_since(self.idle_since) >= settings.connection_idle_timeout
    }

    /// A place for one more stream.
    pub(super) fn begin_stream(&mut self, fresh: bool) -> StreamGuard {
        let was_idle = self.state.streams.fetch_add(1, Ordering::Relaxed) == 0 && self.served > 0;
        self.state.counts.streams.fetch_add(1, Ordering::Relaxed);
        self.served = self.served.saturating_add(1);
        let heard_before = self.state.responses_received.load(Ordering::Relaxed);
        let written_before = self.state.delivery.written.load(Ordering::Relaxed);
        StreamGuard {
            state: Arc::clone(&self.state),
            was_idle,
            fresh,
            responses_before: heard_before,
            written_before,
        }
    }
}

/// What a link and its streams know of each other. One worker alone writes it.
pub(super) struct MultiplexState {
    /// Open now.
    pub(super) streams: AtomicU32,
    /// As many as the endpoint lets be open at a time.
    pub(super) max_streams: AtomicU32,
    /// Heads of responses that have come.
    responses_received: AtomicU32,
    /// A response did not come in time.
    pub(super) response_overdue: Notify,
    /// Nobody holds the link any more, and the last of its streams has ended.
    pub(super) drained: Notify,
    is_released: AtomicBool,
    /// Who waits for a place on any link of the trunk.
    pub(super) stream_available: Arc<Notify>,
    counts: Arc<ConnectionCounts>,
    delivery: Arc<DeliveryProgress>,
}

impl MultiplexState {
    pub(super) fn new(
        most: u32,
        room: Arc<Notify>,
        tally: Arc<ConnectionCounts>,
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
            counts: tally,
            delivery,
        })
    }

    /// Nobody holds the link any more: it ends with the last of its streams.
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

/// How much of what was written on a link has arrived. The link's connection alone writes it.
#[derive(Default)]
pub(super) struct DeliveryProgress {
    /// Bytes given to the kernel.
    pub(super) written: AtomicU64,
    /// So many of them at most has the endpoint received; none are known while the connection lasts.
    pub(super) received_at_most: OnceLock<u64>,
}

/// What is open to an endpoint from one worker, by one protocol.
#[derive(Default)]
pub(crate) struct ConnectionCounts {
    pub(crate) connections: AtomicU32,
    pub(crate) streams: AtomicU32,
}

/// Counts a link as long as it is open.
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

/// The place of one stream on its link; given back when dropped.
pub(crate) struct StreamGuard {
    state: Arc<MultiplexState>,
    /// The link had carried requests before, and none when this stream began.
    pub(crate) was_idle: bool,
    /// The request had been lost on another connection just before.
    pub(crate) fresh: bool,
    /// Heads that had come on the link when this stream began.
    responses_before: u32,
    /// Bytes that had been written on the link when this stream began.
    written_before: u64,
}

impl StreamGuard {
    /// True if the connection has ended before the endpoint's kernel received any byte of this stream.
    pub(crate) fn is_unacknowledged(&self) -> bool {
        let received = self.state.delivery.received_at_most.get();
        received.is_some_and(|&received| received <= self.written_before)
    }

    /// The head of a response has come.
    pub(crate) fn record_response(&self) {
        self.state.responses_received.fetch_add(1, Ordering::Relaxed);
    }

    /// The endpoint did not answer in time, nor anybody else on the link meanwhile: it is asked whether it is there at all,
    /// and the link is given up if not.
    pub(crate) fn mark_suspect(&self) {
        if self.state.responses_received.load(Ordering::Relaxed) == self.responses_before {
            // Nobody listens while the answer is awaited, or has come not long ago.
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
