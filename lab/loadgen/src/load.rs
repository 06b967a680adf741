//! A closed loop: so many connections, each sending its next request when the last one is answered.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use mio::Registry;

use crate::Side;
use crate::exchange::{Exchange, Script};
use crate::http::Fault;
use crate::job::{Extent, LoadJob, LoadReport};
use crate::window::{Errors, Span, Tally, Window};

/// More errors than this and the load is not worth finishing.
const MAX_ERRORS: u64 = 10_000;
/// How long requests under way at the end of the window may take to end.
const DRAIN: Duration = Duration::from_secs(10);

pub(crate) struct Load {
    job: LoadJob,
    script: Script,
    connections: Vec<Connection>,
    phase: Phase,
    issued: u64,
    tally: Tally,
    /// From the first connection to the last answer, not only inside the window.
    errors: Errors,
}

struct Connection {
    exchange: Exchange,
    began: Instant,
}

enum Phase {
    Warmup {
        until: Instant,
    },
    Counting {
        until: Option<Instant>,
        window: Window,
    },
    Draining {
        until: Instant,
        tally: Tally,
        span: Span,
    },
    /// The report has been given.
    Over,
}

impl Load {
    pub(crate) fn start(job: LoadJob, served: &[u64], registry: &Registry) -> Result<Self> {
        let now = Instant::now();
        let connections = (0..job.connections)
            .map(|index| connect(&job, index, registry))
            .collect::<Result<Vec<_>>>()?;
        let warmup_seconds = match job.extent {
            Extent::Requests { .. } => None,
            Extent::Time { warmup_seconds, .. } => Some(warmup_seconds),
        };
        let mut load = Self {
            script: Script::of(&job.request),
            issued: connections.len() as u64,
            connections,
            phase: Phase::Over,
            tally: Tally::default(),
            errors: Errors::default(),
            job,
        };
        load.phase = match warmup_seconds {
            None => load.open_window(now, served)?,
            Some(seconds) => Phase::Warmup { until: now + Duration::from_secs_f64(seconds) },
        };
        Ok(load)
    }

    pub(crate) fn spins(&self) -> bool {
        self.job.spin
    }

    pub(crate) fn counts(&self) -> bool {
        matches!(self.phase, Phase::Counting { .. })
    }

    /// Takes one connection as far as it goes: the answer, the next request, its answer if it is there.
    pub(crate) fn advance(
        &mut self,
        index: usize,
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<()> {
        loop {
            let connection = &mut self.connections[index];
            match connection.exchange.advance(&self.script, scratch) {
                Ok(false) => return Ok(()),
                Ok(true) => {
                    let now = Instant::now();
                    self.tally.add(now - connection.began);
                    if !self.may_issue() {
                        return Ok(());
                    }
                    self.issued += 1;
                    if self.script.close {
                        self.connections[index] = connect(&self.job, index, registry)?;
                        return Ok(());
                    }
                    let connection = &mut self.connections[index];
                    connection.began = now;
                    connection.exchange.begin();
                }
                Err(fault) => return self.replace(index, registry, &fault),
            }
        }
    }

    fn may_issue(&self) -> bool {
        match (&self.phase, &self.job.extent) {
            (Phase::Draining { .. }, _) => false,
            (_, Extent::Requests { requests }) => self.issued < *requests,
            (_, Extent::Time { .. }) => true,
        }
    }

    /// A connection that failed is counted and opened anew with a request of its own.
    fn replace(&mut self, index: usize, registry: &Registry, fault: &Fault) -> Result<()> {
        self.errors.add(fault);
        if self.errors.count > MAX_ERRORS {
            bail!("over {MAX_ERRORS} errors, the last one: {fault}");
        }
        self.connections[index] = connect(&self.job, index, registry)?;
        Ok(())
    }

    /// Moves through the phases; yields the report once every request has ended.
    pub(crate) fn tick(&mut self, now: Instant, served: &[u64]) -> Result<Option<LoadReport>> {
        if !self.phase_ends(now) {
            return Ok(None);
        }
        self.phase = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Warmup { .. } => self.open_window(now, served)?,
            Phase::Counting { window, .. } => {
                let span = window.close(now, &self.job.processes, served)?;
                let tally = std::mem::take(&mut self.tally);
                Phase::Draining { until: now + DRAIN, tally, span }
            }
            Phase::Draining { tally, span, .. } => {
                return Ok(Some(tally.report(span, std::mem::take(&mut self.errors))));
            }
            Phase::Over => Phase::Over,
        };
        Ok(None)
    }

    fn phase_ends(&self, now: Instant) -> bool {
        match &self.phase {
            Phase::Warmup { until } => now >= *until,
            Phase::Counting { until: Some(until), .. } => now >= *until,
            Phase::Counting { until: None, .. } => self.all_answered(),
            Phase::Draining { until, .. } => now >= *until || self.all_idle(),
            Phase::Over => false,
        }
    }

    fn open_window(&mut self, now: Instant, served: &[u64]) -> Result<Phase> {
        self.tally = Tally::default();
        let until = match self.job.extent {
            Extent::Requests { .. } => None,
            Extent::Time { seconds, .. } => Some(now + Duration::from_secs_f64(seconds)),
        };
        Ok(Phase::Counting { until, window: Window::open(now, &self.job.processes, served)? })
    }

    fn all_answered(&self) -> bool {
        let Extent::Requests { requests } = self.job.extent else { return false };
        self.tally.requests() >= requests
    }

    fn all_idle(&self) -> bool {
        self.connections.iter().all(|connection| connection.exchange.is_idle())
    }
}

fn connect(job: &LoadJob, index: usize, registry: &Registry) -> Result<Connection> {
    let began = Instant::now();
    let place = index % (job.others.len() + 1);
    let target = place.checked_sub(1).map_or(job.target, |other| job.others[other]);
    let exchange = Exchange::connect(target, registry, Side::Client.token(index))
        .with_context(|| format!("cannot connect to {target}"))?;
    Ok(Connection { exchange, began })
}
