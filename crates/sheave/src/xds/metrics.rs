//! Metrics of the xDS server.

use ::xds::{ResourceType, ServerStatus};
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
