//! Metrics as OpenMetrics text: those of the data plane, and those of the process and its configuration.

use std::fmt;
use std::ptr;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use proxy::Proxy;
use proxy::observe::{self, Kind, Metric, Sample, Value};

use crate::process;
use crate::report::{Reload, Report};

pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Those that the data plane does not know.
pub(crate) static METRICS: &[Metric] = &[
    Metric {
        name: "sheave_build_info",
        unit: "",
        help: "Always 1; the label is the version.",
        kind: Kind::Gauge,
        labels: &["version"],
    },
    Metric {
        name: "process_start_time_seconds",
        unit: "seconds",
        help: "When the process started, in seconds since 1970.",
        kind: Kind::Gauge,
        labels: &[],
    },
    Metric {
        name: "process_resident_memory_bytes",
        unit: "bytes",
        help: "Memory in use, shared pages included.",
        kind: Kind::Gauge,
        labels: &[],
    },
    Metric {
        name: "process_open_fds",
        unit: "",
        help: "Open descriptors; each connection is one.",
        kind: Kind::Gauge,
        labels: &[],
    },
    Metric {
        name: "process_max_fds",
        unit: "",
        help: "Descriptors that may be open.",
        kind: Kind::Gauge,
        labels: &[],
    },
    Metric {
        name: "sheave_config_generation",
        unit: "",
        help: "How many configurations have been put in force since the start.",
        kind: Kind::Gauge,
        labels: &[],
    },
    Metric {
        name: "sheave_config_last_applied_timestamp_seconds",
        unit: "seconds",
        help: "When the configuration in force was put in force, in seconds since 1970.",
        kind: Kind::Gauge,
        labels: &[],
    },
    Metric {
        name: "sheave_config_errors",
        unit: "",
        help: "Errors in the configuration that was read last; 0: it is in force.",
        kind: Kind::Gauge,
        labels: &[],
    },
    Metric {
        name: "sheave_config_unbound_listeners",
        unit: "",
        help: "Addresses of the configuration in force that cannot be listened on.",
        kind: Kind::Gauge,
        labels: &[],
    },
    Metric {
        name: "sheave_config_reloads",
        unit: "",
        help: "Configurations read since the start, by what became of them.",
        kind: Kind::Counter,
        labels: &["result"],
    },
];

/// The text that `/metrics` answers.
pub(super) fn render(proxy: &Proxy, report: &Report, started: SystemTime) -> String {
    let mut gathered = Gathered::of(METRICS.iter().chain(observe::METRICS));
    collect(report, started, &mut |sample| gathered.add(&sample));
    proxy.collect(&mut |sample| gathered.add(&sample));
    gathered.encode()
}

fn collect(report: &Report, started: SystemTime, sink: &mut dyn FnMut(Sample<'_>)) {
    let [build, start, memory, open, max, generation, applied, errors, unbound, reloads] = METRICS
    else {
        unreachable!("the pattern names each metric");
    };
    let mut gauge =
        |metric, value| sink(Sample { metric, labels: &[], value: Value::Gauge(value) });
    gauge(start, seconds(started));
    let of_process = [
        (memory, process::resident_bytes()),
        (open, process::open_descriptors()),
        (max, process::max_descriptors()),
    ];
    // What the kernel does not tell is left out.
    for (metric, value) in of_process {
        if let Some(value) = value {
            gauge(metric, value as f64);
        }
    }
    gauge(generation, report.generation as f64);
    gauge(applied, report.applied_at.map_or(0.0, seconds));
    gauge(errors, report.problems.len() as f64);
    gauge(unbound, report.unbound.len() as f64);
    let version = &[env!("CARGO_PKG_VERSION")];
    sink(Sample { metric: build, labels: version, value: Value::Gauge(1.0) });
    for (reload, count) in Reload::ALL.iter().zip(report.reloads) {
        sink(Sample { metric: reloads, labels: &[reload.word()], value: Value::Count(count) });
    }
}

pub(super) fn seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Samples by metric: the text wants all of one metric together.
#[derive(Debug)]
pub(super) struct Gathered {
    families: Vec<Family>,
}

struct Family {
    metric: &'static Metric,
    samples: Vec<Kept>,
}

/// A sample that outlives its collection.
#[derive(Debug)]
struct Kept {
    labels: Vec<(&'static str, String)>,
    value: KeptValue,
}

#[derive(Debug)]
enum KeptValue {
    Count(u64),
    Gauge(f64),
    Histogram { buckets: Vec<(f64, u64)>, sum: f64 },
}

impl Gathered {
    pub(super) fn of(metrics: impl Iterator<Item = &'static Metric>) -> Self {
        Self { families: metrics.map(|metric| Family { metric, samples: Vec::new() }).collect() }
    }

    pub(super) fn add(&mut self, sample: &Sample<'_>) {
        let of_metric = |family: &&mut Family| ptr::eq(family.metric, sample.metric);
        let Some(family) = self.families.iter_mut().find(of_metric) else {
            debug_assert!(false, "{} is not among the metrics", sample.metric.name);
            return;
        };
        let values = sample.labels.iter().map(|value| (*value).to_owned());
        let labels = sample.metric.labels.iter().copied().zip(values).collect();
        let value = match sample.value {
            Value::Count(count) => KeptValue::Count(count),
            Value::Gauge(value) => KeptValue::Gauge(value),
            Value::Histogram { bounds, counts, sum } => {
                let bounds = bounds.iter().copied().chain([f64::INFINITY]);
                KeptValue::Histogram { buckets: bounds.zip(counts.iter().copied()).collect(), sum }
            }
        };
        family.samples.push(Kept { labels, value });
    }

    pub(super) fn encode(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        encode(&mut text, &registry).expect("a String takes what is written");
        text
    }
}

impl Collector for Gathered {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.families.iter().try_for_each(|family| family.encode(&mut encoder))
    }
}

impl Family {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Metric { name, unit, help, kind, .. } = self.metric;
        // The encoder appends the unit to the name.
        let stem = name.strip_suffix(unit).and_then(|stem| stem.strip_suffix('_')).unwrap_or(name);
        let unit = (stem != *name).then(|| Unit::Other((*unit).to_owned()));
        let kind = match kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        let mut encoder = encoder.encode_descriptor(stem, help, unit.as_ref(), kind)?;
        self.samples.iter().try_for_each(|sample| sample.encode(&mut encoder))
    }
}

impl Kept {
    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        if self.labels.is_empty() {
            return self.value.encode(encoder);
        }
        self.value.encode(&mut encoder.encode_family(&self.labels)?)
    }
}

impl KeptValue {
    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => encoder.encode_counter::<NoLabelSet, _, f64>(count, None),
            Self::Gauge(value) => encoder.encode_gauge(value),
            Self::Histogram { buckets, sum } => {
                let count = buckets.iter().map(|(_, count)| count).sum();
                encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
            }
        }
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.metric.name).field("samples", &self.samples).finish()
    }
}
