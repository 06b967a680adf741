//! Chooses one endpoint of a set and takes a slot there.
//!
//! A picker belongs to one worker and one backend: it has state of its own and shares only the counts. It knows
//! neither queue nor connections.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::endpoint::{Endpoint, EndpointSet};
use crate::load::Loads;

/// The endpoint with the least load for its weight.
mod least_load;
/// Each endpoint in turn, as often as its weight says.
mod round_robin;

/// How to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// The endpoint with the fewest requests in flight for its weight.
    #[default]
    LeastLoad,
    /// Each endpoint in turn, smoothly, as often as its weight says.
    RoundRobin,
}

/// Chooses for one worker and one backend.
#[derive(Debug)]
pub struct Picker(State);

#[derive(Debug)]
enum State {
    LeastLoad(least_load::LeastLoad),
    RoundRobin(round_robin::RoundRobin),
}

impl Picker {
    /// How often a picker that lost the last slot to another worker looks for the best endpoint again.
    const LOOKS: usize = 4;

    /// A picker. The seed decides where it begins, so that workers do not move in step.
    pub fn new(algorithm: Algorithm, seed: u64) -> Self {
        Self(match algorithm {
            Algorithm::LeastLoad => State::LeastLoad(least_load::LeastLoad::new(seed)),
            Algorithm::RoundRobin => State::RoundRobin(round_robin::RoundRobin::new(seed)),
        })
    }

    /// How it chooses.
    pub fn algorithm(&self) -> Algorithm {
        match self.0 {
            State::LeastLoad(_) => Algorithm::LeastLoad,
            State::RoundRobin(_) => Algorithm::RoundRobin,
        }
    }

    /// Takes a slot at the endpoint of choice, where the request counts from now on.
    ///
    /// `None` means that each endpoint with a weight was seen at the cap during the call. `except` is an endpoint
    /// that this request has just failed at; it is used only if no other has a weight. Each slot taken must come
    /// back once, by [`Admission::release`](crate::Admission::release).
    pub fn take<T>(
        &mut self,
        set: &EndpointSet<T>,
        cap: Option<NonZeroU32>,
        except: Option<&Endpoint<T>>,
    ) -> Option<Arc<Endpoint<T>>> {
        let other = set.loads.usable() > 1;
        let except = except.filter(|_| other).and_then(|endpoint| set.position(endpoint));
        let member = self.take_member(&set.loads, cap, except)?;
        Some(set.members()[member].endpoint.clone())
    }

    fn take_member(
        &mut self,
        loads: &Loads,
        cap: Option<NonZeroU32>,
        except: Option<usize>,
    ) -> Option<usize> {
        for _ in 0..Self::LOOKS {
            let member = self.choose(loads, cap, except)?;
            if loads.take(member, cap) {
                return Some(member);
            }
        }
        // Others keep winning the race for the best. The queue relies on `None` meaning that each was seen full, so
        // the bound on looking ends in a try at each, not in giving up.
        let mut members = (0..).zip(loads.shares());
        let taken = members.find(|&(member, share)| {
            share.weight > 0 && Some(member) != except && loads.take(member, cap)
        });
        taken.map(|(member, _)| member)
    }

    fn choose(
        &mut self,
        loads: &Loads,
        cap: Option<NonZeroU32>,
        except: Option<usize>,
    ) -> Option<usize> {
        match &mut self.0 {
            State::LeastLoad(state) => state.choose(loads, cap, except),
            State::RoundRobin(state) => state.choose(loads, cap, except),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
