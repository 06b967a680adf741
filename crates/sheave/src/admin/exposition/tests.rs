//! Tests of both text formats of metrics.

use std::time::Duration;

use proxy::observe::{MetricReader, MetricRow};

use super::*;

struct SampleSource;

static ROWS: &[MetricRow<SampleSource>] = &[
    MetricRow::new("sent_bytes", &["client"], MetricReader::Count(|_| 3), "A \"count\"\\."),
    MetricRow::new("started_seconds", &[], MetricReader::Gauge(|_| 1.5), "Start time."),
    MetricRow::new(
        "waited_seconds",
        &["client"],
        MetricReader::Histogram(|_| waited()),
        "Waiting time.",
    ),
];

fn waited() -> HistogramData {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
    let exemplar = TraceExemplar { trace_id: "abc".to_owned(), value: 0.75, at };
    let counts = vec![4, 1, 0];
    HistogramData { bounds: &[0.1, 1.0], counts, sum: 7.25, exemplars: vec![None, Some(exemplar)] }
}

fn written(format: ExpositionFormat) -> String {
    let mut exposition = ExpositionWriter::new(format);
    for row in ROWS {
        let labels: &[&str] = if row.metric.labels.is_empty() { &[] } else { &["a\"b\\\n"] };
        row.visit(&SampleSource, labels, &mut |sample| exposition.add(&sample));
    }
    exposition.finish()
}

#[test]
fn open_metrics_has_units_exemplars_and_eof() {
    assert_eq!(
        written(ExpositionFormat::OpenMetrics),
        r#"# HELP sent_bytes A \"count\"\\.
# TYPE sent_bytes counter
# UNIT sent_bytes bytes
sent_bytes_total{client="a\"b\\\n"} 3
# HELP started_seconds Start time.
# TYPE started_seconds gauge
# UNIT started_seconds seconds
started_seconds 1.5
# HELP waited_seconds Waiting time.
# TYPE waited_seconds histogram
# UNIT waited_seconds seconds
waited_seconds_bucket{client="a\"b\\\n",le="0.1"} 4
waited_seconds_bucket{client="a\"b\\\n",le="1.0"} 5 # {trace_id="abc"} 0.75 1.500
waited_seconds_bucket{client="a\"b\\\n",le="+Inf"} 5
waited_seconds_sum{client="a\"b\\\n"} 7.25
waited_seconds_count{client="a\"b\\\n"} 5
# EOF
"#
    );
}

#[test]
fn prometheus_format_names_samples_and_has_no_exemplars() {
    let text = written(ExpositionFormat::Prometheus);
    assert!(text.contains("# TYPE sent_bytes_total counter\nsent_bytes_total{"), "{text}");
    assert!(text.contains("# TYPE waited_seconds histogram\nwaited_seconds_bucket{"), "{text}");
    for absent in ["# UNIT", "# EOF", "trace_id"] {
        assert!(!text.contains(absent), "{absent} in {text}");
    }
}

#[test]
fn open_metrics_is_selected_by_the_accept_header() {
    let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    assert_eq!(ExpositionFormat::negotiate(prometheus), ExpositionFormat::OpenMetrics);
    assert_eq!(
        ExpositionFormat::negotiate("text/plain, Application/OpenMetrics-Text"),
        ExpositionFormat::OpenMetrics
    );
    for other in ["", "*/*", "text/plain", "application/openmetrics-text; q=0"] {
        assert_eq!(ExpositionFormat::negotiate(other), ExpositionFormat::Prometheus, "{other}");
    }
}
