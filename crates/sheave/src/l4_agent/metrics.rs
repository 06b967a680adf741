//! Metrics of the agent. To add a metric, add a row.

use l4::TrafficCount;
use proxy::observe::{MetricReader, MetricRow};

use super::agent::L4Agent;
use super::flow_report::protocol_label;
use crate::admin::{ExpositionFormat, ExpositionWriter};

/// Endpoints that have metrics at most: each has three series.
const MAX_ENDPOINTS: usize = 4_000;

/// Metrics of the node.
pub(crate) static L4_METRICS: &[MetricRow<L4Agent>] = &[
    MetricRow::new(
        "sheave_l4_packets_dropped",
        &["reason"],
        MetricReader::Counts(|it, each| {
            for (reason, count) in it.data_path.drops().unwrap_or_default() {
                each(reason.label(), count);
            }
        }),
        "Packets to virtual addresses that the data path has dropped, by reason.",
    ),
    MetricRow::new(
        "sheave_l4_addresses",
        &[],
        MetricReader::Gauge(|it| it.desired.as_ref().map_or(0, |it| it.vips.len()) as f64),
        "Virtual addresses that the data path of this node serves.",
    ),
    MetricRow::new(
        "sheave_l4_findings",
        &[],
        MetricReader::Gauge(|it| it.findings.len() as f64),
        "Parts of Services that the data path of this node does not serve: see /api/v1/l4.",
    ),
    MetricRow::new(
        "sheave_l4_changes",
        &[],
        MetricReader::Count(|it| it.changes),
        "Changes of the data path by this process.",
    ),
    MetricRow::new(
        "sheave_l4_failures",
        &[],
        MetricReader::Count(|it| it.failures),
        "Failed attempts to bring the data path up to date; the one before goes on.",
    ),
];

/// Metrics of each service: the labels are the Service, its address and the protocol.
pub(crate) static SERVICE_METRICS: &[MetricRow<TrafficCount>] = &[
    MetricRow::new(
        "sheave_l4_service_packets",
        &["service", "address", "protocol"],
        MetricReader::Count(|it| it.packets),
        "Packets of a Service that passed this node, in both directions.",
    ),
    MetricRow::new(
        "sheave_l4_service_traffic_bytes",
        &["service", "address", "protocol"],
        MetricReader::Count(|it| it.bytes),
        "Bytes of these packets.",
    ),
    MetricRow::new(
        "sheave_l4_service_connections",
        &["service", "address", "protocol"],
        MetricReader::Count(|it| it.connections),
        "Connections and UDP flows for which this node chose an endpoint.",
    ),
];

/// Metrics of each endpoint: the label is its address.
pub(crate) static ENDPOINT_METRICS: &[MetricRow<TrafficCount>] = &[
    MetricRow::new(
        "sheave_l4_endpoint_packets",
        &["endpoint"],
        MetricReader::Count(|it| it.packets),
        "Packets of an endpoint that passed this node, in both directions; of at most 4,000 endpoints.",
    ),
    MetricRow::new(
        "sheave_l4_endpoint_traffic_bytes",
        &["endpoint"],
        MetricReader::Count(|it| it.bytes),
        "Bytes of these packets.",
    ),
    MetricRow::new(
        "sheave_l4_endpoint_connections",
        &["endpoint"],
        MetricReader::Count(|it| it.connections),
        "Connections and UDP flows for which this node chose the endpoint.",
    ),
];

/// Returns the response body of `/metrics`.
pub(super) fn render(agent: Option<&L4Agent>, format: ExpositionFormat) -> String {
    let mut exposition = ExpositionWriter::new(format);
    let Some(agent) = agent else { return exposition.finish() };
    for row in L4_METRICS {
        row.visit(agent, &[], &mut |sample| exposition.add(&sample));
    }
    let services = service_traffic(agent);
    for row in SERVICE_METRICS {
        for (labels, traffic) in &services {
            let labels = labels.each_ref().map(String::as_str);
            row.visit(traffic, &labels, &mut |sample| exposition.add(&sample));
        }
    }
    let endpoints = endpoint_traffic(agent);
    for row in ENDPOINT_METRICS {
        for (endpoint, traffic) in &endpoints {
            row.visit(traffic, &[endpoint.as_str()], &mut |sample| exposition.add(&sample));
        }
    }
    exposition.finish()
}

fn service_traffic(agent: &L4Agent) -> Vec<([String; 3], TrafficCount)> {
    let services = agent.desired.iter().flat_map(|it| &it.services);
    let traffic = services.filter_map(|it| {
        let id = agent.table.service(it.address, it.protocol)?.id;
        let labels = [
            agent.service_name(it.address, it.protocol).to_owned(),
            it.address.to_string(),
            protocol_label(it.protocol).to_owned(),
        ];
        Some((labels, agent.data_path.service_traffic(id).ok()?))
    });
    traffic.collect()
}

fn endpoint_traffic(agent: &L4Agent) -> Vec<(String, TrafficCount)> {
    let endpoints = agent.endpoints_in_use().take(MAX_ENDPOINTS);
    let traffic = endpoints.filter_map(|(id, address)| {
        Some((address.to_string(), agent.data_path.endpoint_traffic(id).ok()?))
    });
    traffic.collect()
}
