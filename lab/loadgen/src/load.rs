//! A load: so many connections, each sending its next request when the last one is answered.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use mio::Registry;

use crate::Side;
use crate::exchange::Exchange;
use crate::http::Fault;
use crate::job::{Extent, LoadJob, LoadReport};
use crate::latency::Latencies;
use crate::process::CpuTime;

/// More errors than this and the load is not worth finishing.
const MAX_ERRORS: u64 = 10_000;
/// How long requests under way at the end of the window may take to end.
const DRAIN: Duration = Duration::from_secs(10);

pub(crate) struct Load {
    job: LoadJob,
    request: Vec<u8>,
    connections: Vec<Connection>,
    phase: Phase,
    issued: u64,
    /// Errors count from the first connection to the last answer, not only inside the window.
    errors: u64,
    first_error: Option<String>,
    tally: Tally,
    window: Option<Window>,
}

struct Connection {
    exchange: Exchange,
    began: Instant,
}

#[derive(Clone, Copy)]
enum Phase {
    Warmup { until: Instant },
    Counting { until: Option<Instant> },
    Draining { until: Instant },
}

#[derive(Default)]
struct Tally {
    requests: u64,
    latencies: Latencies,
}

/// What was read when the counting began, and once it has ended, what lies between.
struct Window {
    began: Instant,
    cpu: CpuTime,
    served: Vec<u64>,
    report: Option<LoadReport>,
}

impl Load {
    pub(crate) fn start(job: LoadJob, served: &[u64], registry: &Registry) -> Result<Self> {
        let now = Instant::now();
        let request = job.request.to_bytes();
        let connections = (0..job.connections)
            .map(|index| connect(&job, index, registry, now))
            .collect::<Result<Vec<_>>>()?;
        let issued = connections.len() as u64;
        let phase = match job.extent {
            Extent::Requests { .. } => Phase::Counting { until: None },
            Extent::Time { warmup_seconds, .. } => {
                Phase::Warmup { until: now + Duration::from_secs_f64(warmup_seconds) }
            }
        };
        let mut load = Self {
            job,
            request,
            connections,
            phase,
            issued,
            errors: 0,
            first_error: None,
            tally: Tally::default(),
            window: None,
        };
        if matches!(load.phase, Phase::Counting { .. }) {
            load.open_window(now, served)?;
        }
        Ok(load)
    }

    pub(crate) fn spins(&self) -> bool {
        self.job.spin
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
            let answer_bytes = self.job.request.answer_bytes;
            match connection.exchange.advance(&self.request, answer_bytes, scratch) {
                Ok(false) => return Ok(()),
                Ok(true) => {
                    let now = Instant::now();
                    self.tally.requests += 1;
                    self.tally.latencies.record(now - connection.began);
                    if !self.may_issue() {
                        return Ok(());
                    }
                    self.issued += 1;
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
        self.errors += 1;
        let first_error = self.first_error.get_or_insert_with(|| fault.to_string());
        if self.errors > MAX_ERRORS {
            bail!("over {MAX_ERRORS} errors, the first one: {first_error}");
        }
        self.connections[index] = connect(&self.job, index, registry, Instant::now())?;
        Ok(())
    }

    /// Moves through the phases; yields the report once every request has ended.
    pub(crate) fn tick(&mut self, now: Instant, served: &[u64]) -> Result<Option<LoadReport>> {
        match self.phase {
            Phase::Warmup { until } if now >= until => self.open_window(now, served)?,
            Phase::Counting { until: Some(until) } if now >= until => {
                self.close_window(now, served)?;
            }
            Phase::Counting { until: None } if self.all_answered() => {
                self.close_window(now, served)?;
            }
            Phase::Draining { until } if now >= until || self.all_idle() => {
                return Ok(self.finish());
            }
            Phase::Warmup { .. } | Phase::Counting { .. } | Phase::Draining { .. } => {}
        }
        Ok(None)
    }

    fn finish(&mut self) -> Option<LoadReport> {
        let report = self.window.take()?.report?;
        Some(LoadReport { errors: self.errors, first_error: self.first_error.take(), ..report })
    }

    fn all_answered(&self) -> bool {
        let Extent::Requests { requests } = self.job.extent else { return false };
        self.tally.requests >= requests
    }

    fn all_idle(&self) -> bool {
        self.connections.iter().all(|connection| connection.exchange.is_idle())
    }

    fn open_window(&mut self, now: Instant, served: &[u64]) -> Result<()> {
        self.tally = Tally::default();
        let cpu = CpuTime::of(&self.job.processes)?;
        self.window = Some(Window { began: now, cpu, served: served.to_vec(), report: None });
        let until = match self.job.extent {
            Extent::Requests { .. } => None,
            Extent::Time { seconds, .. } => Some(now + Duration::from_secs_f64(seconds)),
        };
        self.phase = Phase::Counting { until };
        Ok(())
    }

    fn close_window(&mut self, now: Instant, served: &[u64]) -> Result<()> {
        let window = self.window.as_mut().context("a window that was never opened")?;
        let cpu = CpuTime::of(&self.job.processes)?;
        let tally = std::mem::take(&mut self.tally);
        window.report = Some(LoadReport {
            requests: tally.requests,
            errors: 0,
            first_error: None,
            seconds: (now - window.began).as_secs_f64(),
            latency_p50_us: tally.latencies.quantile_us(0.5),
            latency_p99_us: tally.latencies.quantile_us(0.99),
            latency_max_us: tally.latencies.quantile_us(1.0),
            served: served
                .iter()
                .zip(&window.served)
                .map(|(after, before)| after - before)
                .collect(),
            cpu_ns: cpu.run_ns.saturating_sub(window.cpu.run_ns),
            wait_ns: cpu.wait_ns.saturating_sub(window.cpu.wait_ns),
        });
        self.phase = Phase::Draining { until: now + DRAIN };
        Ok(())
    }
}

fn connect(job: &LoadJob, index: usize, registry: &Registry, now: Instant) -> Result<Connection> {
    let exchange = Exchange::connect(job.target, registry, Side::Client.token(index))
        .with_context(|| format!("cannot connect to {}", job.target))?;
    Ok(Connection { exchange, began: now })
}
