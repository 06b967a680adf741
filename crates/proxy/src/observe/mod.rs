//! What happened: counters that each worker writes alone, the metrics made of them, and the access log.

/// Counters, one shard per worker.
mod counters;
/// Every metric: name, unit, help, and how it is collected.
mod metrics;
/// One JSON line per request.
pub(crate) mod access;

pub use metrics::{Kind, METRICS, Metric, Sample, Value};

pub(crate) use counters::{
    BackendCounters, Counter, EndpointCounters, Histogram, ListenerCounters, RouteCounters,
    WorkerCounters,
};
pub(crate) use metrics::collect;
