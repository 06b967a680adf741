//! Ledgers of one pair of replicas: slots that we lend to a peer, and slots of the peer that we
//! hold.
//!
//! Both sides count cumulatively. The lender knows exactly how many slots it has granted and learns
//! late how many were returned; the holder knows exactly how many it has returned and learns late
//! how many were granted. So the holder never holds more than the lender considers lent, whatever
//! is lost, repeated or late. All slots of an endpoint pass through the replica to which the
//! assignment gives them: a holder returns slots to their lender, and nowhere else.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::change_queue::ChangeQueue;
use super::message::{LeaseRefusal, LentEntry, ReturnedEntry};
use super::settings::{MAX_LENT_ENDPOINTS, MAX_SLOTS};
use crate::time::Time;

/// Slots that we lend to one peer.
#[derive(Clone, Debug)]
pub(crate) struct LendingLedger {
    epoch: u64,
    entries: BTreeMap<SocketAddr, LentSlots>,
    /// Sum of the outstanding slots of all endpoints.
    total: u64,
    /// True if the account of an endpoint is closed and not forgotten yet.
    has_closed: bool,
    pub(crate) changes: ChangeQueue<SocketAddr>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LentSlots {
    granted: u64,
    returned: u64,
    /// Number of slots that the peer may hold; `None` if it may hold all.
    keep: Option<u32>,
    is_closed: bool,
}

impl LentSlots {
    fn outstanding(&self) -> u32 {
        u32::try_from(self.granted - self.returned).expect("grants are bounded by the cap")
    }
}

impl LendingLedger {
    pub(crate) fn new(epoch: u64) -> Self {
        let (entries, changes) = (BTreeMap::new(), ChangeQueue::new());
        Self { epoch, entries, total: 0, has_closed: false, changes }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of slots of all endpoints that the peer may be using.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of slots that the peer may be using.
    pub(crate) fn outstanding(&self, endpoint: SocketAddr) -> u32 {
        self.entries.get(&endpoint).map_or(0, LentSlots::outstanding)
    }

    /// Returns the endpoints with slots that the peer may be using.
    pub(crate) fn lent_endpoints(&self) -> impl Iterator<Item = SocketAddr> {
        let lent = self.entries.iter().filter(|(_, entry)| entry.outstanding() > 0);
        lent.map(|(&endpoint, _)| endpoint)
    }

    /// True if slots can be granted: the peer is not about to forget the counts.
    pub(crate) fn can_grant(&self, endpoint: SocketAddr) -> bool {
        self.entries.get(&endpoint).is_none_or(|entry| !entry.is_closed && entry.keep.is_none())
    }

    pub(crate) fn grant(&mut self, endpoint: SocketAddr, slots: u32) {
        self.entries.entry(endpoint).or_default().granted += u64::from(slots);
        self.total += u64::from(slots);
        self.changes.mark(endpoint);
    }

    /// Limits the slots that the peer may hold.
    pub(crate) fn set_keep(&mut self, endpoint: SocketAddr, keep: Option<u32>) {
        if let Some(entry) = self.entries.get_mut(&endpoint)
            && entry.keep != keep
        {
            entry.keep = keep;
            self.changes.mark(endpoint);
        }
    }

    /// Ends the account of an endpoint that we no longer have, once nothing is lent.
    pub(crate) fn close(&mut self, endpoint: SocketAddr) {
        if let Some(entry) = self.entries.get_mut(&endpoint)
            && entry.outstanding() == 0
            && !entry.is_closed
        {
            entry.is_closed = true;
            self.has_closed = true;
            self.changes.mark(endpoint);
        }
    }

    /// Forgets the counts of closed accounts that the peer has closed too.
    pub(crate) fn acknowledge(&mut self, echo: Time) {
        if self.changes.is_empty() {
            return;
        }
        self.changes.acknowledge(echo);
        if self.has_closed {
            let changes = &self.changes;
            self.entries.retain(|&endpoint, entry| !entry.is_closed || changes.contains(endpoint));
            self.has_closed = self.entries.values().any(|entry| entry.is_closed);
        }
    }

    /// Returns an error if counts of returned slots are impossible.
    pub(crate) fn check(&self, returned: &[ReturnedEntry]) -> Result<(), LeaseRefusal> {
        let is_possible = |entry: &ReturnedEntry| match self.entries.get(&entry.endpoint) {
            Some(lent) => (lent.returned..=lent.granted).contains(&entry.returned),
            None => false,
        };
        if returned.iter().all(is_possible) { Ok(()) } else { Err(LeaseRefusal::Absurd) }
    }

    /// Takes a count of returned slots, which was checked. Returns the number of new ones.
    pub(crate) fn take_returned(&mut self, returned: &ReturnedEntry) -> u32 {
        let Some(lent) = self.entries.get_mut(&returned.endpoint) else { return 0 };
        let outstanding = lent.outstanding();
        lent.returned = lent.returned.max(returned.returned).min(lent.granted);
        let slots = outstanding - lent.outstanding();
        self.total -= u64::from(slots);
        slots
    }

    pub(crate) fn entry(&self, endpoint: SocketAddr) -> Option<LentEntry> {
        let lent = self.entries.get(&endpoint)?;
        let keep = lent.keep.unwrap_or(MAX_SLOTS);
        Some(LentEntry { endpoint, granted: lent.granted, keep, closed: lent.is_closed })
    }
}

/// Slots of one peer that we hold.
#[derive(Clone, Debug)]
pub(crate) struct BorrowingLedger {
    epoch: u64,
    entries: BTreeMap<SocketAddr, BorrowedSlots>,
    /// Sum of the slots of all endpoints that we have not returned.
    total: u64,
    pub(crate) changes: ChangeQueue<SocketAddr>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BorrowedSlots {
    granted: u64,
    returned: u64,
    keep: u32,
}

impl BorrowedSlots {
    fn held(&self) -> u32 {
        u32::try_from(self.granted - self.returned).expect("grants were checked")
    }
}

impl BorrowingLedger {
    pub(crate) fn new(epoch: u64) -> Self {
        Self { epoch, entries: BTreeMap::new(), total: 0, changes: ChangeQueue::new() }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of slots of all endpoints that we have not returned.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of slots that we have not returned.
    pub(crate) fn held(&self, endpoint: SocketAddr) -> u32 {
        self.entries.get(&endpoint).map_or(0, BorrowedSlots::held)
    }

    /// Returns the number of slots among those held that we may keep.
    pub(crate) fn usable(&self, endpoint: SocketAddr) -> u32 {
        self.entries.get(&endpoint).map_or(0, |entry| entry.held().min(entry.keep))
    }

    /// Returns the endpoints with slots that we have not returned.
    pub(crate) fn held_endpoints(&self) -> impl Iterator<Item = SocketAddr> {
        let held = self.entries.iter().filter(|(_, entry)| entry.held() > 0);
        held.map(|(&endpoint, _)| endpoint)
    }

    pub(crate) fn return_slots(&mut self, endpoint: SocketAddr, slots: u32) {
        let entry = self.entries.get_mut(&endpoint).expect("only slots that are held are returned");
        entry.returned += u64::from(slots);
        self.total -= u64::from(slots);
        debug_assert!(entry.returned <= entry.granted);
        self.changes.mark(endpoint);
    }

    pub(crate) fn return_all(&mut self, endpoint: SocketAddr) {
        let held = self.held(endpoint);
        if held > 0 {
            self.return_slots(endpoint, held);
        }
    }

    /// Returns an error if counts of granted slots are impossible in this epoch.
    pub(crate) fn check(&self, epoch: u64, lent: &[LentEntry]) -> Result<(), LeaseRefusal> {
        if epoch < self.epoch {
            return Err(LeaseRefusal::Absurd);
        }
        let mut added = 0;
        let is_possible = |entry: &LentEntry| {
            let known = self.entries.get(&entry.endpoint).filter(|_| epoch == self.epoch);
            added += usize::from(known.is_none());
            let BorrowedSlots { granted, returned, .. } = known.copied().unwrap_or_default();
            let held = entry.granted.checked_sub(returned);
            entry.granted >= granted
                && held.is_some_and(|held| held <= u64::from(MAX_SLOTS))
                // A repeated closing comes after the counts are forgotten.
                && (!entry.closed || known.is_none() || held == Some(0))
                && entry.keep <= MAX_SLOTS
        };
        let all_possible = lent.iter().all(is_possible);
        let fits = self.entries.len() + added <= MAX_LENT_ENDPOINTS;
        if all_possible && fits { Ok(()) } else { Err(LeaseRefusal::Absurd) }
    }

    /// Takes a count of granted slots, which was checked. Returns the number of new ones.
    pub(crate) fn take_lent(&mut self, lent: &LentEntry) -> u32 {
        if lent.closed {
            let held = self.entries.remove(&lent.endpoint).map_or(0, |entry| entry.held());
            self.total -= u64::from(held);
            return 0;
        }
        let entry = self.entries.entry(lent.endpoint).or_default();
        let held = entry.held();
        entry.granted = entry.granted.max(lent.granted);
        entry.keep = lent.keep;
        let slots = entry.held() - held;
        self.total += u64::from(slots);
        slots
    }

    pub(crate) fn entry(&self, endpoint: SocketAddr) -> Option<ReturnedEntry> {
        let returned = self.entries.get(&endpoint)?.returned;
        Some(ReturnedEntry { endpoint, returned })
    }
}
