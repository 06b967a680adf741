//! Every metric of the data plane. To add one is to add a row to the table of what it measures.
//!
//! Labels have bounded values: listeners, routes, backends and endpoints come from the configuration, the rest from
//! closed sets; never a path, a host or a client.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use balance::demand::{ASSUMED_SERVICE_TIME, DemandAverager, WINDOW};

use crate::accept::{h2, h3};
use crate::active_config::{ActiveListener, Route};
use crate::backend::{Backend, BackendConfig};
use crate::dial::multiplex_connection::ConnectionCounts;
use crate::dial::pool::Endpoint;
use crate::failure::Failure;
use crate::grpc::GrpcCode;
use crate::mirror::MirrorOutcome;
use crate::observe::{
    ExemplarStore, HandshakeCounters, Histogram, HistogramData, ListenerCounters,
    MetricDescription, MetricReader, MetricRow, MetricSample, SingleWriterCounter, WorkerCounters,
};
use crate::orca::LoadReportError;
use crate::quic::DatagramDropReason;
use crate::worker::ProxyState;

const LISTENER: &[&str] = &["listener"];
const ROUTE: &[&str] = &["route"];
const BACKEND: &[&str] = &["backend"];
const ENDPOINT: &[&str] = &["backend", "endpoint"];
const WORKER: &[&str] = &["worker"];

static OF_LISTENERS: &[MetricRow<ActiveListener>] = &[
    MetricRow::new(
        "sheave_listener_connections",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.accepted)),
        "Connections accepted, and flows of datagrams.",
    ),
    MetricRow::new(
        "sheave_listener_connections_refused",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.refused)),
        "Connections and flows refused at once, because the listener had as many as its ClientPolicy allows.",
    ),
    MetricRow::new(
        "sheave_listener_connections_open",
        LISTENER,
        MetricReader::Gauge(|it| f64::from(it.bound.open())),
        "Connections and flows open now.",
    ),
    MetricRow::new(
        "sheave_listener_received_bytes",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.received_bytes)),
        "Bytes of request bodies, or of TCP connections and UDP flows, received from clients.",
    ),
    MetricRow::new(
        "sheave_listener_sent_bytes",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.sent_bytes)),
        "Bytes of response bodies, or of TCP connections and UDP flows, sent to clients.",
    ),
    MetricRow::new(
        "sheave_listener_datagrams_dropped",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.datagrams_dropped)),
        "Datagrams dropped, for want of an endpoint, of a free flow or of room in a socket.",
    ),
    MetricRow::new(
        "sheave_tls_handshakes",
        &["listener", "outcome"],
        MetricReader::Counts(|it, each| {
            // Listeners without TLS have none.
            let shards = it.sni_table.iter().flat_map(|_| &it.bound.counters);
            let mut outcomes = BTreeMap::new();
            for (outcome, count) in shards.flat_map(|shard| shard.handshakes.ended()) {
                *outcomes.entry(outcome).or_default() += count;
            }
            outcomes.into_iter().for_each(|(outcome, count)| each(outcome, count));
        }),
        "TLS handshakes of clients: full and resumed ones, connections passed through, and why others failed.",
    ),
    MetricRow::new(
        "sheave_tls_handshakes_open",
        LISTENER,
        MetricReader::Gauge(|it| {
            let shards = it.bound.counters.iter().map(|shard| &shard.handshakes);
            let ended = |shard: &HandshakeCounters| shard.ended().map(|(_, count)| count).sum();
            let open = shards.map(|shard| shard.begun.value().saturating_sub(ended(shard)));
            open.sum::<u64>() as f64
        }),
        "TLS handshakes of clients that have not come to an end yet.",
    ),
    MetricRow::new(
        "sheave_quic_connections",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.quic.connections)),
        "Connections of QUIC that were begun; sheave_listener_connections counts them too.",
    ),
    MetricRow::new(
        "sheave_quic_retries",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.quic.retries)),
        "Clients that were asked to show that they are where they say, because many handshakes were under way.",
    ),
    MetricRow::new(
        "sheave_quic_datagrams_received",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.quic.received)),
        "Datagrams received for QUIC.",
    ),
    MetricRow::new(
        "sheave_quic_datagrams_sent",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.quic.sent)),
        "Datagrams sent for QUIC.",
    ),
    MetricRow::new(
        "sheave_quic_datagrams_handed_over",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.quic.handed_over)),
        "Datagrams that came to another worker than their connection's, and were handed over.",
    ),
    MetricRow::new(
        "sheave_quic_datagrams_dropped",
        &["listener", "reason"],
        MetricReader::Counts(|it, each| {
            for why in DatagramDropReason::ALL {
                let count = |shard: &ListenerCounters| shard.quic.dropped[why as usize].value();
                each(why.word(), it.bound.counters.iter().map(count).sum());
            }
        }),
        "Datagrams for QUIC that were dropped: of no known connection, or beyond what may wait; and answers not sent.",
    ),
];

static OF_ROUTES: &[MetricRow<Route>] = &[
    MetricRow::new(
        "sheave_requests",
        &["route", "status"],
        MetricReader::Counts(|it, each| {
            for (class, status) in STATUS_CLASSES.into_iter().enumerate() {
                each(status, total(&it.counters, |shard| &shard.responses[class]));
            }
        }),
        "Requests by the first digit of their status; 0xx got no answer, because the client had gone.",
    ),
    MetricRow::new(
        "sheave_request_duration_seconds",
        ROUTE,
        MetricReader::Histogram(|it| {
            let shards = it.counters.iter();
            let exemplars = ExemplarStore::latest(shards.clone().map(|shard| &shard.exemplars));
            HistogramData { exemplars, ..Histogram::sum(shards.map(|shard| &shard.duration)) }
        }),
        "From a request's head to the last byte of its response.",
    ),
    MetricRow::new(
        "sheave_grpc_calls",
        &["route", "code"],
        MetricReader::Counts(|it, each| {
            for code in GrpcCode::ALL {
                let count = total(&it.counters, |shard| &shard.calls[usize::from(code.number())]);
                // Most routes have no calls, and most calls few ways to end.
                if count > 0 {
                    each(code.word(), count);
                }
            }
        }),
        "Calls of gRPC by the code that they ended with; a code that no call has ended with is left out.",
    ),
    MetricRow::new(
        "sheave_grpc_streams",
        ROUTE,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.streams)),
        "Calls whose response went on for more than 10 s after its head; sheave_request_duration_seconds leaves them out.",
    ),
    MetricRow::new(
        "sheave_grpc_streams_open",
        ROUTE,
        MetricReader::Gauge(|it| {
            let ended = total(&it.counters, |shard| &shard.streams_ended);
            total(&it.counters, |shard| &shard.streams).saturating_sub(ended) as f64
        }),
        "Such calls that go on now.",
    ),
    MetricRow::new(
        "sheave_route_connections",
        ROUTE,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.l4_sessions)),
        "TCP connections and UDP flows that have ended.",
    ),
];

const STATUS_CLASSES: [&str; 6] = ["0xx", "1xx", "2xx", "3xx", "4xx", "5xx"];

static OF_ALL: &[MetricRow<ProxyState>] = &[
    MetricRow::new(
        "sheave_replicas",
        &[],
        MetricReader::Gauge(|it| it.replicas.load(Ordering::Relaxed) as f64),
        "Replicas of Sheave that caps are dealt over, this one included if it takes part; 1 where it is alone.",
    ),
    MetricRow::new(
        "sheave_failures",
        &["reason"],
        MetricReader::Counts(|it, each| {
            for (index, failure) in Failure::ALL.iter().enumerate() {
                let word = failure.attributes().word;
                each(word, total(&it.workers, |seat| &seat.counters.failures[index]));
            }
        }),
        "Requests that did not get their endpoint's complete response, and connections and flows that failed, by reason.",
    ),
    MetricRow::new(
        "sheave_http2_connections_ended",
        &["reason"],
        MetricReader::Counts(|it, each| {
            for fault in h2::H2ClientFault::ALL {
                let count = total(&it.workers, |seat| &seat.counters.http2_ended[fault as usize]);
                each(fault.word(), count);
            }
        }),
        "HTTP/2 connections of clients that were ended for what the client did, by reason.",
    ),
    MetricRow::new(
        "sheave_http2_streams_reset",
        &[],
        MetricReader::Count(|it| total(&it.workers, |seat| &seat.counters.http2_streams_reset)),
        "Requests that clients gave up over HTTP/2.",
    ),
    MetricRow::new(
        "sheave_http2_streams_refused",
        &[],
        MetricReader::Count(|it| total(&it.workers, |seat| &seat.counters.http2_streams_refused)),
        "Streams of HTTP/2 that came to no request: one more than may be open, or a head too large or malformed.",
    ),
    MetricRow::new(
        "sheave_http3_connections_ended",
        &["reason"],
        MetricReader::Counts(|it, each| {
            for fault in h3::H3ClientFault::ALL {
                let count = total(&it.workers, |seat| &seat.counters.http3_ended[fault as usize]);
                each(fault.word(), count);
            }
        }),
        "HTTP/3 connections of clients that were ended for what the client did, by reason.",
    ),
    MetricRow::new(
        "sheave_http3_streams_reset",
        &[],
        MetricReader::Count(|it| total(&it.workers, |seat| &seat.counters.http3_streams_reset)),
        "Requests that clients gave up over HTTP/3.",
    ),
];

static OF_BACKENDS: &[MetricRow<Backend>] = &[
    MetricRow::new(
        "sheave_backend_queue_seconds",
        BACKEND,
        MetricReader::Histogram(|it| Histogram::sum(it.counters.iter().map(|shard| &shard.queued))),
        "How long requests that had to wait for a slot waited.",
    ),
    MetricRow::new(
        "sheave_backend_queue_length",
        BACKEND,
        MetricReader::Gauge(|it| f64::from(it.waiting())),
        "Requests that wait for a slot now.",
    ),
    MetricRow::new(
        "sheave_backend_queue_length_by_priority",
        &["backend", "priority"],
        MetricReader::Gauges(|it, each| {
            // With a single priority this would only repeat sheave_backend_queue_length.
            if it.current().settings.queue_priority.is_some() {
                for (number, waiting) in it.waiting_by_priority().into_iter().enumerate() {
                    each(&number.to_string(), waiting as f64);
                }
            }
        }),
        "The same by priority, where the BackendPolicy has priorities; some who have just left may be among them.",
    ),
    MetricRow::new(
        "sheave_backend_refused",
        &["backend", "reason"],
        MetricReader::Counts(|it, each| {
            for (place, refusal) in Failure::REFUSALS.into_iter().enumerate() {
                let count = total(&it.counters, |shard| &shard.refused[place]);
                each(refusal.attributes().word, count);
            }
        }),
        "Requests, connections and flows that got no slot: the queue was full, the wait was or would have been too long.",
    ),
    MetricRow::new(
        "sheave_backend_priorities_ignored",
        BACKEND,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.priorities_ignored)),
        "Requests whose header field for it said no priority that there is.",
    ),
    MetricRow::new(
        "sheave_backend_demand",
        BACKEND,
        MetricReader::Gauge(|it| it.demand.read(|meter| meter.average(WINDOW).total())),
        "Requests in flight, waiting, and refused ones for as long as they would have taken: the mean over 15 s.",
    ),
    MetricRow::new(
        "sheave_backend_request_seconds",
        &["backend", "kind"],
        MetricReader::Sums(|it, each| {
            let spent = it.demand.read(DemandAverager::request_seconds);
            each("in_flight", spent.in_flight);
            each("queued", spent.queued);
            each("shed", spent.rejected);
        }),
        "Time that requests were in flight, waited, and would have taken had they not been refused; its rate is demand.",
    ),
    MetricRow::new(
        "sheave_backend_service_seconds",
        BACKEND,
        MetricReader::Gauge(|it| {
            let service_time = it.demand.read(DemandAverager::service_time);
            service_time.unwrap_or(ASSUMED_SERVICE_TIME).as_secs_f64()
        }),
        "How long a request holds a slot, the mean with a half-life of 30 s of serving; 1 until one has been served.",
    ),
    MetricRow::new(
        "sheave_backend_retries",
        BACKEND,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.retries)),
        "Attempts beyond a request's first.",
    ),
    MetricRow::new(
        "sheave_backend_retries_refused",
        BACKEND,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.retries_refused)),
        "Requests that were not tried again, because the backend had no budget left for it.",
    ),
    MetricRow::new(
        "sheave_backend_ejections",
        BACKEND,
        MetricReader::Count(|it| it.health.ejections.load(Ordering::Relaxed)),
        "Endpoints taken out for how their requests ended.",
    ),
    MetricRow::new(
        "sheave_backend_panic",
        BACKEND,
        MetricReader::Gauge(|it| f64::from(u8::from(it.health.is_panicking()))),
        "1 while too few endpoints are well, so that health is ignored.",
    ),
    MetricRow::new(
        "sheave_backend_abandoned",
        BACKEND,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.abandoned)),
        "Requests given up while a capped endpoint was still working on them; their slots were kept meanwhile.",
    ),
    MetricRow::new(
        "sheave_backend_sent_bytes",
        BACKEND,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.sent_bytes)),
        "Bytes of TCP connections and UDP flows sent to endpoints.",
    ),
    MetricRow::new(
        "sheave_backend_received_bytes",
        BACKEND,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.received_bytes)),
        "Bytes of TCP connections and UDP flows received from endpoints.",
    ),
    MetricRow::new(
        "sheave_backend_mirrors",
        &["backend", "outcome"],
        MetricReader::Counts(|it, each| {
            for fate in MirrorOutcome::ALL {
                each(fate.word(), total(&it.counters, |shard| &shard.mirrors[fate as usize]));
            }
        }),
        "Copies of requests that a route mirrors to the backend: answered and failed ones were sent, all others dropped.",
    ),
    MetricRow::new(
        "sheave_backend_affinity",
        &["backend", "outcome"],
        MetricReader::Counts(|it, each| {
            each("begun", total(&it.counters, |shard| &shard.affinity.begun));
            each("kept", total(&it.counters, |shard| &shard.affinity.kept));
            each("broken", total(&it.counters, |shard| &shard.affinity.broken));
        }),
        "Requests, answered by an endpoint, of clients that stay with theirs: new ones, at their own, at another.",
    ),
];

static OF_ENDPOINTS: &[MetricRow<Endpoint>] = &[
    MetricRow::new(
        "sheave_endpoint_attempts",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.attempts)),
        "Attempts at the endpoint.",
    ),
    MetricRow::new(
        "sheave_endpoint_failures",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.failures)),
        "Attempts that failed by the endpoint's fault.",
    ),
    MetricRow::new(
        "sheave_endpoint_in_flight",
        ENDPOINT,
        MetricReader::Gauge(|it| f64::from(it.in_flight())),
        "Requests in flight at the endpoint now, over all backends that name it.",
    ),
    MetricRow::new(
        "sheave_endpoint_unreachable",
        ENDPOINT,
        MetricReader::Gauge(|it| f64::from(u8::from(!it.is_reachable()))),
        "1 while the endpoint is marked unreachable: a connection attempt has failed, and requests go to others until a background attempt succeeds.",
    ),
    MetricRow::new(
        "sheave_endpoint_outages",
        ENDPOINT,
        MetricReader::Count(|it| it.data.reachability.outages.load(Ordering::Relaxed)),
        "How often the endpoint has been marked unreachable.",
    ),
    MetricRow::new(
        "sheave_endpoint_refusals",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.refusals)),
        "Requests that the endpoint refused because it had too much to do (429, 503 with Retry-After, RESOURCE_EXHAUSTED), so that it was given less for a while.",
    ),
    MetricRow::new(
        "sheave_endpoint_refusals_cut",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.refusals_cut)),
        "Refusals that asked for more than 60 seconds, of which 60 were heeded.",
    ),
    MetricRow::new(
        "sheave_endpoint_load_reports",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.load_reports)),
        "Responses in which the endpoint said something of its load (ORCA), where limits are learned.",
    ),
    MetricRow::new(
        "sheave_endpoint_load_reports_ignored",
        &["backend", "endpoint", "reason"],
        MetricReader::Counts(|it, each| {
            for why in LoadReportError::ALL {
                each(
                    why.word(),
                    total(&it.data.counters, |shard| &shard.load_reports_ignored[why as usize]),
                );
            }
        }),
        "Responses in which what the endpoint said of its load was of no use: several reports, more than 8 KiB, malformed, or with a value that cannot be.",
    ),
    MetricRow::new(
        "sheave_endpoint_connections",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.connections)),
        "Connections opened to the endpoint.",
    ),
    MetricRow::new(
        "sheave_endpoint_connections_idle",
        ENDPOINT,
        MetricReader::Gauge(|it| it.data.idle_connections() as f64),
        "Idle connections to the endpoint that are kept for the next request.",
    ),
    MetricRow::new(
        "sheave_endpoint_http2_connections_open",
        ENDPOINT,
        MetricReader::Gauge(|it| open_count(it.data.h2_counts(), |tally| &tally.connections)),
        "HTTP/2 connections open to the endpoint now.",
    ),
    MetricRow::new(
        "sheave_endpoint_http2_streams_open",
        ENDPOINT,
        MetricReader::Gauge(|it| open_count(it.data.h2_counts(), |tally| &tally.streams)),
        "Streams open on HTTP/2 connections to the endpoint now.",
    ),
    MetricRow::new(
        "sheave_endpoint_http2_goaways",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.http2.goaways)),
        "HTTP/2 connections to which the endpoint let no more requests (GOAWAY).",
    ),
    MetricRow::new(
        "sheave_endpoint_http2_streams_refused",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.http2.streams_refused)),
        "Requests that the endpoint gave back unprocessed (REFUSED_STREAM, or beyond a GOAWAY); they are tried again.",
    ),
    MetricRow::new(
        "sheave_endpoint_http3_connections_open",
        ENDPOINT,
        MetricReader::Gauge(|it| open_count(it.data.h3_counts(), |tally| &tally.connections)),
        "HTTP/3 connections open to the endpoint now.",
    ),
    MetricRow::new(
        "sheave_endpoint_http3_streams_open",
        ENDPOINT,
        MetricReader::Gauge(|it| open_count(it.data.h3_counts(), |tally| &tally.streams)),
        "Requests under way on HTTP/3 connections to the endpoint now.",
    ),
    MetricRow::new(
        "sheave_endpoint_http3_goaways",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.http3.goaways)),
        "HTTP/3 connections to which the endpoint let no more requests (GOAWAY).",
    ),
    MetricRow::new(
        "sheave_endpoint_http3_streams_refused",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.http3.streams_refused)),
        "Requests that the endpoint gave back unprocessed (H3_REQUEST_REJECTED, or passed over by a GOAWAY); they are tried again.",
    ),
    MetricRow::new(
        "sheave_endpoint_http3_avoided",
        ENDPOINT,
        MetricReader::Gauge(|it| f64::from(u8::from(!it.data.http3_reachability.is_available()))),
        "1 while HTTP/3 to the endpoint is left alone after a failure, and requests go by TCP.",
    ),
    MetricRow::new(
        "sheave_endpoint_http3_fallbacks",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.http3_fallbacks)),
        "Requests that went by TCP because HTTP/3 to the endpoint was not to be had.",
    ),
    MetricRow::new(
        "sheave_endpoint_sent_bytes",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.sent_bytes)),
        "Bytes of TCP connections and UDP flows sent to the endpoint.",
    ),
    MetricRow::new(
        "sheave_endpoint_received_bytes",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.received_bytes)),
        "Bytes of TCP connections and UDP flows received from the endpoint.",
    ),
];

static OF_LIMITS: &[MetricRow<u32>] = &[MetricRow::new(
    "sheave_endpoint_limit",
    &["backend", "endpoint", "reason"],
    MetricReader::Gauge(|&limit| f64::from(limit)),
    "Requests that the endpoint may have at once, where there is a limit, and where it comes from: fixed, dealt over replicas, learned (start, growing, knee, trial), said by the endpoint, or full while it is given less.",
)];

static OF_WORKERS: &[MetricRow<WorkerCounters>] = &[
    MetricRow::new(
        "sheave_worker_requests",
        WORKER,
        MetricReader::Count(|it| it.requests.value()),
        "Requests by the worker that served them.",
    ),
    MetricRow::new(
        "sheave_worker_connections_moved",
        WORKER,
        MetricReader::Count(|it| it.moved_in.value()),
        "Client connections that came from another worker.",
    ),
    MetricRow::new(
        "sheave_worker_replay_refused",
        WORKER,
        MetricReader::Count(|it| it.replay_refused.value()),
        "Requests that were not kept for another attempt, because the worker kept as many bytes as it may.",
    ),
    MetricRow::new(
        "sheave_access_log_dropped",
        WORKER,
        MetricReader::Count(|it| it.log_dropped.value()),
        "Lines of the access log that were dropped, because the reader was too slow.",
    ),
];

/// Every metric of the data plane, in the order in which they are collected.
pub fn metrics() -> impl Iterator<Item = &'static MetricDescription> {
    fn of<T>(rows: &'static [MetricRow<T>]) -> impl Iterator<Item = &'static MetricDescription> {
        rows.iter().map(|row| &row.metric)
    }
    of(OF_LISTENERS)
        .chain(of(OF_ROUTES))
        .chain(of(OF_ALL))
        .chain(of(OF_BACKENDS))
        .chain(of(OF_ENDPOINTS))
        .chain(of(OF_LIMITS))
        .chain(of(OF_WORKERS))
}

/// Calls `sink` with every value, those of one metric together.
pub(crate) fn collect(shared: &ProxyState, sink: &mut dyn FnMut(MetricSample<'_>)) {
    let live = shared.config.load();
    let listeners = live.listeners.iter().flatten();
    let listeners: Vec<_> = listeners.map(|it| ([it.name.to_string()], it)).collect();
    let routes: Vec<_> = live.routes.iter().map(|it| ([it.name.to_string()], &**it)).collect();
    let backends: Vec<_> = live.backends.iter().map(|it| ([it.name.to_string()], &**it)).collect();
    let current: Vec<_> = live.backends.iter().map(|it| (it, it.current())).collect();
    let members = current.iter().flat_map(|(backend, current)| {
        current.set.members().iter().map(|member| (&backend.name, &*member.endpoint))
    });
    let endpoints: Vec<_> =
        members.map(|(name, it)| ([name.to_string(), it.address.to_string()], it)).collect();
    let limits: Vec<_> =
        current.iter().flat_map(|(backend, current)| limited(backend, current)).collect();
    let seats = shared.workers.iter().enumerate();
    let workers: Vec<_> = seats.map(|(index, it)| ([index.to_string()], &it.counters)).collect();
    visit(OF_LISTENERS, &listeners, sink);
    visit(OF_ROUTES, &routes, sink);
    visit(OF_ALL, &[([], shared)], sink);
    visit(OF_BACKENDS, &backends, sink);
    visit(OF_ENDPOINTS, &endpoints, sink);
    visit(OF_LIMITS, &limits, sink);
    visit(OF_WORKERS, &workers, sink);
}

/// What those endpoints of a backend that have a limit may have at once.
fn limited(backend: &Backend, current: &BackendConfig) -> Vec<([String; 3], u32)> {
    let limits = backend.limits(current).into_iter();
    let row = |(address, (limit, reason)): (SocketAddr, (u32, &str))| {
        ([backend.name.to_string(), address.to_string(), reason.to_owned()], limit)
    };
    limits.map(row).collect()
}

fn visit<T, const LABELS: usize>(
    rows: &'static [MetricRow<T>],
    subjects: &[([String; LABELS], impl Borrow<T>)],
    sink: &mut dyn FnMut(MetricSample<'_>),
) {
    for row in rows {
        for (labels, subject) in subjects {
            row.visit(subject.borrow(), &labels.each_ref().map(String::as_str), sink);
        }
    }
}

/// Over all workers.
fn open_count<'t>(
    tallies: impl Iterator<Item = &'t ConnectionCounts>,
    pick: fn(&ConnectionCounts) -> &AtomicU32,
) -> f64 {
    f64::from(tallies.map(|tally| pick(tally).load(Ordering::Relaxed)).sum::<u32>())
}

fn total<S>(shards: &[S], pick: impl Fn(&S) -> &SingleWriterCounter) -> u64 {
    shards.iter().map(|shard| pick(shard).value()).sum()
}
