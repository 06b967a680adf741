//! How much one endpoint may have: what its backend says of all, what has been learned of it, what it says itself.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

/// Requests in flight at each endpoint of a backend, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cap {
    /// Any number.
    #[default]
    None,
    /// So many at each.
    Fixed(NonZeroU32),
    /// At each what has been learned of it; any number where nothing has been.
    Learned,
}

impl Cap {
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

impl From<Option<NonZeroU32>> for Cap {
    fn from(most: Option<NonZeroU32>) -> Self {
        most.map_or(Self::None, Self::Fixed)
    }
}

/// What one endpoint can bear, whoever asks; over all workers and backends.
///
/// Each figure is an atomic of its own and orders no other memory. Who raises one calls
/// [`Admission::dispatch`](crate::Admission::dispatch) afterwards, since somebody may wait for the room.
#[derive(Debug)]
pub(crate) struct Ceiling {
    /// What has been learned; heeded by backends that asked for it.
    learned: AtomicU32,
    /// What it can bear while it says that it is full, and 0 while it is marked unreachable; heeded by all.
    full: AtomicU32,
}

/// The value of `full` at an endpoint that is marked unreachable. A refusal never lowers it so far.
const UNREACHABLE: u32 = 0;

impl Ceiling {
    #[inline]
    pub(crate) fn most(&self, room: Room) -> u32 {
        let mut most = room.most;
        if room.learned {
            most = most.min(self.learned.load(Ordering::Relaxed));
        }
        if room.heeds_refusals {
            most = most.min(self.full.load(Ordering::Relaxed));
        } else if room.heeds_reachability && !self.is_reachable() {
            most = 0;
        }
        if room.spares { with_some_to_spare(most) } else { most }
    }

    pub(crate) fn set_learned(&self, most: u32) {
        self.learned.store(most, Ordering::Relaxed);
    }

    pub(crate) fn learned(&self) -> u32 {
        self.learned.load(Ordering::Relaxed)
    }

    /// Returns what the endpoint can bear while it says that it is full; `u32::MAX` if it does not.
    pub(crate) fn full(&self) -> u32 {
        match self.full.load(Ordering::Relaxed) {
            UNREACHABLE => u32::MAX,
            most => most,
        }
    }

    /// True unless the endpoint is marked unreachable.
    pub(crate) fn is_reachable(&self) -> bool {
        self.full.load(Ordering::Relaxed) != UNREACHABLE
    }

    /// Marks the endpoint unreachable; true if it was not.
    pub(crate) fn close(&self) -> bool {
        self.full.swap(UNREACHABLE, Ordering::Relaxed) != UNREACHABLE
    }

    /// Marks the endpoint reachable; true if it was not.
    pub(crate) fn open(&self) -> bool {
        self.full
            .compare_exchange(UNREACHABLE, u32::MAX, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// It says that it is full.
    pub(crate) fn lower_full(&self, most: u32) {
        self.full.fetch_min(most, Ordering::Relaxed);
    }

    /// It is not full any longer.
    pub(crate) fn lift_full(&self) {
        let full = self.full();
        if full < u32::MAX {
            // An endpoint that is marked unreachable at the same moment stays so.
            self.full.compare_exchange(full, u32::MAX, Ordering::Relaxed, Ordering::Relaxed).ok();
        }
    }

    /// Nobody knows the next endpoint that is counted here.
    pub(crate) fn forget(&self) {
        self.set_learned(u32::MAX);
        self.full.store(u32::MAX, Ordering::Relaxed);
    }
}

impl Default for Ceiling {
    fn default() -> Self {
        Self { learned: AtomicU32::new(u32::MAX), full: AtomicU32::new(u32::MAX) }
    }
}

/// How much room one choice leaves at each member.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// What the backend says; `u32::MAX`: any number.
    most: u32,
    learned: bool,
    heeds_refusals: bool,
    heeds_reachability: bool,
    spares: bool,
}

impl Room {
    pub(crate) fn within(cap: Cap) -> Self {
        let (most, learned) = match cap {
            Cap::None => (u32::MAX, false),
            Cap::Fixed(most) => (most.get(), false),
            Cap::Learned => (u32::MAX, true),
        };
        Self { most, learned, heeds_refusals: true, heeds_reachability: true, spares: false }
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
    pub(crate) fn unheeding(self) -> Option<Self> {
        let is_capped = self.most < u32::MAX || self.learned;
        (!is_capped).then_some(Self { heeds_refusals: false, ..self })
    }

    /// The same, also at endpoints that are marked unreachable; what an endpoint says of its load is not known there.
    pub(crate) fn with_unreachable(self) -> Self {
        Self { heeds_refusals: false, heeds_reachability: false, ..self }
    }

    /// Less than three quarters of it, or a few where there is any number.
    pub(crate) fn with_some_to_spare(self) -> Self {
        Self { spares: true, ..self }
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
