//! Immutable sets of endpoints to choose from. A change makes a new set.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use super::Endpoint;
use crate::load::{CapacityLimits, ConcurrencyCap, LoadTable};
use crate::pick::{Algorithm, EligibleEndpoints, HashRing, MaglevTable};
use crate::time::Time;

/// An endpoint of a set.
pub struct SetMember<T> {
    /// The endpoint itself.
    pub endpoint: Arc<Endpoint<T>>,
    /// Weight relative to the other members; 0 gets nothing. An ejected endpoint has 0; one in slow
    /// start has less than its final weight.
    pub weight: u32,
    /// True if it is in our zone. If some members are local and others are not, local ones are used
    /// first, until each has three quarters of its cap in flight, or 4 requests if there is no cap;
    /// then the others up to the same level; then all alike. A key takes precedence over the zone.
    pub local: bool,
    /// True if it is half-open: whatever its weight, it soon gets one request, while it has no
    /// other in flight. A further half-open request takes a new set.
    pub half_open: bool,
    /// Maximum of requests in flight, whatever the cap: the number of its slots that are assigned
    /// to us ([`SlotAssignment`](crate::SlotAssignment)). A member without assigned slots gets
    /// nothing, as if it had no weight.
    pub max_in_flight: u32,
}

impl<T> SetMember<T> {
    /// Returns a member without a zone, not half-open, all of whose slots are assigned to us.
    pub fn new(endpoint: Arc<Endpoint<T>>, weight: u32) -> Self {
        Self { endpoint, weight, local: false, half_open: false, max_in_flight: u32::MAX }
    }

    /// Returns its limit on requests in flight; `None` if there is none.
    pub fn limit(&self, cap: ConcurrencyCap) -> Option<u32> {
        let limit = self.endpoint.limit(cap).unwrap_or(u32::MAX).min(self.max_in_flight);
        Some(limit).filter(|&most| most < u32::MAX)
    }

    /// Takes a slot for a request that does not come through a picker, such as a probe, unless the
    /// endpoint is at the cap. A slot taken must be returned once, by
    /// [`Admission::release`](crate::Admission::release).
    pub fn take(&self, cap: ConcurrencyCap, now: Time) -> bool {
        let capacity = CapacityLimits::within(cap, now).at_most(self.max_in_flight);
        self.endpoint.counter.take(capacity)
    }

    /// Returns the weight before health is applied.
    pub(crate) fn own_weight(&self) -> u32 {
        if self.max_in_flight > 0 { self.weight } else { 0 }
    }

    /// Returns the weight that pickers use.
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
        write!(f, "{}", if self.half_open { ", half-open" } else { "" })?;
        if self.max_in_flight < u32::MAX {
            write!(f, ", at most {}", self.max_in_flight)
        } else {
            Ok(())
        }
    }
}

/// Set of endpoints to choose from. Immutable, except for the half-open requests that are left.
pub struct EndpointSet<T> {
    members: Vec<SetMember<T>>,
    by_address: BTreeMap<SocketAddr, usize>,
    pub(crate) loads: LoadTable,
    /// Number of members that have a weight and are not half-open.
    regular: usize,
    ring: OnceLock<HashRing>,
    maglev: OnceLock<MaglevTable>,
}

impl<T> EndpointSet<T> {
    /// Creates a set of these members, local ones first, otherwise in this order. A member that is
    /// named twice becomes one member with the larger weight: EndpointSlices may name an endpoint
    /// twice while it moves between them.
    pub fn new(mut members: Vec<SetMember<T>>) -> Self {
        let mut set = Self::empty();
        members.sort_by_key(|member| !member.local);
        for member in members {
            set.add(member);
        }
        set.build_loads();
        set
    }

    /// Returns the empty set.
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

    /// Builds the tables that an algorithm needs, which may take milliseconds. To be called before
    /// the set is handed to workers; otherwise the first request builds them.
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

    /// Returns all members, those of weight 0 included.
    pub fn members(&self) -> &[SetMember<T>] {
        &self.members
    }

    /// Returns the member with this address.
    pub fn find(&self, address: SocketAddr) -> Option<&SetMember<T>> {
        self.by_address.get(&address).map(|&member| &self.members[member])
    }

    /// True if this very endpoint is a member, not merely one with its address.
    pub fn contains(&self, endpoint: &Endpoint<T>) -> bool {
        self.position(endpoint).is_some()
    }

    /// Returns the Maglev table, which maps a key to an index in [`members`](Self::members).
    pub fn maglev(&self) -> &MaglevTable {
        self.maglev.get_or_init(|| MaglevTable::new(&self.pick_weights()))
    }

    pub(crate) fn ring(&self) -> &HashRing {
        self.ring.get_or_init(|| HashRing::new(&self.pick_weights()))
    }

    /// True if no member can be chosen because the slots are assigned to other balancers.
    pub fn has_no_assigned_slot(&self) -> bool {
        !self.is_usable() && self.members.iter().any(|member| member.max_in_flight == 0)
    }

    /// True if any member can be chosen.
    pub(crate) fn is_usable(&self) -> bool {
        self.regular > 0 || self.loads.has_half_open()
    }

    /// Prefers these members from now on, where a member has its learned limit.
    pub(crate) fn prefer(&self, members: impl Iterator<Item = usize>) {
        self.loads.prefer(members);
    }

    /// Takes a slot of a member, if one is free.
    pub(crate) fn take(
        &self,
        member: usize,
        cap: ConcurrencyCap,
        now: Time,
    ) -> Option<Arc<Endpoint<T>>> {
        let capacity = CapacityLimits::within(cap, now);
        // A request that waits for this member has no alternative.
        let capacity = capacity.ignoring_refusals().unwrap_or(capacity);
        self.loads.take(member, capacity).then(|| self.members[member].endpoint.clone())
    }

    pub(crate) fn position(&self, endpoint: &Endpoint<T>) -> Option<usize> {
        let position = *self.by_address.get(&endpoint.address)?;
        std::ptr::eq(&*self.members[position].endpoint, endpoint).then_some(position)
    }

    /// Returns the members that may serve a request that has been tried at `tried`, and is bound to
    /// `only` or else by its key.
    ///
    /// A member that is marked unreachable binds no request, like one without a weight.
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

    /// Returns the members among `tried` that are to be avoided. The choice is among the reachable
    /// members, or among all if none is reachable. If one of those is untried, all of `tried` are
    /// avoided; otherwise the latest one, unless it is the only choice.
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

    /// Builds the load table that pickers read.
    fn build_loads(&mut self) {
        let local = self.members.iter().take_while(|member| member.local).count();
        for (position, member) in self.members.iter().enumerate() {
            if position == local {
                self.loads.end_of_zone();
            }
            let Endpoint { counter, key, .. } = &*member.endpoint;
            match member.half_open && member.max_in_flight > 0 {
                true => self.loads.push_half_open(counter, *key, member.max_in_flight),
                false => self.loads.push(counter, *key, member.pick_weight(), member.max_in_flight),
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
