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
mod line;
/// One JSON line per request.
pub(crate) mod access;
/// Connections and flows that are carried as they are.
pub(crate) mod passage;

pub use metrics::metrics;
pub use row::{Distribution, Each, Exemplar, Kind, Metric, Read, Row, Sample, Value};

pub(crate) use counters::{
    BackendCounters, Counter, EndpointCounters, HandshakeCounters, Histogram, LinkCounters,
    ListenerCounters, QuicCounters, RouteCounters, WorkerCounters,
};
pub(crate) use exemplar::{Exemplars, sampled_trace};
pub(crate) use metrics::collect;
