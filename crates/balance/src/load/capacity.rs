//! Capacity of one endpoint: the backend's cap, the learned limit, and the endpoint's own refusals.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use super::leased_share::{LeaseValidity, LeasedShare};
use crate::time::Time;

/// Maximum of requests in flight at each endpoint of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConcurrencyCap {
    /// No cap.
    #[default]
    None,
    /// The same number at each endpoint.
    Fixed(NonZeroU32),
    /// The learned limit of each endpoint; no cap while there is none.
    Learned,
}

impl ConcurrencyCap {
    /// Returns a cap of this number at each endpoint; no cap if it is 0.
    pub const fn of(most: u32) -> Self {
        match NonZeroU32::new(most) {
            Some(most) => Self::Fixed(most),
            None => Self::None,
        }
    }

    /// Returns the number that is the same at each endpoint, if there is one.
    pub const fn fixed(self) -> Option<NonZeroU32> {
        match self {
            Self::Fixed(most) => Some(most),
            Self::None | Self::Learned => None,
        }
    }

    /// True if there is a cap: then requests may have to wait.
    pub const fn is_some(self) -> bool {
        !matches!(self, Self::None)
    }
}

impl From<Option<NonZeroU32>> for ConcurrencyCap {
    fn from(most: Option<NonZeroU32>) -> Self {
        most.map_or(Self::None, Self::Fixed)
    }
}

/// Capacity of one endpoint, over all workers and backends.
///
/// Each figure is an atomic of its own and orders no other memory. A thread that raises one calls
/// [`Admission::dispatch`](crate::Admission::dispatch) afterwards, since requests may wait for the
/// capacity.
#[derive(Debug)]
pub(crate) struct EndpointCapacity {
    /// Learned limit; used by backends with [`ConcurrencyCap::Learned`].
    learned: AtomicU32,
    /// Reduced limit while the endpoint is full, and 0 while it is marked unreachable; used by all
    /// backends.
    reduced: AtomicU32,
    /// Our share of the slots; used by backends with [`ConcurrencyCap::Fixed`].
    share: LeasedShare,
}

/// Value of `reduced` at an endpoint that is marked unreachable. A refusal never lowers it so far.
const UNREACHABLE: u32 = 0;

impl EndpointCapacity {
    #[inline]
    pub(crate) fn most(&self, capacity: CapacityLimits, validity: Option<&LeaseValidity>) -> u32 {
        let mut most = capacity.most;
        if let Some(validity) = validity.filter(|_| capacity.is_fixed) {
            most = most.min(self.share.most(validity, capacity.now));
        }
        if capacity.learned {
            most = most.min(self.learned.load(Ordering::Relaxed));
        }
        if capacity.heeds_refusals {
            most = most.min(self.reduced.load(Ordering::Relaxed));
        } else if capacity.heeds_reachability && !self.is_reachable() {
            most = 0;
        }
        if capacity.keeps_headroom { keep_headroom(most) } else { most }
    }

    pub(crate) fn share(&self) -> &LeasedShare {
        &self.share
    }

    pub(crate) fn set_learned(&self, most: u32) {
        self.learned.store(most, Ordering::Relaxed);
    }

    pub(crate) fn learned(&self) -> u32 {
        self.learned.load(Ordering::Relaxed)
    }

    /// Returns the reduced limit while the endpoint is full; `u32::MAX` if it is not.
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

    /// Lowers the limit, because the endpoint reports that it is full.
    pub(crate) fn reduce(&self, most: u32) {
        self.reduced.fetch_min(most, Ordering::Relaxed);
    }

    /// Restores the limit, because the endpoint is no longer full.
    pub(crate) fn restore(&self) {
        let full = self.reduced();
        if full < u32::MAX {
            // An endpoint that is marked unreachable at the same moment stays so.
            self.reduced
                .compare_exchange(full, u32::MAX, Ordering::Relaxed, Ordering::Relaxed)
                .ok();
        }
    }

    /// Resets all figures, because the next endpoint that is counted here is another one.
    pub(crate) fn forget(&self) {
        self.set_learned(u32::MAX);
        self.reduced.store(u32::MAX, Ordering::Relaxed);
        self.share.forget();
    }
}

impl Default for EndpointCapacity {
    fn default() -> Self {
        Self {
            learned: AtomicU32::new(u32::MAX),
            reduced: AtomicU32::new(u32::MAX),
            share: LeasedShare::default(),
        }
    }
}

/// Capacity that one pick leaves at each member.
#[derive(Clone, Copy)]
pub(crate) struct CapacityLimits {
    /// Cap of the backend; `u32::MAX` if there is none.
    most: u32,
    learned: bool,
    is_fixed: bool,
    now: Time,
    heeds_refusals: bool,
    heeds_reachability: bool,
    keeps_headroom: bool,
}

impl CapacityLimits {
    pub(crate) const fn within(cap: ConcurrencyCap, now: Time) -> Self {
        let (most, learned) = match cap {
            ConcurrencyCap::None => (u32::MAX, false),
            ConcurrencyCap::Fixed(most) => (most.get(), false),
            ConcurrencyCap::Learned => (u32::MAX, true),
        };
        Self {
            most,
            learned,
            is_fixed: cap.fixed().is_some(),
            now,
            heeds_refusals: true,
            heeds_reachability: true,
            keeps_headroom: false,
        }
    }

    /// Returns this capacity limited to `most`, whatever the cap.
    #[inline]
    pub(crate) fn at_most(self, most: u32) -> Self {
        Self { most: self.most.min(most), ..self }
    }

    /// Returns the capacity for the one request that a half-open member gets.
    pub(crate) fn of_trial(self) -> Self {
        let (learned, keeps_headroom) = (false, false);
        Self { most: 1, learned, keeps_headroom, ..self.with_unreachable() }
    }

    /// True if the cap is a number of slots, which may be leased.
    pub(crate) fn is_fixed(self) -> bool {
        self.is_fixed
    }

    /// Returns the time at which leases have to be valid.
    pub(crate) fn now(self) -> Time {
        self.now
    }

    /// True if each member has its learned limit.
    pub(crate) fn is_learned(self) -> bool {
        self.learned
    }

    /// Returns this capacity without refusal backoff; `None` if there is a cap.
    pub(crate) fn ignoring_refusals(self) -> Option<Self> {
        let is_capped = self.most < u32::MAX || self.learned;
        (!is_capped).then_some(Self { heeds_refusals: false, ..self })
    }

    /// Returns this capacity also for endpoints that are marked unreachable; their refusal backoff
    /// is unknown.
    pub(crate) fn with_unreachable(self) -> Self {
        Self { heeds_refusals: false, heeds_reachability: false, ..self }
    }

    /// Returns less than three quarters of this capacity, or a few requests if there is no cap.
    pub(crate) fn with_headroom(self) -> Self {
        Self { keeps_headroom: true, ..self }
    }
}

fn keep_headroom(most: u32) -> u32 {
    /// Requests that an uncapped local endpoint may have in flight before others are considered.
    const UNCAPPED: u32 = 4;
    match most {
        u32::MAX => UNCAPPED,
        // Marked unreachable.
        0 => 0,
        most => (most - most.div_ceil(4)).max(1),
    }
}
