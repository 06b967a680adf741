//! Transfers that wait for a slow peer and hold memory meanwhile, and the choice of those that are reset when memory
//! runs out: all of the connection that holds the most, then of the next one.
//!
//! A transfer that makes progress is never reset, and neither is one of a connection that holds little, unless memory
//! is nearly exhausted.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::task::Waker;

/// Bytes that a connection may hold without being reset, unless memory is nearly exhausted: the responses of a page
/// that a slow client loads.
const TOLERATED_BYTES: usize = 1024 * 1024;

/// Identity of a client connection, which its streams share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionIdentity(usize);

impl ConnectionIdentity {
    /// Returns the identity of the connection whose streams share this value. It is unique while the value lives.
    pub(crate) fn of<T>(shared: &Rc<T>) -> Self {
        Self(Rc::as_ptr(shared).addr())
    }
}

/// The stalled transfers of one worker.
#[derive(Default)]
pub(crate) struct StalledTransfers(RefCell<StalledTable>);

#[derive(Default)]
struct StalledTable {
    transfers: Vec<Option<StalledTransfer>>,
    free: Vec<usize>,
}

struct StalledTransfer {
    connection: ConnectionIdentity,
    bytes: usize,
    waker: Waker,
    must_end: bool,
}

/// Place of a stalled transfer in the table; removed when dropped.
pub(crate) struct StalledEntry {
    table: Rc<StalledTransfers>,
    place: usize,
}

/// Memory of one transfer, which is stalled at times.
pub(crate) struct HeldMemory {
    table: Rc<StalledTransfers>,
    connection: ConnectionIdentity,
    entry: Option<StalledEntry>,
}

impl HeldMemory {
    pub(crate) fn new(table: &Rc<StalledTransfers>, connection: ConnectionIdentity) -> Self {
        Self { table: Rc::clone(table), connection, entry: None }
    }

    /// Records that the transfer is stalled and holds `bytes`. Returns true if it must end to free them.
    pub(crate) fn stall(&mut self, bytes: usize, waker: &Waker) -> bool {
        let Some(entry) = &self.entry else {
            self.entry = Some(self.table.add(self.connection, bytes, waker.clone()));
            return false;
        };
        let mut table = self.table.0.borrow_mut();
        let Some(transfer) = &mut table.transfers[entry.place] else { return false };
        transfer.bytes = bytes;
        transfer.waker.clone_from(waker);
        transfer.must_end
    }

    /// Records if the transfer is stalled, and what it holds then. Returns true if it must end.
    pub(crate) fn stall_if(&mut self, is_stalled: bool, bytes: usize, waker: &Waker) -> bool {
        if !is_stalled {
            self.advance();
        }
        is_stalled && self.stall(bytes, waker)
    }

    /// Records that the transfer makes progress.
    pub(crate) fn advance(&mut self) {
        self.entry = None;
    }
}

impl StalledTransfers {
    fn add(
        self: &Rc<Self>,
        connection: ConnectionIdentity,
        bytes: usize,
        waker: Waker,
    ) -> StalledEntry {
        let table = &mut *self.0.borrow_mut();
        let place = table.free.pop().unwrap_or_else(|| {
            table.transfers.push(None);
            table.transfers.len() - 1
        });
        table.transfers[place] =
            Some(StalledTransfer { connection, bytes, waker, must_end: false });
        StalledEntry { table: Rc::clone(self), place }
    }

    /// Ends the transfers of the connections that hold the most, until they have freed `excess` bytes. Spares
    /// connections that hold little, unless `is_exhausted`. All others are woken to record what they hold by now.
    pub(crate) fn end_largest(&self, excess: u64, is_exhausted: bool) {
        let table = &mut *self.0.borrow_mut();
        let mut held: HashMap<ConnectionIdentity, usize> = HashMap::new();
        for transfer in table.transfers.iter().flatten().filter(|transfer| !transfer.must_end) {
            *held.entry(transfer.connection).or_default() += transfer.bytes;
        }
        let least = if is_exhausted { 0 } else { TOLERATED_BYTES };
        held.retain(|_, bytes| *bytes > least);
        let mut largest: Vec<_> =
            held.iter().map(|(connection, bytes)| (*bytes, *connection)).collect();
        largest.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let mut freed = 0;
        largest.retain(|(bytes, _)| {
            let is_needed = freed < excess;
            freed += *bytes as u64;
            is_needed
        });
        let chosen: HashMap<_, _> = largest.into_iter().map(|(bytes, it)| (it, bytes)).collect();
        for transfer in table.transfers.iter_mut().flatten() {
            transfer.must_end |= chosen.contains_key(&transfer.connection);
            transfer.waker.wake_by_ref();
        }
    }
}

impl Drop for StalledEntry {
    fn drop(&mut self) {
        let table = &mut *self.table.0.borrow_mut();
        table.transfers[self.place] = None;
        table.free.push(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 2 * TOLERATED_BYTES;

    /// Returns transfers of these connections that hold these bytes.
    fn transfers(table: &Rc<StalledTransfers>, held: &[(usize, usize)]) -> Vec<HeldMemory> {
        let stall = |&(connection, bytes)| {
            let mut memory = HeldMemory::new(table, ConnectionIdentity(connection));
            assert!(!memory.stall(bytes, Waker::noop()));
            memory
        };
        held.iter().map(stall).collect()
    }

    /// Returns which of the transfers must end.
    fn ended(transfers: &mut [HeldMemory]) -> Vec<bool> {
        transfers.iter_mut().map(|memory| memory.stall(1, Waker::noop())).collect()
    }

    #[test]
    fn transfers_of_the_connection_that_holds_most_are_ended() {
        let table = Rc::default();
        let held = [(1, LARGE), (2, LARGE - 1), (2, LARGE), (3, 1000)];
        let mut held = transfers(&table, &held);
        table.end_largest(1, false);
        assert_eq!(ended(&mut held), [false, true, true, false]);
    }

    #[test]
    fn next_connections_follow_until_enough_is_freed() {
        let table = Rc::default();
        let mut held = transfers(&table, &[(1, LARGE), (2, 2 * LARGE), (3, LARGE - 1)]);
        table.end_largest(2 * LARGE as u64 + 1, false);
        assert_eq!(ended(&mut held), [true, true, false]);
    }

    #[test]
    fn connections_that_hold_little_are_spared_unless_memory_is_exhausted() {
        let table = Rc::default();
        let mut held = transfers(&table, &[(1, TOLERATED_BYTES), (2, 10)]);
        table.end_largest(u64::MAX, false);
        assert_eq!(ended(&mut held), [false, false]);
        table.end_largest(1, true);
        assert_eq!(ended(&mut held).iter().filter(|it| **it).count(), 1);
        table.end_largest(u64::MAX, true);
        assert_eq!(ended(&mut held), [true, true]);
    }

    #[test]
    fn progress_removes_a_transfer() {
        let table = Rc::default();
        let mut held = transfers(&table, &[(1, LARGE)]);
        held[0].advance();
        table.end_largest(u64::MAX, true);
        assert_eq!(ended(&mut held), [false]);
        drop(held);
        let table = table.0.borrow();
        assert_eq!((table.transfers.len(), table.free.len()), (1, 1));
    }
}
