//! Batches of access log lines, and the thread that writes them.

use std::cell::RefCell;
use std::io::Write;
use std::sync::mpsc::{SyncSender, TrySendError};

use crate::observe::WorkerCounters;
use crate::observe::json_line::JsonLine;

/// Size of a batch at which its lines are handed to the writer thread.
const BATCH_BYTES: usize = 32 * 1024;
/// Maximum number of batches that wait for the writer thread.
pub(crate) const BATCHES: usize = 64;

/// A worker's batch of access log lines.
pub(crate) struct AccessLogBuffer {
    /// Number of requests out of 2^32 that are logged.
    share: u64,
    lines: RefCell<Vec<u8>>,
    writer: Option<SyncSender<Vec<u8>>>,
}

impl AccessLogBuffer {
    /// Logs the fraction `sample` of requests; logs nothing without a `writer`.
    pub(crate) fn new(sample: f64, writer: Option<SyncSender<Vec<u8>>>) -> Self {
        let share = (sample.clamp(0.0, 1.0) * 2f64.powi(32)) as u64;
        Self { share, lines: RefCell::default(), writer }
    }

    /// True if requests are logged.
    pub(crate) fn is_active(&self) -> bool {
        self.writer.is_some()
    }

    pub(super) fn should_log(&self, rng: &mut balance::Rng) -> bool {
        self.writer.is_some() && (rng.next_u64() >> 32) < self.share
    }

    pub(super) fn write(
        &self,
        describe: impl FnOnce(&mut JsonLine<'_>),
        counters: &WorkerCounters,
    ) {
        let mut lines = self.lines.borrow_mut();
        let mut line = JsonLine::begin(&mut lines);
        describe(&mut line);
        line.end();
        let full = lines.len() >= BATCH_BYTES;
        drop(lines);
        if full {
            self.flush(counters);
        }
    }

    /// Hands the batched lines to the writer thread.
    pub(crate) fn flush(&self, counters: &WorkerCounters) {
        let lines = std::mem::take(&mut *self.lines.borrow_mut());
        let Some(writer) = &self.writer else { return };
        if lines.is_empty() {
            return;
        }
        if let Err(TrySendError::Full(dropped) | TrySendError::Disconnected(dropped)) =
            writer.try_send(lines)
        {
            counters.log_dropped.add(dropped.iter().filter(|byte| **byte == b'\n').count() as u64);
        }
    }
}

/// Starts the writer thread, which writes the batches of the workers and ends when the last worker has ended.
pub(crate) fn start_writer(
    mut output: Box<dyn Write + Send>,
) -> std::io::Result<(SyncSender<Vec<u8>>, std::thread::JoinHandle<()>)> {
    let (sender, batches) = std::sync::mpsc::sync_channel::<Vec<u8>>(BATCHES);
    let thread = std::thread::Builder::new().name("access-log".to_owned()).spawn(move || {
        for batch in batches {
            if let Err(error) = output.write_all(&batch).and_then(|()| output.flush()) {
                tracing::error!(%error, "cannot write the access log");
            }
        }
    })?;
    Ok((sender, thread))
}
