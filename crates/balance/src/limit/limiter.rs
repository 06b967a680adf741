//! Makes limits of what was seen, for the endpoints of one backend.
//!
//! It belongs to one thread, beside the workers. What one endpoint has shown counts for the others too, since most
//! backends are made of equals; but only so far that one that differs is known by its own evidence.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::case::{Case, highest};
use super::epoch::{Likelihoods, normalize};
use super::levels::LEVELS;
use super::trial::Trials;
use super::{LimitSettings, Reason};
use crate::endpoint::{EndpointSet, Member};
use crate::load::Cap;
use crate::time::Time;

/// The evidence of all others counts as that of so many endpoints.
const OTHERS: f64 = 8.0;
/// How likely an endpoint is to be unlike the others.
const UNLIKE: f64 = 0.05;

/// The limits of a backend's endpoints.
#[derive(Debug, Default)]
pub struct Limiter {
    cases: Vec<Case>,
    trials: Trials,
}

impl Limiter {
    /// One that knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at what was seen, and puts in force what follows. True: some endpoint may have more than before, so who waits
    /// may have it ([`Admission::dispatch`](crate::Admission::dispatch)). To be called ten times a second, and before a set
    /// is used for the first time.
    ///
    /// `set` is what pickers choose among, `waiting` how many wait for any of it. `round` is a number that no two rounds
    /// share: of backends that share an endpoint, the first one in a round decides about it.
    pub fn round<T>(
        &mut self,
        set: &EndpointSet<T>,
        settings: &LimitSettings,
        waiting: u32,
        round: u64,
        now: Time,
    ) -> bool {
        let members = set.members().iter().enumerate();
        let ours: Vec<_> = members.filter(|(_, it)| it.endpoint.evidence.claim(round)).collect();
        self.enrol(&ours, settings, now);
        self.trials.end(&mut self.cases, now);
        self.consider(&ours, settings, now);
        let in_flight = ours.iter().map(|(_, member)| member.endpoint.in_flight());
        let demand = in_flight.fold(waiting, u32::saturating_add);
        let is_fit = |at: usize| ours[at].1.weight > 0;
        self.trials.begin(&mut self.cases, demand, is_fit, settings, now);
        self.put_in_force(&ours, set)
    }

    /// The limit of each endpoint, and where it comes from.
    pub fn limits(&self) -> impl Iterator<Item = (SocketAddr, u32, Reason)> {
        self.cases.iter().map(|case| match self.trials.of(case.address) {
            Some(trial) => (case.address, trial.target, Reason::Trial),
            None => (case.address, case.limit, case.reason),
        })
    }

    /// The limit that each endpoint would have without trials.
    pub fn believed(&self) -> impl Iterator<Item = (SocketAddr, u32)> {
        self.cases.iter().map(|case| (case.address, case.limit))
    }

    /// One case for each member, in their order; who was known keeps what is known.
    fn enrol<T>(&mut self, ours: &[(usize, &Member<T>)], settings: &LimitSettings, now: Time) {
        let addresses = ours.iter().map(|(_, member)| member.endpoint.address);
        if self.cases.iter().map(|case| case.address).eq(addresses) {
            return;
        }
        let known = std::mem::take(&mut self.cases).into_iter();
        let mut known: BTreeMap<_, _> = known.map(|case| (case.address, case)).collect();
        let case = |(_, member): &(usize, &Member<T>)| {
            let endpoint = &member.endpoint;
            let learned = endpoint.limit(Cap::Learned);
            known.remove(&endpoint.address).unwrap_or_else(|| {
                Case::new(endpoint.address, &endpoint.evidence, learned, settings, now)
            })
        };
        self.cases = ours.iter().map(case).collect();
    }

    /// Draws the conclusions.
    fn consider<T>(&mut self, ours: &[(usize, &Member<T>)], settings: &LimitSettings, now: Time) {
        let mut surprise = false;
        for (case, (_, member)) in self.cases.iter_mut().zip(ours) {
            case.gather(&member.endpoint.evidence, now);
            if self.trials.of(case.address).is_none() {
                surprise |= case.close_epoch(now);
            }
        }
        if surprise {
            self.trials.raise_alarm(self.cases.len());
        }
        let opinions: Vec<Likelihoods> = self.cases.iter().map(Case::opinion).collect();
        let mut sum = [0.0; LEVELS];
        for opinion in &opinions {
            sum.iter_mut().zip(opinion).for_each(|(sum, each)| *sum += each);
        }
        let top = highest(|step| self.cases.iter().map(|case| case.seen(step)).sum(), 10.0);
        for ((case, mut opinion), (_, member)) in self.cases.iter_mut().zip(opinions).zip(ours) {
            let others = others(&sum, &opinion, ours.len() - 1);
            opinion.iter_mut().zip(others).for_each(|(own, others)| *own += others);
            normalize(&mut opinion);
            case.conclude(&opinion, top, member.endpoint.evidence.said(now), settings);
        }
    }

    /// Whether some endpoint may have more than before.
    fn put_in_force<T>(&self, ours: &[(usize, &Member<T>)], set: &EndpointSet<T>) -> bool {
        let mut raised = false;
        for ((_, limit, _), (_, member)) in self.limits().zip(ours) {
            raised |= member.endpoint.set_learned(limit);
        }
        let is_favourite =
            |member: &Member<T>| self.trials.of(member.endpoint.address).is_some_and(|it| it.up);
        set.favour(ours.iter().filter(|(_, member)| is_favourite(member)).map(|&(at, _)| at));
        raised
    }
}

/// What the others' evidence says of an endpoint: it is like them, or, which is not likely but possible, like anything.
fn others(sum: &Likelihoods, own: &Likelihoods, others: usize) -> Likelihoods {
    if others == 0 {
        return [0.0; LEVELS];
    }
    let weight = (OTHERS / others as f64).min(1.0);
    let mut says: Likelihoods = std::array::from_fn(|step| (sum[step] - own[step]) * weight);
    normalize(&mut says);
    let total: f64 = says.iter().map(|each| each.exp()).sum();
    says.map(|each| ((1.0 - UNLIKE) * each.exp() / total + UNLIKE / LEVELS as f64).ln())
}
