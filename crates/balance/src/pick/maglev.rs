//! Maglev hashing: picks by a key and a table, so that everything that has the table makes the same
//! choice, the kernel included.
//!
//! The endpoints claim slots of the table in turns, each in an order of its own, until all are
//! claimed. So slots are spread evenly. When an endpoint comes or goes, few other slots move: up to
//! 2 % beside its own share (Eisenbud et al.: Maglev, NSDI 2016, section 3.4).

use std::fmt;
use std::net::SocketAddr;

use crate::hash::{hash_address, probe_hash};

/// Map of keys to endpoints: a pure function of the endpoints' addresses and weights, independent
/// of their order.
pub struct MaglevTable {
    /// Indices of members; empty if none has a weight.
    slots: Box<[u32]>,
}

impl MaglevTable {
    /// Number of slots: a prime, much larger than the number of endpoints.
    pub const SIZE: usize = 65_537;

    /// Returns the table of members with these addresses and weights. Takes milliseconds.
    pub fn new(members: &[(SocketAddr, u32)]) -> Self {
        Self::with_size(members, Self::SIZE)
    }

    /// Returns the table with another number of slots, which must be a prime.
    pub fn with_size(members: &[(SocketAddr, u32)], size: usize) -> Self {
        let mut permutations: Vec<SlotPermutation> = (0..)
            .zip(members)
            .filter(|&(_, &(_, weight))| weight > 0)
            .map(|(member, &(address, weight))| SlotPermutation::new(member, address, weight, size))
            .collect();
        // Sorts by a key that does not depend on the order of the members.
        permutations.sort_unstable_by_key(|it| it.address);
        Self { slots: fill_slots(&mut permutations, size) }
    }

    /// Returns the index of the member that a key belongs to; `None` if no member has a weight.
    pub fn member(&self, key: u64) -> Option<usize> {
        let slot = key.checked_rem(self.slots.len() as u64)?;
        self.slots.get(slot as usize).map(|&member| member as usize)
    }

    /// Returns the whole table: the slot of a key is the remainder by its length.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Returns the member that the key belongs to among those that `may_serve` allows; `None` if it
    /// allows none.
    pub(crate) fn member_among(
        &self,
        key: u64,
        may_serve: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        /// Number of probes, after which the key has tried most slots in vain.
        const JUMPS: u64 = 16;
        let probes = (0..JUMPS).filter_map(|times| self.member(probe_hash(key, times)));
        let rest = self.slots.iter().map(|&member| member as usize);
        probes.chain(rest).find(|&member| may_serve(member))
    }
}

impl fmt::Debug for MaglevTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MaglevTable of {} slots", self.slots.len())
    }
}

/// Order in which one member claims slots, and its position in it.
struct SlotPermutation {
    member: u32,
    address: SocketAddr,
    weight: u64,
    next: usize,
    skip: usize,
    /// Weight that it must have earned for the next turn.
    due: u64,
}

impl SlotPermutation {
    fn new(member: u32, address: SocketAddr, weight: u32, size: usize) -> Self {
        let size = size as u64;
        let next = (hash_address(0, address) % size) as usize;
        // From 1 to less than a prime: so the sequence visits each slot once.
        let skip = (hash_address(1, address) % (size - 1)) as usize + 1;
        Self { member, address, weight: weight.into(), next, skip, due: 0 }
    }

    /// Claims the next free slot in this member's order.
    fn claim(&mut self, slots: &mut [u32]) {
        while slots[self.next] != FREE {
            self.step(slots.len());
        }
        slots[self.next] = self.member;
        self.step(slots.len());
    }

    fn step(&mut self, size: usize) {
        self.next += self.skip;
        if self.next >= size {
            self.next -= size;
        }
    }
}

const FREE: u32 = u32::MAX;

/// Lets each member claim a slot in turn; one with half the weight of the heaviest gets every
/// second turn.
fn fill_slots(permutations: &mut [SlotPermutation], size: usize) -> Box<[u32]> {
    let Some(heaviest) = permutations.iter().map(|it| it.weight).max() else {
        return Box::default();
    };
    let mut slots = vec![FREE; size].into_boxed_slice();
    let (mut round, mut left) = (0, size);
    while left > 0 {
        round += 1;
        let due = permutations.iter_mut().filter(|it| round * it.weight > it.due);
        for permutation in due.take(left) {
            permutation.due += heaviest;
            permutation.claim(&mut slots);
            left -= 1;
        }
    }
    slots
}
