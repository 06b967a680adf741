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
use crate::flags::TraceFlags;

/// Minimum capacity of the channel, in batches.
const MIN_BATCHES: usize = 64;
/// Maximum capacity of the channel, however many workers there are.
const MAX_BATCHES: usize = 4096;
/// Capacity of the channel for each worker, in batches.
const WORKER_BATCHES: usize = 4;
/// Maximum number of spans that wait for the collector.
const MAX_SPANS: usize = 4096;
/// Maximum memory of the spans that wait for the collector.
const MAX_QUEUE_BYTES: usize = 16 << 20;
/// Maximum number of spans in a message.
const MAX_MESSAGE_SPANS: usize = 512;
/// Approximate maximum size of a message.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Time for which spans are gathered.
const GATHER_TIME: Duration = Duration::from_secs(1);
/// Number of times that a message is sent.
const MAX_DELIVERIES: u32 = 4;
/// Pause before the second delivery, doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Time that the last spans have at the end of the process.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// The exporter before its start.
pub(crate) struct PreparedExporter {
    client: CollectorClient,
    sampling: TraceSampling,
    workers: usize,
}

impl PreparedExporter {
    /// Returns `None` if neither a flag nor the environment names a collector, or if the environment alone does, with an
    /// error. `environment` returns the value of a variable.
    pub(crate) fn new(
        flags: &TraceFlags,
        environment: impl Fn(&str) -> Option<String>,
        host: String,
        workers: usize,
    ) -> Result<Option<Self>, String> {
        let configuration = TraceConfiguration::new(flags, environment, host);
        let prepared = configuration.and_then(|configuration| {
            let Some(TraceConfiguration { sampling, collector }) = configuration else {
                return Ok(None);
            };
            let client = CollectorClient::new(collector)?;
            Ok(Some(Self { client, sampling, workers }))
        });
        match prepared {
            // Such variables may be meant for other programs of the machine: requests are served in any case.
            Err(problem) if !is_requested(flags) => {
                tracing::warn!(%problem, "no traces: the environment names a collector, but its settings are invalid");
                Ok(None)
            }
            prepared => prepared,
        }
    }
}

/// True if a flag asks for traces, so that an error in their settings is an error of the command.
fn is_requested(flags: &TraceFlags) -> bool {
    // The limit has a default, which says nothing.
    let TraceFlags { otlp_endpoint, otlp_ca, trace_share, trace_slow, trace_limit: _ } = flags;
    otlp_endpoint.is_some() || otlp_ca.is_some() || trace_share.is_some() || trace_slow.is_some()
}

/// The exporter of this process.
pub(crate) struct TraceExporter {
    stop: oneshot::Sender<()>,
    ended: std_mpsc::Receiver<()>,
}

impl TraceExporter {
    /// Starts the thread. Returns the settings of the data plane with it.
    pub(crate) fn start(prepared: PreparedExporter) -> Result<(Self, TraceSettings), Failure> {
        let PreparedExporter { client, sampling, workers } = prepared;
        let counts = Arc::<TraceExportCounts>::default();
        // The batches of all workers may come at the same time.
        let capacity = workers.saturating_mul(WORKER_BATCHES).clamp(MIN_BATCHES, MAX_BATCHES);
        let (exporter, batches) = mpsc::channel(capacity);
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = std_mpsc::channel();
        let queue = SpanQueue::new(Arc::clone(&counts));
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
    /// Approximate memory of the spans.
    bytes: usize,
    /// Time at which they are sent, if fewer than a message can have.
    due: Option<Instant>,
    counts: Arc<TraceExportCounts>,
}

impl SpanQueue {
    fn new(counts: Arc<TraceExportCounts>) -> Self {
        Self { spans: Vec::new(), bytes: 0, due: None, counts }
    }

    fn add(&mut self, batch: Vec<RequestSpan>) {
        let mut overflow = 0;
        for span in batch {
            let bytes = self.bytes + span.memory_bytes();
            if self.spans.len() >= MAX_SPANS || bytes > MAX_QUEUE_BYTES {
                overflow += 1;
                continue;
            }
            self.bytes = bytes;
            self.spans.push(span);
        }
        self.counts.overflowed.fetch_add(overflow, Ordering::Relaxed);
        self.due.get_or_insert_with(|| Instant::now() + GATHER_TIME);
        if self.spans.len() >= MAX_MESSAGE_SPANS || self.bytes >= MAX_MESSAGE_BYTES {
            self.due = Some(Instant::now());
        }
    }

    /// Removes the spans of a message: at least one.
    fn take(&mut self) -> Vec<RequestSpan> {
        let (mut count, mut bytes) = (0, 0);
        for span in self.spans.iter().take(MAX_MESSAGE_SPANS) {
            let more = span.memory_bytes();
            if count > 0 && bytes + more > MAX_MESSAGE_BYTES {
                break;
            }
            count += 1;
            bytes += more;
        }
        let rest = self.spans.split_off(count);
        let taken = std::mem::replace(&mut self.spans, rest);
        self.bytes -= bytes;
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::SystemTime;

    use proxy::trace::{AttributeValue, SpanId, SpanKind, TraceId};

    use super::*;

    fn span(text_bytes: usize) -> RequestSpan {
        RequestSpan {
            trace_id: TraceId([1; 16]),
            span_id: SpanId([1; 8]),
            parent: None,
            trace_state: String::new(),
            kind: SpanKind::Server,
            name: String::new(),
            started: SystemTime::UNIX_EPOCH,
            ended: SystemTime::UNIX_EPOCH,
            attributes: vec![("url.path", AttributeValue::Text("a".repeat(text_bytes)))],
            error: None,
        }
    }

    #[test]
    fn queue_and_messages_are_bounded_in_spans_and_bytes() {
        for text_bytes in [0, 10_000] {
            let mut queue = SpanQueue::new(Arc::default());
            let each = span(text_bytes).memory_bytes();
            queue.add(vec![span(text_bytes); 5000]);
            let kept = MAX_SPANS.min(MAX_QUEUE_BYTES / each);
            assert_eq!((queue.spans.len(), queue.bytes), (kept, kept * each));
            let overflowed = queue.counts.overflowed.load(Ordering::Relaxed);
            assert_eq!(overflowed, 5000 - kept as u64);
            let taken = queue.take().len();
            assert_eq!(taken, MAX_MESSAGE_SPANS.min(MAX_MESSAGE_BYTES / each));
            assert_eq!(queue.bytes, (kept - taken) * each);
            while !queue.spans.is_empty() {
                queue.take();
            }
            assert_eq!((queue.bytes, queue.due), (0, None));
        }
    }

    #[test]
    fn large_span_is_a_message_of_its_own() {
        let mut queue = SpanQueue::new(Arc::default());
        queue.add(vec![span(2 * MAX_MESSAGE_BYTES), span(0)]);
        assert_eq!(queue.take().len(), 1);
        assert_eq!(queue.take().len(), 1);
    }

    /// Returns the error, or whether there are traces.
    fn prepared(flags: &TraceFlags, variables: &[(&str, &str)]) -> Result<bool, String> {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let prepared = PreparedExporter::new(flags, value, "node".to_owned(), 1)?;
        Ok(prepared.is_some())
    }

    #[test]
    fn environment_alone_does_not_stop_the_start() {
        let environment = TraceFlags {
            otlp_endpoint: None,
            otlp_ca: None,
            trace_share: None,
            trace_slow: None,
            trace_limit: NonZeroU32::new(100).unwrap(),
        };
        let endpoint = Some("https://collector".parse().unwrap());
        let named = TraceFlags { otlp_endpoint: endpoint, ..environment.clone() };
        let share = TraceFlags { trace_share: Some(0.5), ..environment.clone() };
        let collector = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector");
        let plain = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector");
        assert_eq!(prepared(&environment, &[plain]), Ok(true));
        for (name, value) in [
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "600000"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/absent"),
        ] {
            let variables = [collector, (name, value)];
            assert_eq!(prepared(&environment, &variables), Ok(false), "{name}");
            for flags in [&named, &share] {
                let error = prepared(flags, &variables).unwrap_err();
                assert!(error.contains(name), "{error}");
            }
        }
        let grpc = [collector, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
        assert_eq!(prepared(&environment, &grpc), Ok(false));
        assert!(prepared(&share, &grpc).is_err());
    }
}
