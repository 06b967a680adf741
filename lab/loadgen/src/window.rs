//! Measurement window.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::job::LoadReport;
use crate::latency::LatencyHistogram;
use crate::process::CpuTime;

/// Counters at the beginning of the window.
pub(crate) struct MeasurementWindow {
    began: Instant,
    cpu: CpuTime,
    served: Vec<u64>,
}

impl MeasurementWindow {
    pub(crate) fn open(now: Instant, processes: &[u32], served: &[u64]) -> Result<Self> {
        Ok(Self { began: now, cpu: CpuTime::of(processes)?, served: served.to_vec() })
    }

    pub(crate) fn close(
        self,
        now: Instant,
        processes: &[u32],
        served: &[u64],
    ) -> Result<WindowResult> {
        let cpu = CpuTime::of(processes)?;
        let served = served.iter().zip(&self.served).map(|(after, before)| after - before);
        Ok(WindowResult {
            length: now - self.began,
            cpu: CpuTime {
                run_ns: cpu.run_ns.saturating_sub(self.cpu.run_ns),
                wait_ns: cpu.wait_ns.saturating_sub(self.cpu.wait_ns),
            },
            served: served.collect(),
        })
    }
}

/// Differences between the end and the beginning of the window.
pub(crate) struct WindowResult {
    pub(crate) length: Duration,
    pub(crate) cpu: CpuTime,
    served: Vec<u64>,
}

/// Successful requests.
#[derive(Default)]
pub(crate) struct SuccessCounter {
    requests: u64,
    latencies: LatencyHistogram,
}

impl SuccessCounter {
    pub(crate) fn add(&mut self, latency: Duration) {
        self.requests += 1;
        self.latencies.record(latency);
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    pub(crate) fn report(&self, span: WindowResult, errors: ErrorCounter) -> LoadReport {
        LoadReport {
            requests: self.requests,
            errors: errors.count,
            first_error: errors.first,
            seconds: span.length.as_secs_f64(),
            latency_p10_us: self.latencies.quantile_us(0.1),
            latency_p50_us: self.latencies.quantile_us(0.5),
            latency_p99_us: self.latencies.quantile_us(0.99),
            latency_max_us: self.latencies.quantile_us(1.0),
            served: span.served,
            cpu_ns: span.cpu.run_ns,
            wait_ns: span.cpu.wait_ns,
        }
    }
}

/// Failed requests.
#[derive(Default)]
pub(crate) struct ErrorCounter {
    pub(crate) count: u64,
    first: Option<String>,
}

impl ErrorCounter {
    pub(crate) fn add(&mut self, error: impl ToString) {
        self.count += 1;
        self.first.get_or_insert_with(|| error.to_string());
    }

    pub(crate) fn first_in_words(&self) -> &str {
        self.first.as_deref().unwrap_or("none")
    }
}
