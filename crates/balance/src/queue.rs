//! Keeps those who wait in order, and hands them slots: first come, first served among those of one priority and route
//! that may use one.
//!
//! It lies behind one lock per backend, which the caller brings. What happens without that lock is in
//! [`crate::slots`]. The one race here is a grant against a cancel; they meet in one compare-and-swap on the ticket.
//!
//! Who goes next for a slot: whoever has been passed over too often; then the highest priority; of one priority the
//! routes in turn; of one route who came first. Who can be served by one endpoint only stands in that endpoint's line,
//! all others in the common one. So nobody is in the way of those whom another endpoint can serve, however long the
//! line of one endpoint is.

use std::cmp::Reverse;
use std::fmt;
use std::iter;
use std::option;
use std::sync::Arc;
use std::time::Duration;
use std::vec;

use crate::endpoint::{Endpoint, EndpointSet, Member};
use crate::pick::{Algorithm, Claim, Picker, Wants, Wish};
use crate::slots::{Delay, Limits, Refusal};
use crate::time::Time;

/// Where a request stands among those who wait.
mod rank;
/// A place in the queue.
mod ticket;
/// Waiters in order.
mod line;
/// Those of one priority and route.
mod flow;
/// How fast the queue moves.
mod pace;

pub(crate) use flow::Party;
use flow::{Flow, Place};
use line::Waiter;
use pace::Pace;
pub(crate) use pace::Reading;
pub use rank::{Priority, Rank};
pub use ticket::Ticket;

/// Those who wait for a slot of one backend. `N` wakes one of them.
pub struct Queue<T, N> {
    set: Arc<EndpointSet<T>>,
    limits: Limits,
    /// Those of one party each. One that nobody is of any more is kept until its turn has come, or it would have gained
    /// by having been empty.
    flows: Vec<Flow<T, N>>,
    /// By priority: the latest turn that a flow of it has had.
    turns: [u64; Priority::COUNT],
    arrivals: u64,
    pace: Pace,
    /// Since when somebody has been waiting all the time, if anybody waits.
    waited_since: Time,
    /// Chooses when several endpoints have room at once; whatever the backend's algorithm, that is the least loaded.
    picker: Picker,
    /// How long the queue may get before the cancelled are cleared out.
    clear_at: usize,
}

/// Whom a change of the queue wakes: each looks at its ticket.
#[derive(Debug)]
pub struct Woken<N> {
    /// Who has a slot.
    pub granted: Option<N>,
    /// Who has waited too long in a long overload.
    pub let_go: Vec<N>,
}

impl<T, N> Queue<T, N> {
    const CLEAR_AT_LEAST: usize = 32;
    /// So often younger ones of a higher priority go before somebody; then it goes.
    const PASSED_AT_MOST: u32 = 7;
    /// Of so many in the queue one may have given up before lengths count.
    const TIDY: usize = 16;

    /// An empty queue for slots of these endpoints.
    pub fn new(set: Arc<EndpointSet<T>>, limits: Limits) -> Self {
        Self {
            set,
            limits,
            flows: Vec::new(),
            turns: [0; Priority::COUNT],
            arrivals: 0,
            pace: Pace::default(),
            waited_since: Time::ZERO,
            picker: Picker::new(Algorithm::LeastLoad, 0),
            clear_at: Self::CLEAR_AT_LEAST,
        }
    }

    pub(crate) fn set(&self) -> &EndpointSet<T> {
        &self.set
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn pace(&self) -> Reading {
        self.pace.reading()
    }

    /// Whether each who waits can be served by one endpoint only.
    pub(crate) fn is_bound(&self) -> bool {
        self.flows.iter().all(|flow| flow.common.len() == 0)
    }

    /// How many wait with each priority, about: those who have given up are counted until they are cleared out.
    pub fn waiting_by_priority(&self) -> [usize; Priority::COUNT] {
        let mut waiting = [0; Priority::COUNT];
        for flow in &self.flows {
            waiting[usize::from(flow.party.priority.number())] += flow.len();
        }
        waiting
    }

    /// The party of which nobody gets a place in a full queue: that of the lowest priority, of those the longest.
    pub(crate) fn last_party(&self) -> Option<Party> {
        self.last_flow().map(|flow| self.flows[flow].party)
    }

    /// The longest that somebody may wait who comes now; shorter in a long overload.
    pub(crate) fn patience(&self, now: Time) -> Duration {
        match self.limits.delay {
            Some(delay) if self.is_overloaded(delay, now) => delay.target,
            Some(_) | None => Duration::MAX,
        }
    }

    fn is_overloaded(&self, delay: Delay, now: Time) -> bool {
        now.saturating_since(self.waited_since) >= delay.interval
    }

    /// Why nobody of this rank should begin to wait behind the `waiting`, if so.
    pub(crate) fn hopeless(
        &self,
        rank: &Rank,
        claim: Claim,
        waiting: u32,
        now: Time,
    ) -> Option<Refusal> {
        let left = rank.until.saturating_since(now);
        if left.is_zero() {
            return Some(Refusal::Late);
        }
        // How fast the line of one endpoint moves is not known.
        if matches!(claim, Claim::Only(_)) {
            return None;
        }
        let wait = self.pace.reading().wait(self.ahead(rank, waiting), now)?;
        let patience = if waiting > 0 { self.patience(now) } else { Duration::MAX };
        (wait > left.min(patience)).then_some(Refusal::Late)
    }

    /// How many of the `waiting` go before a newcomer of this rank, about.
    fn ahead(&self, rank: &Rank, waiting: u32) -> u64 {
        let party = Party::of(rank, self.limits.fair);
        if let [flow] = &*self.flows
            && flow.party.priority <= party.priority
        {
            return u64::from(waiting);
        }
        let own = self.flows.iter().find(|flow| flow.party == party).map_or(0, Flow::len);
        let before = |flow: &Flow<T, N>| match flow.party.priority.cmp(&party.priority) {
            std::cmp::Ordering::Less => flow.len(),
            std::cmp::Ordering::Equal => flow.len().min(own + 1),
            std::cmp::Ordering::Greater => 0,
        };
        let ahead = self.flows.iter().map(before).sum::<usize>() as u64;
        // Some in it may have given up, and are as likely here as there.
        let all = self.len().max(1) as u64;
        ahead.min(ahead * u64::from(waiting) / all + 1)
    }

    /// Takes somebody out of a full queue for a newcomer of this rank: the last one of the longest flow of the lowest
    /// priority, if that is lower than the newcomer's, or its route has more than one place more than the newcomer's.
    pub(crate) fn turn_out_for(&mut self, rank: &Rank, waiting: u32) -> Option<N> {
        let party = Party::of(rank, self.limits.fair);
        self.tidy(waiting as usize);
        loop {
            let last = self.last_flow()?;
            let [longest, own] = [Some(last), self.find(party)]
                .map(|flow| flow.map_or(0, |flow| self.flows[flow].len()));
            let lower = self.flows[last].party.priority > party.priority;
            let fairer = self.flows[last].party.priority == party.priority && longest > own + 1;
            if !lower && !fairer {
                return None;
            }
            // Who gives up at this very moment is not turned out.
            if let Some(waiter) = self.flows[last].remove_last()
                && waiter.ticket.refuse(Refusal::TurnedOut)
            {
                return Some(waiter.notify);
            }
        }
    }

    /// Somebody comes, and nobody waits.
    pub(crate) fn begin(&mut self, now: Time) {
        self.pace.begin(now);
        self.waited_since = now;
    }

    /// Adds a waiter at the end of its line.
    pub(crate) fn push(
        &mut self,
        wish: &Wish<'_, T>,
        wants: Wants<T>,
        notify: N,
    ) -> Arc<Ticket<T>> {
        self.clear_left();
        let ticket = Arc::new(Ticket::new());
        let claim = wants.claim(&self.set);
        self.stand(Waiter {
            arrival: self.arrivals,
            since: wish.now,
            rank: wish.rank,
            ticket: ticket.clone(),
            wants,
            claim,
            notify,
            passed: 0,
        });
        self.arrivals += 1;
        ticket
    }

    /// From now on these are in force. Each who waits stands where it belongs in the new set, in the old order.
    pub(crate) fn replace(&mut self, set: Arc<EndpointSet<T>>, limits: Limits) {
        let (usable, before) = (usable(&set), usable(&self.set));
        if usable > before || usable == 0 || limits.cap != self.limits.cap {
            self.pace.forget();
        }
        if limits.fair != self.limits.fair {
            self.turns = [0; Priority::COUNT];
            self.flows.iter_mut().for_each(|flow| flow.turn = 0);
        }
        (self.set, self.limits) = (set, limits);
        let mut waiters: Vec<_> = self.flows.iter_mut().flat_map(Flow::take_waiters).collect();
        waiters.sort_unstable_by_key(|waiter| waiter.arrival);
        for waiter in waiters {
            let claim = waiter.wants.claim(&self.set);
            self.stand(Waiter { claim, ..waiter });
        }
    }

    /// A slot for a newcomer, unless somebody who waits could use it.
    ///
    /// What a waiter may use and is free has its releaser on the way to the lock: it is not for newcomers.
    pub(crate) fn spare_slot(
        &mut self,
        picker: &mut Picker,
        wish: &Wish<'_, T>,
    ) -> Option<Arc<Endpoint<T>>> {
        let cap = self.limits.cap;
        let Some((_, claim)) = self.first_common() else {
            self.flows.iter_mut().for_each(|flow| {
                flow.bound.retain(|_, line| line.first().is_some());
            });
            let flows = &self.flows;
            let barred = |member| flows.iter().any(|flow| flow.bound.contains_key(&member));
            return picker.take_beside(&self.set, cap, wish, &barred);
        };
        // That leaves the endpoints at which the first has been tried.
        let Claim::But(avoided) = claim else { return None };
        let spare: Vec<usize> =
            avoided.iter().copied().filter(|&member| self.next(member).is_none()).collect();
        picker.take_beside(&self.set, cap, wish, &|member| !spare.contains(&member))
    }

    /// Offers one slot of an endpoint; gives whom to wake. An endpoint that has left the set grants nothing.
    pub(crate) fn offer(&mut self, endpoint: &Endpoint<T>, now: Time) -> Woken<N> {
        let mut let_go = Vec::new();
        let member = self.set.position(endpoint);
        let granted = member.and_then(|member| self.offer_member(member, now, &mut let_go));
        Woken { granted, let_go }
    }

    /// Hands out every slot that somebody who waits may use; gives whom to wake.
    pub(crate) fn offer_all(&mut self, now: Time) -> Vec<N> {
        let mut woken = Vec::new();
        while let Some((flow, _)) = self.first_common() {
            let first = self.flows[flow].common.first().expect("it was found there");
            let wish = first.wants.wish(now);
            let Some(endpoint) = self.picker.take(&self.set, self.limits.cap, &wish) else {
                break;
            };
            let granted = self.grant(endpoint, now, &mut woken);
            woken.extend(granted);
        }
        // The first finds nothing, so what is free, if anything, is where it has been tried. Others may use that, or
        // are bound to it. Without a first, each who is bound is asked.
        let mut members: Vec<usize> = match self.first_common().map(|(_, claim)| claim) {
            Some(Claim::But(avoided)) => avoided.to_vec(),
            Some(Claim::Any | Claim::Only(_)) => Vec::new(),
            None => self.flows.iter().flat_map(|flow| flow.bound.keys().copied()).collect(),
        };
        members.sort_unstable();
        members.dedup();
        for member in members {
            while let Some(granted) = self.offer_member(member, now, &mut woken) {
                woken.push(granted);
            }
        }
        woken
    }

    fn offer_member(&mut self, member: usize, now: Time, let_go: &mut Vec<N>) -> Option<N> {
        while self.next(member).is_some() {
            let endpoint = self.set.take(member, self.limits.cap)?;
            if let Some(notify) = self.grant(endpoint, now, let_go) {
                return Some(notify);
            }
        }
        None
    }

    /// Hands a slot, already taken, to the next who may use it, who leaves the queue. If there is none any more, or it
    /// has given up, the slot goes back.
    ///
    /// In a long overload those who have waited too long are let go, as long as there is another for the slot.
    fn grant(&mut self, endpoint: Arc<Endpoint<T>>, now: Time, let_go: &mut Vec<N>) -> Option<N> {
        let member = self.set.position(&endpoint);
        let mut next = member.and_then(|member| self.remove_next(member));
        let patience = self.patience(now);
        while let (Some(member), Some((_, waiter))) = (member, &next)
            && now.saturating_since(waiter.since) > patience
            && let Some(younger) = self.remove_next(member)
        {
            let (_, waiter) = next.replace(younger).expect("it is there");
            if waiter.ticket.refuse(Refusal::LetGo) {
                let_go.push(waiter.notify);
            }
        }
        if let (Some(member), Some((flow, waiter))) = (member, next)
            && waiter.ticket.grant(endpoint.clone())
        {
            self.has_had_its_turn(flow, waiter.arrival, member);
            self.pace.granted(now);
            return Some(waiter.notify);
        }
        endpoint.give_back();
        None
    }

    /// Somebody of this flow, who came as the `arrival`th, has a slot at the member.
    fn has_had_its_turn(&mut self, flow: usize, arrival: u64, member: usize) {
        let Flow { party, turn, .. } = &mut self.flows[flow];
        let priority = party.priority;
        let latest = &mut self.turns[usize::from(priority.number())];
        *latest = (*turn).max(*latest);
        *turn += 1;
        if self.flows.len() == 1 {
            return;
        }
        // Those who came before and had to let it pass.
        for flow in self.flows.iter_mut().filter(|flow| flow.party.priority > priority) {
            if let Some(older) = flow.next(member).filter(|it| it.arrival < arrival) {
                flow.is_passed(older.place);
            }
        }
    }

    /// Somebody whom several endpoints can serve, and its flow.
    fn first_common(&mut self) -> Option<(usize, Claim)> {
        let mut flows = self.flows.iter_mut().enumerate();
        flows.find_map(|(n, flow)| flow.common.first().map(|waiter| (n, waiter.claim.clone())))
    }

    /// Who is next of those who still wait and may use the member: in which flow, and where in that.
    fn next(&mut self, member: usize) -> Option<(usize, Place)> {
        if let [only] = &mut *self.flows {
            return only.next(member).map(|candidate| (0, candidate.place));
        }
        let mut best = None;
        for (flow, it) in self.flows.iter_mut().enumerate() {
            let Some(candidate) = it.next(member) else { continue };
            let order = if candidate.passed >= Self::PASSED_AT_MOST {
                (None, 0, candidate.arrival)
            } else {
                (Some(it.party.priority), it.turn, candidate.arrival)
            };
            if best.as_ref().is_none_or(|(least, _)| order < *least) {
                best = Some((order, (flow, candidate.place)));
            }
        }
        best.map(|(_, next)| next)
    }

    /// Takes out who is next, with its flow.
    fn remove_next(&mut self, member: usize) -> Option<(usize, Waiter<T, N>)> {
        let (flow, place) = self.next(member)?;
        let waiter = self.flows[flow].remove(place)?;
        Some((flow, waiter))
    }

    /// Puts a waiter at the end of the line that it belongs to.
    fn stand(&mut self, waiter: Waiter<T, N>) {
        let party = Party::of(&waiter.rank, self.limits.fair);
        let latest = self.turns[usize::from(party.priority.number())];
        let flow = self.find(party).unwrap_or_else(|| {
            let turns = &self.turns;
            let is_due =
                |flow: &Flow<T, N>| flow.turn > turns[usize::from(flow.party.priority.number())];
            self.flows.retain(|flow| flow.len() > 0 || is_due(flow));
            self.flows.push(Flow::new(party));
            self.flows.len() - 1
        });
        let flow = &mut self.flows[flow];
        if flow.len() == 0 {
            flow.turn = flow.turn.max(latest);
        }
        flow.stand(waiter);
    }

    fn find(&self, party: Party) -> Option<usize> {
        self.flows.iter().position(|flow| flow.party == party)
    }

    /// Of the flows of the lowest priority that wait the longest one.
    fn last_flow(&self) -> Option<usize> {
        if let [only] = &*self.flows {
            return (only.len() > 0).then_some(0);
        }
        let waiting = (0..self.flows.len()).filter(|&flow| self.flows[flow].len() > 0);
        waiting.max_by_key(|&flow| {
            let it = &self.flows[flow];
            (it.party.priority, it.len(), Reverse(flow))
        })
    }

    /// Clears out the cancelled once they could be as many as the others: constant work for each newcomer.
    fn clear_left(&mut self) {
        if self.len() < self.clear_at {
            return;
        }
        self.flows.iter_mut().for_each(Flow::clear_left);
        self.clear_at = (2 * self.len()).max(Self::CLEAR_AT_LEAST);
    }

    /// Clears out the cancelled where they are so many that lengths mislead.
    fn tidy(&mut self, waiting: usize) {
        let len = self.len();
        if len.saturating_sub(waiting) > len / Self::TIDY {
            self.flows.iter_mut().for_each(Flow::clear_left);
        }
    }

    /// How many are in it, those who have given up included.
    fn len(&self) -> usize {
        self.flows.iter().map(Flow::len).sum()
    }
}

/// How much a set can serve: a number to compare with that of another set under the same cap.
fn usable<T>(set: &EndpointSet<T>) -> u64 {
    let serves = |member: &&Member<T>| member.weight > 0 || member.trial;
    set.members().iter().filter(serves).map(|member| u64::from(member.most)).sum()
}

impl<N> Woken<N> {
    pub(crate) fn nobody() -> Self {
        Self { granted: None, let_go: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.granted.iter().len() + self.let_go.len()
    }
}

impl<N> IntoIterator for Woken<N> {
    type Item = N;
    type IntoIter = iter::Chain<vec::IntoIter<N>, option::IntoIter<N>>;

    /// In the order in which it happened.
    fn into_iter(self) -> Self::IntoIter {
        self.let_go.into_iter().chain(self.granted)
    }
}

impl<T, N> fmt::Debug for Queue<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("set", &self.set)
            .field("limits", &self.limits)
            .field("flows", &self.flows)
            .finish_non_exhaustive()
    }
}
