//! Chooses one endpoint of a set and takes a slot there.
//!
//! A picker belongs to one worker and one backend: it has state of its own and shares only the counts, what endpoints
//! have shown, and the tables of a set. It knows neither queue nor connections.

use std::sync::Arc;

use crate::endpoint::{Endpoint, EndpointSet};
use crate::load::{Bars, Cap, Field, Load, Room};
use crate::rng::Rng;
use crate::time::Time;

/// What a request asks of choosing.
mod wish;
/// How far members are to be avoided because they are slower than others, or fail.
mod handicap;
/// The endpoint with the least load for its weight.
mod least_load;
/// Each endpoint in turn, as often as its weight says.
mod round_robin;
/// Any endpoint, as often as its weight says.
mod random;
/// The endpoint that is likely to answer first.
mod peak_ewma;
/// The endpoint of a key, unless it has more than its share to do.
mod consistent_hash;
/// The endpoint of a key, always.
mod maglev;

pub(crate) use consistent_hash::Ring;
use handicap::Handicaps;
pub use maglev::MaglevTable;
pub use wish::Wish;
pub(crate) use wish::{Claim, Wants};

/// How to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// The endpoint with the fewest requests in flight for its weight, where one that is clearly slower than others
    /// counts as more loaded; of more than 64, the better of two random ones.
    #[default]
    LeastLoad,
    /// Each endpoint in turn, smoothly, as often as its weight says.
    RoundRobin,
    /// Any endpoint, each as often as its weight says.
    Random,
    /// The endpoint that is likely to answer first: the least latency x (in flight + 1) / weight, where latency jumps to
    /// peaks and decays. It learns from outcomes ([`Endpoint::learn`]); failures count as slowness. Of more than 64
    /// endpoints, the better of two random ones.
    PeakEwma,
    /// The endpoint that belongs to the request's key, unless it has a quarter more in flight than its share; then
    /// another that depends on the key alone. When endpoints change, only the keys of those change theirs.
    ConsistentHash,
    /// The endpoint that belongs to the request's key by Maglev's table, however busy: at its cap the request waits.
    Maglev,
}

/// Up to how many members all are looked at, rather than two.
const SCAN: usize = 64;

/// Chooses for one worker and one backend.
#[derive(Debug)]
pub struct Picker {
    algorithm: Algorithm,
    state: State,
    handicaps: Handicaps,
}

#[derive(Debug)]
enum State {
    LeastLoad(least_load::LeastLoad),
    RoundRobin(round_robin::RoundRobin),
    Random(random::Random),
    PeakEwma(peak_ewma::PeakEwma),
}

impl Picker {
    /// How often a picker that lost the last slot to another worker looks for the best endpoint again.
    const LOOKS: usize = 4;

    /// A picker. The seed decides where it begins, so that workers do not move in step.
    pub fn new(algorithm: Algorithm, seed: u64) -> Self {
        let state = match algorithm {
            // What has no key goes by load.
            Algorithm::LeastLoad | Algorithm::ConsistentHash | Algorithm::Maglev => {
                State::LeastLoad(least_load::LeastLoad::new(seed))
            }
            Algorithm::RoundRobin => State::RoundRobin(round_robin::RoundRobin::new(seed)),
            Algorithm::Random => State::Random(random::Random::new(seed)),
            Algorithm::PeakEwma => State::PeakEwma(peak_ewma::PeakEwma::new(seed)),
        };
        Self { algorithm, state, handicaps: Handicaps::default() }
    }

    /// How it chooses.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Takes a slot at the endpoint of choice, where the request counts from now on.
    ///
    /// `None` means that each endpoint that the wish leaves open was seen at the cap during the call. Each slot taken
    /// must come back once, by [`Admission::release`](crate::Admission::release).
    pub fn take<T>(
        &mut self,
        set: &EndpointSet<T>,
        cap: Cap,
        wish: &Wish<'_, T>,
    ) -> Option<Arc<Endpoint<T>>> {
        let field = |bars| Field::new(&set.loads, Room::within(cap), bars);
        let member = match self.claim(set, wish) {
            Claim::Any => self.take_member(set, &field(Bars::Nobody), wish),
            Claim::But(excluded) => {
                let barred = |member| excluded.contains(&member);
                self.take_member(set, &field(Bars::Those(&barred)), wish)
            }
            Claim::Only(member) => self.take_bound(set, &field(Bars::Nobody), wish, member),
        };
        member.map(|member| set.members()[member].endpoint.clone())
    }

    /// As [`take`](Self::take), for a request that cannot wait, where no endpoint that is left to it is reachable: the
    /// attempt fails in an honest way, or finds the endpoint back before anything else does.
    #[cold]
    pub(crate) fn take_unreachable<T>(
        &mut self,
        set: &EndpointSet<T>,
        cap: Cap,
        wish: &Wish<'_, T>,
    ) -> Option<Arc<Endpoint<T>>> {
        let claim = self.claim(set, wish);
        let barred = |member| !claim.allows(member);
        if (0..set.members().len()).any(|member| set.is_open(member) && !barred(member)) {
            return None;
        }
        let field = Field::new(&set.loads, Room::within(cap), Bars::Those(&barred));
        let member = self.take_regular(set, &field.with_unreachable(), wish);
        member.map(|member| set.members()[member].endpoint.clone())
    }

    /// As [`take`](Self::take), among those members of which `barred` is not true.
    pub(crate) fn take_beside<T>(
        &mut self,
        set: &EndpointSet<T>,
        cap: Cap,
        wish: &Wish<'_, T>,
        barred: &dyn Fn(usize) -> bool,
    ) -> Option<Arc<Endpoint<T>>> {
        let field = |bars| Field::new(&set.loads, Room::within(cap), bars);
        let member = match self.claim(set, wish) {
            Claim::Only(member) => self.take_bound(set, &field(Bars::Those(barred)), wish, member),
            claim @ (Claim::Any | Claim::But(_)) => {
                let barred = |member| !claim.allows(member) || barred(member);
                self.take_member(set, &field(Bars::Those(&barred)), wish)
            }
        };
        member.map(|member| set.members()[member].endpoint.clone())
    }

    /// Which members may serve the request.
    pub(crate) fn claim<T>(&self, set: &EndpointSet<T>, wish: &Wish<'_, T>) -> Claim {
        set.claim(wish.tried, wish.only, self.binding(wish.key))
    }

    /// What somebody who made this wish waits for.
    pub(crate) fn wants<T>(&self, wish: &Wish<'_, T>) -> Wants<T> {
        let (tried, only) = (wish.tried.into(), wish.only.cloned());
        Wants { tried, only, key: self.binding(wish.key) }
    }

    /// The key, if it leaves no choice.
    fn binding(&self, key: Option<u64>) -> Option<u64> {
        key.filter(|_| self.algorithm == Algorithm::Maglev)
    }

    /// A request that its key binds may be the one to try an endpoint: where all have keys, nobody else would.
    fn take_bound<T>(
        &self,
        set: &EndpointSet<T>,
        field: &Field<'_>,
        wish: &Wish<'_, T>,
        member: usize,
    ) -> Option<usize> {
        if set.loads.has_trials()
            && wish.only.is_none()
            && wish.tried.is_empty()
            && let Some(tried) = field.take_trial()
        {
            return Some(tried);
        }
        let take = |field: &Field<'_>| field.take(member).then_some(member);
        take(field).or_else(|| take(&field.unheeding()?))
    }

    fn take_member<T>(
        &mut self,
        set: &EndpointSet<T>,
        field: &Field<'_>,
        wish: &Wish<'_, T>,
    ) -> Option<usize> {
        if set.loads.has_trials()
            && let Some(member) = field.take_trial()
        {
            return Some(member);
        }
        // Who comes by its key stays with it.
        let free = self.algorithm != Algorithm::ConsistentHash || wish.key.is_none();
        if free && let Some(member) = field.take_favourite() {
            return Some(member);
        }
        self.take_regular(set, field, wish)
            .or_else(|| self.take_regular(set, &field.unheeding()?, wish))
    }

    fn take_regular<T>(
        &mut self,
        set: &EndpointSet<T>,
        field: &Field<'_>,
        wish: &Wish<'_, T>,
    ) -> Option<usize> {
        for _ in 0..Self::LOOKS {
            let member = self.choose(set, field, wish)?;
            if field.take(member) {
                return Some(member);
            }
        }
        // Others keep winning the race for the best. The queue relies on `None` meaning that each was seen full, so
        // the bound on looking ends in a try at each, not in giving up.
        (0..field.len()).find(|&member| field.take(member))
    }

    fn choose<T>(
        &mut self,
        set: &EndpointSet<T>,
        field: &Field<'_>,
        wish: &Wish<'_, T>,
    ) -> Option<usize> {
        if self.algorithm == Algorithm::ConsistentHash
            && let Some(key) = wish.key
            && let Some(member) = consistent_hash::choose(set.ring(), field, key)
        {
            return Some(member);
        }
        self.handicaps.look(field, wish.now);
        if let Some(zones) = field.by_zone()
            && let Some(member) = self.choose_by_zone(zones, wish.now)
        {
            return Some(member);
        }
        self.state.choose(field, &mut self.handicaps, wish.now)
    }

    /// Kept apart, because most sets know no zones and every request comes by.
    #[cold]
    fn choose_by_zone(&mut self, zones: [Field<'_>; 2], now: Time) -> Option<usize> {
        zones.iter().find_map(|zone| self.state.choose(zone, &mut self.handicaps, now))
    }
}

impl State {
    #[inline]
    fn choose(&mut self, field: &Field<'_>, handicaps: &mut Handicaps, now: Time) -> Option<usize> {
        if handicaps.are_even() {
            return match self {
                Self::LeastLoad(state) => state.choose(field),
                Self::RoundRobin(state) => state.choose(field, Handicaps::none),
                Self::Random(state) => state.choose(field),
                Self::PeakEwma(state) => state.choose(field, now, Handicaps::none),
            };
        }
        self.choose_with(field, handicaps, now)
    }

    /// Kept apart, because mostly no endpoint is slower than others or fails.
    #[cold]
    fn choose_with(
        &mut self,
        field: &Field<'_>,
        handicaps: &mut Handicaps,
        now: Time,
    ) -> Option<usize> {
        let mut choose = |limited: bool| {
            let handicap = |member| handicaps.of(member, limited);
            match self {
                Self::LeastLoad(state) => state.choose_with(field, handicap),
                Self::RoundRobin(state) => state.choose(field, handicap),
                Self::Random(state) => state.choose_with(field, handicap),
                Self::PeakEwma(state) => state.choose(field, now, handicap),
            }
        };
        // Where all others are full, one that fails may have more than its share.
        let chosen = choose(true).or_else(|| choose(false))?;
        handicaps.chose(chosen);
        Some(chosen)
    }
}

/// Of two different random members the better, or the one that can take a request; `None` if neither can.
///
/// Different, because with two of the same the worst is chosen now and then (envoy#14859).
#[inline(never)]
fn better_of_two(
    field: &Field<'_>,
    rng: &mut Rng,
    is_better: impl FnOnce((usize, Load), (usize, Load)) -> bool,
) -> Option<usize> {
    let (one, other) = field.draw_two(rng)?;
    let (one, other) = ((one, field.load(one)), (other, field.load(other)));
    let is_open = |(member, load)| field.is_open(member, load);
    let chosen = match (is_open(one), is_open(other)) {
        (true, true) => Some(if is_better(other, one) { other } else { one }),
        (true, false) => Some(one),
        (false, true) => Some(other),
        (false, false) => None,
    };
    chosen.map(|(member, _)| member)
}

#[cfg(all(test, not(loom)))]
mod tests;
