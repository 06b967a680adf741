//! The thread that delivers spans: takes batches, sends messages, and tries again for a time if the collector is away.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use anyhow::Context;
use hyper::body::Bytes;
use prost::Message;
use proxy::trace::{RequestSpan, TraceExportCounts, TraceSampling, TraceSettings};
use tokio::runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::collector::{CollectorClient, DeliveryResult};
use super::message::ExportRequest;
use super::settings::TraceConfiguration;
use crate::failure::Failure;

/// Maximum number of batches on their way from the workers.
const MAX_BATCHES: usize = 64;
/// Maximum number of spans that wait for the collector.
const MAX_SPANS: usize = 4096;
/// Maximum number of spans in a message.
const MAX_MESSAGE_SPANS: usize = 512;
/// Time for which spans are gathered.
const GATHER_TIME: Duration = Duration::from_secs(1);
/// Number of times that a message is sent.
const MAX_DELIVERIES: u32 = 4;
/// Pause before the second delivery, doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Time that the last spans have at the end of the process.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// The exporter of this process.
pub(crate) struct TraceExporter {
    stop: oneshot::Sender<()>,
    ended: std_mpsc::Receiver<()>,
}

impl TraceExporter {
    /// Starts the thread. Returns the settings of the data plane with it.
    pub(crate) fn start(
        configuration: TraceConfiguration,
    ) -> Result<(Self, TraceSettings), Failure> {
        let TraceConfiguration { sampling, collector } = configuration;
        let client = CollectorClient::new(collector)
            .map_err(|error| Failure::input(format_args!("--otlp-ca: {error}")))?;
        let counts = Arc::<TraceExportCounts>::default();
        let (exporter, batches) = mpsc::channel(MAX_BATCHES);
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = std_mpsc::channel();
        let queue = SpanQueue { spans: Vec::new(), due: None, counts: Arc::clone(&counts) };
        log_start(&client, &sampling);
        let work = move || {
            if let Err(error) = run(client, batches, queue, stopped) {
                tracing::error!(%error, "traces are not exported");
            }
            // Only the end of the process waits for it.
            end.send(()).ok();
        };
        let thread = std::thread::Builder::new().name("traces".to_owned());
        thread.spawn(work).context("cannot start the exporter of traces")?;
        Ok((Self { stop, ended }, TraceSettings { sampling, exporter, counts }))
    }

    /// Delivers what is left, within a bounded time.
    pub(crate) fn finish(self) {
        drop(self.stop);
        self.ended.recv_timeout(FINISH_TIMEOUT).ok();
    }
}

fn log_start(client: &CollectorClient, sampling: &TraceSampling) {
    let collector = &client.settings().url.authority;
    tracing::info!(%collector, share = sampling.share, "traces are sent to a collector");
}

fn run(
    client: CollectorClient,
    batches: mpsc::Receiver<Vec<RequestSpan>>,
    queue: SpanQueue,
    stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    // A lookup that hangs occupies the only thread of its kind, and the next one waits for it.
    let runtime =
        runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build()?;
    runtime.block_on(export(client, batches, queue, stopped));
    runtime.shutdown_background();
    Ok(())
}

/// Spans that wait for the collector.
struct SpanQueue {
    spans: Vec<RequestSpan>,
    /// Time at which they are sent, if fewer than a message can have.
    due: Option<Instant>,
    counts: Arc<TraceExportCounts>,
}

impl SpanQueue {
    fn add(&mut self, batch: Vec<RequestSpan>) {
        let room = MAX_SPANS - self.spans.len();
        let overflow = batch.len().saturating_sub(room);
        self.counts.overflowed.fetch_add(overflow as u64, Ordering::Relaxed);
        self.spans.extend(batch.into_iter().take(room));
        self.due.get_or_insert_with(|| Instant::now() + GATHER_TIME);
        if self.spans.len() >= MAX_MESSAGE_SPANS {
            self.due = Some(Instant::now());
        }
    }

    /// Removes the spans of a message.
    fn take(&mut self) -> Vec<RequestSpan> {
        let rest = self.spans.split_off(self.spans.len().min(MAX_MESSAGE_SPANS));
        let taken = std::mem::replace(&mut self.spans, rest);
        self.due = (!self.spans.is_empty()).then(Instant::now);
        taken
    }
}

/// Takes batches and delivers spans until it is stopped, then delivers the rest.
async fn export(
    client: CollectorClient,
    mut batches: mpsc::Receiver<Vec<RequestSpan>>,
    mut queue: SpanQueue,
    mut stopped: oneshot::Receiver<()>,
) {
    let client = Arc::new(client);
    let mut is_failing = false;
    let mut delivery: Option<JoinHandle<bool>> = None;
    loop {
        let due = queue.due.filter(|_| delivery.is_none());
        tokio::select! {
            batch = batches.recv() => match batch {
                Some(batch) => queue.add(batch),
                None => break,
            },
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let work = deliver(Arc::clone(&client), queue.take(), Arc::clone(&queue.counts), is_failing);
                delivery = Some(tokio::spawn(work));
            }
            failing = ended(&mut delivery), if delivery.is_some() => {
                is_failing = failing;
                delivery = None;
            }
            _ = &mut stopped => break,
        }
    }
    if delivery.is_some() {
        is_failing = ended(&mut delivery).await;
    }
    while let Ok(batch) = batches.try_recv() {
        queue.add(batch);
    }
    while !queue.spans.is_empty() {
        let counts = Arc::clone(&queue.counts);
        is_failing = deliver(Arc::clone(&client), queue.take(), counts, is_failing).await;
    }
}

async fn ended(delivery: &mut Option<JoinHandle<bool>>) -> bool {
    match delivery {
        Some(task) => task.await.unwrap_or(true),
        None => false,
    }
}

/// Sends spans, several times if the collector is away. Returns true if it failed; a change is logged.
async fn deliver(
    client: Arc<CollectorClient>,
    spans: Vec<RequestSpan>,
    counts: Arc<TraceExportCounts>,
    was_failing: bool,
) -> bool {
    let count = spans.len() as u64;
    let add = |counter: &AtomicU64, more: u64| counter.fetch_add(more, Ordering::Relaxed);
    let message = ExportRequest::new(&client.settings().resource, spans);
    let message = Bytes::from(message.encode_to_vec());
    let mut pause = FIRST_PAUSE;
    let mut is_failing = was_failing;
    for tries in 1.. {
        let (problem, asked) = match client.send(message.clone()).await {
            DeliveryResult::Accepted { rejected } => {
                let rejected = rejected.min(count);
                add(&counts.exported, count - rejected);
                add(&counts.rejected, rejected);
                if is_failing {
                    tracing::info!("the collector takes traces again");
                }
                return false;
            }
            DeliveryResult::Rejected(problem) => {
                add(&counts.rejected, count);
                if !is_failing {
                    tracing::warn!(%problem, "the collector rejects traces");
                }
                return true;
            }
            DeliveryResult::Failed { problem, pause } => (problem, pause),
        };
        if !is_failing {
            tracing::warn!(%problem, "the collector does not take traces: they are dropped if that lasts");
            is_failing = true;
        }
        if tries == MAX_DELIVERIES {
            break;
        }
        sleep(asked.unwrap_or(pause)).await;
        pause *= 2;
    }
    add(&counts.undelivered, count);
    true
}
