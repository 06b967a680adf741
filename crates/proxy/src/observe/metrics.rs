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
use crate::backend::{Backend, Current};
use crate::dial::multiplex_connection::ConnectionCounts;
use crate::dial::pool::Endpoint;
use crate::failure::Failure;
use crate::grpc::Code;
use crate::live::{LiveListener, Route};
use crate::mirror::Fate;
use crate::observe::{
    Counter, Distribution, Exemplars, HandshakeCounters, Histogram, ListenerCounters, Metric, Read,
    Row, Sample, WorkerCounters,
};
use crate::orca::Ignored;
use crate::quic::DatagramDropReason;
use crate::worker::Shared;

const LISTENER: &[&str] = &["listener"];
const ROUTE: &[&str] = &["route"];
const BACKEND: &[&str] = &["backend"];
const ENDPOINT: &[&str] = &["backend", "endpoint"];
const WORKER: &[&str] = &["worker"];

static OF_LISTENERS: &[Row<LiveListener>] = &[
    Row::new(
        "sheave_listener_connections",
        LISTENER,
        Read::Count(|it| total(&it.bound.counters, |shard| &shard.accepted)),
        "Connections accepted, and flows of datagrams.",
    ),
    Row::new(
        "sheave_listener_connections_refused",
        LISTENER,
        Read::Count(|it| total(&it.bound.counters, |shard| &shard.refused)),
        "Connections and flows refused at once, because the listener had as many as its ClientPolicy allows.",
    ),
    Row::new(
        "sheave_listener_connections_open",
        LISTENER,
        Read::Gauge(|it| f64::from(it.bound.open())),
        "Connections and flows open now.",
    ),
    Row::new(
        "sheave_listener_received_bytes",
        LISTENER,
        Read::Count(|it| total(&it.bound.counters, |shard| &shard.received_bytes)),
        "Bytes of request bodies, or of TCP connections and UDP flows, received from clients.",
    ),
    Row::new(
        "sheave_listener_sent_bytes",
        LISTENER,
        Read::Count(|it| total(&it.bound.counters, |shard| &shard.sent_bytes)),
        "Bytes of response bodies, or of TCP connections and UDP flows, sent to clients.",
    ),
    Row::new(
        "sheave_listener_datagrams_dropped",
        LISTENER,
        Read::Count(|it| total(&it.bound.counters, |shard| &shard.datagrams_dropped)),
        "Datagrams dropped, for want of an endpoint, of a free flow or of room in a socket.",
    ),
    Row::new(
        "sheave_tls_handshakes",
        &["listener", "outcome"],
        Read::Counts(|it, each| {
            // Listeners without TLS have none.
            let shards = it.tls.iter().flat_map(|_| &it.bound.counters);
            let mut outcomes = BTreeMap::new();
            for (outcome, count) in shards.flat_map(|shard| shard.handshakes.ended()) {
                *outcomes.entry(outcome).or_default() += count;
            }
            outcomes.into_iter().for_each(|(outcome, count)| each(outcome, count));
        }),
        "TLS handshakes of clients: full and resumed ones, connections passed through, and why others failed.",
    ),
    Row::new(
        "sheave_tls_handshakes_open",
        LISTENER,
        Read::Gauge(|it| {
            let shards = it.bound.counters.iter().map(|shard| &shard.handshakes);
            let ended = |shard: &HandshakeCounters| shard.ended().map(|(_, count)| count).sum();
            let open = shards.map(|shard| shard.begun.value().saturating_sub(ended(shard)));
            open.sum::<u64>() as f64
        }),
        "TLS handshakes of clients that have not come to an end yet.",
    ),
    Row::new(
        "sheave_quic_connections",
        LISTENER,
        Read::Count(|it| total(&it.bound.counters, |shard| &shard.quic.connections)),
        "Connections of QUIC that were begun; sheave_listener_connections counts them too.",
    ),
    Row::new(
        "sheave_quic_retries",
        LISTENER,
        Read::Count(|it| total(&it.bound.counters, |shard| &shard.quic.retries)),
        "Clients that were asked to show that they are where they say, because many handshakes were under way.",
    ),
    Row::new(
        "sheave_quic_datagrams_received",
        LISTENER,
        Read::Count(|it| total(&it.bound.counters, |shard| &shard.quic.received)),
        "Datagrams received for QUIC.",
    ),
    Row::new(
        "sheave_quic_datagrams_sent",
        LISTENER,
        Read::Count(|it| total(&it.bound.counters, |shard| &shard.quic.sent)),
        "Datagrams sent for QUIC.",
    ),
    Row::new(
        "sheave_quic_datagrams_handed_over",
        LISTENER,
        Read::Count(|it| total(&it.bound.counters, |shard| &shard.quic.handed_over)),
        "Datagrams that came to another worker than their connection's, and were handed over.",
    ),
    Row::new(
        "sheave_quic_datagrams_dropped",
        &["listener", "reason"],
        Read::Counts(|it, each| {
            for why in DatagramDropReason::ALL {
                let count = |shard: &ListenerCounters| shard.quic.dropped[why as usize].value();
                each(why.word(), it.bound.counters.iter().map(count).sum());
            }
        }),
        "Datagrams for QUIC that were dropped: of no known connection, or beyond what may wait; and answers not sent.",
    ),
];

static OF_ROUTES: &[Row<Route>] = &[
    Row::new(
        "sheave_requests",
        &["route", "status"],
        Read::Counts(|it, each| {
            for (class, status) in STATUS_CLASSES.into_iter().enumerate() {
                each(status, total(&it.counters, |shard| &shard.responses[class]));
            }
        }),
        "Requests by the first digit of their status; 0xx got no answer, because the client had gone.",
    ),
    Row::new(
        "sheave_request_duration_seconds",
        ROUTE,
        Read::Histogram(|it| {
            let shards = it.counters.iter();
            let exemplars = Exemplars::latest(shards.clone().map(|shard| &shard.exemplars));
            Distribution { exemplars, ..Histogram::sum(shards.map(|shard| &shard.duration)) }
        }),
        "From a request's head to the last byte of its response.",
    ),
    Row::new(
        "sheave_grpc_calls",
        &["route", "code"],
        Read::Counts(|it, each| {
            for code in Code::ALL {
                let count = total(&it.counters, |shard| &shard.calls[usize::from(code.number())]);
                // Most routes have no calls, and most calls few ways to end.
                if count > 0 {
                    each(code.word(), count);
                }
            }
        }),
        "Calls of gRPC by the code that they ended with; a code that no call has ended with is left out.",
    ),
    Row::new(
        "sheave_grpc_streams",
        ROUTE,
        Read::Count(|it| total(&it.counters, |shard| &shard.streams)),
        "Calls whose response went on for more than 10 s after its head; sheave_request_duration_seconds leaves them out.",
    ),
    Row::new(
        "sheave_grpc_streams_open",
        ROUTE,
        Read::Gauge(|it| {
            let ended = total(&it.counters, |shard| &shard.streams_ended);
            total(&it.counters, |shard| &shard.streams).saturating_sub(ended) as f64
        }),
        "Such calls that go on now.",
    ),
    Row::new(
        "sheave_route_connections",
        ROUTE,
        Read::Count(|it| total(&it.counters, |shard| &shard.passages)),
        "TCP connections and UDP flows that have ended.",
    ),
];

const STATUS_CLASSES: [&str; 6] = ["0xx", "1xx", "2xx", "3xx", "4xx", "5xx"];

static OF_ALL: &[Row<Shared>] = &[
    Row::new(
        "sheave_replicas",
        &[],
        Read::Gauge(|it| it.replicas.load(Ordering::Relaxed) as f64),
        "Replicas of Sheave that caps are dealt over, this one included if it takes part; 1 where it is alone.",
    ),
    Row::new(
        "sheave_failures",
        &["reason"],
        Read::Counts(|it, each| {
            for (index, failure) in Failure::ALL.iter().enumerate() {
                let word = failure.meaning().word;
                each(word, total(&it.seats, |seat| &seat.counters.failures[index]));
            }
        }),
        "Requests that did not get their endpoint's complete response, and connections and flows that failed, by reason.",
    ),
    Row::new(
        "sheave_http2_connections_ended",
        &["reason"],
        Read::Counts(|it, each| {
            for fault in h2::Fault::ALL {
                let count = total(&it.seats, |seat| &seat.counters.http2_ended[fault as usize]);
                each(fault.word(), count);
            }
        }),
        "HTTP/2 connections of clients that were ended for what the client did, by reason.",
    ),
    Row::new(
        "sheave_http2_streams_reset",
        &[],
        Read::Count(|it| total(&it.seats, |seat| &seat.counters.http2_streams_reset)),
        "Requests that clients gave up over HTTP/2.",
    ),
    Row::new(
        "sheave_http2_streams_refused",
        &[],
        Read::Count(|it| total(&it.seats, |seat| &seat.counters.http2_streams_refused)),
        "Streams of HTTP/2 that came to no request: one more than may be open, or a head too large or malformed.",
    ),
    Row::new(
        "sheave_http3_connections_ended",
        &["reason"],
        Read::Counts(|it, each| {
            for fault in h3::Fault::ALL {
                let count = total(&it.seats, |seat| &seat.counters.http3_ended[fault as usize]);
                each(fault.word(), count);
            }
        }),
        "HTTP/3 connections of clients that were ended for what the client did, by reason.",
    ),
    Row::new(
        "sheave_http3_streams_reset",
        &[],
        Read::Count(|it| total(&it.seats, |seat| &seat.counters.http3_streams_reset)),
        "Requests that clients gave up over HTTP/3.",
    ),
];

static OF_BACKENDS: &[Row<Backend>] = &[
    Row::new(
        "sheave_backend_queue_seconds",
        BACKEND,
        Read::Histogram(|it| Histogram::sum(it.counters.iter().map(|shard| &shard.queued))),
        "How long requests that had to wait for a slot waited.",
    ),
    Row::new(
        "sheave_backend_waiting",
        BACKEND,
        Read::Gauge(|it| f64::from(it.waiting())),
        "Requests that wait for a slot now.",
    ),
    Row::new(
        "sheave_backend_waiting_by_priority",
        &["backend", "priority"],
        Read::Gauges(|it, each| {
            // Where there is one priority, sheave_backend_waiting says it all.
            if it.current().settings.queue_priority.is_some() {
                for (number, waiting) in it.waiting_by_priority().into_iter().enumerate() {
                    each(&number.to_string(), waiting as f64);
                }
            }
        }),
        "The same by priority, where the BackendPolicy has priorities; some who have just left may be among them.",
    ),
    Row::new(
        "sheave_backend_refused",
        &["backend", "reason"],
        Read::Counts(|it, each| {
            for (place, refusal) in Failure::REFUSALS.into_iter().enumerate() {
                let count = total(&it.counters, |shard| &shard.refused[place]);
                each(refusal.meaning().word, count);
            }
        }),
        "Requests, connections and flows that got no slot: the queue was full, the wait was or would have been too long.",
    ),
    Row::new(
        "sheave_backend_priorities_ignored",
        BACKEND,
        Read::Count(|it| total(&it.counters, |shard| &shard.priorities_ignored)),
        "Requests whose header field for it said no priority that there is.",
    ),
    Row::new(
        "sheave_backend_demand",
        BACKEND,
        Read::Gauge(|it| it.demand.read(|meter| meter.average(WINDOW).total())),
        "Requests in flight, waiting, and refused ones for as long as they would have taken: the mean over 15 s.",
    ),
    Row::new(
        "sheave_backend_request_seconds",
        &["backend", "kind"],
        Read::Sums(|it, each| {
            let spent = it.demand.read(DemandAverager::request_seconds);
            each("in_flight", spent.in_flight);
            each("queued", spent.queued);
            each("shed", spent.rejected);
        }),
        "Time that requests were in flight, waited, and would have taken had they not been refused; its rate is demand.",
    ),
    Row::new(
        "sheave_backend_service_seconds",
        BACKEND,
        Read::Gauge(|it| {
            let service_time = it.demand.read(DemandAverager::service_time);
            service_time.unwrap_or(ASSUMED_SERVICE_TIME).as_secs_f64()
        }),
        "How long a request holds a slot, the mean with a half-life of 30 s of serving; 1 until one has been served.",
    ),
    Row::new(
        "sheave_backend_retries",
        BACKEND,
        Read::Count(|it| total(&it.counters, |shard| &shard.retries)),
        "Attempts beyond a request's first.",
    ),
    Row::new(
        "sheave_backend_retries_refused",
        BACKEND,
        Read::Count(|it| total(&it.counters, |shard| &shard.retries_refused)),
        "Requests that were not tried again, because the backend had no budget left for it.",
    ),
    Row::new(
        "sheave_backend_ejections",
        BACKEND,
        Read::Count(|it| it.care.ejections.load(Ordering::Relaxed)),
        "Endpoints taken out for how their requests ended.",
    ),
    Row::new(
        "sheave_backend_panic",
        BACKEND,
        Read::Gauge(|it| f64::from(u8::from(it.care.is_panicking()))),
        "1 while too few endpoints are well, so that health is ignored.",
    ),
    Row::new(
        "sheave_backend_abandoned",
        BACKEND,
        Read::Count(|it| total(&it.counters, |shard| &shard.abandoned)),
        "Requests given up while a capped endpoint was still working on them; their slots were kept meanwhile.",
    ),
    Row::new(
        "sheave_backend_sent_bytes",
        BACKEND,
        Read::Count(|it| total(&it.counters, |shard| &shard.sent_bytes)),
        "Bytes of TCP connections and UDP flows sent to endpoints.",
    ),
    Row::new(
        "sheave_backend_received_bytes",
        BACKEND,
        Read::Count(|it| total(&it.counters, |shard| &shard.received_bytes)),
        "Bytes of TCP connections and UDP flows received from endpoints.",
    ),
    Row::new(
        "sheave_backend_mirrors",
        &["backend", "outcome"],
        Read::Counts(|it, each| {
            for fate in Fate::ALL {
                each(fate.word(), total(&it.counters, |shard| &shard.mirrors[fate as usize]));
            }
        }),
        "Copies of requests that a route mirrors to the backend: answered and failed ones were sent, all others dropped.",
    ),
    Row::new(
        "sheave_backend_affinity",
        &["backend", "outcome"],
        Read::Counts(|it, each| {
            each("begun", total(&it.counters, |shard| &shard.affinity.begun));
            each("kept", total(&it.counters, |shard| &shard.affinity.kept));
            each("broken", total(&it.counters, |shard| &shard.affinity.broken));
        }),
        "Requests, answered by an endpoint, of clients that stay with theirs: new ones, at their own, at another.",
    ),
];

static OF_ENDPOINTS: &[Row<Endpoint>] = &[
    Row::new(
        "sheave_endpoint_attempts",
        ENDPOINT,
        Read::Count(|it| total(&it.data.counters, |shard| &shard.attempts)),
        "Attempts at the endpoint.",
    ),
    Row::new(
        "sheave_endpoint_failures",
        ENDPOINT,
        Read::Count(|it| total(&it.data.counters, |shard| &shard.failures)),
        "Attempts that failed by the endpoint's fault.",
    ),
    Row::new(
        "sheave_endpoint_in_flight",
        ENDPOINT,
        Read::Gauge(|it| f64::from(it.in_flight())),
        "Requests in flight at the endpoint now, over all backends that name it.",
    ),
    Row::new(
        "sheave_endpoint_unreachable",
        ENDPOINT,
        Read::Gauge(|it| f64::from(u8::from(!it.is_reachable()))),
        "1 while the endpoint is marked unreachable: a connection attempt has failed, and requests go to others until a background attempt succeeds.",
    ),
    Row::new(
        "sheave_endpoint_outages",
        ENDPOINT,
        Read::Count(|it| it.data.reachability.outages.load(Ordering::Relaxed)),
        "How often the endpoint has been marked unreachable.",
    ),
    Row::new(
        "sheave_endpoint_refusals",
        ENDPOINT,
        Read::Count(|it| total(&it.data.counters, |shard| &shard.refusals)),
        "Requests that the endpoint refused because it had too much to do (429, 503 with Retry-After, RESOURCE_EXHAUSTED), so that it was given less for a while.",
    ),
    Row::new(
        "sheave_endpoint_refusals_cut",
        ENDPOINT,
        Read::Count(|it| total(&it.data.counters, |shard| &shard.refusals_cut)),
        "Refusals that asked for more than 60 seconds, of which 60 were heeded.",
    ),
    Row::new(
        "sheave_endpoint_load_reports",
        ENDPOINT,
        Read::Count(|it| total(&it.data.counters, |shard| &shard.load_reports)),
        "Responses in which the endpoint said something of its load (ORCA), where limits are learned.",
    ),
    Row::new(
        "sheave_endpoint_load_reports_ignored",
        &["backend", "endpoint", "reason"],
        Read::Counts(|it, each| {
            for why in Ignored::ALL {
                each(
                    why.word(),
                    total(&it.data.counters, |shard| &shard.load_reports_ignored[why as usize]),
                );
            }
        }),
        "Responses in which what the endpoint said of its load was of no use: several reports, more than 8 KiB, malformed, or with a value that cannot be.",
    ),
    Row::new(
        "sheave_endpoint_connections",
        ENDPOINT,
        Read::Count(|it| total(&it.data.counters, |shard| &shard.connections)),
        "Connections opened to the endpoint.",
    ),
    Row::new(
        "sheave_endpoint_connections_idle",
        ENDPOINT,
        Read::Gauge(|it| it.data.idle_connections() as f64),
        "Idle connections to the endpoint that are kept for the next request.",
    ),
    Row::new(
        "sheave_endpoint_http2_connections_open",
        ENDPOINT,
        Read::Gauge(|it| open(it.data.h2_counts(), |tally| &tally.connections)),
        "HTTP/2 connections open to the endpoint now.",
    ),
    Row::new(
        "sheave_endpoint_http2_streams_open",
        ENDPOINT,
        Read::Gauge(|it| open(it.data.h2_counts(), |tally| &tally.streams)),
        "Streams open on HTTP/2 connections to the endpoint now.",
    ),
    Row::new(
        "sheave_endpoint_http2_goaways",
        ENDPOINT,
        Read::Count(|it| total(&it.data.counters, |shard| &shard.http2.goaways)),
        "HTTP/2 connections to which the endpoint let no more requests (GOAWAY).",
    ),
    Row::new(
        "sheave_endpoint_http2_streams_refused",
        ENDPOINT,
        Read::Count(|it| total(&it.data.counters, |shard| &shard.http2.streams_refused)),
        "Requests that the endpoint gave back unprocessed (REFUSED_STREAM, or beyond a GOAWAY); they are tried again.",
    ),
    Row::new(
        "sheave_endpoint_http3_connections_open",
        ENDPOINT,
        Read::Gauge(|it| open(it.data.h3_counts(), |tally| &tally.connections)),
        "HTTP/3 connections open to the endpoint now.",
    ),
    Row::new(
        "sheave_endpoint_http3_streams_open",
        ENDPOINT,
        Read::Gauge(|it| open(it.data.h3_counts(), |tally| &tally.streams)),
        "Requests under way on HTTP/3 connections to the endpoint now.",
    ),
    Row::new(
        "sheave_endpoint_http3_goaways",
        ENDPOINT,
        Read::Count(|it| total(&it.data.counters, |shard| &shard.http3.goaways)),
        "HTTP/3 connections to which the endpoint let no more requests (GOAWAY).",
    ),
    Row::new(
        "sheave_endpoint_http3_streams_refused",
        ENDPOINT,
        Read::Count(|it| total(&it.data.counters, |shard| &shard.http3.streams_refused)),
        "Requests that the endpoint gave back unprocessed (H3_REQUEST_REJECTED, or passed over by a GOAWAY); they are tried again.",
    ),
    Row::new(
        "sheave_endpoint_http3_avoided",
        ENDPOINT,
        Read::Gauge(|it| f64::from(u8::from(!it.data.http3_reachability.is_available()))),
        "1 while HTTP/3 to the endpoint is left alone after a failure, and requests go by TCP.",
    ),
    Row::new(
        "sheave_endpoint_http3_fallbacks",
        ENDPOINT,
        Read::Count(|it| total(&it.data.counters, |shard| &shard.http3_fallbacks)),
        "Requests that went by TCP because HTTP/3 to the endpoint was not to be had.",
    ),
    Row::new(
        "sheave_endpoint_sent_bytes",
        ENDPOINT,
        Read::Count(|it| total(&it.data.counters, |shard| &shard.sent_bytes)),
        "Bytes of TCP connections and UDP flows sent to the endpoint.",
    ),
    Row::new(
        "sheave_endpoint_received_bytes",
        ENDPOINT,
        Read::Count(|it| total(&it.data.counters, |shard| &shard.received_bytes)),
        "Bytes of TCP connections and UDP flows received from the endpoint.",
    ),
];

static OF_LIMITS: &[Row<u32>] = &[Row::new(
    "sheave_endpoint_limit",
    &["backend", "endpoint", "reason"],
    Read::Gauge(|&limit| f64::from(limit)),
    "Requests that the endpoint may have at once, where there is a limit, and where it comes from: fixed, dealt over replicas, learned (start, growing, knee, trial), said by the endpoint, or full while it is given less.",
)];

static OF_WORKERS: &[Row<WorkerCounters>] = &[
    Row::new(
        "sheave_worker_requests",
        WORKER,
        Read::Count(|it| it.requests.value()),
        "Requests by the worker that served them.",
    ),
    Row::new(
        "sheave_worker_connections_moved",
        WORKER,
        Read::Count(|it| it.moved_in.value()),
        "Client connections that came from another worker.",
    ),
    Row::new(
        "sheave_worker_replay_refused",
        WORKER,
        Read::Count(|it| it.replay_refused.value()),
        "Requests that were not kept for another attempt, because the worker kept as many bytes as it may.",
    ),
    Row::new(
        "sheave_access_log_dropped",
        WORKER,
        Read::Count(|it| it.log_dropped.value()),
        "Lines of the access log that were dropped, because the reader was too slow.",
    ),
];

/// Every metric of the data plane, in the order in which they are collected.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    fn of<T>(rows: &'static [Row<T>]) -> impl Iterator<Item = &'static Metric> {
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
pub(crate) fn collect(shared: &Shared, sink: &mut dyn FnMut(Sample<'_>)) {
    let live = shared.live.load();
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
    let seats = shared.seats.iter().enumerate();
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
fn limited(backend: &Backend, current: &Current) -> Vec<([String; 3], u32)> {
    let limits = backend.limits(current).into_iter();
    let row = |(address, (limit, reason)): (SocketAddr, (u32, &str))| {
        ([backend.name.to_string(), address.to_string(), reason.to_owned()], limit)
    };
    limits.map(row).collect()
}

fn visit<T, const LABELS: usize>(
    rows: &'static [Row<T>],
    subjects: &[([String; LABELS], impl Borrow<T>)],
    sink: &mut dyn FnMut(Sample<'_>),
) {
    for row in rows {
        for (labels, subject) in subjects {
            row.visit(subject.borrow(), &labels.each_ref().map(String::as_str), sink);
        }
    }
}

/// Over all workers.
fn open<'t>(
    tallies: impl Iterator<Item = &'t ConnectionCounts>,
    pick: fn(&ConnectionCounts) -> &AtomicU32,
) -> f64 {
    f64::from(tallies.map(|tally| pick(tally).load(Ordering::Relaxed)).sum::<u32>())
}

fn total<S>(shards: &[S], pick: impl Fn(&S) -> &Counter) -> u64 {
    shards.iter().map(|shard| pick(shard).value()).sum()
}
