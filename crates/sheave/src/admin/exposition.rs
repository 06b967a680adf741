//! Metrics as text, in the format that the client asks for: OpenMetrics 1.0 or the older Prometheus text format.
//!
//! It knows the text formats, not the metrics.

use std::fmt::{self, Display, Write};
use std::ptr;
use std::time::SystemTime;

use proxy::observe::{
    HistogramData, MetricDescription, MetricKind, MetricReading, MetricSample, TraceExemplar,
};

/// Text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpositionFormat {
    /// OpenMetrics 1.0, with units and exemplars.
    OpenMetrics,
    /// Prometheus text format 0.0.4, understood by every scraper.
    Prometheus,
}

impl ExpositionFormat {
    /// Selects OpenMetrics if `accept` names it with a `q` other than 0.
    pub(crate) fn negotiate(accept: &str) -> Self {
        let asks = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            let named = parts
                .next()
                .is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"));
            let refused = |part: &str| {
                let quality = part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="));
                quality.and_then(|quality| quality.parse().ok()) == Some(0.0)
            };
            named && !parts.any(refused)
        };
        if accept.split(',').any(asks) { Self::OpenMetrics } else { Self::Prometheus }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Writer of samples as text; the samples of one metric must be consecutive.
pub(crate) struct ExpositionWriter {
    format: ExpositionFormat,
    text: String,
    /// Metric of the samples being written.
    metric: Option<&'static MetricDescription>,
}

impl ExpositionWriter {
    pub(crate) fn new(format: ExpositionFormat) -> Self {
        Self { format, text: String::new(), metric: None }
    }

    pub(crate) fn add(&mut self, sample: &MetricSample<'_>) {
        if !self.metric.is_some_and(|metric| ptr::eq(metric, sample.metric)) {
            self.metric = Some(sample.metric);
            self.head(sample.metric);
        }
        match sample.value {
            MetricReading::Count(count) => self.line(sample, "_total", None, count),
            MetricReading::Sum(sum) => self.line(sample, "_total", None, sum),
            MetricReading::Gauge(value) => self.line(sample, "", None, value),
            MetricReading::Histogram(distribution) => self.histogram(sample, distribution),
        }
    }

    pub(crate) fn finish(mut self) -> String {
        if self.format == ExpositionFormat::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn head(&mut self, metric: &MetricDescription) {
        let (kind, suffix) = match metric.kind {
            MetricKind::Counter => ("counter", "_total"),
            MetricKind::Gauge => ("gauge", ""),
            MetricKind::Histogram => ("histogram", ""),
        };
        // OpenMetrics names the metric family, the older format names the sample.
        let suffix = if self.format == ExpositionFormat::OpenMetrics { "" } else { suffix };
        let name = metric.name;
        self.put(format_args!("# HELP {name}{suffix} "));
        escape(&mut self.text, metric.help);
        self.put(format_args!("\n# TYPE {name}{suffix} {kind}\n"));
        if self.format == ExpositionFormat::OpenMetrics && !metric.unit().is_empty() {
            self.put(format_args!("# UNIT {name} {}\n", metric.unit()));
        }
    }

    fn histogram(&mut self, sample: &MetricSample<'_>, distribution: &HistogramData) {
        let HistogramData { bounds, counts, sum, exemplars } = distribution;
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        let mut below = 0;
        for (index, (bound, count)) in bounds.zip(counts).enumerate() {
            below += count;
            self.line(sample, "_bucket", Some(bound), below);
            if let Some(Some(exemplar)) = exemplars.get(index)
                && self.format == ExpositionFormat::OpenMetrics
            {
                self.exemplar(exemplar);
            }
        }
        self.line(sample, "_sum", None, sum);
        self.line(sample, "_count", None, below);
    }

    fn line(
        &mut self,
        sample: &MetricSample<'_>,
        suffix: &str,
        bound: Option<f64>,
        value: impl Display,
    ) {
        let MetricSample { metric, labels, .. } = sample;
        self.put(format_args!("{}{suffix}", metric.name));
        let mut before = '{';
        for (name, value) in metric.labels.iter().zip(*labels) {
            self.put(format_args!("{before}{name}=\""));
            escape(&mut self.text, value);
            self.text.push('"');
            before = ',';
        }
        match bound {
            Some(f64::INFINITY) => self.put(format_args!("{before}le=\"+Inf\"}}")),
            // Writes `1.0` and not `1`: both formats accept it, and OpenMetrics requires it.
            Some(bound) => self.put(format_args!("{before}le=\"{bound:?}\"}}")),
            None if before == ',' => self.text.push('}'),
            None => {}
        }
        self.put(format_args!(" {value}\n"));
    }

    /// Appends the exemplar to the last line.
    fn exemplar(&mut self, exemplar: &TraceExemplar) {
        let TraceExemplar { trace_id, value, at } = exemplar;
        self.text.truncate(self.text.trim_end().len());
        self.put(format_args!(" # {{trace_id=\"{trace_id}\"}} {value} {:.3}\n", seconds(*at)));
    }

    fn put(&mut self, arguments: fmt::Arguments<'_>) {
        self.text.write_fmt(arguments).expect("writing to a String cannot fail");
    }
}

pub(super) fn seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn escape(text: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            plain => text.push(plain),
        }
    }
}

#[cfg(test)]
mod tests;
