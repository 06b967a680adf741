//! How much one endpoint may have: what its backend says of all, what has been learned of it, what it says itself.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

/// Requests in flight at each endpoint of a backend, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConcurrencyCap {
    /// Any number.
    #[default]
    None,
    /// So many at each.
    Fixed(NonZeroU32),
    /// At each what has been learned of it; any number where nothing has been.
    Learned,
}

impl ConcurrencyCap {
    /// So many at each; none if that is 0.
    pub const fn of(most: u32) -> Self {
        match NonZeroU32::new(most) {
            Some(most) => Self::Fixed(most),
            None => Self::None,
        }
    }

    /// The number that is the same at each, if there is one.
    pub const fn fixed(self) -> Option<NonZeroU32> {
        match self {
            Self::Fixed(most) => Some(most),
            Self::None | Self::Learned => None,
        }
    }

    /// Whether there is one: then requests may have to wait.
    pub const fn is_some(self) -> bool {
        !matches!(self, Self::None)
    }
}

impl From<Option<NonZeroU32>> for ConcurrencyCap {
    fn from(most: Option<NonZeroU32>) -> Self {
        most.map_or(Self::None, Self::Fixed)
    }
}

/// What one endpoint can bear, whoever asks; over all workers and backends.
///
/// Each figure is an atomic of its own and orders no other memory. Who raises one calls
/// [`Admission::dispatch`](crate::Admission::dispatch) afterwards, since somebody may wait for the room.
#[derive(Debug)]
pub(crate) struct EndpointCapacity {
    /// What has been learned; heeded by backends that asked for it.
    learned: AtomicU32,
    /// What it can bear while it says that it is full, and 0 while it is marked unreachable; heeded by all.
    reduced: AtomicU32,
}

/// The value of `full` at an endpoint that is marked unreachable. A refusal never lowers it so far.
const UNREACHABLE: u32 = 0;

impl EndpointCapacity {
    #[inline]
    pub(crate) fn most(&self, room: PickCapacity) -> u32 {
        let mut most = room.most;
        if room.learned {
            most = most.min(self.learned.load(Ordering::Relaxed));
        }
        if room.heeds_refusals {
            most = most.min(self.reduced.load(Ordering::Relaxed));
        } else if room.heeds_reachability && !self.is_reachable() {
            most = 0;
        }
        if room.keeps_headroom { with_some_to_spare(most) } else { most }
    }

    pub(crate) fn set_learned(&self, most: u32) {
        self.learned.store(most, Ordering::Relaxed);
    }

    pub(crate) fn learned(&self) -> u32 {
        self.learned.load(Ordering::Relaxed)
    }

    /// Returns what the endpoint can bear while it says that it is full; `u32::MAX` if it does not.
    pub(crate) fn reduced(&self) -> u32 {
        match self.reduced.load(Ordering::Relaxed) {
            UNREACHABLE => u32::MAX,
            most => most,
        }
    }

    /// True unless the endpoint is marked unreachable.
    pub(crate) fn is_reachable(&self) -> bool {
        self.reduced.load(Ordering::Relaxed) != UNREACHABLE
    }

    /// Marks the endpoint unreachable; true if it was not.
    pub(crate) fn mark_unreachable(&self) -> bool {
        self.reduced.swap(UNREACHABLE, Ordering::Relaxed) != UNREACHABLE
    }

    /// Marks the endpoint reachable; true if it was not.
    pub(crate) fn mark_reachable(&self) -> bool {
        self.reduced
            .compare_exchange(UNREACHABLE, u32::MAX, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// It says that it is full.
    pub(crate) fn reduce(&self, most: u32) {
        self.reduced.fetch_min(most, Ordering::Relaxed);
    }

    /// It is not full any longer.
    pub(crate) fn restore(&self) {
        let full = self.reduced();
        if full < u32::MAX {
            // An endpoint that is marked unreachable at the same moment stays so.
            self.reduced
                .compare_exchange(full, u32::MAX, Ordering::Relaxed, Ordering::Relaxed)
                .ok();
        }
    }

    /// Nobody knows the next endpoint that is counted here.
    pub(crate) fn forget(&self) {
        self.set_learned(u32::MAX);
        self.reduced.store(u32::MAX, Ordering::Relaxed);
    }
}

impl Default for EndpointCapacity {
    fn default() -> Self {
        Self { learned: AtomicU32::new(u32::MAX), reduced: AtomicU32::new(u32::MAX) }
    }
}

/// How much room one choice leaves at each member.
#[derive(Clone, Copy)]
pub(crate) struct PickCapacity {
    /// What the backend says; `u32::MAX`: any number.
    most: u32,
    learned: bool,
    heeds_refusals: bool,
    heeds_reachability: bool,
    keeps_headroom: bool,
}

impl PickCapacity {
    pub(crate) fn within(cap: ConcurrencyCap) -> Self {
        let (most, learned) = match cap {
            ConcurrencyCap::None => (u32::MAX, false),
            ConcurrencyCap::Fixed(most) => (most.get(), false),
            ConcurrencyCap::Learned => (u32::MAX, true),
        };
        Self {
            most,
            learned,
            heeds_refusals: true,
            heeds_reachability: true,
            keeps_headroom: false,
        }
    }

    /// No more than this, whatever the cap.
    #[inline]
    pub(crate) fn at_most(self, most: u32) -> Self {
        Self { most: self.most.min(most), ..self }
    }

    /// Whether each member is given what has been learned of it.
    pub(crate) fn is_learned(self) -> bool {
        self.learned
    }

    /// Any number, whatever members say; `None`: there is a cap.
    pub(crate) fn ignoring_refusals(self) -> Option<Self> {
        let is_capped = self.most < u32::MAX || self.learned;
        (!is_capped).then_some(Self { heeds_refusals: false, ..self })
    }

    /// The same, also at endpoints that are marked unreachable; what an endpoint says of its load is not known there.
    pub(crate) fn with_unreachable(self) -> Self {
        Self { heeds_refusals: false, heeds_reachability: false, ..self }
    }

    /// Less than three quarters of it, or a few where there is any number.
    pub(crate) fn with_headroom(self) -> Self {
        Self { keeps_headroom: true, ..self }
    }
}

fn with_some_to_spare(most: u32) -> u32 {
    /// What an uncapped endpoint of our zone may have in flight before others are looked at.
    const OF_ANY_NUMBER: u32 = 4;
    match most {
        u32::MAX => OF_ANY_NUMBER,
        // Marked unreachable.
        0 => 0,
        most => (most - most.div_ceil(4)).max(1),
    }
}
