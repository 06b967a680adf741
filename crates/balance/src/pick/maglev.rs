//! Chooses by a key and a table, so that whoever has the table makes the same choice, the kernel included.
//!
//! Each endpoint claims slots of the table in an order of its own, in turns, until all are claimed. So slots are
//! spread evenly, and when an endpoint comes or goes few others change hands: up to 2 % beside its own share
//! (Eisenbud et al.: Maglev, NSDI 2016, section 3.4).

use std::fmt;
use std::net::SocketAddr;

use crate::hash::{hash_address, probe_hash};

/// Which endpoint a key belongs to: a pure function of the endpoints' addresses and weights, in whatever order.
pub struct MaglevTable {
    /// Members by number, or nothing if none has a weight.
    slots: Box<[u32]>,
}

impl MaglevTable {
    /// How many slots there are: a prime, large against any number of endpoints.
    pub const SIZE: usize = 65_537;

    /// The table of members with these addresses and weights. Takes milliseconds.
    pub fn new(members: &[(SocketAddr, u32)]) -> Self {
        let mut turns: Vec<SlotPermutation> = (0..)
            .zip(members)
            .filter(|&(_, &(_, weight))| weight > 0)
            .map(|(member, &(address, weight))| SlotPermutation::new(member, address, weight))
            .collect();
        // By what does not depend on the order of the members.
        turns.sort_unstable_by_key(|turns| turns.address);
        Self { slots: fill_slots(&mut turns) }
    }

    /// The number of the member that a key belongs to; `None` if nobody has a weight.
    pub fn member(&self, key: u64) -> Option<usize> {
        self.slots.get((key % Self::SIZE as u64) as usize).map(|&member| member as usize)
    }

    /// The whole table: the slot of a key is the remainder by [`SIZE`](Self::SIZE).
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Returns the member that the key belongs to among those that `may_serve` allows; `None` if it allows none.
    pub(crate) fn member_among(
        &self,
        key: u64,
        may_serve: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        /// Beyond so many, the key has looked at most slots without luck.
        const JUMPS: u64 = 16;
        let way = (0..JUMPS).filter_map(|times| self.member(probe_hash(key, times)));
        let rest = self.slots.iter().map(|&member| member as usize);
        way.chain(rest).find(|&member| may_serve(member))
    }
}

impl fmt::Debug for MaglevTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MaglevTable of {} slots", self.slots.len())
    }
}

/// The order in which one member claims slots, and how far it has come.
struct SlotPermutation {
    member: u32,
    address: SocketAddr,
    weight: u64,
    next: usize,
    skip: usize,
    /// How much weight it must have earned for the next turn.
    due: u64,
}

impl SlotPermutation {
    fn new(member: u32, address: SocketAddr, weight: u32) -> Self {
        let size = MaglevTable::SIZE as u64;
        let next = (hash_address(0, address) % size) as usize;
        // From 1 to below a prime: so the way comes by each slot once.
        let skip = (hash_address(1, address) % (size - 1)) as usize + 1;
        Self { member, address, weight: weight.into(), next, skip, due: 0 }
    }

    /// The next slot of this member's order that nobody has claimed.
    fn claim(&mut self, slots: &mut [u32]) {
        while slots[self.next] != FREE {
            self.step();
        }
        slots[self.next] = self.member;
        self.step();
    }

    fn step(&mut self) {
        self.next += self.skip;
        if self.next >= MaglevTable::SIZE {
            self.next -= MaglevTable::SIZE;
        }
    }
}

const FREE: u32 = u32::MAX;

/// Lets each member claim a slot in turn; one with half the weight of the heaviest has every second turn.
fn fill_slots(turns: &mut [SlotPermutation]) -> Box<[u32]> {
    let Some(heaviest) = turns.iter().map(|turns| turns.weight).max() else {
        return Box::default();
    };
    let mut slots = vec![FREE; MaglevTable::SIZE].into_boxed_slice();
    let (mut round, mut left) = (0, MaglevTable::SIZE);
    while left > 0 {
        round += 1;
        let due = turns.iter_mut().filter(|turns| round * turns.weight > turns.due);
        for turns in due.take(left) {
            turns.due += heaviest;
            turns.claim(&mut slots);
            left -= 1;
        }
    }
    slots
}
