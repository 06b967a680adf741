//! Metrics of the xDS server.

use ::xds::{ClusterLoad, LoadStatus, ResourceType, ServerStatus};
use proxy::observe::{MetricReader, MetricRow};

/// The metrics. A process without the server has none of them.
pub(crate) static XDS_METRICS: &[MetricRow<ServerStatus>] = &[
    MetricRow::new(
        "sheave_xds_clients",
        &[],
        MetricReader::Gauge(|it| it.clients as f64),
        "xDS clients with a stream.",
    ),
    MetricRow::new(
        "sheave_xds_resources",
        &["type"],
        MetricReader::Gauges(|it, each| {
            for (kind, count) in ResourceType::ALL.iter().zip(it.resources) {
                each(kind.label(), count as f64);
            }
        }),
        "Resources that xDS clients can ask for, by type.",
    ),
    MetricRow::new(
        "sheave_xds_requests",
        &[],
        MetricReader::Count(|it| it.counts.requests),
        "Requests of xDS clients: subscriptions, and replies to responses.",
    ),
    MetricRow::new(
        "sheave_xds_responses",
        &["type"],
        MetricReader::Counts(|it, each| {
            for (kind, count) in ResourceType::ALL.iter().zip(it.counts.responses) {
                each(kind.label(), count);
            }
        }),
        "Responses sent to xDS clients, by type of the resources.",
    ),
    MetricRow::new(
        "sheave_xds_rejected_responses",
        &["type"],
        MetricReader::Counts(|it, each| {
            for (kind, count) in ResourceType::ALL.iter().zip(it.counts.rejected) {
                each(kind.label(), count);
            }
        }),
        "Responses that xDS clients have rejected (NACK), by type; `/api/v1/xds` has their words.",
    ),
    MetricRow::new(
        "sheave_xds_streams",
        &["result"],
        MetricReader::Counts(|it, each| {
            each("accepted", it.counts.streams);
            each("refused", it.counts.refused_streams);
            each("exceeded_limit", it.counts.exceeded_limits);
            each("unacknowledged", it.counts.unacknowledged);
        }),
        "Streams of xDS clients: accepted, refused because there were too many, ended because the client exceeded a \
         limit, and ended because it did not reply to a response in time.",
    ),
    MetricRow::new(
        "sheave_xds_unknown_types",
        &[],
        MetricReader::Count(|it| it.counts.unknown_types),
        "Requests of xDS clients for a type that is not served.",
    ),
    MetricRow::new(
        "sheave_xds_findings",
        &[],
        MetricReader::Gauge(|it| (it.findings.len() + it.further_findings) as f64),
        "Parts of the configuration that xDS clients do not follow; `/api/v1/xds` names them.",
    ),
];

/// Metrics of the load that clients report.
pub(crate) static XDS_LOAD_METRICS: &[MetricRow<LoadStatus>] = &[
    MetricRow::new(
        "sheave_xds_load_clients",
        &[],
        MetricReader::Gauge(|it| it.clients as f64),
        "xDS clients that report their load to this replica.",
    ),
    MetricRow::new(
        "sheave_xds_load_reports",
        &["result"],
        MetricReader::Counts(|it, each| {
            each("accepted", it.reports);
            each("exceeded_limit", it.refused_reports);
            each("refused_stream", it.refused_streams);
        }),
        "Reports of load: accepted, refused because they exceeded a limit, and streams of reports refused because there \
         were too many.",
    ),
    MetricRow::new(
        "sheave_xds_load_unknown_clusters",
        &[],
        MetricReader::Count(|it| it.unknown_clusters),
        "Reports of clusters that are not known, or not any more.",
    ),
];

/// Labels of a backend.
const BACKEND: &[&str] = &["backend"];

/// Metrics of the load of one backend, as clients report it to this replica.
pub(crate) static XDS_BACKEND_METRICS: &[MetricRow<ClusterLoad>] = &[
    MetricRow::new(
        "sheave_xds_backend_in_flight",
        BACKEND,
        MetricReader::Gauge(|it| it.in_progress as f64),
        "Requests in progress of xDS clients, as they report them to this replica; `sheave_backend_demand` includes them.",
    ),
    MetricRow::new(
        "sheave_xds_backend_shares",
        BACKEND,
        MetricReader::Gauge(|it| it.shares as f64),
        "Requests that xDS clients of this replica may have in progress, by their shares of the limits of all endpoints; 0 \
         without a limit.",
    ),
    MetricRow::new(
        "sheave_xds_backend_requests",
        BACKEND,
        MetricReader::Count(|it| it.issued),
        "Requests that xDS clients have sent, as they report them to this replica.",
    ),
    MetricRow::new(
        "sheave_xds_backend_results",
        &["backend", "result"],
        MetricReader::Counts(|it, each| {
            each("succeeded", it.succeeded);
            each("failed", it.failed);
            each("dropped", it.dropped);
        }),
        "Requests of xDS clients by result: succeeded, failed, and not sent because the limit of the backend was reached.",
    ),
];
