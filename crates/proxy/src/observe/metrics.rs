//! All metrics of the data plane. To add a metric, add a row to the table of the object that it measures.
//!
//! Labels have bounded values: listeners, routes, backends and endpoints come from the configuration, the rest from
//! closed sets; never a path, a host or a client.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use balance::demand::{ASSUMED_SERVICE_TIME, DemandAverager, WINDOW};
use codec::grpc::GrpcCode;
use codec::orca::LoadReportError;
use quic::DatagramDropReason;

use crate::accept::detect::DetectedProtocol;
use crate::accept::listen::AcceptPause;
use crate::accept::{h2, h3};
use crate::active_config::{ActiveListener, Route};
use crate::backend::{Backend, BackendConfig};
use crate::compression::outcome::CompressionOutcome;
use crate::credentials::jwt::{JwtCounters, JwtVerifier};
use crate::dial::multiplex_connection::ConnectionCounts;
use crate::dial::pool::Endpoint;
use crate::error_page::ErrorPageOutcome;
use crate::external_auth::AuthorizationOutcome;
use crate::failure::Failure;
use crate::memory::MemoryPressure;
use crate::mirror::MirrorOutcome;
use crate::observe::{
    ExemplarStore, HandshakeCounters, Histogram, HistogramData, ListenerCounters,
    MetricDescription, MetricReader, MetricRow, MetricSample, SingleWriterCounter, WorkerCounters,
};
use crate::rate_limit::RateLimiter;
use crate::trace::TraceReason;
use crate::worker::ProxyState;

const LISTENER: &[&str] = &["listener"];
const ROUTE: &[&str] = &["route"];
const BACKEND: &[&str] = &["backend"];
const ENDPOINT: &[&str] = &["backend", "endpoint"];
const RATE_LIMIT: &[&str] = &["policy", "target"];
const WORKER: &[&str] = &["worker"];

static OF_LISTENERS: &[MetricRow<ActiveListener>] = &[
    MetricRow::new(
        "sheave_listener_connections",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.accepted)),
        "Accepted connections and UDP flows.",
    ),
    MetricRow::new(
        "sheave_listener_connections_refused",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.refused)),
        "Connections and UDP flows refused because the listener was at the connection limit of its ClientPolicy.",
    ),
    MetricRow::new(
        "sheave_listener_sources_refused",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.refused_sources)),
        "Connections and UDP datagrams refused because their source is in none of the Service's loadBalancerSourceRanges.",
    ),
    MetricRow::new(
        "sheave_listener_connections_open",
        LISTENER,
        MetricReader::Gauge(|it| f64::from(it.bound.open())),
        "Open connections and UDP flows.",
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
        "UDP datagrams dropped: no endpoint, flow table full, or socket buffer full.",
    ),
    MetricRow::new(
        "sheave_tls_handshakes",
        &["listener", "outcome"],
        MetricReader::Counts(|it, each| {
            // Listeners without TLS have no handshakes.
            let shards = it.sni_table.iter().flat_map(|_| &it.bound.counters);
            let mut outcomes = BTreeMap::new();
            for (outcome, count) in shards.flat_map(|shard| shard.handshakes.ended()) {
                *outcomes.entry(outcome).or_default() += count;
            }
            outcomes.into_iter().for_each(|(outcome, count)| each(outcome, count));
        }),
        "Client TLS handshakes by outcome: full, resumed, passed through, or the reason of the failure.",
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
        "Client TLS handshakes in progress.",
    ),
    MetricRow::new(
        "sheave_quic_connections",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.quic.connections)),
        "QUIC connections begun; sheave_listener_connections includes them.",
    ),
    MetricRow::new(
        "sheave_quic_retries",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.quic.retries)),
        "QUIC Retry packets sent to validate client addresses, because many handshakes were in progress.",
    ),
    MetricRow::new(
        "sheave_quic_datagrams_received",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.quic.received)),
        "QUIC datagrams received.",
    ),
    MetricRow::new(
        "sheave_quic_datagrams_sent",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.quic.sent)),
        "QUIC datagrams sent.",
    ),
    MetricRow::new(
        "sheave_quic_datagrams_handed_over",
        LISTENER,
        MetricReader::Count(|it| total(&it.bound.counters, |shard| &shard.quic.handed_over)),
        "QUIC datagrams that arrived at a worker other than their connection's, and were handed over.",
    ),
    MetricRow::new(
        "sheave_quic_datagrams_dropped",
        &["listener", "reason"],
        MetricReader::Counts(|it, each| {
            for why in DatagramDropReason::ALL {
                let count = |shard: &ListenerCounters| shard.quic.dropped[why as usize].value();
                each(why.label(), it.bound.counters.iter().map(count).sum());
            }
        }),
        "QUIC datagrams dropped: unknown (no known connection), handshakes or handover (queue full), send (could not be sent).",
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
        "Requests by status class; 0xx: no answer, because the client disconnected.",
    ),
    MetricRow::new(
        "sheave_request_duration_seconds",
        ROUTE,
        MetricReader::Histogram(|it| {
            let shards = it.counters.iter();
            let exemplars = ExemplarStore::latest(shards.clone().map(|shard| &shard.exemplars));
            HistogramData { exemplars, ..Histogram::sum(shards.map(|shard| &shard.duration)) }
        }),
        "Duration of requests, from the request's head to the last byte of the response.",
    ),
    MetricRow::new(
        "sheave_grpc_calls",
        &["route", "code"],
        MetricReader::Counts(|it, each| {
            for code in GrpcCode::ALL {
                let count = total(&it.counters, |shard| &shard.calls[usize::from(code.number())]);
                // Most routes have no gRPC calls, and most calls end with few codes.
                if count > 0 {
                    each(code.label(), count);
                }
            }
        }),
        "gRPC calls by status code; codes without a call are left out.",
    ),
    MetricRow::new(
        "sheave_grpc_streams",
        ROUTE,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.streams)),
        "gRPC calls whose response lasted more than 10 s after its head; sheave_request_duration_seconds excludes them.",
    ),
    MetricRow::new(
        "sheave_grpc_streams_open",
        ROUTE,
        MetricReader::Gauge(|it| {
            let ended = total(&it.counters, |shard| &shard.streams_ended);
            total(&it.counters, |shard| &shard.streams).saturating_sub(ended) as f64
        }),
        "gRPC calls in progress whose response has lasted more than 10 s.",
    ),
    MetricRow::new(
        "sheave_route_connections",
        ROUTE,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.l4_sessions)),
        "Ended TCP connections and UDP flows.",
    ),
];

const STATUS_CLASSES: [&str; 6] = ["0xx", "1xx", "2xx", "3xx", "4xx", "5xx"];

static OF_ALL: &[MetricRow<ProxyState>] = &[
    MetricRow::new(
        "sheave_replicas",
        &[],
        MetricReader::Gauge(|it| it.replicas.load(Ordering::Relaxed) as f64),
        "Replicas of Sheave among which concurrency limits are divided, this one included if it takes part; 1 if it is alone.",
    ),
    MetricRow::new(
        "sheave_spans_exported",
        &[],
        MetricReader::Count(|it| {
            let counts = it.trace_counts.as_ref();
            counts.map_or(0, |counts| counts.exported.load(Ordering::Relaxed))
        }),
        "Spans that the collector has accepted.",
    ),
    MetricRow::new(
        "sheave_spans_dropped",
        &["reason"],
        MetricReader::Counts(|it, each| {
            let Some(counts) = &it.trace_counts else { return };
            let workers = it.workers.iter().map(|handle| handle.counters.spans_dropped.value());
            let dropped = counts.dropped(workers.sum());
            dropped.into_iter().for_each(|(reason, count)| each(reason, count));
        }),
        "Spans dropped: too many waited (queue_full), the collector could not be reached or did not answer in time (undelivered), or it rejected them (rejected).",
    ),
    MetricRow::new(
        "sheave_failures",
        &["reason"],
        MetricReader::Counts(|it, each| {
            for (index, failure) in Failure::ALL.iter().enumerate() {
                let label = failure.attributes().label;
                each(label, total(&it.workers, |handle| &handle.counters.failures[index]));
            }
        }),
        "Requests without a complete response from their endpoint, and failed connections and UDP flows, by reason.",
    ),
    MetricRow::new(
        "sheave_memory_limit_bytes",
        &[],
        MetricReader::Gauge(|it| {
            it.budgets.memory.limit().map_or(f64::INFINITY, |limit| limit as f64)
        }),
        "Memory that the process may have: --memory-limit, or the limit of its cgroup or machine.",
    ),
    MetricRow::new(
        "sheave_memory_used_bytes",
        &[],
        MetricReader::Gauge(|it| it.budgets.memory.used() as f64),
        "Private memory of the process, which is compared with its limit.",
    ),
    MetricRow::new(
        "sheave_memory_steps",
        &["step"],
        MetricReader::Counts(|it, each| {
            for step in MemoryPressure::ALL {
                each(step.label(), it.budgets.memory.times_begun(step));
            }
        }),
        "Changes of the step that memory pressure has reached, by the step that began.",
    ),
    MetricRow::new(
        "sheave_memory_step",
        &["step"],
        MetricReader::Gauges(|it, each| {
            for step in MemoryPressure::ALL {
                let is_in_force = step == it.budgets.memory.pressure();
                each(step.label(), f64::from(u8::from(is_in_force)));
            }
        }),
        "1 for the step that memory pressure has reached now, 0 for the others.",
    ),
    MetricRow::new(
        "sheave_client_connections_max",
        &[],
        MetricReader::Gauge(|it| f64::from(it.budgets.descriptors.max_clients)),
        "Client connections over TCP for which there are file descriptors.",
    ),
    MetricRow::new(
        "sheave_idle_connections_shed",
        &[],
        MetricReader::Count(|it| {
            total(&it.workers, |handle| &handle.counters.idle_connections_shed)
        }),
        "Idle client connections closed because file descriptors ran out.",
    ),
    MetricRow::new(
        "sheave_accept_pauses",
        &["reason"],
        MetricReader::Counts(|it, each| {
            for pause in AcceptPause::ALL {
                let count =
                    total(&it.workers, |handle| &handle.counters.accept_pauses[pause as usize]);
                each(pause.label(), count);
            }
        }),
        "Times that a listener stopped accepting connections for a while, by reason.",
    ),
    MetricRow::new(
        "sheave_http2_connections_ended",
        &["reason"],
        MetricReader::Counts(|it, each| {
            for fault in h2::H2ClientFault::ALL {
                let count =
                    total(&it.workers, |handle| &handle.counters.http2_ended[fault as usize]);
                each(fault.label(), count);
            }
        }),
        "Client HTTP/2 connections closed because of client misbehavior, by reason.",
    ),
    MetricRow::new(
        "sheave_http2_streams_reset",
        &[],
        MetricReader::Count(|it| total(&it.workers, |handle| &handle.counters.http2_streams_reset)),
        "HTTP/2 requests that clients cancelled.",
    ),
    MetricRow::new(
        "sheave_http2_streams_refused",
        &[],
        MetricReader::Count(|it| {
            total(&it.workers, |handle| &handle.counters.http2_streams_refused)
        }),
        "Client HTTP/2 streams refused: too many open streams, or a head that is too large or malformed.",
    ),
    MetricRow::new(
        "sheave_http3_connections_ended",
        &["reason"],
        MetricReader::Counts(|it, each| {
            for fault in h3::H3ClientFault::ALL {
                let count =
                    total(&it.workers, |handle| &handle.counters.http3_ended[fault as usize]);
                each(fault.label(), count);
            }
        }),
        "Client HTTP/3 connections closed because of client misbehavior, by reason.",
    ),
    MetricRow::new(
        "sheave_http3_streams_reset",
        &[],
        MetricReader::Count(|it| total(&it.workers, |handle| &handle.counters.http3_streams_reset)),
        "HTTP/3 requests that clients cancelled.",
    ),
    MetricRow::new(
        "sheave_intercepted_connections",
        &[],
        MetricReader::Count(|it| total(&it.workers, |handle| &handle.counters.intercepted)),
        "Transparent mode: intercepted connections that were accepted.",
    ),
    MetricRow::new(
        "sheave_intercepted_connections_unknown",
        &[],
        MetricReader::Count(|it| total(&it.workers, |handle| &handle.counters.intercepted_unknown)),
        "Transparent mode: intercepted connections that were reset, because no Service that is taken has their destination.",
    ),
    MetricRow::new(
        "sheave_detected_protocols",
        &["protocol"],
        MetricReader::Counts(|it, each| {
            for protocol in DetectedProtocol::ALL {
                let count =
                    total(&it.workers, |handle| &handle.counters.detected[protocol as usize]);
                each(protocol.label(), count);
            }
        }),
        "Transparent mode: connections by the protocol of their first bytes; server_first: the endpoint sent the first ones, slow: the client sent too few in time.",
    ),
    MetricRow::new(
        "sheave_client_marks_unavailable",
        &[],
        MetricReader::Count(|it| {
            total(&it.workers, |handle| &handle.counters.client_marks_unavailable)
        }),
        "Transparent mode: times that a client's address could not be kept, so that connections to endpoints come from the node.",
    ),
];

static OF_BACKENDS: &[MetricRow<Backend>] = &[
    MetricRow::new(
        "sheave_backend_queue_seconds",
        BACKEND,
        MetricReader::Histogram(|it| Histogram::sum(it.counters.iter().map(|shard| &shard.queued))),
        "Time in the queue, of requests that had to wait for a slot.",
    ),
    MetricRow::new(
        "sheave_backend_queue_length",
        BACKEND,
        MetricReader::Gauge(|it| f64::from(it.waiting())),
        "Requests waiting in the queue for a slot.",
    ),
    MetricRow::new(
        "sheave_backend_cold_starts",
        BACKEND,
        MetricReader::Count(|it| it.cold_start.count()),
        "Times that requests found no endpoint and the first one came within a minute of the last such request.",
    ),
    MetricRow::new(
        "sheave_backend_last_cold_start_seconds",
        BACKEND,
        MetricReader::Gauge(|it| it.cold_start.last().unwrap_or_default().as_secs_f64()),
        "Duration of the last of these, from the first request without an endpoint to the first endpoint; 0: none.",
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
        "Requests waiting in the queue, by priority, if the BackendPolicy has priorities; may include requests that have just left.",
    ),
    MetricRow::new(
        "sheave_backend_refused",
        &["backend", "reason"],
        MetricReader::Counts(|it, each| {
            for (place, refusal) in Failure::REFUSALS.iter().enumerate() {
                let count = total(&it.counters, |shard| &shard.refused[place]);
                each(refusal.attributes().label, count);
            }
        }),
        "Requests, connections and UDP flows rejected without a slot, by reason.",
    ),
    MetricRow::new(
        "sheave_backend_priorities_ignored",
        BACKEND,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.priorities_ignored)),
        "Requests whose priority header field had an invalid value.",
    ),
    MetricRow::new(
        "sheave_backend_demand",
        BACKEND,
        MetricReader::Gauge(|it| it.demand.read(|averager| averager.average(WINDOW).total())),
        "Mean demand over 15 s at this replica: requests in flight, those that xDS clients report to it included, waiting, and rejected ones for their expected service time.",
    ),
    MetricRow::new(
        "sheave_backend_demand_all_replicas",
        BACKEND,
        MetricReader::Gauge(|it| it.demand.average_of_all(WINDOW).total()),
        "The same at all replicas together, which report it to one another with --lease-slots; each replica has the sum, so do not add them up. Without: as at this replica.",
    ),
    MetricRow::new(
        "sheave_backend_request_seconds",
        &["backend", "kind"],
        MetricReader::Sums(|it, each| {
            let spent = it.demand.read(DemandAverager::request_seconds);
            each("in_flight", spent.in_flight);
            each("queued", spent.queued);
            each("rejected", spent.rejected);
        }),
        "Cumulative time of requests in flight, in the queue, and the expected service time of rejected ones; the rate is the demand.",
    ),
    MetricRow::new(
        "sheave_backend_service_seconds",
        BACKEND,
        MetricReader::Gauge(|it| {
            let service_time = it.demand.read(DemandAverager::service_time);
            service_time.unwrap_or(ASSUMED_SERVICE_TIME).as_secs_f64()
        }),
        "Mean time for which a request holds a slot, with a half-life of 30 s of serving; 1 until a request has been served.",
    ),
    MetricRow::new(
        "sheave_backend_retries",
        BACKEND,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.retries)),
        "Retries: attempts beyond a request's first.",
    ),
    MetricRow::new(
        "sheave_backend_retries_refused",
        BACKEND,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.retries_refused)),
        "Requests that were not retried because the retry budget was exhausted.",
    ),
    MetricRow::new(
        "sheave_backend_ejections",
        BACKEND,
        MetricReader::Count(|it| it.health.ejections.load(Ordering::Relaxed)),
        "Endpoints ejected by outlier detection.",
    ),
    MetricRow::new(
        "sheave_backend_panic",
        BACKEND,
        MetricReader::Gauge(|it| f64::from(u8::from(it.health.is_panicking()))),
        "1 in panic mode: too few endpoints are healthy, so health is ignored.",
    ),
    MetricRow::new(
        "sheave_backend_abandoned",
        BACKEND,
        MetricReader::Count(|it| total(&it.counters, |shard| &shard.abandoned)),
        "Requests abandoned (client disconnected, or timeout) while a capped endpoint was still processing them; the slot stays taken meanwhile.",
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
            for outcome in MirrorOutcome::ALL {
                each(
                    outcome.label(),
                    total(&it.counters, |shard| &shard.mirrors[outcome as usize]),
                );
            }
        }),
        "Mirrored requests by outcome: answered and failed ones were sent, all others were dropped.",
    ),
    MetricRow::new(
        "sheave_backend_authorizations",
        &["backend", "outcome"],
        MetricReader::Counts(|it, each| {
            for outcome in AuthorizationOutcome::ALL {
                each(
                    outcome.label(),
                    total(&it.counters, |shard| &shard.authorizations[outcome as usize]),
                );
            }
        }),
        "Questions to an authorizer by outcome: abandoned are those whose client left.",
    ),
    MetricRow::new(
        "sheave_backend_error_pages",
        &["backend", "outcome"],
        MetricReader::Counts(|it, each| {
            for outcome in ErrorPageOutcome::ALL {
                each(
                    outcome.label(),
                    total(&it.counters, |shard| &shard.error_pages[outcome as usize]),
                );
            }
        }),
        "Queries for error pages by outcome: abandoned are those whose client left.",
    ),
    MetricRow::new(
        "sheave_backend_compressions",
        &["backend", "outcome"],
        MetricReader::Counts(|it, each| {
            for outcome in CompressionOutcome::ALL {
                each(
                    outcome.label(),
                    total(&it.counters, |shard| &shard.compressions[outcome as usize]),
                );
            }
        }),
        "Responses to compress by outcome: skipped were sent as they are, because memory was scarce or the worker compressed too many.",
    ),
    MetricRow::new(
        "sheave_backend_affinity",
        &["backend", "outcome"],
        MetricReader::Counts(|it, each| {
            each("begun", total(&it.counters, |shard| &shard.affinity.begun));
            each("kept", total(&it.counters, |shard| &shard.affinity.kept));
            each("broken", total(&it.counters, |shard| &shard.affinity.broken));
        }),
        "Answered requests with session affinity: begun (new client), kept (served by the affinity target), broken (served by another endpoint).",
    ),
];

static OF_RATE_LIMITS: &[MetricRow<RateLimiter>] = &[
    MetricRow::new(
        "sheave_rate_limit_requests",
        &["policy", "target", "outcome"],
        MetricReader::Counts(|it, each| {
            each("admitted", total(&it.counters, |shard| &shard.admitted));
            each("rejected", total(&it.counters, |shard| &shard.rejected));
        }),
        "Requests to a target of a RateLimitPolicy by outcome: admitted, or rejected.",
    ),
    MetricRow::new(
        "sheave_rate_limit_keys",
        RATE_LIMIT,
        MetricReader::Gauge(|it| it.keys() as f64),
        "Keys, such as client addresses, that this replica has counts of.",
    ),
    MetricRow::new(
        "sheave_rate_limit_keys_forgotten",
        RATE_LIMIT,
        MetricReader::Count(RateLimiter::forgotten),
        "Keys that were forgotten although they had used a part of their limit, because there were too many.",
    ),
];

static OF_TOKENS: &[MetricRow<JwtVerifier>] = &[MetricRow::new(
    "sheave_jwt_requests",
    &["policy", "outcome"],
    MetricReader::Counts(|it, each| JwtCounters::each(&it.counters, each)),
    "Requests that need a token by a SecurityPolicy, by outcome: remembered and verified tokens were accepted, missing ones were not there; the others were refused for this reason.",
)];

static OF_ENDPOINTS: &[MetricRow<Endpoint>] = &[
    MetricRow::new(
        "sheave_endpoint_attempts",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.attempts)),
        "Attempts sent to the endpoint.",
    ),
    MetricRow::new(
        "sheave_endpoint_failures",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.failures)),
        "Attempts that failed through the endpoint's fault.",
    ),
    MetricRow::new(
        "sheave_endpoint_in_flight",
        ENDPOINT,
        MetricReader::Gauge(|it| f64::from(it.in_flight())),
        "Requests in flight at the endpoint, over all backends that contain it.",
    ),
    MetricRow::new(
        "sheave_endpoint_unreachable",
        ENDPOINT,
        MetricReader::Gauge(|it| f64::from(u8::from(!it.is_reachable()))),
        "1 while the endpoint is marked unreachable: a connection attempt failed, and requests go to other endpoints until a background attempt succeeds.",
    ),
    MetricRow::new(
        "sheave_endpoint_outages",
        ENDPOINT,
        MetricReader::Count(|it| it.data.reachability.outages.load(Ordering::Relaxed)),
        "Times that the endpoint was marked unreachable.",
    ),
    MetricRow::new(
        "sheave_endpoint_refusals",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.refusals)),
        "Requests that the endpoint refused because of overload (heedRefusals), so that its limit was reduced for a while.",
    ),
    MetricRow::new(
        "sheave_endpoint_refusals_cut",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.refusals_cut)),
        "Refusals with a Retry-After above 60 seconds, which was capped to 60 seconds.",
    ),
    MetricRow::new(
        "sheave_endpoint_load_reports",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.load_reports)),
        "Responses with a load report of the endpoint (ORCA), if limits are learned.",
    ),
    MetricRow::new(
        "sheave_endpoint_load_reports_ignored",
        &["backend", "endpoint", "reason"],
        MetricReader::Counts(|it, each| {
            for why in LoadReportError::ALL {
                each(
                    why.label(),
                    total(&it.data.counters, |shard| &shard.load_reports_ignored[why as usize]),
                );
            }
        }),
        "Responses whose load report (ORCA) was ignored: several reports, more than 8 KiB, malformed, or with an impossible value.",
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
        "Idle connections to the endpoint in the connection pool.",
    ),
    MetricRow::new(
        "sheave_endpoint_http2_connections_open",
        ENDPOINT,
        MetricReader::Gauge(|it| open_count(it.data.h2_counts(), |counts| &counts.connections)),
        "Open HTTP/2 connections to the endpoint.",
    ),
    MetricRow::new(
        "sheave_endpoint_http2_streams_open",
        ENDPOINT,
        MetricReader::Gauge(|it| open_count(it.data.h2_counts(), |counts| &counts.streams)),
        "Open streams on HTTP/2 connections to the endpoint.",
    ),
    MetricRow::new(
        "sheave_endpoint_http2_goaways",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.http2.goaways)),
        "HTTP/2 connections that the endpoint closed for new requests (GOAWAY).",
    ),
    MetricRow::new(
        "sheave_endpoint_http2_streams_refused",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.http2.streams_refused)),
        "Requests that the endpoint refused without processing (REFUSED_STREAM, or beyond a GOAWAY); they are retried.",
    ),
    MetricRow::new(
        "sheave_endpoint_http3_connections_open",
        ENDPOINT,
        MetricReader::Gauge(|it| open_count(it.data.h3_counts(), |counts| &counts.connections)),
        "Open HTTP/3 connections to the endpoint.",
    ),
    MetricRow::new(
        "sheave_endpoint_http3_streams_open",
        ENDPOINT,
        MetricReader::Gauge(|it| open_count(it.data.h3_counts(), |counts| &counts.streams)),
        "Open request streams on HTTP/3 connections to the endpoint.",
    ),
    MetricRow::new(
        "sheave_endpoint_http3_goaways",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.http3.goaways)),
        "HTTP/3 connections that the endpoint closed for new requests (GOAWAY).",
    ),
    MetricRow::new(
        "sheave_endpoint_http3_streams_refused",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.http3.streams_refused)),
        "Requests that the endpoint refused without processing (H3_REQUEST_REJECTED, or beyond a GOAWAY); they are retried.",
    ),
    MetricRow::new(
        "sheave_endpoint_http3_avoided",
        ENDPOINT,
        MetricReader::Gauge(|it| f64::from(u8::from(!it.data.http3_reachability.is_available()))),
        "1 while HTTP/3 to the endpoint is avoided after a failure and requests use TCP.",
    ),
    MetricRow::new(
        "sheave_endpoint_http3_fallbacks",
        ENDPOINT,
        MetricReader::Count(|it| total(&it.data.counters, |shard| &shard.http3_fallbacks)),
        "Requests that fell back to TCP because HTTP/3 to the endpoint was not available.",
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
    "Concurrency limit of the endpoint, if it has one, with its origin: fixed, assigned (a share of the fixed limit for this replica), learned (start, growing, saturation, probing, or shared with another backend), reported (by the endpoint), or full (reduced after a refusal).",
)];

static OF_WORKERS: &[MetricRow<WorkerCounters>] = &[
    MetricRow::new(
        "sheave_worker_requests",
        WORKER,
        MetricReader::Count(|it| it.requests.value()),
        "Requests served by the worker.",
    ),
    MetricRow::new(
        "sheave_worker_connections_moved",
        WORKER,
        MetricReader::Count(|it| it.moved_in.value()),
        "Client connections moved to this worker from another, to balance load.",
    ),
    MetricRow::new(
        "sheave_worker_replay_refused",
        WORKER,
        MetricReader::Count(|it| it.replay_refused.value()),
        "Requests that were not kept for a retry because the worker's replay memory was exhausted.",
    ),
    MetricRow::new(
        "sheave_access_log_dropped",
        WORKER,
        MetricReader::Count(|it| it.log_dropped.value()),
        "Access log lines dropped because the output was too slow.",
    ),
    MetricRow::new(
        "sheave_traces",
        &["worker", "reason"],
        MetricReader::Counts(|it, each| {
            let counts = TraceReason::ALL.iter().zip(&it.traces);
            counts.for_each(|(reason, count)| each(reason.label(), count.value()));
        }),
        "Traced requests: because the client had sampled its trace (parent), by the share that is traced, or because they were slow or failed.",
    ),
    MetricRow::new(
        "sheave_traces_limited",
        WORKER,
        MetricReader::Count(|it| it.traces_limited.value()),
        "Requests that were to be traced and were not, because of the limit of traces per second.",
    ),
];

/// Returns all metrics of the data plane, in the order in which they are collected.
pub fn metrics() -> impl Iterator<Item = &'static MetricDescription> {
    fn of<T>(rows: &'static [MetricRow<T>]) -> impl Iterator<Item = &'static MetricDescription> {
        rows.iter().map(|row| &row.metric)
    }
    of(OF_LISTENERS)
        .chain(of(OF_ROUTES))
        .chain(of(OF_RATE_LIMITS))
        .chain(of(OF_TOKENS))
        .chain(of(OF_ALL))
        .chain(of(OF_BACKENDS))
        .chain(of(OF_ENDPOINTS))
        .chain(of(OF_LIMITS))
        .chain(of(OF_WORKERS))
}

/// Calls `sink` with every value, grouped by metric.
pub(crate) fn collect(shared: &ProxyState, sink: &mut dyn FnMut(MetricSample<'_>)) {
    let active_config = shared.config.load();
    let listeners = active_config.listeners.iter().flatten();
    let listeners: Vec<_> = listeners.map(|it| ([it.name.to_string()], it)).collect();
    let routes: Vec<_> =
        active_config.routes.iter().map(|it| ([it.name.to_string()], &**it)).collect();
    let rate_limiters = active_config.rate_limiters.iter();
    let rate_limiters: Vec<_> = rate_limiters.map(|it| (it.labels(), &**it)).collect();
    let mut token_verifiers: Vec<_> =
        active_config.jwt.values().map(|it| (it.label(), &**it)).collect();
    token_verifiers.sort_by(|(some, _), (other, _)| some.cmp(other));
    let backends: Vec<_> =
        active_config.backends.iter().map(|it| ([it.name.to_string()], &**it)).collect();
    let current: Vec<_> = active_config.backends.iter().map(|it| (it, it.current())).collect();
    let members = current.iter().flat_map(|(backend, current)| {
        current.set.members().iter().map(|member| (&backend.name, &*member.endpoint))
    });
    let endpoints: Vec<_> =
        members.map(|(name, it)| ([name.to_string(), it.address.to_string()], it)).collect();
    let limits: Vec<_> =
        current.iter().flat_map(|(backend, current)| limited(backend, current)).collect();
    let handles = shared.workers.iter().enumerate();
    let workers: Vec<_> = handles.map(|(index, it)| ([index.to_string()], &it.counters)).collect();
    visit(OF_LISTENERS, &listeners, sink);
    visit(OF_ROUTES, &routes, sink);
    visit(OF_RATE_LIMITS, &rate_limiters, sink);
    visit(OF_TOKENS, &token_verifiers, sink);
    visit(OF_ALL, &[([], shared)], sink);
    visit(OF_BACKENDS, &backends, sink);
    visit(OF_ENDPOINTS, &endpoints, sink);
    visit(OF_LIMITS, &limits, sink);
    visit(OF_WORKERS, &workers, sink);
}

/// Returns the limits of a backend's endpoints that have one, with their labels.
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

/// Sums up a count over all workers.
fn open_count<'t>(
    counts: impl Iterator<Item = &'t ConnectionCounts>,
    pick: fn(&ConnectionCounts) -> &AtomicU32,
) -> f64 {
    f64::from(counts.map(|counts| pick(counts).load(Ordering::Relaxed)).sum::<u32>())
}

fn total<S>(shards: &[S], pick: impl Fn(&S) -> &SingleWriterCounter) -> u64 {
    shards.iter().map(|shard| pick(shard).value()).sum()
}
