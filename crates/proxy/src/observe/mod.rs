//! Observability: counters with a single writer each, the metrics built from them, and the access log.

/// Counters, one shard per worker.
mod counters;
/// Exemplars: trace IDs for the buckets of a histogram.
mod exemplar;
/// The definition of a metric.
mod row;
/// All metrics, by the object that they measure.
mod metrics;
/// The attributes of a request, however they are written.
mod attribute_sink;
/// A writer of JSON lines.
mod json_line;
/// One JSON line per request.
pub(crate) mod access;
/// Batches of lines, and the thread that writes them.
pub(crate) mod log_buffer;
/// Records of L4 sessions: TCP connections and UDP flows.
pub(crate) mod l4_record;

pub use metrics::metrics;
pub use row::{
    HistogramData, LabelSink, MetricDescription, MetricKind, MetricReader, MetricReading,
    MetricRow, MetricSample, TraceExemplar,
};

pub(crate) use attribute_sink::AttributeSink;
pub(crate) use counters::{
    BackendCounters, EndpointCounters, HandshakeCounters, Histogram, ListenerCounters,
    MultiplexCounters, RouteCounters, SingleWriterCounter, WorkerCounters,
};
pub(crate) use exemplar::{ExemplarStore, sampled_trace};
pub(crate) use metrics::collect;
