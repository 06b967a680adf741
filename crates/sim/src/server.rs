//! What stands at an endpoint: serves some requests at a time, keeps others waiting, and has its faults.

use std::collections::VecDeque;
use std::time::Duration;

use balance::health::ProbeResult;
use balance::{End, Time};

use crate::dice::Dice;
use crate::plan::{SLOWEST, ServerPlan};
use crate::requests::Job;

pub(crate) struct Server {
    fault: Fault,
    /// When the fault began, or the first of several in a row in which connections could be made all the time.
    since: Time,
    running: Vec<Job>,
    waiting: VecDeque<Job>,
}

/// What is wrong with a server. One thing at a time; faults follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// So many times slower.
    Slow(u32),
    /// So many requests in a hundred fail, fast.
    Failing(u32),
    /// As before, but probes say that all is well.
    FailingBehindGoodProbes(u32),
    /// Requests are served, but probes say that they are not.
    BadProbes,
    /// Breaks all connections, and refuses further ones.
    Dead,
    /// Takes what comes, and answers nothing.
    BlackHole,
    /// Refuses requests beyond so many, and asks to be left alone for so long.
    Full(u32, Option<Duration>),
    /// Refuses connections every other time, for so long.
    Flapping(Duration),
    /// Does nothing until then.
    Paused(Time),
    /// Has started, is slow and becomes faster until then.
    Cold(Time),
}

impl Fault {
    /// What happens to a server; spells are at most as `long`.
    pub(crate) fn draw(dice: &mut Dice, now: Time, long: Duration) -> Self {
        let spell = long * dice.between(1, 100) / 100;
        match dice.below(11) {
            0 => Self::None,
            1 => Self::Slow(dice.between(2, SLOWEST)),
            2 => Self::Failing(dice.between(1, 100)),
            3 => Self::FailingBehindGoodProbes(dice.between(50, 100)),
            4 => Self::BadProbes,
            5 => Self::Dead,
            6 => Self::BlackHole,
            7 => Self::Flapping(spell),
            8 => Self::Paused(now + spell),
            9 => Self::Full(dice.between(0, 4), dice.percent(50).then_some(spell)),
            _ => Self::Cold(now + spell),
        }
    }
}

/// How a request is received.
pub(crate) enum Reception {
    Refused,
    /// The server has too much to do.
    Full(Option<Duration>),
    /// Nothing will come of it.
    Swallowed,
    Begins,
    Waits,
}

impl Server {
    pub(crate) fn sound() -> Self {
        Self {
            fault: Fault::None,
            since: Time::ZERO,
            running: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    /// What is under way goes on as it began, but for what a death ends: that is returned.
    pub(crate) fn suffer(&mut self, fault: Fault, now: Time) -> Vec<Job> {
        self.since = self.accepting_since(now).unwrap_or(now);
        self.fault = fault;
        if fault != Fault::Dead {
            return Vec::new();
        }
        self.running.drain(..).chain(self.waiting.drain(..)).collect()
    }

    pub(crate) fn receive(&mut self, job: Job, plan: &ServerPlan, now: Time) -> Reception {
        if self.refuses(now) {
            return Reception::Refused;
        }
        if self.fault == Fault::BlackHole {
            return Reception::Swallowed;
        }
        if let Fault::Full(most, retry_after) = self.fault
            && (self.running.len() + self.waiting.len()) as u32 >= most
        {
            return Reception::Full(retry_after);
        }
        if self.running.len() as u32 == plan.threads {
            self.waiting.push_back(job);
            return Reception::Waits;
        }
        self.running.push(job);
        Reception::Begins
    }

    /// How long a request that begins now takes, and how it ends.
    pub(crate) fn serve(
        &self,
        plan: &ServerPlan,
        dice: &mut Dice,
        varies: bool,
        now: Time,
    ) -> (Duration, End) {
        let usual = if varies { dice.exponential(plan.service) } else { plan.service };
        match self.fault {
            Fault::Slow(times) => (usual * times, End::Success),
            Fault::Failing(percent) | Fault::FailingBehindGoodProbes(percent)
                if dice.percent(percent) =>
            {
                (usual / 10, End::ServerError)
            }
            // The first requests take longest, the last before it is warm about as long as usual.
            Fault::Cold(warm) => {
                let left = warm.saturating_since(now).as_secs_f64();
                let slower = (left / plan.service.as_secs_f64()).clamp(1.0, f64::from(SLOWEST));
                (usual.mul_f64(slower), End::Success)
            }
            Fault::None
            | Fault::Failing(_)
            | Fault::FailingBehindGoodProbes(_)
            | Fault::BadProbes
            | Fault::Dead
            | Fault::BlackHole
            | Fault::Full(..)
            | Fault::Flapping(_)
            | Fault::Paused(_) => (usual, End::Success),
        }
    }

    /// Until when it does nothing.
    pub(crate) fn paused_until(&self, now: Time) -> Option<Time> {
        match self.fault {
            Fault::Paused(until) if now < until => Some(until),
            Fault::Paused(_)
            | Fault::None
            | Fault::Slow(_)
            | Fault::Failing(_)
            | Fault::FailingBehindGoodProbes(_)
            | Fault::BadProbes
            | Fault::Dead
            | Fault::BlackHole
            | Fault::Full(..)
            | Fault::Flapping(_)
            | Fault::Cold(_) => None,
        }
    }

    /// True if a thread has been working on the job: the server has not died since it began.
    pub(crate) fn finishes(&mut self, job: Job) -> bool {
        let running = self.running.iter().position(|running| *running == job);
        running.map(|place| self.running.swap_remove(place)).is_some()
    }

    /// A thread is free. It takes the next whose balancer still waits for it; `None`: it rests.
    pub(crate) fn next(&mut self, mut is_wanted: impl FnMut(Job) -> bool) -> Option<Job> {
        while let Some(job) = self.waiting.pop_front() {
            if is_wanted(job) {
                self.running.push(job);
                return Some(job);
            }
        }
        None
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    pub(crate) fn probe(&self, now: Time) -> ProbeResult {
        let answers = match self.fault {
            Fault::None
            | Fault::Slow(_)
            | Fault::FailingBehindGoodProbes(_)
            | Fault::Full(..)
            | Fault::Cold(_) => true,
            Fault::BadProbes | Fault::BlackHole | Fault::Failing(_) => false,
            Fault::Dead | Fault::Flapping(_) => !self.refuses(now),
            Fault::Paused(until) => until <= now,
        };
        if answers { ProbeResult::Good } else { ProbeResult::Bad }
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.fault == Fault::None
    }

    /// True if a connection can be made.
    pub(crate) fn accepts(&self, now: Time) -> bool {
        self.accepting_since(now).is_some()
    }

    /// Since when connections can be made; `None` if they cannot.
    pub(crate) fn accepting_since(&self, now: Time) -> Option<Time> {
        if self.refuses(now) || self.fault == Fault::BlackHole {
            return None;
        }
        let Fault::Flapping(period) = self.fault else { return Some(self.since) };
        let period = (period.as_nanos() as u64).max(1);
        let began = Time::from_nanos(now.as_nanos() / period * period);
        Some(self.since.max(began))
    }

    fn refuses(&self, now: Time) -> bool {
        match self.fault {
            Fault::Dead => true,
            Fault::Flapping(period) => {
                let periods = now.as_nanos() / (period.as_nanos() as u64).max(1);
                periods.is_multiple_of(2)
            }
            Fault::None
            | Fault::Slow(_)
            | Fault::Failing(_)
            | Fault::FailingBehindGoodProbes(_)
            | Fault::BadProbes
            | Fault::BlackHole
            | Fault::Full(..)
            | Fault::Paused(_)
            | Fault::Cold(_) => false,
        }
    }
}
