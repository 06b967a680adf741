//! Flags of traces.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{OBSERVE, values};
use crate::traces::CollectorUrl;

/// Flags of traces of requests.
#[derive(Clone, Debug, Args)]
pub(crate) struct TraceFlags {
    /// URL of an OpenTelemetry collector to which traces of requests are sent: OTLP over HTTP, at the path /v1/traces
    /// below the URL, as http://collector:4318. Without it, OTEL_EXPORTER_OTLP_ENDPOINT names the collector, if it is
    /// set.
    ///
    /// OTEL_EXPORTER_OTLP_HEADERS has header fields for it, such as a token. If the collector cannot be reached or is
    /// slow, spans are dropped and counted; no request waits for it.
    #[arg(long, value_name = "URL", help_heading = OBSERVE)]
    pub(crate) otlp_endpoint: Option<CollectorUrl>,

    /// File with the authorities of a collector with https, PEM [default: those that the system trusts].
    #[arg(long, value_name = "FILE", help_heading = OBSERVE)]
    pub(crate) otlp_ca: Option<PathBuf>,

    /// Share of requests that are traced, 0 to 1, if their clients have not decided.
    ///
    /// If a client sends its trace with `traceparent` or B3, its decision is followed. Requests that fail, and slow ones
    /// (--trace-slow), are traced in any case [default: 1, or that of OTEL_TRACES_SAMPLER].
    #[arg(long, value_name = "FRACTION", value_parser = values::share, help_heading = OBSERVE)]
    pub(crate) trace_share: Option<f64>,

    /// Duration from which a request is traced in any case [default: none].
    #[arg(long, value_name = "DURATION", value_parser = values::positive_duration, help_heading = OBSERVE)]
    pub(crate) trace_slow: Option<Duration>,

    /// Maximum number of traces per second of this process, and again of slow and failed requests: clients can ask for
    /// traces of all of their requests.
    #[arg(long, value_name = "N", default_value = "100", help_heading = OBSERVE)]
    pub(crate) trace_limit: NonZeroU32,
}
