//! The course of a closed loop: warm-up, counting, and waiting for what is still under way.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::http::Fault;
use crate::job::{Extent, LoadReport};
use crate::window::{Errors, Span, Tally, Window};

/// More errors than this and the load is not worth finishing.
const MAX_ERRORS: u64 = 10_000;
/// How long requests under way at the end of the window may take to end.
const DRAIN: Duration = Duration::from_secs(10);

pub(crate) struct Course {
    extent: Extent,
    processes: Vec<u32>,
    phase: Phase,
    issued: u64,
    tally: Tally,
    /// From the first connection to the last answer, not only inside the window.
    errors: Errors,
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

impl Course {
    /// Begins, with so many requests issued already.
    pub(crate) fn begin(
        extent: Extent,
        processes: Vec<u32>,
        issued: usize,
        served: &[u64],
    ) -> Result<Self> {
        let now = Instant::now();
        let mut course = Self {
            extent,
            processes,
            phase: Phase::Over,
            issued: issued as u64,
            tally: Tally::default(),
            errors: Errors::default(),
        };
        course.phase = match course.extent {
            Extent::Requests { .. } => course.open_window(now, served)?,
            Extent::Time { warmup_seconds, .. } => {
                Phase::Warmup { until: now + Duration::from_secs_f64(warmup_seconds) }
            }
        };
        Ok(course)
    }

    pub(crate) fn counts(&self) -> bool {
        matches!(self.phase, Phase::Counting { .. })
    }

    /// Whether one more request is to be sent, which then counts as issued.
    pub(crate) fn issues(&mut self) -> bool {
        let issues = match (&self.phase, &self.extent) {
            (Phase::Draining { .. }, _) => false,
            (_, Extent::Requests { requests }) => self.issued < *requests,
            (_, Extent::Time { .. }) => true,
        };
        self.issued += u64::from(issues);
        issues
    }

    pub(crate) fn answered(&mut self, latency: Duration) {
        self.tally.add(latency);
    }

    /// Whether the request that failed is to be sent again, which does not count as issued anew.
    pub(crate) fn failed(&mut self, fault: &Fault) -> bool {
        self.errors.add(fault);
        !matches!(self.phase, Phase::Draining { .. })
    }

    /// Moves through the phases; yields the report once every request has ended.
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
        self.phase = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Warmup { .. } => self.open_window(now, served)?,
            Phase::Counting { window, .. } => {
                let span = window.close(now, &self.processes, served)?;
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

    fn phase_ends(&self, now: Instant, idle: impl FnOnce() -> bool) -> bool {
        match &self.phase {
            Phase::Warmup { until } => now >= *until,
            Phase::Counting { until: Some(until), .. } => now >= *until,
            Phase::Counting { until: None, .. } => self.all_answered(),
            Phase::Draining { until, .. } => now >= *until || idle(),
            Phase::Over => false,
        }
    }

    fn open_window(&mut self, now: Instant, served: &[u64]) -> Result<Phase> {
        self.tally = Tally::default();
        let until = match self.extent {
            Extent::Requests { .. } => None,
            Extent::Time { seconds, .. } => Some(now + Duration::from_secs_f64(seconds)),
        };
        Ok(Phase::Counting { until, window: Window::open(now, &self.processes, served)? })
    }

    fn all_answered(&self) -> bool {
        let Extent::Requests { requests } = self.extent else { return false };
        self.tally.requests() >= requests
    }
}
