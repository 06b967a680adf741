//! What a server has seen: the truth that tests assert on.

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

/// How often the counts are looked at while nothing is booked.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub head: ParsedHead,
    /// Which of the server's connections it came on, from 1.
    pub connection: u64,
    /// When its head had been read.
    pub received_at: Instant,
    /// Of the whole body, once that has come.
    pub body: Option<BodyDigest>,
    pub trailers: Vec<(String, String)>,
}

/// Sums over all that the server has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    pub requests: u64,
    /// Requests that are being worked on.
    pub in_flight: usize,
    pub max_in_flight: usize,
    /// Connections that were accepted and that neither side has closed.
    pub connections: usize,
    pub max_connections: usize,
    pub accepted: u64,
    /// The time for which requests have been worked on, all together.
    pub busy_time: Duration,
    /// Bytes of the pattern that were sent.
    pub pattern_bytes: u64,
    /// What the other side did wrong.
    pub protocol_errors: Vec<String>,
}

/// The books of one server.
pub struct EndpointRecorder {
    records: Mutex<EndpointRecords>,
    changed: watch::Sender<()>,
    pub(super) gate: Semaphore,
}

#[derive(Default)]
struct EndpointRecords {
    counts: EndpointCounts,
    requests: Vec<RecordedRequest>,
    /// Until when work has been counted.
    worked_until: Option<Instant>,
    /// A second descriptor of each connection, to see whether the other side has closed it.
    open: BTreeMap<u64, OwnedFd>,
}

impl Default for EndpointRecorder {
    fn default() -> Self {
        Self { records: Mutex::default(), changed: watch::Sender::new(()), gate: Semaphore::new(0) }
    }
}

impl EndpointRecorder {
    pub fn counts(&self) -> EndpointCounts {
        let mut books = self.lock();
        books.count_connections();
        books.count_work();
        books.counts.clone()
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
                // That the other side has closed a connection does not show in the books by itself.
                drop(timeout(POLL_INTERVAL, changes.changed()).await);
            }
        };
        let outcome = timeout(PATIENCE, changed).await;
        outcome.with_context(|| format!("{what}: not after {PATIENCE:?}: {:?}", self.counts()))
    }

    /// Books a connection that has just been accepted.
    pub(super) fn add_connection(self: Arc<Self>, stream: &TcpStream) -> RecordedConnection {
        let peer = stream.peer_addr().ok();
        let descriptor = rustix::io::dup(stream).expect("a descriptor is free");
        let number = self.change(|books| {
            books.counts.accepted += 1;
            books.open.insert(books.counts.accepted, descriptor);
            books.count_connections();
            books.counts.accepted
        });
        RecordedConnection { ledger: self, number, peer }
    }

    fn change<T>(&self, change: impl FnOnce(&mut EndpointRecords) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.send_replace(());
        result
    }

    fn lock(&self) -> MutexGuard<'_, EndpointRecords> {
        self.records.lock().expect("nobody panics with the books in hand")
    }
}

impl EndpointRecords {
    /// Before the number in flight changes.
    fn count_work(&mut self) {
        let now = Instant::now();
        let since = self.worked_until.replace(now).unwrap_or(now);
        let in_flight = u32::try_from(self.counts.in_flight).expect("a test is small");
        self.counts.busy_time += (now - since) * in_flight;
    }

    /// A connection that the other side has closed is no connection any more, even if its task has not noticed yet.
    fn count_connections(&mut self) {
        let mut polled: Vec<PollFd<'_>> = self
            .open
            .values()
            .map(|descriptor| PollFd::new(descriptor, PollFlags::RDHUP))
            .collect();
        // A child of the test that ends is a signal.
        let looked = retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())));
        looked.expect("descriptors can be polled");
        let connections = polled.iter().filter(|polled| polled.revents().is_empty()).count();
        self.counts.connections = connections;
        self.counts.max_connections = self.counts.max_connections.max(connections);
    }
}

/// One connection's place in the books; it is struck off when dropped.
pub(super) struct RecordedConnection {
    ledger: Arc<EndpointRecorder>,
    number: u64,
    peer: Option<SocketAddr>,
}

impl RecordedConnection {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Books a request: its number, and the guard that counts it as in flight.
    pub(super) fn begin_request(&self, head: &ParsedHead) -> (usize, InFlightGuard) {
        let number = self.ledger.change(|books| {
            books.count_work();
            books.counts.requests += 1;
            books.counts.in_flight += 1;
            books.counts.max_in_flight = books.counts.max_in_flight.max(books.counts.in_flight);
            books.requests.push(RecordedRequest {
                head: head.clone(),
                connection: self.number,
                received_at: Instant::now(),
                body: None,
                trailers: Vec::new(),
            });
            books.requests.len() - 1
        });
        (number, InFlightGuard(self.ledger.clone()))
    }

    pub(super) fn set_body(
        &self,
        request: usize,
        body: BodyDigest,
        trailers: Vec<(String, String)>,
    ) {
        self.ledger.change(|books| {
            books.requests[request].body = Some(body);
            books.requests[request].trailers = trailers;
        });
    }

    pub(super) fn add_pattern_bytes(&self, bytes: usize) {
        self.ledger.change(|books| books.counts.pattern_bytes += bytes as u64);
    }

    pub(super) fn add_protocol_error(&self, what: String) {
        let from = self.peer;
        self.ledger.change(|books| books.counts.protocol_errors.push(format!("{from:?}: {what}")));
    }

    pub(super) fn in_flight(&self) -> usize {
        self.ledger.lock().counts.in_flight
    }

    pub(super) async fn wait_for_gate(&self) {
        self.ledger.gate.acquire().await.expect("the gate is never removed").forget();
    }
}

impl Drop for RecordedConnection {
    fn drop(&mut self) {
        self.ledger.change(|books| books.open.remove(&self.number));
    }
}

/// A request that is being worked on.
pub(super) struct InFlightGuard(Arc<EndpointRecorder>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.change(|books| {
            books.count_work();
            books.counts.in_flight -= 1;
        });
    }
}
