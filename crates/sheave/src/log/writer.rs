//! The thread that writes lines, and the bounded queue in front of it.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use proxy::{Time, clock};
use tracing_subscriber::fmt::MakeWriter;

/// Maximum bytes that wait for the writer thread.
const MAX_QUEUED_BYTES: usize = 4 * 1024 * 1024;

/// Least time between two lines about dropped events.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Counts of events that were not written.
#[derive(Debug, Default)]
pub(crate) struct DroppedEvents {
    /// Lines for which the queue had no room.
    pub(crate) queue_full: AtomicU64,
    /// Events of a place in the code that logged too often.
    pub(crate) repeated: AtomicU64,
}

/// Queue of lines, and the thread that writes them.
#[derive(Clone)]
pub(super) struct LineWriter {
    messages: Sender<WriterMessage>,
    queued_bytes: Arc<AtomicUsize>,
    dropped: Arc<DroppedEvents>,
}

enum WriterMessage {
    Line(Box<[u8]>),
    /// The sender is dropped when everything before has been written.
    Flush(Sender<()>),
}

/// A line that is being formatted; it is queued when dropped.
pub(super) struct QueuedLine<'w> {
    writer: &'w LineWriter,
    bytes: Vec<u8>,
}

impl LineWriter {
    /// Starts the thread, which ends with the process.
    pub(super) fn start(
        output: Box<dyn Write + Send>,
        dropped: Arc<DroppedEvents>,
    ) -> io::Result<Self> {
        let (messages, queue) = channel();
        let queued_bytes = Arc::<AtomicUsize>::default();
        let (queued, counts) = (Arc::clone(&queued_bytes), Arc::clone(&dropped));
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_lines(&queue, output, &queued, &counts))?;
        Ok(Self { messages, queued_bytes, dropped })
    }

    /// Waits until all lines so far are written, for `timeout` at most. Returns true if they are.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
        let (written, is_written) = channel();
        drop(self.messages.send(WriterMessage::Flush(written)));
        match is_written.recv_timeout(timeout) {
            Err(Timeout) => false,
            Ok(()) | Err(Disconnected) => true,
        }
    }

    fn queue(&self, line: Vec<u8>) {
        let has_room = |queued: usize| {
            queued.checked_add(line.len()).filter(|queued| *queued <= MAX_QUEUED_BYTES)
        };
        let queued = self.queued_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, has_room);
        let is_sent =
            queued.is_ok() && self.messages.send(WriterMessage::Line(line.into())).is_ok();
        if !is_sent {
            self.dropped.queue_full.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'w> MakeWriter<'w> for LineWriter {
    type Writer = QueuedLine<'w>;

    /// Returns a line to format.
    fn make_writer(&'w self) -> QueuedLine<'w> {
        QueuedLine { writer: self, bytes: Vec::new() }
    }
}

impl Write for QueuedLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for QueuedLine<'_> {
    fn drop(&mut self) {
        self.writer.queue(std::mem::take(&mut self.bytes));
    }
}

fn write_lines(
    queue: &Receiver<WriterMessage>,
    mut output: Box<dyn Write + Send>,
    queued_bytes: &AtomicUsize,
    dropped: &DroppedEvents,
) {
    let mut report = DropReport { reported: 0, at: None };
    for message in queue {
        match message {
            WriterMessage::Line(line) => {
                // If this write fails, there is no other place to report it.
                output.write_all(&line).ok();
                queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            }
            WriterMessage::Flush(written) => drop(written),
        }
        report.update(dropped, clock::now());
    }
}

/// The last line about dropped events.
struct DropReport {
    reported: u64,
    at: Option<Time>,
}

impl DropReport {
    /// Logs the number of dropped events if it has grown, but not too often.
    fn update(&mut self, dropped: &DroppedEvents, now: Time) {
        let queue_full = dropped.queue_full.load(Ordering::Relaxed);
        let repeated = dropped.repeated.load(Ordering::Relaxed);
        let total = queue_full + repeated;
        let is_due = self.at.is_none_or(|at| now.saturating_since(at) >= REPORT_INTERVAL);
        if total > self.reported && is_due {
            (self.reported, self.at) = (total, Some(now));
            tracing::warn!(queue_full, repeated, "events are missing in this log");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::sync_channel;

    use super::*;

    /// Output that blocks until the sender of the gate is dropped.
    struct BlockedOutput {
        gate: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for BlockedOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.gate.recv().ok();
            self.written.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_beyond_the_bound_are_dropped_and_counted_while_output_blocks() {
        let (open, gate) = sync_channel(0);
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let dropped = Arc::<DroppedEvents>::default();
        let output = BlockedOutput { gate, written: Arc::clone(&written) };
        let writer = LineWriter::start(Box::new(output), Arc::clone(&dropped)).unwrap();
        let line = vec![b'x'; MAX_QUEUED_BYTES / 4];
        for _ in 0..7 {
            writer.make_writer().write_all(&line).unwrap();
        }
        assert_eq!(dropped.queue_full.load(Ordering::Relaxed), 3);
        assert!(!writer.flush(Duration::ZERO), "the output blocks");
        drop(open);
        assert!(writer.flush(Duration::from_secs(60)));
        assert_eq!(written.lock().unwrap().len(), 4 * line.len());
        writer.make_writer().write_all(b"later").unwrap();
        assert!(writer.flush(Duration::from_secs(60)));
        assert!(written.lock().unwrap().ends_with(b"later"));
        assert_eq!(dropped.queue_full.load(Ordering::Relaxed), 3);
    }
}
