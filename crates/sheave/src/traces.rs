//! Traces: sends spans of requests to an OpenTelemetry collector, by OTLP over HTTP with protobuf.
//!
//! The data plane hands over batches of spans through a bounded channel. A thread of its own delivers them, so that a
//! collector that is slow, hangs or is away costs memory within bounds, and no request waits.

/// The settings: flags and the environment variables of OpenTelemetry.
mod settings;
/// The messages of OTLP.
mod message;
/// Requests to the collector.
mod collector;
/// The thread that delivers spans.
mod exporter;

pub(crate) use exporter::{PreparedExporter, TraceExporter};
pub(crate) use settings::CollectorUrl;
