//! Says which slots of an endpoint are ours, where several balancers share the endpoint.
//!
//! The slots of an endpoint are dealt like cards. Rendezvous hashing gives the members, who are the balancers, an order
//! for each endpoint; the first gets the first slot, the next one the next, and so on around until none is left. So every
//! slot belongs to one member, all have as many to within one, and whoever knows the members comes to the same. A member
//! that joins takes slots from others and gives none; one that leaves gives its own to others and takes none.
//!
//! Members learn late that others come and go. A [`SlotAssigner`] sees to it that slots are let go before they are taken.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::hash::{hash, hash_address};
use crate::load::ConcurrencyCap;
use crate::time::Time;

/// For so long nobody uses slots that others may not have let go of yet: since those learned of it later, or had
/// requests in flight.
pub const HANDOVER_TIME: Duration = Duration::from_secs(2);

/// Among whom slots are dealt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotAssignment {
    /// `None`: we get no slot, unless there are no others.
    me: Option<SocketAddr>,
    others: Vec<SocketAddr>,
}

impl SlotAssignment {
    /// There is nobody else: every slot is ours.
    pub fn alone() -> Self {
        Self::default()
    }

    /// Among these members; who is not one of them gets nothing. Addresses are names here: nobody is asked there. Without
    /// any members every slot is ours.
    pub fn among(me: SocketAddr, members: impl IntoIterator<Item = SocketAddr>) -> Self {
        let me = canonical(me);
        let mut others: Vec<_> = members.into_iter().map(canonical).collect();
        others.sort_unstable();
        others.dedup();
        let known = others.len();
        others.retain(|&member| member != me);
        Self { me: (others.len() < known).then_some(me), others }
    }

    /// Over how many slots are dealt, ourselves included if we take part.
    pub fn members(&self) -> usize {
        (self.others.len() + usize::from(self.me.is_some())).max(1)
    }

    /// Whether any slot can be ours.
    pub fn takes_part(&self) -> bool {
        self.me.is_some() || self.others.is_empty()
    }

    /// How many of an endpoint's slots are ours.
    pub fn share(&self, endpoint: SocketAddr, slots: u32) -> u32 {
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

    /// How many requests an endpoint may have of ours; `u32::MAX`: as many as the cap allows, because there are no others,
    /// or it is no number that could be dealt.
    pub fn max_in_flight(&self, endpoint: SocketAddr, cap: ConcurrencyCap) -> u32 {
        match cap.fixed() {
            Some(slots) if !self.others.is_empty() => self.share(endpoint, slots.get()),
            Some(_) | None => u32::MAX,
        }
    }
}

/// Who of the members goes before the others at an endpoint.
fn rendezvous_rank(endpoint: SocketAddr, member: SocketAddr) -> (u64, SocketAddr) {
    (hash_address(hash_address(hash(b"deal"), member), endpoint), member)
}

/// The same for all, however it is written.
fn canonical(member: SocketAddr) -> SocketAddr {
    SocketAddr::new(member.ip().to_canonical(), member.port())
}

/// Deals in the course of time, as members come and go.
///
/// Whatever others get by a change we let go of at once, and whatever we get we use after [`HAND_OVER`]. That is: who has
/// left counts as a member for so long, and we get nothing for so long after we have joined others. A deal among more
/// members gives none of them more, so that at any time the slots that members use are no more than there are, as long as
/// they learn of changes, and end what they had in flight, within that time.
#[derive(Clone, Debug)]
pub struct SlotAssigner {
    me: SocketAddr,
    /// Until when each counts that has left; `None`: it is there.
    others: BTreeMap<SocketAddr, Option<Time>>,
    /// From when on we get our share; `None`: we are no member.
    joined: Option<Time>,
}

impl SlotAssigner {
    /// One that knows of nobody else.
    pub fn new(me: SocketAddr) -> Self {
        Self { me: canonical(me), others: BTreeMap::new(), joined: None }
    }

    /// These are the members from now on. An empty list changes nothing: rather what held so far than a cap for each.
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
        let comes = others.clone().next().is_some();
        self.others.extend(others.map(|&other| (other, None)));
        if !members.contains(&self.me) {
            self.joined = None;
        } else if self.joined.is_none() {
            // Where nobody else has been or comes, nobody has to let go.
            let waits = had_others || comes;
            self.joined = Some(if waits { now + HANDOVER_TIME } else { now });
        }
    }

    /// What holds now.
    pub fn assignment(&self, now: Time) -> SlotAssignment {
        let counts = |until: &Option<Time>| until.is_none_or(|until| now < until);
        let others = self.others.iter().filter(|(_, until)| counts(until));
        let others = others.map(|(&other, _)| other).collect();
        let me = self.joined.filter(|&since| since <= now).map(|_| self.me);
        SlotAssignment { me, others }
    }

    /// When something else will hold, unless members change before.
    pub fn next_change(&self, now: Time) -> Option<Time> {
        let left = self.others.values().copied().flatten();
        left.chain(self.joined).filter(|&at| now < at).min()
    }
}
