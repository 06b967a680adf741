//! What is known of one request, and its line in the access log.
//!
//! One JSON object a line, keys named as OpenTelemetry's HTTP conventions. Lines are gathered per worker and handed to
//! one writing thread; where that is too slow, lines are dropped and counted rather than requests delayed.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use balance::Time;
use serde_json::{Map, Value};

use crate::accept::client::Client;
use crate::backend::{BackendRef, Slot};
use crate::clock;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::head::{Name, Version};
use crate::live::{Ours, Route};
use crate::observe::WorkerCounters;
use crate::worker::Worker;

/// Lines are handed on when they are so many bytes.
const BATCH_BYTES: usize = 32 * 1024;
/// Batches that may wait for the writing thread.
pub(crate) const BATCHES: usize = 64;

/// What is known of one request when it is over.
pub(crate) struct Record {
    pub(crate) started: Time,
    /// When the last byte of the answer was written.
    pub(crate) ended: Option<Time>,
    pub(crate) live: Option<Rc<Ours>>,
    pub(crate) rule: Option<usize>,
    pub(crate) backend: Option<BackendRef>,
    pub(crate) failure: Option<Failure>,
    /// 0: nothing has been answered.
    pub(crate) status: u16,
    endpoint: Option<std::net::SocketAddr>,
    attempts: u32,
    queued: Duration,
}

impl Record {
    pub(crate) fn new(started: Time) -> Self {
        Self {
            started,
            ended: None,
            live: None,
            rule: None,
            backend: None,
            failure: None,
            status: 0,
            endpoint: None,
            attempts: 0,
            queued: Duration::ZERO,
        }
    }

    /// Another attempt begins.
    pub(crate) fn attempt(&mut self, slot: &Slot) {
        self.attempts += 1;
        self.endpoint = Some(slot.endpoint.address);
    }

    /// The request has left the queue.
    pub(crate) fn waited(&mut self, worker: &Worker, backend: &BackendRef, wait: Duration) {
        self.queued += wait;
        backend.counters[worker.index].queued.add(wait);
    }

    /// Counts the request, and logs it if it is to be logged.
    pub(crate) fn close(&self, worker: &Worker, client: &Client, exchange: &Exchange) {
        let duration = client.since.saturating_since(self.started);
        if let Some(route) = self.route() {
            let counters = &route.counters[worker.index];
            counters.responses[usize::from(self.status / 100).min(5)].add(1);
            counters.duration.add(duration);
        }
        if let Some(failure) = self.failure {
            worker.counters().failures[failure.index()].add(1);
        }
        let listener = &client.bound.counters[worker.index];
        listener.received_bytes.add(exchange.upload.body_bytes);
        listener.sent_bytes.add(exchange.download.body_bytes);
        if worker.log.wants(&mut worker.rng.borrow_mut()) {
            worker.log.write(&self.line(worker, client, exchange, duration), worker.counters());
        }
    }

    fn route(&self) -> Option<&Route> {
        self.live.as_ref()?.routes.get(self.rule?).map(Arc::as_ref)
    }

    fn line(
        &self,
        worker: &Worker,
        client: &Client,
        exchange: &Exchange,
        duration: Duration,
    ) -> Map<String, Value> {
        let live = worker.live();
        let request = &exchange.request;
        let text = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes));
        let mut line = Map::new();
        let mut put = |key: &str, value: Value| line.insert(key.to_owned(), value);
        put("timestamp", humantime::format_rfc3339_micros(clock::wall()).to_string().into());
        put("client.address", client.origin.text().into());
        put("client.port", client.peer.port().into());
        if !request.method_bytes().is_empty() {
            put("http.request.method", text(request.method_bytes()));
            put("server.address", text(request.host()));
            put("url.path", text(request.path()));
            let query = request.target().get(request.path().len() + 1..);
            if let Some(query) = query.filter(|query| !query.is_empty()) {
                put("url.query", text(query));
            }
            put("network.protocol.version", version(request.version).into());
        }
        if let Some(agent) = request.fields.get("user-agent") {
            put("user_agent.original", text(agent));
        }
        if let Some(id) = request.fields.first(Name::XRequestId) {
            put("http.request.header.x-request-id", text(id));
        }
        put("http.request.body.size", exchange.upload.body_bytes.into());
        put("http.response.status_code", self.status.into());
        put("http.response.body.size", exchange.download.body_bytes.into());
        if let Some(listener) = client.listener(&live) {
            put("sheave.listener", (*listener.name).into());
        }
        if let Some(route) = self.route() {
            put("sheave.route", (*route.name).into());
        }
        if let Some(backend) = &self.backend {
            put("sheave.backend", (*backend.name).into());
        }
        if let Some(endpoint) = self.endpoint {
            put("sheave.endpoint", endpoint.to_string().into());
            put("sheave.attempts", self.attempts.into());
        }
        put("sheave.queue_seconds", self.queued.as_secs_f64().into());
        put("duration_seconds", duration.as_secs_f64().into());
        if let Some(failure) = self.failure {
            put("error.type", failure.meaning().word.into());
        }
        line
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
    }
}

/// A worker's part of the access log.
pub(crate) struct Log {
    /// Of 2^32 requests so many are logged.
    share: u64,
    lines: RefCell<Vec<u8>>,
    writer: Option<SyncSender<Vec<u8>>>,
}

impl Log {
    /// Logs the share `sample` of requests; nothing without a `writer`.
    pub(crate) fn new(sample: f64, writer: Option<SyncSender<Vec<u8>>>) -> Self {
        let share = (sample.clamp(0.0, 1.0) * 2f64.powi(32)) as u64;
        Self { share, lines: RefCell::default(), writer }
    }

    fn wants(&self, rng: &mut balance::Rng) -> bool {
        self.writer.is_some() && (rng.next_u64() >> 32) < self.share
    }

    fn write(&self, line: &Map<String, Value>, counters: &WorkerCounters) {
        let mut lines = self.lines.borrow_mut();
        serde_json::to_writer(&mut *lines, line).expect("a map of strings and numbers is JSON");
        lines.push(b'\n');
        let full = lines.len() >= BATCH_BYTES;
        drop(lines);
        if full {
            self.flush(counters);
        }
    }

    /// Hands the gathered lines to the writing thread.
    pub(crate) fn flush(&self, counters: &WorkerCounters) {
        let lines = std::mem::take(&mut *self.lines.borrow_mut());
        let Some(writer) = &self.writer else { return };
        if lines.is_empty() {
            return;
        }
        if let Err(TrySendError::Full(lost) | TrySendError::Disconnected(lost)) =
            writer.try_send(lines)
        {
            counters.log_dropped.add(lost.iter().filter(|byte| **byte == b'\n').count() as u64);
        }
    }
}

/// Starts the thread that writes what workers hand it; it ends with the last of them.
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
