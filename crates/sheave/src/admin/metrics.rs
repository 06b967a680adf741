//! Metrics of the process and its configuration, and how all of them become one text.

use std::time::SystemTime;

use proxy::Proxy;
use proxy::observe::{MetricReader, MetricRow};

use super::exposition::{ExpositionFormat, ExpositionWriter, seconds};
use crate::process;
use crate::report::{ProcessReport, ReloadOutcome};

/// What the data plane does not know. To add a metric is to add a row.
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
        "When the process started, in seconds since 1970.",
    ),
    MetricRow::new(
        "process_resident_memory_bytes",
        &[],
        MetricReader::Gauge(|_| process::resident_bytes().unwrap_or_default() as f64),
        "Memory in use, shared pages included; 0: the kernel does not tell.",
    ),
    MetricRow::new(
        "process_open_fds",
        &[],
        MetricReader::Gauge(|_| process::open_descriptors().unwrap_or_default() as f64),
        "Open descriptors; each connection is one.",
    ),
    MetricRow::new(
        "process_max_fds",
        &[],
        MetricReader::Gauge(|_| {
            process::max_descriptors().map_or(f64::INFINITY, |most| most as f64)
        }),
        "Descriptors that may be open.",
    ),
    MetricRow::new(
        "sheave_config_generation",
        &[],
        MetricReader::Gauge(|it| it.report.generation as f64),
        "How many configurations have been put in force since the start.",
    ),
    MetricRow::new(
        "sheave_config_last_applied_timestamp_seconds",
        &[],
        MetricReader::Gauge(|it| it.report.applied_at.map_or(0.0, seconds)),
        "When the configuration in force was put in force, in seconds since 1970.",
    ),
    MetricRow::new(
        "sheave_config_errors",
        &[],
        MetricReader::Gauge(|it| it.report.problems.len() as f64),
        "Errors in the configuration that was read last; 0: it is in force.",
    ),
    MetricRow::new(
        "sheave_config_unbound_listeners",
        &[],
        MetricReader::Gauge(|it| it.report.unbound.len() as f64),
        "Addresses of the configuration in force that cannot be listened on.",
    ),
    MetricRow::new(
        "sheave_config_reloads",
        &["result"],
        MetricReader::Counts(|it, each| {
            for (reload, count) in ReloadOutcome::ALL.iter().zip(it.report.reloads) {
                each(reload.label(), count);
            }
        }),
        "Configurations read since the start, by what became of them.",
    ),
    MetricRow::new(
        "sheave_certificate_expiry_timestamp_seconds",
        &["certificate"],
        MetricReader::Gauges(|it, each| {
            for dated in it.report.certificates.iter() {
                each(dated.name(), dated.not_after() as f64);
            }
        }),
        "Until when a certificate that is in use holds, in seconds since 1970.",
    ),
    MetricRow::new(
        "sheave_dns_lookups",
        &["result"],
        MetricReader::Counts(|it, each| {
            for (result, count) in ["answered", "failed"].into_iter().zip(it.report.lookups) {
                each(result, count);
            }
        }),
        "Questions to DNS for the addresses of a name, by what became of them.",
    ),
    MetricRow::new(
        "sheave_dns_names_failing",
        &[],
        MetricReader::Gauge(|it| it.report.names_failing as f64),
        "Names of which the last question failed; their last addresses are still used.",
    ),
];

/// What these are metrics of.
pub(crate) struct ProcessState {
    pub(super) report: ProcessReport,
    pub(super) started: SystemTime,
}

/// The text that `/metrics` answers.
pub(super) fn render(proxy: &Proxy, process: &ProcessState, format: ExpositionFormat) -> String {
    let mut exposition = ExpositionWriter::new(format);
    for row in METRICS {
        row.visit(process, &[], &mut |sample| exposition.add(&sample));
    }
    proxy.collect(&mut |sample| exposition.add(&sample));
    exposition.finish()
}
