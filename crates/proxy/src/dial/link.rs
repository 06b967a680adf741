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
pub(super) const PONG: Duration = Duration::from_secs(3);
/// One that does is not asked again for so long: what grpc-go allows.
pub(super) const BETWEEN_PINGS: Duration = Duration::from_secs(300);

/// What each protocol says for itself.
pub(crate) trait Link {
    fn wear(&mut self) -> &mut Wear;

    /// Whether the connection is one for more requests.
    fn standing(&mut self) -> Condition;

    /// Whether one more may begin now.
    fn has_room(&mut self) -> bool;

    /// Whether it may carry another request.
    fn condition(&mut self, settings: &BackendSettings, now: Time) -> Condition {
        if self.wear().is_spent(settings, now) {
            return Condition::Over { said_goaway: false };
        }
        match self.standing() {
            Condition::Usable if !self.has_room() => Condition::Full,
            other => other,
        }
    }

    /// Whether it is to be kept, full or not; to be asked now and then.
    fn look_over(&mut self, settings: &BackendSettings, now: Time) -> Condition {
        let wear = self.wear();
        if wear.is_idle(settings, now) || wear.is_spent(settings, now) {
            return Condition::Over { said_goaway: false };
        }
        self.standing()
    }
}

/// What can be done with a link.
pub(crate) enum Condition {
    Usable,
    /// As many streams are open as the endpoint allows.
    Full,
    /// It carries no more requests.
    Over {
        said_goaway: bool,
    },
}

/// How much a link has been used.
pub(crate) struct Wear {
    pub(super) state: Arc<State>,
    opened: Time,
    /// Requests it has carried.
    served: u32,
    /// What `served` was when the link was last looked over, and since when nothing has happened.
    served_then: u32,
    idle_since: Time,
}

impl Wear {
    pub(super) fn new(state: Arc<State>) -> Self {
        let opened = clock::now();
        Self { state, opened, served: 0, served_then: 0, idle_since: opened }
    }

    /// Too old or too much used by the backend's policy.
    fn is_spent(&self, settings: &BackendSettings, now: Time) -> bool {
        let too_old = settings.connection_max_age;
        let too_used = settings.connection_max_requests;
        too_old.is_some_and(|most| now.saturating_since(self.opened) >= most)
            || too_used.is_some_and(|most| self.served >= most.get())
    }

    fn is_idle(&mut self, settings: &BackendSettings, now: Time) -> bool {
        let is_used = self.state.streams.load(Ordering::Relaxed) > 0;
        if is_used || self.served != self.served_then {
            (self.served_then, self.idle_since) = (self.served, now);
        }
        now.saturating_since(self.idle_since) >= settings.connection_idle_timeout
    }

    /// A place for one more stream.
    pub(super) fn berth(&mut self, fresh: bool) -> Berth {
        let was_idle = self.state.streams.fetch_add(1, Ordering::Relaxed) == 0 && self.served > 0;
        self.state.tally.streams.fetch_add(1, Ordering::Relaxed);
        self.served = self.served.saturating_add(1);
        let heard_before = self.state.heard.load(Ordering::Relaxed);
        let written_before = self.state.delivery.written.load(Ordering::Relaxed);
        Berth { state: Arc::clone(&self.state), was_idle, fresh, heard_before, written_before }
    }
}

/// What a link and its streams know of each other. One worker alone writes it.
pub(super) struct State {
    /// Open now.
    pub(super) streams: AtomicU32,
    /// As many as the endpoint lets be open at a time.
    pub(super) most: AtomicU32,
    /// Heads of responses that have come.
    heard: AtomicU32,
    /// A response did not come in time.
    pub(super) doubt: Notify,
    /// Nobody holds the link any more, and the last of its streams has ended.
    pub(super) emptied: Notify,
    is_let_go: AtomicBool,
    /// Who waits for a place on any link of the trunk.
    pub(super) room: Arc<Notify>,
    tally: Arc<Tally>,
    delivery: Arc<Delivery>,
}

impl State {
    pub(super) fn new(
        most: u32,
        room: Arc<Notify>,
        tally: Arc<Tally>,
        delivery: Arc<Delivery>,
    ) -> Arc<Self> {
        Arc::new(Self {
            streams: AtomicU32::new(0),
            most: AtomicU32::new(most),
            heard: AtomicU32::new(0),
            doubt: Notify::new(),
            emptied: Notify::new(),
            is_let_go: AtomicBool::new(false),
            room,
            tally,
            delivery,
        })
    }

    /// Nobody holds the link any more: it ends with the last of its streams.
    pub(super) fn let_go(&self) {
        self.is_let_go.store(true, Ordering::Relaxed);
        if self.streams.load(Ordering::Relaxed) == 0 {
            self.emptied.notify_one();
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.streams.load(Ordering::Relaxed) < self.most.load(Ordering::Relaxed)
    }
}

/// How much of what was written on a link has arrived. The link's connection alone writes it.
#[derive(Default)]
pub(super) struct Delivery {
    /// Bytes given to the kernel.
    pub(super) written: AtomicU64,
    /// So many of them at most has the endpoint received; none are known while the connection lasts.
    pub(super) received_at_most: OnceLock<u64>,
}

/// What is open to an endpoint from one worker, by one protocol.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) links: AtomicU32,
    pub(crate) streams: AtomicU32,
}

/// Counts a link as long as it is open.
pub(super) struct Open(Arc<State>);

impl Open {
    pub(super) fn new(state: &Arc<State>) -> Self {
        state.tally.links.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(state))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.tally.links.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The place of one stream on its link; given back when dropped.
pub(crate) struct Berth {
    state: Arc<State>,
    /// The link had carried requests before, and none when this stream began.
    pub(crate) was_idle: bool,
    /// The request had been lost on another connection just before.
    pub(crate) fresh: bool,
    /// Heads that had come on the link when this stream began.
    heard_before: u32,
    /// Bytes that had been written on the link when this stream began.
    written_before: u64,
}

impl Berth {
    /// True if the connection has ended before the endpoint's kernel received any byte of this stream.
    pub(crate) fn is_unacknowledged(&self) -> bool {
        let received = self.state.delivery.received_at_most.get();
        received.is_some_and(|&received| received <= self.written_before)
    }

    /// The head of a response has come.
    pub(crate) fn heard(&self) {
        self.state.heard.fetch_add(1, Ordering::Relaxed);
    }

    /// The endpoint did not answer in time, nor anybody else on the link meanwhile: it is asked whether it is there at all,
    /// and the link is given up if not.
    pub(crate) fn suspect(&self) {
        if self.state.heard.load(Ordering::Relaxed) == self.heard_before {
            // Nobody listens while the answer is awaited, or has come not long ago.
            self.state.doubt.notify_waiters();
        }
    }
}

impl Drop for Berth {
    fn drop(&mut self) {
        let state = &self.state;
        state.tally.streams.fetch_sub(1, Ordering::Relaxed);
        let open = state.streams.fetch_sub(1, Ordering::Relaxed);
        if open >= state.most.load(Ordering::Relaxed) {
            state.room.notify_one();
        }
        if open == 1 && state.is_let_go.load(Ordering::Relaxed) {
            state.emptied.notify_one();
        }
    }
}
