//! A HorizontalPodAutoscaler (`autoscaling/v2`), as far as its next step depends on it.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::quantity;
use crate::metrics_api::{LabelSelector, ScalingMetric, SelectedKind};

/// HorizontalPodAutoscaler.
#[derive(Debug, Deserialize)]
pub(super) struct AutoscalerObject {
    pub(super) metadata: ObjectName,
    pub(super) spec: AutoscalerSpec,
    #[serde(default)]
    pub(super) status: AutoscalerStatus,
}

#[derive(Debug, Deserialize)]
pub(super) struct ObjectName {
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AutoscalerSpec {
    pub(super) scale_target_ref: ObjectReference,
    pub(super) min_replicas: Option<u32>,
    pub(super) max_replicas: u32,
    #[serde(default)]
    pub(super) metrics: Vec<MetricSpec>,
    /// `None`: other limits than those of an empty one.
    pub(super) behavior: Option<AutoscalerBehavior>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ObjectReference {
    pub(super) kind: String,
    pub(super) name: String,
}

/// One metric; that of another type than these is not known here.
#[derive(Debug, Deserialize)]
pub(super) struct MetricSpec {
    #[serde(rename = "type")]
    kind: String,
    external: Option<ExternalSource>,
    object: Option<ObjectMetricSource>,
}

#[derive(Debug, Deserialize)]
struct ExternalSource {
    metric: MetricIdentifier,
    target: MetricTarget,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectMetricSource {
    described_object: ObjectReference,
    metric: MetricIdentifier,
    target: MetricTarget,
}

#[derive(Debug, Deserialize)]
struct MetricIdentifier {
    name: String,
    selector: Option<SelectorSpec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SelectorSpec {
    #[serde(default)]
    match_labels: BTreeMap<String, String>,
    #[serde(default)]
    match_expressions: Vec<SelectorExpression>,
}

#[derive(Debug, Deserialize)]
struct SelectorExpression {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricTarget {
    value: Option<String>,
    average_value: Option<String>,
}

/// Rules for the steps.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AutoscalerBehavior {
    pub(super) scale_up: Option<ScalingRules>,
    pub(super) scale_down: Option<ScalingRules>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ScalingRules {
    pub(super) stabilization_window_seconds: Option<u32>,
    pub(super) select_policy: Option<String>,
    #[serde(default)]
    pub(super) policies: Vec<ScalingPolicy>,
    pub(super) tolerance: Option<String>,
}

/// Most pods of a step.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ScalingPolicy {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) value: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AutoscalerStatus {
    pub(super) current_replicas: Option<u32>,
    #[serde(default)]
    pub(super) conditions: Vec<AutoscalerCondition>,
}

#[derive(Debug, Deserialize)]
pub(super) struct AutoscalerCondition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    #[serde(default)]
    pub(super) reason: String,
    #[serde(default)]
    pub(super) message: String,
}

/// Use of a metric of Sheave: of a Service or a route, with its target.
#[derive(Debug)]
pub(super) struct MetricUse {
    pub(super) metric: ScalingMetric,
    pub(super) kind: SelectedKind,
    /// Selection of the metric, for people.
    pub(super) selection: String,
    pub(super) target: TargetValue,
    selector: LabelSelector,
    /// Name of the described object, if the metric is one of an object.
    object: Option<String>,
}

/// Target of a metric.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TargetValue {
    /// Value for each pod.
    Average(f64),
    /// Value for all pods together.
    Total(f64),
    /// No positive number.
    Invalid(String),
}

impl MetricSpec {
    /// Returns the name, for people.
    pub(super) fn name(&self) -> String {
        let external = self.external.as_ref().map(|it| &it.metric);
        match external.or_else(|| self.object.as_ref().map(|it| &it.metric)) {
            Some(metric) => format!("{} {}", self.kind, metric.name),
            None => self.kind.clone(),
        }
    }

    /// Returns the use of a metric of Sheave; `None`: the metric is another one.
    pub(super) fn of_sheave(&self) -> Option<MetricUse> {
        let (identifier, target, described) = match (&self.external, &self.object) {
            (Some(external), _) => (&external.metric, &external.target, None),
            (None, Some(object)) => {
                (&object.metric, &object.target, Some(&object.described_object))
            }
            (None, None) => return None,
        };
        let metric = ScalingMetric::of_name(&identifier.name)?;
        let text = identifier.selector.as_ref().map(SelectorSpec::text).unwrap_or_default();
        // The API server accepts no selector that is malformed.
        let selector = LabelSelector::parse(&text).ok()?;
        let kind = match described {
            Some(object) => object.selected_kind()?,
            None => match (selector.names("service"), selector.names("route")) {
                (true, false) => SelectedKind::Service,
                (false, true) => SelectedKind::Route,
                // Sheave has no such metric.
                (true, true) | (false, false) => return None,
            },
        };
        let selection = match (described, text.is_empty()) {
            (None, _) => text,
            (Some(object), true) => format!("{} {}", object.kind, object.name),
            (Some(object), false) => format!("{} {}, {text}", object.kind, object.name),
        };
        let (target, object) = (target.parse(), described.map(|it| it.name.clone()));
        Some(MetricUse { metric, kind, selection, target, selector, object })
    }
}

impl ObjectReference {
    /// Returns the kind of an object that has metrics; `None`: objects of its kind have none.
    fn selected_kind(&self) -> Option<SelectedKind> {
        match self.kind.as_str() {
            "Service" => Some(SelectedKind::Service),
            "HTTPRoute" | "GRPCRoute" => Some(SelectedKind::Route),
            _ => None,
        }
    }
}

impl MetricUse {
    /// True if the metric is one of this port of a Service.
    pub(super) fn selects_port(&self, service: &str, port: u16) -> bool {
        self.selects(SelectedKind::Service, service, &port.to_string())
    }

    /// True if the metric is one of this rule of a route.
    pub(super) fn selects_rule(&self, route: &str, rule: &str) -> bool {
        self.selects(SelectedKind::Route, route, rule)
    }

    fn selects(&self, kind: SelectedKind, object: &str, part: &str) -> bool {
        let [of_object, of_part] = kind.labels();
        let value = |label: &str| {
            let known = [(of_object, object), (of_part, part)];
            known.into_iter().find_map(|(name, value)| (name == label).then_some(value.into()))
        };
        self.kind == kind
            && self.object.as_ref().is_none_or(|name| name == object)
            && self.selector.matches(value)
    }
}

impl SelectorSpec {
    /// Returns the selector in the text form of the API.
    fn text(&self) -> String {
        let labels = self.match_labels.iter().map(|(label, value)| format!("{label}={value}"));
        let expression = |it: &SelectorExpression| {
            let SelectorExpression { key, operator, values } = it;
            let values = values.join(",");
            match operator.as_str() {
                "In" => format!("{key} in ({values})"),
                "NotIn" => format!("{key} notin ({values})"),
                "DoesNotExist" => format!("!{key}"),
                _ => key.clone(),
            }
        };
        let expressions = self.match_expressions.iter().map(expression);
        labels.chain(expressions).collect::<Vec<_>>().join(",")
    }
}

impl MetricTarget {
    fn parse(&self) -> TargetValue {
        let positive = |text: &String| quantity::parse(text).filter(|number| *number > 0.0);
        match (&self.average_value, &self.value) {
            (Some(text), _) => match positive(text) {
                Some(number) => TargetValue::Average(number),
                None => TargetValue::Invalid(format!("averageValue {text:?}")),
            },
            (None, Some(text)) => match positive(text) {
                Some(number) => TargetValue::Total(number),
                None => TargetValue::Invalid(format!("value {text:?}")),
            },
            (None, None) => TargetValue::Invalid("neither averageValue nor value".to_owned()),
        }
    }
}
