//! Assignment of an endpoint's slots to several balancers that share the endpoint.
//!
//! The slots of an endpoint are assigned in turn. Rendezvous hashing gives the members, which are
//! the balancers, an order for each endpoint; the first gets the first slot, the next one the next,
//! and so on around until none is left. So every slot belongs to one member, the numbers of slots
//! differ by at most one, and every balancer that knows the members computes the same assignment. A
//! member that joins takes slots from others and gives none; one that leaves gives its own to
//! others and takes none.
//!
//! Members learn late that others come and go. A [`SlotAssigner`] ensures that slots are released
//! before they are used by another member.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::hash::{hash, hash_address};
use crate::load::ConcurrencyCap;
use crate::time::Time;

/// Time for which a balancer does not use slots that others may not have released yet, because
/// those learned of the change later or had requests in flight.
pub const HANDOVER_TIME: Duration = Duration::from_secs(2);

/// Members to which slots are assigned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotAssignment {
    /// `None` if we get no slot, unless there are no other members.
    me: Option<SocketAddr>,
    others: Vec<SocketAddr>,
    /// True if the members are not known yet, so that no slot is ours.
    is_withheld: bool,
}

impl SlotAssignment {
    /// Returns the assignment before the members are known: no slot is ours.
    pub fn withheld() -> Self {
        Self { is_withheld: true, ..Self::default() }
    }

    /// Returns an assignment without other members: every slot is ours.
    pub fn alone() -> Self {
        Self::default()
    }

    /// Returns the assignment to these members; a balancer that is not one of them gets nothing.
    /// Addresses are only names here, and no connection is made to them. Without any members, every
    /// slot is ours.
    pub fn among(me: SocketAddr, members: impl IntoIterator<Item = SocketAddr>) -> Self {
        let me = canonical(me);
        let mut others: Vec<_> = members.into_iter().map(canonical).collect();
        others.sort_unstable();
        others.dedup();
        let known = others.len();
        others.retain(|&member| member != me);
        Self { me: (others.len() < known).then_some(me), others, is_withheld: false }
    }

    /// Returns the number of members to which slots are assigned, ourselves included if we take
    /// part.
    pub fn members(&self) -> usize {
        (self.others.len() + usize::from(self.me.is_some())).max(1)
    }

    /// True if any slot can be ours.
    pub fn takes_part(&self) -> bool {
        !self.is_withheld && (self.me.is_some() || self.others.is_empty())
    }

    /// Returns the number of an endpoint's slots that are ours.
    pub fn share(&self, endpoint: SocketAddr, slots: u32) -> u32 {
        if self.is_withheld {
            return 0;
        }
        if self.others.is_empty() {
            return slots;
        }
        let Some(me) = self.me else { return 0 };
        let all = u32::try_from(self.members()).unwrap_or(u32::MAX);
        let left_over = slots % all;
        if left_over == 0 {
            return slots / all;
        }
        let mine = rendezvous_rank(endpoint, me);
        let before =
            self.others.iter().filter(|&&other| rendezvous_rank(endpoint, other) < mine).count();
        slots / all + u32::from(before < left_over as usize)
    }

    /// Returns the limit on our requests in flight at an endpoint. `u32::MAX` means as many as the
    /// cap allows, because there are no other members or the cap is not a fixed number.
    pub fn max_in_flight(&self, endpoint: SocketAddr, cap: ConcurrencyCap) -> u32 {
        match cap.fixed() {
            Some(_) if self.is_withheld => 0,
            Some(slots) if !self.others.is_empty() => self.share(endpoint, slots.get()),
            Some(_) | None => u32::MAX,
        }
    }
}

/// Returns the rank of a member at an endpoint, by which members are ordered.
fn rendezvous_rank(endpoint: SocketAddr, member: SocketAddr) -> (u64, SocketAddr) {
    (hash_address(hash_address(hash(b"deal"), member), endpoint), member)
}

/// Returns the canonical form of an address: the same for all spellings.
pub(crate) fn canonical(member: SocketAddr) -> SocketAddr {
    SocketAddr::new(member.ip().to_canonical(), member.port())
}

/// Assigns slots over time, as members come and go.
///
/// Slots that others get by a change are released at once, and slots that we get are used after
/// [`HANDOVER_TIME`]. This means: a member that has left counts for this time, and we get nothing
/// for this time after we have joined others. An assignment to more members gives none of them
/// more. So the slots that members use never exceed the slots that there are, if the members learn
/// of changes, and finish the requests that were in flight, within that time.
#[derive(Clone, Debug)]
pub struct SlotAssigner {
    me: SocketAddr,
    /// End of the time for which each member that has left still counts; `None` if it is present.
    others: BTreeMap<SocketAddr, Option<Time>>,
    /// Time from which on we get our share; `None` if we are not a member.
    joined: Option<Time>,
}

impl SlotAssigner {
    /// Returns an assigner without other members.
    pub fn new(me: SocketAddr) -> Self {
        Self { me: canonical(me), others: BTreeMap::new(), joined: None }
    }

    /// Sets the members. An empty list changes nothing: the previous members are better than the
    /// whole cap for each balancer.
    pub fn update_members(&mut self, members: impl IntoIterator<Item = SocketAddr>, now: Time) {
        let members: Vec<_> = members.into_iter().map(canonical).collect();
        if members.is_empty() {
            return;
        }
        self.others.retain(|_, until| until.is_none_or(|until| now < until));
        let had_others = !self.others.is_empty();
        for (other, until) in &mut self.others {
            if until.is_none() && !members.contains(other) {
                *until = Some(now + HANDOVER_TIME);
            }
        }
        let others = members.iter().filter(|&&member| member != self.me);
        let others_join = others.clone().next().is_some();
        self.others.extend(others.map(|&other| (other, None)));
        if !members.contains(&self.me) {
            self.joined = None;
        } else if self.joined.is_none() {
            // If there are and were no other members, no member has to release slots.
            let waits = had_others || others_join;
            self.joined = Some(if waits { now + HANDOVER_TIME } else { now });
        }
    }

    /// Returns the current assignment.
    pub fn assignment(&self, now: Time) -> SlotAssignment {
        let counts = |until: &Option<Time>| until.is_none_or(|until| now < until);
        let others = self.others.iter().filter(|(_, until)| counts(until));
        let others = others.map(|(&other, _)| other).collect();
        let me = self.joined.filter(|&since| since <= now).map(|_| self.me);
        SlotAssignment { me, others, is_withheld: false }
    }

    /// Returns the time at which the assignment changes next, unless members change before.
    pub fn next_change(&self, now: Time) -> Option<Time> {
        let left = self.others.values().copied().flatten();
        left.chain(self.joined).filter(|&at| now < at).min()
    }
}
