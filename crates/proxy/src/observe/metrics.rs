//! Every metric: name, unit, help, labels, and how it is collected.
//!
//! Labels have bounded values: listeners, routes, backends and endpoints come from the configuration, the rest from
//! closed sets; never a path, a host or a client.

use crate::backend::Backend;
use crate::dial::pool::Endpoint;
use crate::failure::Failure;
use crate::live::{Live, LiveListener, Route};
use crate::observe::{Counter, Histogram, WorkerCounters};

/// What is said of a metric.
pub struct Metric {
    /// As Prometheus names it, without `_total`.
    pub name: &'static str,
    /// `seconds`, `bytes`, or empty for a count.
    pub unit: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// One value of one metric.
pub struct Sample<'a> {
    pub metric: &'static Metric,
    /// In the order of the metric's labels.
    pub labels: &'a [&'a str],
    pub value: Value<'a>,
}

pub enum Value<'a> {
    Count(u64),
    Gauge(f64),
    /// `counts` has one more than `bounds`, and is not cumulative.
    Histogram {
        bounds: &'a [f64],
        counts: &'a [u64],
        sum: f64,
    },
}

const LISTENER: &[&str] = &["listener"];
const ROUTE: &[&str] = &["route"];
const BACKEND: &[&str] = &["backend"];
const ENDPOINT: &[&str] = &["backend", "endpoint"];
const WORKER: &[&str] = &["worker"];

macro_rules! metrics {
    ($($constant:ident = $kind:ident $name:literal $unit:literal $labels:expr, $help:literal;)*) => {
        /// Names of the metrics: their places in [`METRICS`].
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "they read as constants")]
        enum Id { $($constant),* }
        use Id::*;
        /// Every metric of the data plane.
        pub static METRICS: &[Metric] = &[
            $(Metric { name: $name, unit: $unit, help: $help, kind: Kind::$kind, labels: $labels }),*
        ];
    };
}

metrics! {
    ACCEPTED = Counter "sheave_listener_connections" "" LISTENER,
        "Connections accepted.";
    REFUSED = Counter "sheave_listener_connections_refused" "" LISTENER,
        "Connections closed at once, because the listener had as many as its ClientPolicy allows.";
    OPEN = Gauge "sheave_listener_connections_open" "" LISTENER,
        "Connections open now.";
    RECEIVED = Counter "sheave_listener_received_bytes" "bytes" LISTENER,
        "Bytes of request bodies received from clients.";
    SENT = Counter "sheave_listener_sent_bytes" "bytes" LISTENER,
        "Bytes of response bodies sent to clients.";
    REQUESTS = Counter "sheave_requests" "" &["route", "status"],
        "Requests by the first digit of their status; 0xx got no answer, because the client had gone.";
    DURATION = Histogram "sheave_request_duration_seconds" "seconds" ROUTE,
        "From a request's head to the last byte of its response.";
    FAILURES = Counter "sheave_failures" "" &["reason"],
        "Requests that did not get their endpoint's complete response, by reason.";
    QUEUED = Histogram "sheave_backend_queue_seconds" "seconds" BACKEND,
        "How long requests that had to wait for a slot waited.";
    WAITING = Gauge "sheave_backend_waiting" "" BACKEND,
        "Requests that wait for a slot now.";
    RETRIES = Counter "sheave_backend_retries" "" BACKEND,
        "Attempts beyond a request's first.";
    ABANDONED = Counter "sheave_backend_abandoned" "" BACKEND,
        "Requests given up while a capped endpoint was still working on them; their slots were kept meanwhile.";
    ATTEMPTS = Counter "sheave_endpoint_attempts" "" ENDPOINT,
        "Attempts at the endpoint.";
    ATTEMPT_FAILURES = Counter "sheave_endpoint_failures" "" ENDPOINT,
        "Attempts that failed by the endpoint's fault.";
    IN_FLIGHT = Gauge "sheave_endpoint_in_flight" "" ENDPOINT,
        "Requests in flight at the endpoint now, over all backends that name it.";
    CONNECTIONS = Counter "sheave_endpoint_connections" "" ENDPOINT,
        "Connections opened to the endpoint.";
    IDLE = Gauge "sheave_endpoint_connections_idle" "" ENDPOINT,
        "Idle connections to the endpoint that are kept for the next request.";
    WORKER_REQUESTS = Counter "sheave_worker_requests" "" WORKER,
        "Requests by the worker that served them.";
    MOVED = Counter "sheave_worker_connections_moved" "" WORKER,
        "Client connections that came from another worker.";
    REPLAY_REFUSED = Counter "sheave_worker_replay_refused" "" WORKER,
        "Requests that were not kept for another attempt, because the worker kept as many bytes as it may.";
    LOG_DROPPED = Counter "sheave_access_log_dropped" "" WORKER,
        "Lines of the access log that were dropped, because the reader was too slow.";
}

/// Calls `sink` with every value.
pub(crate) fn collect(live: &Live, workers: &[&WorkerCounters], sink: &mut dyn FnMut(Sample<'_>)) {
    let mut visit = |id: Id, labels: &[&str], value: Value<'_>| {
        sink(Sample { metric: &METRICS[id as usize], labels, value });
    };
    live.listeners.iter().flatten().for_each(|listener| collect_listener(listener, &mut visit));
    live.routes.iter().for_each(|route| collect_route(route, &mut visit));
    for backend in &live.backends {
        collect_backend(backend, &mut visit);
    }
    collect_workers(workers, &mut visit);
}

type Visit<'v> = dyn FnMut(Id, &[&str], Value<'_>) + 'v;

fn collect_listener(listener: &LiveListener, visit: &mut Visit<'_>) {
    let labels: &[&str] = &[&listener.name];
    let shards = &listener.bound.counters;
    let total = |pick: fn(&_) -> &Counter| shards.iter().map(|shard| pick(shard).value()).sum();
    visit(ACCEPTED, labels, Value::Count(total(|shard| &shard.accepted)));
    visit(REFUSED, labels, Value::Count(total(|shard| &shard.refused)));
    visit(RECEIVED, labels, Value::Count(total(|shard| &shard.received_bytes)));
    visit(SENT, labels, Value::Count(total(|shard| &shard.sent_bytes)));
    visit(OPEN, labels, Value::Gauge(f64::from(listener.bound.open())));
}

fn collect_route(route: &Route, visit: &mut Visit<'_>) {
    for (class, status) in ["0xx", "1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().enumerate() {
        let total = route.counters.iter().map(|shard| shard.responses[class].value()).sum();
        visit(REQUESTS, &[&route.name, status], Value::Count(total));
    }
    let shards = route.counters.iter().map(|shard| &shard.duration);
    collect_histogram(DURATION, &[&route.name], shards, visit);
}

fn collect_backend(backend: &Backend, visit: &mut Visit<'_>) {
    let labels: &[&str] = &[&backend.name];
    let shards = &backend.counters;
    let total = |pick: fn(&_) -> &Counter| shards.iter().map(|shard| pick(shard).value()).sum();
    visit(RETRIES, labels, Value::Count(total(|shard| &shard.retries)));
    visit(ABANDONED, labels, Value::Count(total(|shard| &shard.abandoned)));
    visit(WAITING, labels, Value::Gauge(f64::from(backend.waiting())));
    collect_histogram(QUEUED, labels, shards.iter().map(|shard| &shard.queued), visit);
    for member in backend.current().set.members() {
        collect_endpoint(backend, &member.endpoint, visit);
    }
}

fn collect_endpoint(backend: &Backend, endpoint: &Endpoint, visit: &mut Visit<'_>) {
    let address = endpoint.address.to_string();
    let labels: &[&str] = &[&backend.name, &address];
    let shards = &endpoint.data.counters;
    let total = |pick: fn(&_) -> &Counter| shards.iter().map(|shard| pick(shard).value()).sum();
    visit(ATTEMPTS, labels, Value::Count(total(|shard| &shard.attempts)));
    visit(ATTEMPT_FAILURES, labels, Value::Count(total(|shard| &shard.failures)));
    visit(CONNECTIONS, labels, Value::Count(total(|shard| &shard.connections)));
    visit(IN_FLIGHT, labels, Value::Gauge(f64::from(endpoint.in_flight())));
    visit(IDLE, labels, Value::Gauge(endpoint.data.idle_connections() as f64));
}

fn collect_workers(workers: &[&WorkerCounters], visit: &mut Visit<'_>) {
    for (index, failure) in Failure::ALL.iter().enumerate() {
        let total = workers.iter().map(|worker| worker.failures[index].value()).sum();
        visit(FAILURES, &[failure.meaning().word], Value::Count(total));
    }
    for (index, worker) in workers.iter().enumerate() {
        let index = index.to_string();
        let labels: &[&str] = &[&index];
        visit(WORKER_REQUESTS, labels, Value::Count(worker.requests.value()));
        visit(MOVED, labels, Value::Count(worker.moved_in.value()));
        visit(REPLAY_REFUSED, labels, Value::Count(worker.replay_refused.value()));
        visit(LOG_DROPPED, labels, Value::Count(worker.log_dropped.value()));
    }
}

fn collect_histogram<'h>(
    id: Id,
    labels: &[&str],
    shards: impl Iterator<Item = &'h Histogram>,
    visit: &mut Visit<'_>,
) {
    let mut counts = [0; Histogram::BOUNDS.len() + 1];
    let sum = shards.map(|shard| shard.add_to(&mut counts)).sum();
    visit(id, labels, Value::Histogram { bounds: &Histogram::BOUNDS, counts: &counts, sum });
}
