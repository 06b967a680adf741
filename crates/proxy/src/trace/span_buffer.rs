//! A worker's batch of spans, and the bounded channel to the exporter.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc::Sender;

use super::sampler::{TraceSampler, TraceSampling};
use super::span::RequestSpan;
use crate::observe::WorkerCounters;

/// Number of spans at which a batch is handed to the exporter.
const BATCH_SPANS: usize = 128;

/// Settings of traces.
#[derive(Clone)]
pub struct TraceSettings {
    pub sampling: TraceSampling,
    /// Takes batches of spans. Its capacity bounds the memory; batches beyond it are dropped.
    pub exporter: Sender<Vec<RequestSpan>>,
    pub counts: Arc<TraceExportCounts>,
}

/// Counts of the exporter.
#[derive(Debug, Default)]
pub struct TraceExportCounts {
    /// Spans that the collector has accepted.
    pub exported: AtomicU64,
    /// Spans dropped because too many waited for the collector.
    pub overflowed: AtomicU64,
    /// Spans dropped because the collector could not be reached or did not answer in time.
    pub undelivered: AtomicU64,
    /// Spans that the collector rejected.
    pub rejected: AtomicU64,
}

impl TraceExportCounts {
    /// Returns the dropped spans by reason; `by_workers` were dropped before they came to the exporter.
    pub(crate) fn dropped(&self, by_workers: u64) -> [(&'static str, u64); 3] {
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("queue_full", value(&self.overflowed) + by_workers),
            ("undelivered", value(&self.undelivered)),
            ("rejected", value(&self.rejected)),
        ]
    }
}

/// A worker's spans until they are handed to the exporter.
pub(crate) struct SpanBuffer {
    pub(super) sampler: TraceSampler,
    batch: RefCell<Vec<RequestSpan>>,
    exporter: Sender<Vec<RequestSpan>>,
}

impl SpanBuffer {
    /// Each of the workers has its part of the limit of traces.
    pub(crate) fn new(settings: TraceSettings, workers: usize) -> Self {
        let TraceSettings { sampling, exporter, counts: _ } = settings;
        let sampler = TraceSampler::new(sampling, workers);
        Self { sampler, batch: RefCell::default(), exporter }
    }

    /// Adds the spans of a request.
    pub(super) fn add(&self, spans: Vec<RequestSpan>, counters: &WorkerCounters) {
        let mut batch = self.batch.borrow_mut();
        batch.extend(spans);
        let is_full = batch.len() >= BATCH_SPANS;
        drop(batch);
        if is_full {
            self.flush(counters);
        }
    }

    /// Hands the batch to the exporter.
    pub(crate) fn flush(&self, counters: &WorkerCounters) {
        if self.batch.borrow().is_empty() {
            return;
        }
        let batch = self.batch.take();
        let count = batch.len() as u64;
        if self.exporter.try_send(batch).is_err() {
            counters.spans_dropped.add(count);
        }
    }
}
