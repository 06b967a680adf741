//! Closed loop over HTTP/1.1 that reports each request: its start, duration and outcome.
//!
//! Defects are injected at the onset. Clients keep their connections as long as the proxy does, and a client whose
//! request fails sends the next one at once.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use mio::Registry;

use crate::EventSource;
use crate::http1_client::{Http1Client, RequestTemplate};
use crate::job::{JobReport, OnsetReport, TraceJob, TraceReport};
use crate::window::{MeasurementWindow, WindowResult};

const SAMPLE: Duration = Duration::from_millis(100);
const SUCCESS: &str = "200";
const UNANSWERED: &str = "no answer by the end";

pub(crate) struct TraceRun {
    job: TraceJob,
    script: RequestTemplate,
    connections: Vec<TraceConnection>,
    phase: TracePhase,
    requests: Vec<TracedRequest>,
    /// Texts of the distinct outcomes; a request refers to its outcome by index.
    outcomes: Vec<String>,
    /// Requests answered by each endpoint, at the onset and each `SAMPLE` after it.
    served: Vec<Vec<u64>>,
}

struct TraceConnection {
    exchange: Http1Client,
    /// Time at which its request in flight was sent.
    sent_at: Option<Instant>,
}

/// A request that has ended, or was given up at the end of the trace.
struct TracedRequest {
    began: Instant,
    took: Duration,
    outcome: usize,
}

enum TracePhase {
    Warmup {
        until: Instant,
    },
    Before {
        until: Instant,
        window: MeasurementWindow,
    },
    After {
        onset: Instant,
        window: MeasurementWindow,
    },
    Draining {
        onset: Instant,
        span: WindowResult,
    },
    /// The report has been given.
    Over,
}

impl TraceRun {
    pub(crate) fn start(job: TraceJob, registry: &Registry) -> Result<Self> {
        let until = Instant::now() + Duration::from_secs_f64(job.warmup_seconds);
        let connections = (0..job.connections)
            .map(|index| connect(&job, index, registry))
            .collect::<Result<_>>()?;
        Ok(Self {
            script: RequestTemplate::of(&job.request),
            connections,
            phase: TracePhase::Warmup { until },
            requests: Vec::new(),
            outcomes: vec![SUCCESS.to_owned()],
            served: Vec::new(),
            job,
        })
    }

    pub(crate) fn spins(&self) -> bool {
        self.job.spin
    }

    /// True from the onset on.
    pub(crate) fn counts(&self) -> bool {
        matches!(self.phase, TracePhase::After { .. })
    }

    /// Advances one connection as far as its socket allows: the response, the next request, its response if available.
    pub(crate) fn advance(
        &mut self,
        index: usize,
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<()> {
        loop {
            let connection = &mut self.connections[index];
            let outcome = connection.exchange.advance(&self.script, scratch);
            let Some(began) = connection.sent_at.filter(|_| !matches!(outcome, Ok(false))) else {
                return Ok(());
            };
            connection.sent_at = None;
            let reusable = !self.script.close && connection.exchange.is_reusable_after(&outcome);
            let now = Instant::now();
            self.record(began, now, outcome.err().map(|fault| fault.to_string()));
            if !self.sends() {
                return Ok(());
            }
            if !reusable {
                self.connections[index] = connect(&self.job, index, registry)?;
                return Ok(());
            }
            let connection = &mut self.connections[index];
            connection.sent_at = Some(now);
            connection.exchange.begin();
        }
    }

    /// Moves through the phases; reports the onset, and everything else at the end.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        served: &[u64],
        unanswered: &[u64],
    ) -> Result<Option<JobReport>> {
        self.sample(now, served);
        if !self.phase_ends(now) {
            return Ok(None);
        }
        self.phase = match std::mem::replace(&mut self.phase, TracePhase::Over) {
            TracePhase::Warmup { .. } => {
                self.requests.clear();
                let until = now + Duration::from_secs_f64(self.job.seconds_before);
                TracePhase::Before {
                    until,
                    window: MeasurementWindow::open(now, &self.job.processes, served)?,
                }
            }
            TracePhase::Before { window, .. } => {
                self.phase = TracePhase::After { onset: now, window };
                self.sample(now, served);
                return Ok(Some(JobReport::Onset(OnsetReport { onset: true })));
            }
            TracePhase::After { onset, window } => TracePhase::Draining {
                onset,
                span: window.close(now, &self.job.processes, served)?,
            },
            TracePhase::Draining { onset, span } => {
                self.record_unanswered(now);
                return Ok(Some(JobReport::Trace(self.report(onset, &span, unanswered))));
            }
            TracePhase::Over => TracePhase::Over,
        };
        Ok(None)
    }

    fn phase_ends(&self, now: Instant) -> bool {
        let after = Duration::from_secs_f64(self.job.seconds_after);
        let drain = Duration::from_secs_f64(self.job.drain_seconds);
        match self.phase {
            TracePhase::Warmup { until } | TracePhase::Before { until, .. } => now >= until,
            TracePhase::After { onset, .. } => now >= onset + after,
            TracePhase::Draining { onset, .. } => {
                now >= onset + after + drain
                    || self.connections.iter().all(|connection| connection.sent_at.is_none())
            }
            TracePhase::Over => false,
        }
    }

    fn sends(&self) -> bool {
        !matches!(self.phase, TracePhase::Draining { .. } | TracePhase::Over)
    }

    fn record(&mut self, began: Instant, ended: Instant, fault: Option<String>) {
        let text = fault.unwrap_or_else(|| SUCCESS.to_owned());
        let known = self.outcomes.iter().position(|known| *known == text);
        let outcome = known.unwrap_or_else(|| {
            self.outcomes.push(text);
            self.outcomes.len() - 1
        });
        self.requests.push(TracedRequest { began, took: ended - began, outcome });
    }

    fn record_unanswered(&mut self, now: Instant) {
        let began: Vec<Instant> =
            self.connections.iter_mut().filter_map(|each| each.sent_at.take()).collect();
        for began in began {
            self.record(began, now, Some(UNANSWERED.to_owned()));
        }
    }

    /// Records the requests answered by endpoints, if a sample is due.
    fn sample(&mut self, now: Instant, served: &[u64]) {
        let TracePhase::After { onset, .. } = self.phase else { return };
        let taken = u32::try_from(self.served.len()).expect("a trace lasts for seconds");
        if now >= onset + SAMPLE * taken {
            self.served.push(served.to_vec());
        }
    }

    fn report(&mut self, onset: Instant, span: &WindowResult, unanswered: &[u64]) -> TraceReport {
        let at_onset = self.served.first().cloned().unwrap_or_default();
        let since_onset = |sample: &Vec<u64>| {
            sample.iter().zip(&at_onset).map(|(now, then)| now - then).collect()
        };
        TraceReport {
            began_us: self.requests.iter().map(|each| signed_us(each.began, onset)).collect(),
            took_us: self.requests.iter().map(|each| each.took.as_micros() as u64).collect(),
            outcome: self.requests.iter().map(|each| each.outcome).collect(),
            outcomes: std::mem::take(&mut self.outcomes),
            served: self.served.iter().map(since_onset).collect(),
            sample_ms: SAMPLE.as_millis() as u64,
            unanswered: unanswered.to_vec(),
            seconds: span.length.as_secs_f64(),
            cpu_ns: span.cpu.run_ns,
            wait_ns: span.cpu.wait_ns,
        }
    }
}

/// Starts to connect; the first request is sent as soon as the connection is established.
fn connect(job: &TraceJob, index: usize, registry: &Registry) -> Result<TraceConnection> {
    let exchange = Http1Client::connect(job.target, registry, EventSource::Client.token(index))
        .with_context(|| format!("cannot connect to {}", job.target))?;
    Ok(TraceConnection { exchange, sent_at: Some(Instant::now()) })
}

/// Microseconds from the onset, negative before it.
fn signed_us(at: Instant, onset: Instant) -> i64 {
    match at.checked_duration_since(onset) {
        Some(after) => after.as_micros() as i64,
        None => -((onset - at).as_micros() as i64),
    }
}
