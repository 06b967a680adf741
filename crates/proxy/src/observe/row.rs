//! The definition of a metric: a row of a table with a reader function, which also determines the metric's kind.
//!
//! This module knows nothing about the measured objects; the tables do.

use std::time::SystemTime;

/// Name, help text, kind and labels of a metric.
#[derive(Debug)]
pub struct MetricDescription {
    /// Prometheus name without `_total`; a metric that is not a count ends with its unit.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricKind,
    pub labels: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric with one value for each `T`.
pub struct MetricRow<T> {
    pub metric: MetricDescription,
    read: MetricReader<T>,
}

/// The function that reads a value; the variant determines the metric's kind.
pub enum MetricReader<T> {
    Count(fn(&T) -> u64),
    /// One for each value of the last label.
    Counts(fn(&T, &mut LabelSink<'_, u64>)),
    /// One for each value of the last label; a counter with fractional increments.
    Sums(fn(&T, &mut LabelSink<'_, f64>)),
    Gauge(fn(&T) -> f64),
    /// One for each value of the last label.
    Gauges(fn(&T, &mut LabelSink<'_, f64>)),
    Histogram(fn(&T) -> HistogramData),
}

/// A callback that takes a value of the last label, and the metric's value for it.
pub type LabelSink<'e, V> = dyn FnMut(&str, V) + 'e;

/// One value of one metric.
pub struct MetricSample<'a> {
    pub metric: &'static MetricDescription,
    /// In the order of the metric's labels.
    pub labels: &'a [&'a str],
    pub value: MetricReading<'a>,
}

pub enum MetricReading<'a> {
    Count(u64),
    Sum(f64),
    Gauge(f64),
    Histogram(&'a HistogramData),
}

/// Values by bucket.
pub struct HistogramData {
    pub bounds: &'static [f64],
    /// One more entry than `bounds`; not cumulative.
    pub counts: Vec<u64>,
    pub sum: f64,
    /// An exemplar of each bucket, if there is one; empty: no exemplars are kept.
    pub exemplars: Vec<Option<TraceExemplar>>,
}

/// One observation and the ID of its trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceExemplar {
    /// 32 lower-case hexadecimal digits.
    pub trace_id: String,
    pub value: f64,
    pub at: SystemTime,
}

impl MetricDescription {
    /// Returns `seconds`, `bytes`, or an empty string for a count.
    pub fn unit(&self) -> &'static str {
        let ends_with = |unit: &&str| self.name.rsplit('_').next() == Some(unit);
        ["seconds", "bytes"].into_iter().find(ends_with).unwrap_or_default()
    }
}

impl<T> MetricRow<T> {
    pub const fn new(
        name: &'static str,
        labels: &'static [&'static str],
        read: MetricReader<T>,
        help: &'static str,
    ) -> Self {
        let kind = match &read {
            MetricReader::Count(_) | MetricReader::Counts(_) | MetricReader::Sums(_) => {
                MetricKind::Counter
            }
            MetricReader::Gauge(_) | MetricReader::Gauges(_) => MetricKind::Gauge,
            MetricReader::Histogram(_) => MetricKind::Histogram,
        };
        Self { metric: MetricDescription { name, help, kind, labels }, read }
    }

    /// Calls `sink` with the values of one subject, which `labels` identify.
    pub fn visit(
        &'static self,
        subject: &T,
        labels: &[&str],
        sink: &mut dyn FnMut(MetricSample<'_>),
    ) {
        let metric = &self.metric;
        match self.read {
            MetricReader::Count(read) => {
                sink(MetricSample { metric, labels, value: MetricReading::Count(read(subject)) });
            }
            MetricReader::Gauge(read) => {
                sink(MetricSample { metric, labels, value: MetricReading::Gauge(read(subject)) });
            }
            MetricReader::Histogram(read) => {
                sink(MetricSample {
                    metric,
                    labels,
                    value: MetricReading::Histogram(&read(subject)),
                });
            }
            MetricReader::Counts(read) => read(subject, &mut |label, count| {
                let labels = &[labels, &[label]].concat();
                sink(MetricSample { metric, labels, value: MetricReading::Count(count) });
            }),
            MetricReader::Sums(read) => read(subject, &mut |label, sum| {
                let labels = &[labels, &[label]].concat();
                sink(MetricSample { metric, labels, value: MetricReading::Sum(sum) });
            }),
            MetricReader::Gauges(read) => read(subject, &mut |label, value| {
                let labels = &[labels, &[label]].concat();
                sink(MetricSample { metric, labels, value: MetricReading::Gauge(value) });
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_is_the_metric_name_suffix() {
        let unit =
            |name| MetricRow::new(name, &[], MetricReader::Count(|(): &()| 0), "").metric.unit();
        assert_eq!(unit("sheave_queue_seconds"), "seconds");
        assert_eq!(unit("sheave_sent_bytes"), "bytes");
        assert_eq!(unit("sheave_requests"), "");
    }

    #[test]
    fn each_value_of_the_last_label_is_a_sample() {
        static ROW: MetricRow<[u64; 2]> = MetricRow::new(
            "things",
            &["of", "kind"],
            MetricReader::Counts(|counts, each| {
                each("small", counts[0]);
                each("large", counts[1]);
            }),
            "",
        );
        let mut seen = Vec::new();
        ROW.visit(&[3, 4], &["here"], &mut |sample| {
            let MetricReading::Count(count) = sample.value else { panic!("a count") };
            seen.push((sample.labels.join(" "), count));
        });
        assert_eq!(seen, [("here small".to_owned(), 3), ("here large".to_owned(), 4)]);
    }
}
