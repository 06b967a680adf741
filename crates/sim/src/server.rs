//! Server behind an endpoint: serves some requests at a time, queues others, and has faults.

use std::collections::VecDeque;
use std::time::Duration;

use balance::health::ProbeResult;
use balance::{AttemptResult, Time};

use crate::plan::{SLOWEST, ServerPlan};
use crate::random::RandomSource;
use crate::requests::AttemptId;

pub(crate) struct SimulatedServer {
    fault: ServerFault,
    /// Begin of the fault, or of the first of consecutive faults in which the server accepted
    /// connections all the time.
    since: Time,
    running: Vec<AttemptId>,
    waiting: VecDeque<AttemptId>,
}

/// Fault of a server. There is one at a time; faults follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerFault {
    None,
    /// The server is slower by this factor.
    Slow(u32),
    /// This percentage of requests fails, fast.
    Failing(u32),
    /// The same as `Failing`, but probes succeed.
    FailingBehindGoodProbes(u32),
    /// Requests are served, but probes fail.
    BadProbes,
    /// Breaks all connections, and refuses new ones.
    Dead,
    /// Accepts requests, and answers none.
    BlackHole,
    /// Refuses requests beyond this number, with this `Retry-After`.
    Full(u32, Option<Duration>),
    /// Refuses connections in every other period of this length.
    Flapping(Duration),
    /// Does nothing until then.
    Paused(Time),
    /// Has started, is slow and becomes faster until then.
    Cold(Time),
}

impl ServerFault {
    /// Draws a fault; durations are at most `long`.
    pub(crate) fn draw(dice: &mut RandomSource, now: Time, long: Duration) -> Self {
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

/// Result of receiving a request.
pub(crate) enum ReceiveResult {
    Refused,
    /// The server is overloaded.
    Full(Option<Duration>),
    /// There will be no response.
    Dropped,
    Begins,
    Waits,
}

impl SimulatedServer {
    pub(crate) fn healthy() -> Self {
        Self {
            fault: ServerFault::None,
            since: Time::ZERO,
            running: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Sets the fault. Requests in progress continue as they began, except those that a death ends:
    /// these are returned.
    pub(crate) fn set_fault(&mut self, fault: ServerFault, now: Time) -> Vec<AttemptId> {
        self.since = self.accepting_since(now).unwrap_or(now);
        self.fault = fault;
        if fault != ServerFault::Dead {
            return Vec::new();
        }
        self.running.drain(..).chain(self.waiting.drain(..)).collect()
    }

    pub(crate) fn receive(
        &mut self,
        job: AttemptId,
        plan: &ServerPlan,
        now: Time,
    ) -> ReceiveResult {
        if self.refuses(now) {
            return ReceiveResult::Refused;
        }
        if self.fault == ServerFault::BlackHole {
            return ReceiveResult::Dropped;
        }
        if let ServerFault::Full(most, retry_after) = self.fault
            && (self.running.len() + self.waiting.len()) as u32 >= most
        {
            return ReceiveResult::Full(retry_after);
        }
        if self.running.len() as u32 == plan.threads {
            self.waiting.push_back(job);
            return ReceiveResult::Waits;
        }
        self.running.push(job);
        ReceiveResult::Begins
    }

    /// Returns the duration and the result of a request that begins now.
    pub(crate) fn serve(
        &self,
        plan: &ServerPlan,
        dice: &mut RandomSource,
        varies: bool,
        now: Time,
    ) -> (Duration, AttemptResult) {
        let usual = if varies { dice.exponential(plan.service) } else { plan.service };
        match self.fault {
            ServerFault::Slow(times) => (usual * times, AttemptResult::Success),
            ServerFault::Failing(percent) | ServerFault::FailingBehindGoodProbes(percent)
                if dice.percent(percent) =>
            {
                (usual / 10, AttemptResult::ServerError)
            }
            // The first requests take longest, the last before it is warm about as long as usual.
            ServerFault::Cold(warm) => {
                let left = warm.saturating_since(now).as_secs_f64();
                let slower = (left / plan.service.as_secs_f64()).clamp(1.0, f64::from(SLOWEST));
                (usual.mul_f64(slower), AttemptResult::Success)
            }
            ServerFault::None
            | ServerFault::Failing(_)
            | ServerFault::FailingBehindGoodProbes(_)
            | ServerFault::BadProbes
            | ServerFault::Dead
            | ServerFault::BlackHole
            | ServerFault::Full(..)
            | ServerFault::Flapping(_)
            | ServerFault::Paused(_) => (usual, AttemptResult::Success),
        }
    }

    /// Returns the end of its pause, if it is paused.
    pub(crate) fn paused_until(&self, now: Time) -> Option<Time> {
        match self.fault {
            ServerFault::Paused(until) if now < until => Some(until),
            ServerFault::Paused(_)
            | ServerFault::None
            | ServerFault::Slow(_)
            | ServerFault::Failing(_)
            | ServerFault::FailingBehindGoodProbes(_)
            | ServerFault::BadProbes
            | ServerFault::Dead
            | ServerFault::BlackHole
            | ServerFault::Full(..)
            | ServerFault::Flapping(_)
            | ServerFault::Cold(_) => None,
        }
    }

    /// True if a thread has been working on the job: the server has not died since it began.
    pub(crate) fn finish(&mut self, job: AttemptId) -> bool {
        let running = self.running.iter().position(|running| *running == job);
        running.map(|index| self.running.swap_remove(index)).is_some()
    }

    /// Returns the next queued job whose balancer still waits for it, for a thread that is free;
    /// `None` if there is none.
    pub(crate) fn next(
        &mut self,
        mut is_wanted: impl FnMut(AttemptId) -> bool,
    ) -> Option<AttemptId> {
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
            ServerFault::None
            | ServerFault::Slow(_)
            | ServerFault::FailingBehindGoodProbes(_)
            | ServerFault::Full(..)
            | ServerFault::Cold(_) => true,
            ServerFault::BadProbes | ServerFault::BlackHole | ServerFault::Failing(_) => false,
            ServerFault::Dead | ServerFault::Flapping(_) => !self.refuses(now),
            ServerFault::Paused(until) => until <= now,
        };
        if answers { ProbeResult::Good } else { ProbeResult::Bad }
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.fault == ServerFault::None
    }

    /// True if a connection can be made.
    pub(crate) fn accepts(&self, now: Time) -> bool {
        self.accepting_since(now).is_some()
    }

    /// Returns the time since which connections can be made; `None` if they cannot.
    pub(crate) fn accepting_since(&self, now: Time) -> Option<Time> {
        if self.refuses(now) || self.fault == ServerFault::BlackHole {
            return None;
        }
        let ServerFault::Flapping(period) = self.fault else { return Some(self.since) };
        let period = (period.as_nanos() as u64).max(1);
        let began = Time::from_nanos(now.as_nanos() / period * period);
        Some(self.since.max(began))
    }

    fn refuses(&self, now: Time) -> bool {
        match self.fault {
            ServerFault::Dead => true,
            ServerFault::Flapping(period) => {
                let periods = now.as_nanos() / (period.as_nanos() as u64).max(1);
                periods.is_multiple_of(2)
            }
            ServerFault::None
            | ServerFault::Slow(_)
            | ServerFault::Failing(_)
            | ServerFault::FailingBehindGoodProbes(_)
            | ServerFault::BadProbes
            | ServerFault::BlackHole
            | ServerFault::Full(..)
            | ServerFault::Paused(_)
            | ServerFault::Cold(_) => false,
        }
    }
}
