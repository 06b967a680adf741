//! Progress of a closed loop: warm-up, counting, draining.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::http::MessageError;
use crate::job::{LoadExtent, LoadReport};
use crate::window::{ErrorCounter, MeasurementWindow, SuccessCounter, WindowResult};

/// Maximum number of errors; with more, the load is aborted.
const MAX_ERRORS: u64 = 10_000;
/// Time after the window in which requests in flight may end.
const DRAIN: Duration = Duration::from_secs(10);

pub(crate) struct RunProgress {
    extent: LoadExtent,
    processes: Vec<u32>,
    phase: RunPhase,
    issued: u64,
    tally: SuccessCounter,
    /// Errors from the first connection to the last response, not only inside the window.
    errors: ErrorCounter,
}

enum RunPhase {
    Warmup {
        until: Instant,
    },
    Counting {
        until: Option<Instant>,
        window: MeasurementWindow,
    },
    Draining {
        until: Instant,
        tally: SuccessCounter,
        span: WindowResult,
    },
    /// The report has been given.
    Over,
}

impl RunProgress {
    /// Begins, with this number of requests issued already.
    pub(crate) fn begin(
        extent: LoadExtent,
        processes: Vec<u32>,
        issued: usize,
        served: &[u64],
    ) -> Result<Self> {
        let now = Instant::now();
        let mut course = Self {
            extent,
            processes,
            phase: RunPhase::Over,
            issued: issued as u64,
            tally: SuccessCounter::default(),
            errors: ErrorCounter::default(),
        };
        course.phase = match course.extent {
            LoadExtent::Requests { .. } => course.open_window(now, served)?,
            LoadExtent::Time { warmup_seconds, .. } => {
                RunPhase::Warmup { until: now + Duration::from_secs_f64(warmup_seconds) }
            }
        };
        Ok(course)
    }

    pub(crate) fn is_counting(&self) -> bool {
        matches!(self.phase, RunPhase::Counting { .. })
    }

    /// Returns whether to send another request, which then counts as issued.
    pub(crate) fn should_issue(&mut self) -> bool {
        let issues = match (&self.phase, &self.extent) {
            (RunPhase::Draining { .. }, _) => false,
            (_, LoadExtent::Requests { requests }) => self.issued < *requests,
            (_, LoadExtent::Time { .. }) => true,
        };
        self.issued += u64::from(issues);
        issues
    }

    pub(crate) fn record_success(&mut self, latency: Duration) {
        self.tally.add(latency);
    }

    /// Records a failed request; returns whether to send it again, which does not count as issued.
    pub(crate) fn record_failure(&mut self, fault: &MessageError) -> bool {
        self.errors.add(fault);
        !matches!(self.phase, RunPhase::Draining { .. })
    }

    /// Moves through the phases; returns the report once every request has ended.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        served: &[u64],
        idle: impl FnOnce() -> bool,
    ) -> Result<Option<LoadReport>> {
        if self.errors.count > MAX_ERRORS {
            bail!("over {MAX_ERRORS} errors, the first one: {}", self.errors.first_in_words());
        }
        if !self.phase_ends(now, idle) {
            return Ok(None);
        }
        self.phase = match std::mem::replace(&mut self.phase, RunPhase::Over) {
            RunPhase::Warmup { .. } => self.open_window(now, served)?,
            RunPhase::Counting { window, .. } => {
                let span = window.close(now, &self.processes, served)?;
                let tally = std::mem::take(&mut self.tally);
                RunPhase::Draining { until: now + DRAIN, tally, span }
            }
            RunPhase::Draining { tally, span, .. } => {
                return Ok(Some(tally.report(span, std::mem::take(&mut self.errors))));
            }
            RunPhase::Over => RunPhase::Over,
        };
        Ok(None)
    }

    fn phase_ends(&self, now: Instant, idle: impl FnOnce() -> bool) -> bool {
        match &self.phase {
            RunPhase::Warmup { until } => now >= *until,
            RunPhase::Counting { until: Some(until), .. } => now >= *until,
            RunPhase::Counting { until: None, .. } => self.all_answered(),
            RunPhase::Draining { until, .. } => now >= *until || idle(),
            RunPhase::Over => false,
        }
    }

    fn open_window(&mut self, now: Instant, served: &[u64]) -> Result<RunPhase> {
        self.tally = SuccessCounter::default();
        let until = match self.extent {
            LoadExtent::Requests { .. } => None,
            LoadExtent::Time { seconds, .. } => Some(now + Duration::from_secs_f64(seconds)),
        };
        Ok(RunPhase::Counting {
            until,
            window: MeasurementWindow::open(now, &self.processes, served)?,
        })
    }

    fn all_answered(&self) -> bool {
        let LoadExtent::Requests { requests } = self.extent else { return false };
        self.tally.requests() >= requests
    }
}
