//! Lists of external metrics, as `external.metrics.k8s.io` has them.
//!
//! Source: `k8s.io/metrics/pkg/apis/external_metrics/v1beta1`.

use proxy::WINDOW;
use serde_json::{Value, json};

use super::api_group::ApiGroup;
use super::metric::{ScalingMetric, quantity};
use super::selection::{LabelledValues, MetricLabels};

/// Returns values as an `ExternalMetricValueList`: the autoscaler adds them up.
pub(super) fn list(metric: ScalingMetric, values: LabelledValues, timestamp: &str) -> Value {
    let item = |(labels, value): (MetricLabels, f64)| {
        let [of_object, of_part] = labels.kind.labels();
        json!({
            "metricName": metric.name(),
            "metricLabels": { of_object: labels.object, of_part: labels.part },
            "timestamp": timestamp,
            "windowSeconds": WINDOW.as_secs(),
            "value": quantity(value),
        })
    };
    json!({
        "kind": "ExternalMetricValueList",
        "apiVersion": ApiGroup::External.group_version(),
        "metadata": {},
        "items": values.into_iter().map(item).collect::<Vec<_>>(),
    })
}

/// Returns the resources of the API: its metrics.
pub(super) fn resources() -> Vec<Value> {
    let resource = |metric: ScalingMetric| {
        json!({
            "name": metric.name(), "singularName": "", "namespaced": true,
            "kind": "ExternalMetricValueList", "verbs": ["get"],
        })
    };
    ScalingMetric::ALL.map(resource).into()
}

#[cfg(test)]
mod tests {
    use super::super::selection::SelectedKind;
    use super::*;

    #[test]
    fn list_has_a_value_of_each_part() {
        let labels = |part: &str| MetricLabels {
            kind: SelectedKind::Route,
            object: "web".to_owned(),
            part: part.to_owned(),
        };
        let values = [(labels("0"), 2.5), (labels("canary"), 0.0001)].into_iter().collect();
        let list = list(ScalingMetric::RequestRate, values, "2026-01-01T00:00:00Z");
        assert_eq!(list["kind"], "ExternalMetricValueList");
        assert_eq!(list["items"][0]["metricName"], "sheave_requests_per_second");
        assert_eq!(list["items"][0]["metricLabels"], json!({ "route": "web", "rule": "0" }));
        assert_eq!(list["items"][0]["value"], "2500m");
        assert_eq!(list["items"][1]["value"], "1m", "a few requests are not none");
        assert_eq!(resources().len(), ScalingMetric::ALL.len());
    }
}
