//! An open loop: requests go out when they are to, whatever became of those before them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use mio::Registry;

use crate::Side;
use crate::exchange::{Exchange, Script};
use crate::http::Fault;
use crate::job::{LoadReport, PaceJob};
use crate::random::Random;
use crate::window::{Errors, Span, Tally, Window};

/// How long requests that count may take to end once the window has closed. Then they have failed.
const DRAIN: Duration = Duration::from_secs(10);

pub(crate) struct Pace {
    job: PaceJob,
    script: Script,
    random: Random,
    connections: Vec<Connection>,
    /// Connections without a request, by number: the last used is used next.
    idle: Vec<usize>,
    /// Requests whose time has come, and for which there is no connection.
    waiting: VecDeque<Due>,
    next_at: Instant,
    phase: Phase,
    /// Requests that count and have not ended.
    open: u64,
    tally: Tally,
    errors: Errors,
}

struct Connection {
    exchange: Exchange,
    under_way: Option<Due>,
}

/// A request, by the time when it was to be sent.
#[derive(Clone, Copy)]
struct Due {
    at: Instant,
    counts: bool,
}

enum Phase {
    Warmup {
        until: Instant,
    },
    Counting {
        until: Instant,
        window: Window,
    },
    Draining {
        until: Instant,
        span: Span,
    },
    /// The report has been given.
    Over,
}

impl Pace {
    pub(crate) fn start(job: PaceJob, registry: &Registry) -> Result<Self> {
        if !(job.rate.is_finite() && job.rate > 0.0) {
            bail!("a rate of {} requests per second", job.rate);
        }
        let now = Instant::now();
        let mut pace = Self {
            script: Script::of(&job.request),
            random: Random::new(job.seed),
            connections: Vec::with_capacity(job.connections),
            idle: (0..job.connections).rev().collect(),
            waiting: VecDeque::new(),
            next_at: now,
            phase: Phase::Warmup { until: now + Duration::from_secs_f64(job.warmup_seconds) },
            open: 0,
            tally: Tally::default(),
            errors: Errors::default(),
            job,
        };
        for index in 0..pace.job.connections {
            let exchange = connect(&pace.job, index, registry)?;
            pace.connections.push(Connection { exchange, under_way: None });
        }
        Ok(pace)
    }

    pub(crate) fn spins(&self) -> bool {
        self.job.spin
    }

    /// How long until a request is to be sent.
    pub(crate) fn next_due(&self, now: Instant) -> Duration {
        self.next_at.saturating_duration_since(now)
    }

    pub(crate) fn counts(&self) -> bool {
        matches!(self.phase, Phase::Counting { .. })
    }

    /// Sends what is due and moves through the phases; yields the report once every request that counts
    /// has ended.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        served: &[u64],
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<Option<LoadReport>> {
        while self.next_at <= now && self.issues() {
            let due = Due { at: self.next_at, counts: self.counts() };
            self.open += u64::from(due.counts);
            self.waiting.push_back(due);
            self.next_at += self.random.exponential(Duration::from_secs_f64(1.0 / self.job.rate));
        }
        self.send_waiting(registry, scratch)?;
        if self.phase_ends(now) { self.change_phase(now, served) } else { Ok(None) }
    }

    /// Takes one connection as far as it goes.
    pub(crate) fn advance(
        &mut self,
        index: usize,
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<()> {
        let connection = &mut self.connections[index];
        let outcome = connection.exchange.advance(&self.script, scratch);
        if matches!(outcome, Ok(false)) {
            return Ok(());
        }
        let under_way = connection.under_way.take();
        if self.script.close || !connection.exchange.is_reusable_after(&outcome) {
            connection.exchange = connect(&self.job, index, registry)?;
        }
        if let Some(due) = under_way {
            self.idle.push(index);
            self.conclude(due, outcome);
        }
        Ok(())
    }

    fn issues(&self) -> bool {
        matches!(self.phase, Phase::Warmup { .. } | Phase::Counting { .. })
    }

    fn send_waiting(&mut self, registry: &Registry, scratch: &mut [u8]) -> Result<()> {
        while let Some(&due) = self.waiting.front()
            && let Some(index) = self.idle.pop()
        {
            self.waiting.pop_front();
            let connection = &mut self.connections[index];
            connection.under_way = Some(due);
            connection.exchange.begin();
            // Its socket is writable already, of which there is no new event.
            self.advance(index, registry, scratch)?;
        }
        Ok(())
    }

    fn conclude(&mut self, due: Due, outcome: Result<bool, Fault>) {
        if !due.counts {
            return;
        }
        self.open -= 1;
        match outcome {
            Ok(_) => self.tally.add(due.at.elapsed()),
            Err(fault) => self.errors.add(fault),
        }
    }

    fn phase_ends(&self, now: Instant) -> bool {
        match &self.phase {
            Phase::Warmup { until } | Phase::Counting { until, .. } => now >= *until,
            Phase::Draining { until, .. } => now >= *until || self.open == 0,
            Phase::Over => false,
        }
    }

    fn change_phase(&mut self, now: Instant, served: &[u64]) -> Result<Option<LoadReport>> {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Warmup { .. } => {
                let window = Window::open(now, &self.job.processes, served)?;
                Phase::Counting { until: now + Duration::from_secs_f64(self.job.seconds), window }
            }
            Phase::Counting { window, .. } => {
                let span = window.close(now, &self.job.processes, served)?;
                Phase::Draining { until: now + DRAIN, span }
            }
            Phase::Draining { span, .. } => {
                (0..self.open).for_each(|_| self.errors.add("no answer in time"));
                return Ok(Some(self.tally.report(span, std::mem::take(&mut self.errors))));
            }
            Phase::Over => Phase::Over,
        };
        Ok(None)
    }
}

fn connect(job: &PaceJob, index: usize, registry: &Registry) -> Result<Exchange> {
    Exchange::connect_idle(job.target, registry, Side::Client.token(index))
        .with_context(|| format!("cannot connect to {}", job.target))
}
