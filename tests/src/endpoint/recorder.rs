//! Requests and counts that a server records, for tests to assert.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

use crate::http1::ParsedHead;
use crate::payload::BodyDigest;
use crate::waiting::PATIENCE;

/// Interval at which the counts are polled while nothing is recorded.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub head: ParsedHead,
    /// Number of the server's connection that it arrived on, from 1.
    pub connection: u64,
    /// Time at which its head had been read.
    pub received_at: Instant,
    /// Digest of the whole body, once that has arrived.
    pub body: Option<BodyDigest>,
    pub trailers: Vec<(String, String)>,
}

/// Totals over everything that the server has recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    pub requests: u64,
    /// Requests that are being served.
    pub in_flight: usize,
    pub max_in_flight: usize,
    /// Connections that were accepted and that neither side has closed.
    pub connections: usize,
    pub max_connections: usize,
    pub accepted: u64,
    /// Total time for which requests have been served.
    pub busy_time: Duration,
    /// Bytes of the pattern that were sent.
    pub pattern_bytes: u64,
    /// Protocol errors of the client.
    pub protocol_errors: Vec<String>,
}

/// Records of one server.
pub struct EndpointRecorder {
    records: Mutex<EndpointRecords>,
    changed: watch::Sender<()>,
    pub(super) gate: Semaphore,
}

#[derive(Default)]
struct EndpointRecords {
    counts: EndpointCounts,
    requests: Vec<RecordedRequest>,
    /// Time up to which work has been counted.
    worked_until: Option<Instant>,
    /// Second descriptor of each connection, to see if the client has closed it.
    open: BTreeMap<u64, OwnedFd>,
}

impl Default for EndpointRecorder {
    fn default() -> Self {
        Self { records: Mutex::default(), changed: watch::Sender::new(()), gate: Semaphore::new(0) }
    }
}

impl EndpointRecorder {
    pub fn counts(&self) -> EndpointCounts {
        let mut records = self.lock();
        records.count_connections();
        records.count_work();
        records.counts.clone()
    }

    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.lock().requests.clone()
    }

    pub async fn wait_for_counts(
        &self,
        what: &str,
        wanted: impl Fn(&EndpointCounts) -> bool,
    ) -> Result<EndpointCounts> {
        let mut changes = self.changed.subscribe();
        let changed = async {
            loop {
                changes.mark_unchanged();
                let counts = self.counts();
                if wanted(&counts) {
                    return counts;
                }
                // A close by the client is not recorded as an event, so it must be polled.
                drop(timeout(POLL_INTERVAL, changes.changed()).await);
            }
        };
        let outcome = timeout(PATIENCE, changed).await;
        outcome.with_context(|| format!("{what}: not true after {PATIENCE:?}: {:?}", self.counts()))
    }

    /// Records a connection that has just been accepted.
    pub(super) fn add_connection(self: Arc<Self>, stream: &TcpStream) -> RecordedConnection {
        let peer = stream.peer_addr().ok();
        let descriptor = rustix::io::dup(stream).expect("a descriptor is free");
        let number = self.change(|records| {
            records.counts.accepted += 1;
            records.open.insert(records.counts.accepted, descriptor);
            records.count_connections();
            records.counts.accepted
        });
        RecordedConnection { recorder: self, number, peer }
    }

    fn change<T>(&self, change: impl FnOnce(&mut EndpointRecords) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.send_replace(());
        result
    }

    fn lock(&self) -> MutexGuard<'_, EndpointRecords> {
        self.records.lock().expect("no holder of the lock panics")
    }
}

impl EndpointRecords {
    /// Must be called before the number in flight changes.
    fn count_work(&mut self) {
        let now = Instant::now();
        let since = self.worked_until.replace(now).unwrap_or(now);
        let in_flight = u32::try_from(self.counts.in_flight).expect("a test is small");
        self.counts.busy_time += (now - since) * in_flight;
    }

    /// Counts open connections. A connection that the client has closed does not count, even if its
    /// task has not noticed yet.
    fn count_connections(&mut self) {
        let mut polled: Vec<PollFd<'_>> = self
            .open
            .values()
            .map(|descriptor| PollFd::new(descriptor, PollFlags::RDHUP))
            .collect();
        // A child process of the test that exits causes a signal.
        let looked = retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())));
        looked.expect("descriptors can be polled");
        let connections = polled.iter().filter(|polled| polled.revents().is_empty()).count();
        self.counts.connections = connections;
        self.counts.max_connections = self.counts.max_connections.max(connections);
    }
}

/// Record of one open connection; it is removed when dropped.
pub(super) struct RecordedConnection {
    recorder: Arc<EndpointRecorder>,
    number: u64,
    peer: Option<SocketAddr>,
}

impl RecordedConnection {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Records a request; returns its number, and the guard that counts it as in flight.
    pub(super) fn begin_request(&self, head: &ParsedHead) -> (usize, InFlightGuard) {
        let number = self.recorder.change(|records| {
            records.count_work();
            records.counts.requests += 1;
            records.counts.in_flight += 1;
            records.counts.max_in_flight =
                records.counts.max_in_flight.max(records.counts.in_flight);
            records.requests.push(RecordedRequest {
                head: head.clone(),
                connection: self.number,
                received_at: Instant::now(),
                body: None,
                trailers: Vec::new(),
            });
            records.requests.len() - 1
        });
        (number, InFlightGuard(self.recorder.clone()))
    }

    pub(super) fn set_body(
        &self,
        request: usize,
        body: BodyDigest,
        trailers: Vec<(String, String)>,
    ) {
        self.recorder.change(|records| {
            records.requests[request].body = Some(body);
            records.requests[request].trailers = trailers;
        });
    }

    pub(super) fn add_pattern_bytes(&self, bytes: usize) {
        self.recorder.change(|records| records.counts.pattern_bytes += bytes as u64);
    }

    pub(super) fn add_protocol_error(&self, what: String) {
        let from = self.peer;
        self.recorder
            .change(|records| records.counts.protocol_errors.push(format!("{from:?}: {what}")));
    }

    pub(super) fn in_flight(&self) -> usize {
        self.recorder.lock().counts.in_flight
    }

    pub(super) async fn wait_for_gate(&self) {
        self.recorder.gate.acquire().await.expect("the gate is never removed").forget();
    }
}

impl Drop for RecordedConnection {
    fn drop(&mut self) {
        self.recorder.change(|records| records.open.remove(&self.number));
    }
}

/// Guard that counts a request as in flight.
pub(super) struct InFlightGuard(Arc<EndpointRecorder>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.change(|records| {
            records.count_work();
            records.counts.in_flight -= 1;
        });
    }
}
