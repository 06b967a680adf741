//! What happened: counters that each worker writes alone, the metrics made of them, and the access log.

/// Counters, one shard per worker.
mod counters;
/// Traces that show what a histogram counts.
mod exemplar;
/// What a metric is.
mod row;
/// Every metric, by what it measures.
mod metrics;
/// A line of JSON.
mod json_line;
/// One JSON line per request.
pub(crate) mod access;
/// Connections and flows that are carried as they are.
pub(crate) mod l4_record;

pub use metrics::metrics;
pub use row::{
    HistogramData, LabelSink, MetricDescription, MetricKind, MetricReader, MetricReading,
    MetricRow, MetricSample, TraceExemplar,
};

pub(crate) use counters::{
    BackendCounters, EndpointCounters, HandshakeCounters, Histogram, ListenerCounters,
    MultiplexCounters, QuicCounters, RouteCounters, SingleWriterCounter, WorkerCounters,
};
pub(crate) use exemplar::{ExemplarStore, sampled_trace};
pub(crate) use metrics::collect;
