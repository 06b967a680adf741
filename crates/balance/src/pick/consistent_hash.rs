//! Consistent hashing with bounded loads: each endpoint holds parts of a ring, and a key belongs to
//! the endpoint whose part it falls into.
//!
//! When an endpoint comes or goes, only the keys of its own parts move. Uneven hashing and popular
//! keys are bounded by load: no endpoint gets more than 5/4 of its share of the requests in flight,
//! rounded up (Mirrokni, Thorup, Zadimoghaddam: Consistent hashing with bounded loads, 2016). A
//! request that an endpoint may not take jumps to another point of the ring, rather than to the
//! neighbour, which would get the whole overflow (Chen, Coleman, Shrivastava: Revisiting consistent
//! hashing with bounded loads, 2020).

use std::net::SocketAddr;

use crate::hash::{hash_address, probe_hash};
use crate::load::PickCandidates;

/// Number of points that a key tries before it takes the next member with capacity.
const JUMPS: u64 = 16;

/// Picks a member for a key; `None` if every member within its bound is at its cap.
#[inline(never)]
pub(super) fn choose(ring: &HashRing, candidates: &PickCandidates<'_>, key: u64) -> Option<usize> {
    let (mut in_flight, mut weight) = (1, 0);
    candidates.each(0, |_, load| {
        in_flight += u128::from(load.in_flight);
        weight += u128::from(load.weight);
    });
    let fits = |member: usize| {
        let load = candidates.load(member);
        // `in flight + 1 <= ceil(5/4 * all * weight / weights)`, in whole numbers.
        let within =
            u128::from(load.in_flight) * 4 * weight < 5 * in_flight * u128::from(load.weight);
        within && candidates.is_open(member, load)
    };
    let probes = (0..JUMPS).filter_map(|times| ring.owner(probe_hash(key, times)));
    // At worst 4/5 of the weight is full, so that one in forty gets this far.
    let rest = (0..candidates.len())
        .map(|step| ((key % candidates.len() as u64) as usize + step) % candidates.len());
    probes.chain(rest).find(|&member| fits(member))
}

/// Ring of all hashes, divided into parts of members.
#[derive(Debug)]
pub(crate) struct HashRing {
    /// Ends of the parts, ascending.
    points: Vec<u64>,
    /// Members that own the parts, by the index of their point.
    owners: Vec<u32>,
}

impl HashRing {
    /// Number of parts of the heaviest member: enough that a share deviates from its mean by about
    /// a tenth.
    const PARTS: u64 = 128;

    /// Returns the ring of members with these addresses and weights.
    pub(crate) fn new(members: &[(SocketAddr, u32)]) -> Self {
        let heaviest = members.iter().map(|&(_, weight)| u64::from(weight)).max().unwrap_or(0);
        let mut parts = Vec::new();
        for (member, &(address, weight)) in members.iter().enumerate() {
            if weight > 0 {
                let count = (Self::PARTS * u64::from(weight)).div_ceil(heaviest);
                parts.extend((0..count).map(|part| (hash_address(part, address), member as u32)));
            }
        }
        parts.sort_unstable();
        let (points, owners) = parts.into_iter().unzip();
        Self { points, owners }
    }

    /// Returns the member whose part a hash falls into; `None` if no member has a weight.
    pub(crate) fn owner(&self, hash: u64) -> Option<usize> {
        let index = self.points.partition_point(|&point| point < hash);
        let owner = self.owners.get(index).or_else(|| self.owners.first())?;
        Some(*owner as usize)
    }
}
