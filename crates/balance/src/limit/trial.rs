//! When which endpoint gets more, or less, than its limit for a short time, to see what comes of it.
//!
//! A limit that is right never sees what lies above it, and one that is always reached never sees what lies below. So
//! one endpoint at a time, of many one in eight, is a trial's: up, then it is preferred until it has a little more than its
//! limit; or down, then it gets half of it. At most half of the time is spent so while limits are not known, and a tenth
//! when they are.

use std::net::SocketAddr;
use std::time::Duration;

use super::case::Case;
use super::{LimitSettings, Reason};
use crate::time::Time;

/// A trial lasts so many times as long as a request, and longer for the part that waits.
const SERVICES: f64 = 5.0;
/// It lasts at most so long.
const LONGEST: Duration = Duration::from_secs(30);
/// It lasts at least so long: limits are looked at no oftener.
const SHORTEST: Duration = Duration::from_millis(100);
/// The part of the time in which there is a trial where limits are known, and where they are not.
const USUAL: f64 = 0.1;
const EAGER: f64 = 0.5;
/// After so many trials for each endpoint that did not make limits known, eagerness has sunk to a half.
const TIRED: f64 = 6.0;
/// One endpoint of so many is tried at a time.
const ONE_IN: usize = 8;
/// The most endpoints that are tried at a time.
pub(super) const AT_ONCE: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) address: SocketAddr,
    /// The endpoint's limit meanwhile.
    pub(super) target: u32,
    pub(super) up: bool,
    until: Time,
}

/// The trials of one backend.
#[derive(Debug, Default)]
pub(super) struct Trials {
    pub(super) running: Vec<Trial>,
    next: Time,
    /// Trials that were held because limits were not known, and not yet made up for.
    spent: f64,
    /// So many trials are to be held eagerly: something has changed.
    alarm: usize,
}

/// A trial that could be held.
struct Candidate {
    urgent: bool,
    up: bool,
    target: u32,
}

impl Trials {
    /// Ends those whose time is over, or whose endpoint has gone.
    pub(super) fn end(&mut self, cases: &mut [Case], now: Time) {
        self.running.retain(|trial| {
            let case = cases.iter_mut().find(|case| case.address == trial.address);
            let goes_on = now < trial.until && case.is_some();
            if !goes_on && let Some(case) = case {
                case.tried(now);
            }
            goes_on
        });
    }

    pub(super) fn of(&self, address: SocketAddr) -> Option<&Trial> {
        self.running.iter().find(|trial| trial.address == address)
    }

    /// An endpoint is not what it was.
    pub(super) fn raise_alarm(&mut self, endpoints: usize) {
        self.alarm = 2 * endpoints;
    }

    /// Begins the next trial if it is time; `demand`: all requests that are there, `is_fit`: whether an endpoint may be tried.
    pub(super) fn begin(
        &mut self,
        cases: &mut [Case],
        demand: u32,
        is_fit: impl Fn(usize) -> bool,
        settings: &LimitSettings,
        now: Time,
    ) {
        let at_once = (cases.len() / ONE_IN + 1).min(AT_ONCE);
        if now < self.next || self.running.len() >= at_once {
            return;
        }
        let candidates = cases.iter().enumerate().filter(|&(at, case)| {
            is_fit(at) && case.is_settled(now) && self.of(case.address).is_none()
        });
        let candidates = candidates.filter_map(|(at, case)| {
            Some((at, case.last_trial, candidate(case, demand, self.alarm > 0, settings)?))
        });
        let first = candidates.min_by_key(|(_, last, candidate)| (!candidate.urgent, *last));
        let Some((at, _, candidate)) = first else { return };
        let case = &mut cases[at];
        case.goes_up = !candidate.up;
        let more = f64::from(candidate.target) / f64::from(case.limit.max(1));
        let lasts = SERVICES * case.service * more.max(1.0);
        let lasts = Duration::try_from_secs_f64(lasts).unwrap_or(LONGEST);
        let lasts = lasts.clamp(SHORTEST, LONGEST);
        let share = self.share(candidate.urgent, cases.len());
        let Candidate { up, target, .. } = candidate;
        let address = cases[at].address;
        self.running.push(Trial { address, target, up, until: now + lasts });
        self.next = now + lasts.div_f64(share * at_once as f64);
    }

    /// The part of the time to be spent on trials, from now on.
    fn share(&mut self, urgent: bool, endpoints: usize) -> f64 {
        self.alarm = self.alarm.saturating_sub(1);
        if !urgent {
            self.spent = (self.spent - 1.0).max(0.0);
            return USUAL;
        }
        self.spent += 1.0;
        let tired = self.spent / (TIRED * endpoints as f64);
        (EAGER / (1.0 + tired * tired)).max(USUAL)
    }
}

/// What trying an endpoint would be, if it is of use and there are enough requests for it.
fn candidate(
    case: &Case,
    demand: u32,
    alarmed: bool,
    settings: &LimitSettings,
) -> Option<Candidate> {
    if case.service <= 0.0 || case.reason == Reason::Said {
        return None;
    }
    let limit = f64::from(case.limit);
    let higher = match case.reason {
        Reason::Knee => limit + (limit / 4.0).ceil().max(2.0),
        Reason::Start | Reason::Growing | Reason::Said | Reason::Trial => limit * 1.5 + 1.0,
    };
    // Where the limit is not reached by itself, step by step towards it.
    let higher = if case.top < limit { higher.min(case.top * 1.5 + 1.0) } else { higher };
    let higher = (higher as u32).min(demand).min(settings.max);
    let lower = settings.clamp((limit / 2.0).ceil() as u32);
    let can_rise = f64::from(higher) > case.top.min(limit);
    let can_fall = lower < case.limit && f64::from(lower) < case.top;
    let wants_rise = can_rise && case.high > limit * 1.1 + 1.0;
    let wants_fall = can_fall && case.low < limit * 0.9 - 1.0;
    let up = match (can_rise, can_fall) {
        (true, true) => case.goes_up,
        (true, false) => true,
        (false, true) => false,
        (false, false) => return None,
    };
    let target = if up { higher } else { lower };
    Some(Candidate { urgent: wants_rise || wants_fall || alarmed, up, target })
}
