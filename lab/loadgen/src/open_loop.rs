//! Open loop: requests are sent at scheduled times, independent of earlier responses.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use mio::Registry;

use crate::EventSource;
use crate::http::MessageError;
use crate::http1_client::{Http1Client, RequestTemplate};
use crate::job::{LoadReport, OpenLoopJob};
use crate::random::XorShiftRandom;
use crate::window::{ErrorCounter, MeasurementWindow, SuccessCounter, WindowResult};

/// Time after the window in which counted requests may end; later they count as failed.
const DRAIN: Duration = Duration::from_secs(10);

pub(crate) struct OpenLoopRun {
    job: OpenLoopJob,
    script: RequestTemplate,
    random: XorShiftRandom,
    connections: Vec<OpenLoopConnection>,
    /// Idle connections, by index: the last used is used next.
    idle: Vec<usize>,
    /// Requests that are due and wait for a connection.
    waiting: VecDeque<ScheduledRequest>,
    next_at: Instant,
    phase: OpenLoopPhase,
    /// Counted requests that have not ended.
    open: u64,
    tally: SuccessCounter,
    errors: ErrorCounter,
}

struct OpenLoopConnection {
    exchange: Http1Client,
    in_flight: Option<ScheduledRequest>,
}

/// A request with its intended send time.
#[derive(Clone, Copy)]
struct ScheduledRequest {
    at: Instant,
    counts: bool,
}

enum OpenLoopPhase {
    Warmup {
        until: Instant,
    },
    Counting {
        until: Instant,
        window: MeasurementWindow,
    },
    Draining {
        until: Instant,
        span: WindowResult,
    },
    /// The report has been given.
    Over,
}

impl OpenLoopRun {
    pub(crate) fn start(job: OpenLoopJob, registry: &Registry) -> Result<Self> {
        if !(job.rate.is_finite() && job.rate > 0.0) {
            bail!("a rate of {} requests per second", job.rate);
        }
        let now = Instant::now();
        let mut pace = Self {
            script: RequestTemplate::of(&job.request),
            random: XorShiftRandom::new(job.seed),
            connections: Vec::with_capacity(job.connections),
            idle: (0..job.connections).rev().collect(),
            waiting: VecDeque::new(),
            next_at: now,
            phase: OpenLoopPhase::Warmup {
                until: now + Duration::from_secs_f64(job.warmup_seconds),
            },
            open: 0,
            tally: SuccessCounter::default(),
            errors: ErrorCounter::default(),
            job,
        };
        for index in 0..pace.job.connections {
            let exchange = connect(&pace.job, index, registry)?;
            pace.connections.push(OpenLoopConnection { exchange, in_flight: None });
        }
        Ok(pace)
    }

    pub(crate) fn spins(&self) -> bool {
        self.job.spin
    }

    /// Returns the time until the next request is due.
    pub(crate) fn next_due(&self, now: Instant) -> Duration {
        self.next_at.saturating_duration_since(now)
    }

    pub(crate) fn is_counting(&self) -> bool {
        matches!(self.phase, OpenLoopPhase::Counting { .. })
    }

    /// Sends due requests and moves through the phases; returns the report once every counted request has ended.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        served: &[u64],
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<Option<LoadReport>> {
        while self.next_at <= now && self.is_issuing() {
            let due = ScheduledRequest { at: self.next_at, counts: self.is_counting() };
            self.open += u64::from(due.counts);
            self.waiting.push_back(due);
            self.next_at += self.random.exponential(Duration::from_secs_f64(1.0 / self.job.rate));
        }
        self.send_waiting(registry, scratch)?;
        if self.phase_ends(now) { self.change_phase(now, served) } else { Ok(None) }
    }

    /// Advances one connection as far as its socket allows.
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
        let under_way = connection.in_flight.take();
        if self.script.close || !connection.exchange.is_reusable_after(&outcome) {
            connection.exchange = connect(&self.job, index, registry)?;
        }
        if let Some(due) = under_way {
            self.idle.push(index);
            self.conclude(due, outcome);
        }
        Ok(())
    }

    fn is_issuing(&self) -> bool {
        matches!(self.phase, OpenLoopPhase::Warmup { .. } | OpenLoopPhase::Counting { .. })
    }

    fn send_waiting(&mut self, registry: &Registry, scratch: &mut [u8]) -> Result<()> {
        while let Some(&due) = self.waiting.front()
            && let Some(index) = self.idle.pop()
        {
            self.waiting.pop_front();
            let connection = &mut self.connections[index];
            connection.in_flight = Some(due);
            connection.exchange.begin();
            // The socket is writable already, so no new event will come.
            self.advance(index, registry, scratch)?;
        }
        Ok(())
    }

    fn conclude(&mut self, due: ScheduledRequest, outcome: Result<bool, MessageError>) {
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
            OpenLoopPhase::Warmup { until } | OpenLoopPhase::Counting { until, .. } => {
                now >= *until
            }
            OpenLoopPhase::Draining { until, .. } => now >= *until || self.open == 0,
            OpenLoopPhase::Over => false,
        }
    }

    fn change_phase(&mut self, now: Instant, served: &[u64]) -> Result<Option<LoadReport>> {
        self.phase = match std::mem::replace(&mut self.phase, OpenLoopPhase::Over) {
            OpenLoopPhase::Warmup { .. } => {
                let window = MeasurementWindow::open(now, &self.job.processes, served)?;
                OpenLoopPhase::Counting {
                    until: now + Duration::from_secs_f64(self.job.seconds),
                    window,
                }
            }
            OpenLoopPhase::Counting { window, .. } => {
                let span = window.close(now, &self.job.processes, served)?;
                OpenLoopPhase::Draining { until: now + DRAIN, span }
            }
            OpenLoopPhase::Draining { span, .. } => {
                (0..self.open).for_each(|_| self.errors.add("no answer in time"));
                return Ok(Some(self.tally.report(span, std::mem::take(&mut self.errors))));
            }
            OpenLoopPhase::Over => OpenLoopPhase::Over,
        };
        Ok(None)
    }
}

fn connect(job: &OpenLoopJob, index: usize, registry: &Registry) -> Result<Http1Client> {
    Http1Client::connect_idle(job.target, registry, EventSource::Client.token(index))
        .with_context(|| format!("cannot connect to {}", job.target))
}
