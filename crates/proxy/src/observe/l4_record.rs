//! The record of an L4 session (a TCP connection or a UDP flow), and its line in the access log.
//!
//! Bytes are counted while they are forwarded, because a connection may last for days.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use balance::Time;
use gateway::snapshot::TransportProtocol;

use crate::accept::client::ClientConnection;
use crate::active_config::{BoundListener, Route};
use crate::backend::{BackendRef, Slot};
use crate::clock;
use crate::dial::pool::Endpoint;
use crate::failure::Failure;
use crate::l4_session::L4Route;
use crate::observe::AttributeSink;
use crate::observe::json_line::JsonLine;
use crate::worker::Worker;

/// The record of one connection or flow.
pub(crate) struct L4Record {
    bound: Arc<BoundListener>,
    client: SocketAddr,
    started: Time,
    route: Option<Arc<Route>>,
    backend: Option<BackendRef>,
    endpoint: Option<Arc<Endpoint>>,
    attempts: u32,
    queued: Duration,
    /// Bytes from the client that have been counted.
    received_bytes: u64,
    /// Bytes to the client that have been counted.
    sent_bytes: u64,
    pub(crate) failure: Option<Failure>,
}

impl L4Record {
    pub(crate) fn of_connection(client: &ClientConnection) -> Self {
        Self::new(&client.bound, client.peer, client.accepted)
    }

    pub(crate) fn of_flow(bound: &Arc<BoundListener>, client: SocketAddr) -> Self {
        Self::new(bound, client, clock::now())
    }

    fn new(bound: &Arc<BoundListener>, client: SocketAddr, started: Time) -> Self {
        Self {
            bound: Arc::clone(bound),
            client,
            started,
            route: None,
            backend: None,
            endpoint: None,
            attempts: 0,
            queued: Duration::ZERO,
            received_bytes: 0,
            sent_bytes: 0,
            failure: None,
        }
    }

    /// Records the chosen route and backend.
    pub(crate) fn set_route(&mut self, l4_route: &L4Route) {
        self.route = Some(Arc::clone(&l4_route.route));
        self.backend = Some(l4_route.backend.clone());
    }

    /// Adds the time that the session has spent in the queue.
    pub(crate) fn add_queue_time(&mut self, worker: &Worker, backend: &BackendRef, wait: Duration) {
        self.queued += wait;
        backend.counters[worker.index].queued.add(wait);
    }

    /// Records the start of another attempt.
    pub(crate) fn attempt(&mut self, slot: &Slot) {
        self.attempts += 1;
        self.endpoint = Some(Arc::clone(&slot.endpoint));
    }

    /// Records the total of bytes forwarded since the start. Returns true if it has grown.
    pub(crate) fn count_bytes(&mut self, worker: &Worker, received: u64, sent: u64) -> bool {
        let more_received = received - std::mem::replace(&mut self.received_bytes, received);
        let more_sent = sent - std::mem::replace(&mut self.sent_bytes, sent);
        if more_received == 0 && more_sent == 0 {
            return false;
        }
        let listener = &self.bound.counters[worker.index];
        listener.received_bytes.add(more_received);
        listener.sent_bytes.add(more_sent);
        if let Some(backend) = &self.backend {
            let counters = &backend.counters[worker.index];
            counters.received_bytes.add(more_sent);
            counters.sent_bytes.add(more_received);
        }
        if let Some(endpoint) = &self.endpoint {
            let counters = &endpoint.data.counters[worker.index];
            counters.received_bytes.add(more_sent);
            counters.sent_bytes.add(more_received);
        }
        true
    }

    /// Records a session that failed before it began.
    pub(crate) fn close_failed(mut self, worker: &Worker, failure: Failure) {
        self.failure = Some(failure);
        self.close(worker);
    }

    /// Counts the session, and logs it if it is sampled.
    pub(crate) fn close(&self, worker: &Worker) {
        if let Some(route) = &self.route {
            route.counters[worker.index].l4_sessions.add(1);
        }
        if let Some(failure) = self.failure {
            worker.counters().failures[failure.index()].add(1);
            if let (Some(backend), Some(refusal)) = (&self.backend, failure.refusal_index()) {
                backend.counters[worker.index].refused[refusal].add(1);
            }
        }
        if worker.access_log.should_log(&mut worker.rng.borrow_mut()) {
            worker.access_log.write(|line| self.describe(line, worker), worker.counters());
        }
    }

    fn describe(&self, line: &mut JsonLine<'_>, worker: &Worker) {
        let transport = match self.bound.transport {
            TransportProtocol::Tcp => "tcp",
            TransportProtocol::Udp => "udp",
        };
        let active_config = worker.config();
        let duration = clock::now().saturating_since(self.started);
        line.plain("timestamp", humantime::format_rfc3339_micros(clock::wall()));
        line.seconds("duration_seconds", duration.as_secs_f64());
        line.plain("client.address", self.client.ip().to_canonical());
        line.integer("client.port", self.client.port());
        line.plain("network.transport", transport);
        if let Some(failure) = self.failure {
            line.plain("error.type", failure.attributes().label);
        }
        if let Some(listener) = active_config.listener(&self.bound) {
            line.text("sheave.listener", listener.name.as_bytes());
        }
        if let Some(route) = &self.route {
            line.text("sheave.route", route.name.as_bytes());
        }
        if let Some(backend) = &self.backend {
            line.text("sheave.backend", backend.name.as_bytes());
        }
        if let Some(endpoint) = &self.endpoint {
            line.plain("sheave.endpoint", endpoint.address);
            line.integer("sheave.attempts", self.attempts);
        }
        line.seconds("sheave.queue_seconds", self.queued.as_secs_f64());
        line.integer("sheave.received_bytes", self.received_bytes);
        line.integer("sheave.sent_bytes", self.sent_bytes);
    }
}
