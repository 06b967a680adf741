//! Marks of clients: the address that each mark stands for, and the marks that connections still use. Pure: the caller
//! tells the kernel.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use intercept::{MarkRange, SocketMark};
use proxy::ClientMark;

/// Marks by address, a table for each IP version.
pub(super) struct ClientMarks {
    range: MarkRange,
    ipv4: MarkTable,
    ipv6: MarkTable,
}

#[derive(Default)]
struct MarkTable {
    by_address: HashMap<IpAddr, MarkEntry>,
    /// Numbers that were given back.
    free: Vec<u32>,
    /// Smallest number that was never used.
    unused: u32,
    /// Uses so far: the time of this table.
    uses: u64,
}

struct MarkEntry {
    mark: Arc<ClientMark>,
    number: u32,
    last_use: u64,
}

/// A mark for which the kernel is to have a client's address.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MarkReservation {
    pub(super) client: IpAddr,
    pub(super) mark: SocketMark,
    number: u32,
}

impl ClientMarks {
    pub(super) fn new(range: MarkRange) -> Self {
        Self { range, ipv4: MarkTable::default(), ipv6: MarkTable::default() }
    }

    /// Returns the mark of a client that has one.
    pub(super) fn find(&mut self, client: IpAddr) -> Option<Arc<ClientMark>> {
        let table = self.table(client);
        table.uses += 1;
        let entry = table.by_address.get_mut(&client)?;
        entry.last_use = table.uses;
        Some(Arc::clone(&entry.mark))
    }

    /// Reserves a mark for a client that has none: one that is free, else the one whose client was served least
    /// recently, of those that no connection uses. `None`: connections use all of them.
    pub(super) fn reserve(&mut self, client: IpAddr) -> Option<MarkReservation> {
        let (range, table) = (self.range, self.table(client));
        let number = table.take_number(range.max_clients())?;
        range.client(number).map(|mark| MarkReservation { client, mark, number })
    }

    /// Uses a reservation: the kernel has the client's address now.
    pub(super) fn confirm(&mut self, reservation: &MarkReservation) -> Arc<ClientMark> {
        let MarkReservation { client, mark, number } = *reservation;
        let mark = Arc::new(ClientMark { value: mark.value(), address: client });
        let table = self.table(client);
        table.uses += 1;
        let entry = MarkEntry { mark: Arc::clone(&mark), number, last_use: table.uses };
        table.by_address.insert(client, entry);
        mark
    }

    /// Gives a reservation back: the kernel refused the address.
    pub(super) fn give_back(&mut self, reservation: &MarkReservation) {
        self.table(reservation.client).free.push(reservation.number);
    }

    /// Returns the number of marks that connections use.
    pub(super) fn in_use(&self) -> usize {
        let entries = self.ipv4.by_address.values().chain(self.ipv6.by_address.values());
        entries.filter(|entry| entry.is_in_use()).count()
    }

    fn table(&mut self, client: IpAddr) -> &mut MarkTable {
        if client.is_ipv4() { &mut self.ipv4 } else { &mut self.ipv6 }
    }
}

impl MarkTable {
    fn take_number(&mut self, limit: u32) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        if self.unused < limit {
            self.unused += 1;
            return Some(self.unused - 1);
        }
        let idle = self.by_address.iter().filter(|(_, entry)| !entry.is_in_use());
        let (oldest, _) = idle.min_by_key(|(_, entry)| entry.last_use)?;
        let oldest = *oldest;
        self.by_address.remove(&oldest).map(|entry| entry.number)
    }
}

impl MarkEntry {
    /// True if a connection holds a clone. No other clone can appear without the lock of the table's owner.
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.mark) > 1
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn client(number: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, number).into()
    }

    /// Marks for six clients.
    fn few() -> ClientMarks {
        ClientMarks::new(MarkRange::new(0x1000, 0x7).unwrap())
    }

    fn assign(marks: &mut ClientMarks, client: IpAddr) -> Option<Arc<ClientMark>> {
        let reservation = marks.reserve(client)?;
        Some(marks.confirm(&reservation))
    }

    #[test]
    fn client_keeps_its_mark() {
        let mut marks = few();
        assert!(marks.find(client(1)).is_none());
        let first = assign(&mut marks, client(1)).unwrap();
        let second = assign(&mut marks, client(2)).unwrap();
        assert_ne!(first.value, second.value);
        assert_eq!(marks.find(client(1)).unwrap().value, first.value);
        assert_eq!(first.address, client(1));
        assert_eq!(marks.in_use(), 2);
        drop(first);
        assert_eq!(marks.in_use(), 1);
    }

    #[test]
    fn mark_in_use_is_never_given_to_another_client() {
        let mut marks = few();
        let held: Vec<_> = (0..6).map(|it| assign(&mut marks, client(it)).unwrap()).collect();
        assert!(marks.reserve(client(7)).is_none(), "all are in use");
        // IPv6 has marks of its own.
        assert!(assign(&mut marks, "fd00::7".parse().unwrap()).is_some());
        let freed = held[3].value;
        drop(held.into_iter().nth(3));
        // All are idle now; make the others recent.
        for number in [0, 1, 2, 4, 5] {
            marks.find(client(number)).unwrap();
        }
        let new = assign(&mut marks, client(7)).unwrap();
        assert_eq!(new.value, freed, "the least recently used one");
        assert!(marks.find(client(3)).is_none());
    }

    #[test]
    fn refused_mark_is_used_again() {
        let mut marks = few();
        for _ in 0..20 {
            let reservation = marks.reserve(client(1)).unwrap();
            marks.give_back(&reservation);
        }
        assert!(marks.find(client(1)).is_none());
        assert!(assign(&mut marks, client(1)).is_some());
    }
}
