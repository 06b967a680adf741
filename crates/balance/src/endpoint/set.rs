//! Puts endpoints into sets to choose among. A set does not change; a change makes a new one.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use super::Endpoint;
use crate::load::{ConcurrencyCap, LoadTable, PickCapacity};
use crate::pick::{Algorithm, EligibleEndpoints, HashRing, MaglevTable};

/// An endpoint of a set.
pub struct SetMember<T> {
    /// Who it is.
    pub endpoint: Arc<Endpoint<T>>,
    /// Its share relative to the others; 0 gets nothing. An ejected endpoint has 0, one that starts slowly less than
    /// it will have.
    pub weight: u32,
    /// It is in our zone. Where some members are and others are not, these are used first, until each has three
    /// quarters of its cap in flight, or 4 requests without a cap; then the others as far; then all alike. A key goes
    /// before the zone.
    pub local: bool,
    /// It is to show that it can serve again: whatever its weight, it is given one request, soon, when it has no other
    /// in flight. Another trial takes another set.
    pub half_open: bool,
    /// Requests in flight, at most, whatever the cap: so many of its slots are ours ([`SlotAssignment`](crate::SlotAssignment)). One without
    /// any is given nothing, as if it had no weight.
    pub max_in_flight: u32,
}

impl<T> SetMember<T> {
    /// A member of no zone, not on trial, all of whose slots are ours.
    pub fn new(endpoint: Arc<Endpoint<T>>, weight: u32) -> Self {
        Self { endpoint, weight, local: false, half_open: false, max_in_flight: u32::MAX }
    }

    /// How many requests it may have at once; `None`: any number.
    pub fn limit(&self, cap: ConcurrencyCap) -> Option<u32> {
        let limit = self.endpoint.limit(cap).unwrap_or(u32::MAX).min(self.max_in_flight);
        Some(limit).filter(|&most| most < u32::MAX)
    }

    /// Takes a slot for what does not come by way of a picker, such as a probe, unless it is at the cap. A slot taken
    /// must come back once, by [`Admission::release`](crate::Admission::release).
    pub fn take(&self, cap: ConcurrencyCap) -> bool {
        self.endpoint.counter.take(self.room(cap))
    }

    fn room(&self, cap: ConcurrencyCap) -> PickCapacity {
        PickCapacity::within(cap).at_most(self.max_in_flight)
    }

    /// The weight that there would be but for health.
    pub(crate) fn own_weight(&self) -> u32 {
        if self.max_in_flight > 0 { self.weight } else { 0 }
    }

    /// The weight that choosing goes by.
    fn pick_weight(&self) -> u32 {
        if self.half_open { 0 } else { self.own_weight() }
    }
}

impl<T> Clone for SetMember<T> {
    fn clone(&self) -> Self {
        Self { endpoint: self.endpoint.clone(), ..*self }
    }
}

impl<T> fmt::Debug for SetMember<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of weight {}", self.endpoint, self.weight)?;
        write!(f, "{}", if self.local { ", local" } else { "" })?;
        write!(f, "{}", if self.half_open { ", on trial" } else { "" })?;
        if self.max_in_flight < u32::MAX {
            write!(f, ", at most {}", self.max_in_flight)
        } else {
            Ok(())
        }
    }
}

/// Endpoints to choose among. Immutable, but for the requests that members on trial have left.
pub struct EndpointSet<T> {
    members: Vec<SetMember<T>>,
    by_address: BTreeMap<SocketAddr, usize>,
    pub(crate) loads: LoadTable,
    /// How many have a weight and are not on trial.
    regular: usize,
    ring: OnceLock<HashRing>,
    maglev: OnceLock<MaglevTable>,
}

impl<T> EndpointSet<T> {
    /// A set of these members, in this order, but local ones first. One that is named twice is one member, with the
    /// larger weight: EndpointSlices may name an endpoint twice while it moves between them.
    pub fn new(mut members: Vec<SetMember<T>>) -> Self {
        let mut set = Self::empty();
        members.sort_by_key(|member| !member.local);
        for member in members {
            set.add(member);
        }
        set.build_loads();
        set
    }

    /// The set of nobody.
    pub fn empty() -> Self {
        Self {
            members: Vec::new(),
            by_address: BTreeMap::new(),
            loads: LoadTable::default(),
            regular: 0,
            ring: OnceLock::new(),
            maglev: OnceLock::new(),
        }
    }

    /// Makes what an algorithm needs of a set, which may take milliseconds: before the set is handed to workers, or
    /// the first request does it.
    pub fn prepare(&self, algorithm: Algorithm) {
        match algorithm {
            Algorithm::ConsistentHash => {
                self.ring();
            }
            Algorithm::Maglev => {
                self.maglev();
            }
            Algorithm::LeastLoad
            | Algorithm::RoundRobin
            | Algorithm::Random
            | Algorithm::PeakEwma => {}
        }
    }

    /// Who is in it, weight 0 included.
    pub fn members(&self) -> &[SetMember<T>] {
        &self.members
    }

    /// The member with this address.
    pub fn find(&self, address: SocketAddr) -> Option<&SetMember<T>> {
        self.by_address.get(&address).map(|&member| &self.members[member])
    }

    /// Whether this very endpoint, not merely one with its address, is a member.
    pub fn contains(&self, endpoint: &Endpoint<T>) -> bool {
        self.position(endpoint).is_some()
    }

    /// Which member a key belongs to by Maglev, as a number in [`members`](Self::members).
    pub fn maglev(&self) -> &MaglevTable {
        self.maglev.get_or_init(|| MaglevTable::new(&self.pick_weights()))
    }

    pub(crate) fn ring(&self) -> &HashRing {
        self.ring.get_or_init(|| HashRing::new(&self.pick_weights()))
    }

    /// Whether nobody can be chosen because the slots are others'.
    pub fn has_no_assigned_slot(&self) -> bool {
        !self.is_usable() && self.members.iter().any(|member| member.max_in_flight == 0)
    }

    /// Whether anybody in it can be chosen.
    pub(crate) fn is_usable(&self) -> bool {
        self.regular > 0 || self.loads.has_half_open()
    }

    /// From now on these members are preferred where each has what was learned of it.
    pub(crate) fn prefer(&self, members: impl Iterator<Item = usize>) {
        self.loads.prefer(members);
    }

    /// Takes a slot at a member, if it has one.
    pub(crate) fn take(&self, member: usize, cap: ConcurrencyCap) -> Option<Arc<Endpoint<T>>> {
        let room = PickCapacity::within(cap);
        // Who waits for this one has no other to go to.
        let room = room.ignoring_refusals().unwrap_or(room);
        self.loads.take(member, room).then(|| self.members[member].endpoint.clone())
    }

    pub(crate) fn position(&self, endpoint: &Endpoint<T>) -> Option<usize> {
        let position = *self.by_address.get(&endpoint.address)?;
        std::ptr::eq(&*self.members[position].endpoint, endpoint).then_some(position)
    }

    /// Which members may serve a request that has been tried at `tried`, is bound to `only`, or else by its key.
    ///
    /// A member that is marked unreachable binds nothing, as one without a weight does.
    #[inline]
    pub(crate) fn eligible(
        &self,
        tried: &[Arc<Endpoint<T>>],
        only: Option<&Arc<Endpoint<T>>>,
        key: Option<u64>,
    ) -> EligibleEndpoints {
        if tried.is_empty() && only.is_none() && key.is_none() {
            return EligibleEndpoints::Any;
        }
        let excluded = self.excluded(tried);
        let is_left = |member: &usize| self.is_open(*member) && !excluded.contains(member);
        let bound = only.and_then(|known| self.position(known)).filter(is_left);
        let by_key = || {
            let (key, table) = (key?, self.maglev());
            let by_key = table.member_among(key, |member| is_left(&member));
            by_key
                .or_else(|| table.member_among(key, |member| !excluded.contains(&member)))
                .or_else(|| table.member(key))
        };
        match bound.or_else(by_key) {
            Some(only) => EligibleEndpoints::Only(only),
            None if excluded.is_empty() => EligibleEndpoints::Any,
            None => EligibleEndpoints::AllExcept(excluded.into()),
        }
    }

    /// Returns the members among `tried` that are to be avoided. The choice is among the reachable members, or among all if
    /// none is reachable. If one of those is untried, all of `tried` are avoided; else the latest one, unless it is the
    /// only choice.
    fn excluded(&self, tried: &[Arc<Endpoint<T>>]) -> Vec<usize> {
        let Some(latest) = tried.last() else { return Vec::new() };
        let latest = self.position(latest);
        let mut tried: Vec<usize> = tried.iter().filter_map(|known| self.position(known)).collect();
        let all_members = 0..self.members.len();
        let none_is_open = !all_members.clone().any(|member| self.is_open(member));
        let is_choice = |member: &usize| {
            self.is_open(*member) || none_is_open && self.loads.weight(*member) > 0
        };
        let mut choices = all_members.filter(is_choice);
        if choices.clone().all(|member| tried.contains(&member)) {
            let another_is_left = choices.any(|member| Some(member) != latest);
            tried.retain(|&member| another_is_left && Some(member) == latest);
        }
        tried
    }

    /// True if the member has a weight and is not marked unreachable.
    pub(crate) fn is_open(&self, member: usize) -> bool {
        self.loads.weight(member) > 0 && self.loads.is_reachable(member)
    }

    /// True if there are members that could be chosen, and all of them are marked unreachable.
    pub fn is_unreachable(&self) -> bool {
        self.regular > 0 && !(0..self.members.len()).any(|member| self.is_open(member))
    }

    fn pick_weights(&self) -> Vec<(SocketAddr, u32)> {
        self.members.iter().map(|member| (member.endpoint.address, member.pick_weight())).collect()
    }

    fn add(&mut self, member: SetMember<T>) {
        let position =
            *self.by_address.entry(member.endpoint.address).or_insert(self.members.len());
        match self.members.get_mut(position) {
            Some(known) => known.weight = known.weight.max(member.weight),
            None => self.members.push(member),
        }
    }

    /// What choosing looks at.
    fn build_loads(&mut self) {
        let local = self.members.iter().take_while(|member| member.local).count();
        for (position, member) in self.members.iter().enumerate() {
            if position == local {
                self.loads.end_of_zone();
            }
            let Endpoint { counter: cell, key, .. } = &*member.endpoint;
            match member.half_open && member.max_in_flight > 0 {
                true => self.loads.push_half_open(cell, *key, member.max_in_flight),
                false => self.loads.push(cell, *key, member.pick_weight(), member.max_in_flight),
            }
            self.regular += usize::from(member.pick_weight() > 0);
        }
    }
}

impl<T> fmt::Debug for EndpointSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.members).finish()
    }
}
