//! Metrics of the process and its configuration, and the text of `/metrics`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use proxy::Proxy;
use proxy::observe::{MetricReader, MetricRow};

use super::ComponentStatuses;
use super::exposition::{ExpositionFormat, ExpositionWriter, seconds};
use crate::log::DroppedEvents;
use crate::process;
use crate::replicas::REPLICA_METRICS;
use crate::report::{ProcessReport, ReloadOutcome};
use crate::transparent::TRANSPARENT_METRICS;
use crate::xds::{XDS_BACKEND_METRICS, XDS_LOAD_METRICS, XDS_METRICS};

/// Metrics that the data plane does not have. To add a metric, add a row.
pub(crate) static METRICS: &[MetricRow<ProcessState>] = &[
    MetricRow::new(
        "sheave_build_info",
        &["version"],
        MetricReader::Gauges(|_, each| each(env!("CARGO_PKG_VERSION"), 1.0)),
        "Always 1; the label is the version.",
    ),
    MetricRow::new(
        "process_start_time_seconds",
        &[],
        MetricReader::Gauge(|it| seconds(it.started)),
        "Start time of the process, in seconds since the Unix epoch.",
    ),
    MetricRow::new(
        "process_resident_memory_bytes",
        &[],
        MetricReader::Gauge(|_| process::resident_bytes().unwrap_or_default() as f64),
        "Resident memory, including shared pages; 0 if unknown.",
    ),
    MetricRow::new(
        "process_open_fds",
        &[],
        MetricReader::Gauge(|_| process::open_descriptors().unwrap_or_default() as f64),
        "Open file descriptors; each connection uses one.",
    ),
    MetricRow::new(
        "process_max_fds",
        &[],
        MetricReader::Gauge(|_| {
            process::max_descriptors().map_or(f64::INFINITY, |most| most as f64)
        }),
        "Limit of open file descriptors.",
    ),
    MetricRow::new(
        "sheave_config_generation",
        &[],
        MetricReader::Gauge(|it| it.report.generation as f64),
        "Configurations applied since the start.",
    ),
    MetricRow::new(
        "sheave_config_last_applied_timestamp_seconds",
        &[],
        MetricReader::Gauge(|it| it.report.applied_at.map_or(0.0, seconds)),
        "Time at which the configuration in force was applied, in seconds since the Unix epoch.",
    ),
    MetricRow::new(
        "sheave_config_errors",
        &[],
        MetricReader::Gauge(|it| it.report.problems.len() as f64),
        "Errors in the configuration read last; if 0, that configuration is in force.",
    ),
    MetricRow::new(
        "sheave_config_unbound_listeners",
        &[],
        MetricReader::Gauge(|it| it.report.unbound.len() as f64),
        "Listener addresses of the configuration in force that could not be bound.",
    ),
    MetricRow::new(
        "sheave_config_reloads",
        &["result"],
        MetricReader::Counts(|it, each| {
            for (reload, count) in ReloadOutcome::ALL.iter().zip(it.report.reloads) {
                each(reload.label(), count);
            }
        }),
        "Configurations read since the start, by result.",
    ),
    MetricRow::new(
        "sheave_certificate_expiry_timestamp_seconds",
        &["certificate"],
        MetricReader::Gauges(|it, each| {
            for validity in it.report.certificates.iter() {
                each(validity.name(), validity.not_after() as f64);
            }
        }),
        "Expiry time of a certificate in use, in seconds since the Unix epoch.",
    ),
    MetricRow::new(
        "sheave_dns_lookups",
        &["result"],
        MetricReader::Counts(|it, each| {
            for (result, count) in ["answered", "failed"].into_iter().zip(it.report.lookups) {
                each(result, count);
            }
        }),
        "DNS lookups of endpoint names, by result.",
    ),
    MetricRow::new(
        "sheave_dns_names_failing",
        &[],
        MetricReader::Gauge(|it| it.report.names_failing as f64),
        "Endpoint names whose last DNS lookup failed; their last known addresses stay in use.",
    ),
    MetricRow::new(
        "sheave_jwks_fetches",
        &["result"],
        MetricReader::Counts(|it, each| {
            for (result, count) in ["done", "failed"].into_iter().zip(it.report.key_set_fetches) {
                each(result, count);
            }
        }),
        "Fetches of key sets of SecurityPolicies (JWKS) by URL, by result.",
    ),
    MetricRow::new(
        "sheave_jwks_failing",
        &[],
        MetricReader::Gauge(|it| it.report.key_sets_failing as f64),
        "Key sets whose last fetch failed; the last key set stays in use until it is too old.",
    ),
    MetricRow::new(
        "sheave_jwks_missing",
        &[],
        MetricReader::Gauge(|it| it.report.key_sets_missing as f64),
        "Key sets that are not there, because they have not been fetched yet or are too old: tokens of their issuers are refused.",
    ),
    MetricRow::new(
        "sheave_log_events_dropped",
        &["reason"],
        MetricReader::Counts(|it, each| {
            each("queue_full", it.dropped_events.queue_full.load(Ordering::Relaxed));
            each("repeated", it.dropped_events.repeated.load(Ordering::Relaxed));
        }),
        "Log events that were not written: standard error is not read fast enough (`queue_full`), or one kind of event \
         was logged too often (`repeated`).",
    ),
];

/// Input of the readers of these metrics.
pub(crate) struct ProcessState {
    pub(super) report: ProcessReport,
    pub(super) dropped_events: Arc<DroppedEvents>,
    pub(super) components: ComponentStatuses,
    pub(super) started: SystemTime,
}

/// Returns the response body of `/metrics`.
pub(super) fn render(proxy: &Proxy, process: &ProcessState, format: ExpositionFormat) -> String {
    let mut exposition = ExpositionWriter::new(format);
    for row in METRICS {
        row.visit(process, &[], &mut |sample| exposition.add(&sample));
    }
    if let Some(agent) = &process.components.agent {
        for row in TRANSPARENT_METRICS {
            row.visit(agent, &[], &mut |sample| exposition.add(&sample));
        }
    }
    if let Some(replicas) = &process.components.replicas {
        for row in REPLICA_METRICS {
            row.visit(replicas, &[], &mut |sample| exposition.add(&sample));
        }
    }
    if let Some(publisher) = &process.components.xds {
        let status = publisher.status();
        for row in XDS_METRICS {
            row.visit(&status, &[], &mut |sample| exposition.add(&sample));
        }
        let load = publisher.load();
        for row in XDS_LOAD_METRICS {
            row.visit(&load, &[], &mut |sample| exposition.add(&sample));
        }
        let backends = load.clusters.iter().map(|(key, load)| (key.to_string(), load));
        let backends: Vec<_> = backends.collect();
        for row in XDS_BACKEND_METRICS {
            for (name, load) in &backends {
                row.visit(load, &[name.as_str()], &mut |sample| exposition.add(&sample));
            }
        }
    }
    proxy.collect(&mut |sample| exposition.add(&sample));
    exposition.finish()
}
