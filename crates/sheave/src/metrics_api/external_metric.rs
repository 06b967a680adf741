//! External metrics: their names, and their values for a query of an autoscaler.
//!
//! Source: `k8s.io/metrics/pkg/apis/external_metrics/v1beta1`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::http::StatusCode;
use gateway::snapshot::BackendKey;
use proxy::{RequestDemand, WINDOW};
use serde_json::{Value, json};

use super::label_selector::LabelSelector;

/// Group and version of the API.
pub(super) const GROUP: &str = "external.metrics.k8s.io";
pub(super) const VERSION: &str = "v1beta1";
pub(super) const GROUP_VERSION: &str = "external.metrics.k8s.io/v1beta1";

const SERVICE_LABEL: &str = "service";
const PORT_LABEL: &str = "port";
const LABELS: [&str; 2] = [SERVICE_LABEL, PORT_LABEL];

/// A metric of each Service: concurrent requests, averaged over [`WINDOW`] at all replicas together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExternalMetric {
    /// In flight, waiting and rejected ones.
    Demand,
    /// Requests that have a slot.
    InFlight,
    /// Requests in the queue.
    Waiting,
    /// Rejected requests, each for the time that it would have taken.
    Rejected,
}

/// Reason why a query has no answer, with the status of the response.
#[derive(Debug, PartialEq)]
pub(super) struct MetricError {
    pub(super) status: StatusCode,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl ExternalMetric {
    pub(super) const ALL: [Self; 4] = [Self::Demand, Self::InFlight, Self::Waiting, Self::Rejected];

    /// Returns the name in the API.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Demand => "sheave_demand",
            Self::InFlight => "sheave_requests_in_flight",
            Self::Waiting => "sheave_requests_waiting",
            Self::Rejected => "sheave_requests_rejected",
        }
    }

    /// Finds a metric by its name.
    pub(super) fn find(name: &str) -> Result<Self, MetricError> {
        Self::ALL.into_iter().find(|it| it.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            MetricError::not_found(format!("there is no metric {name:?}; there are: {known}"))
        })
    }

    fn value(self, demand: RequestDemand) -> f64 {
        match self {
            Self::Demand => demand.total(),
            Self::InFlight => demand.in_flight,
            Self::Waiting => demand.queued,
            Self::Rejected => demand.rejected,
        }
    }

    /// Returns the values of the Services of a namespace that the selector names, as an `ExternalMetricValueList`.
    ///
    /// `demand` returns the demand on a backend, if there still is one.
    ///
    /// # Errors
    /// If the selector is malformed, names no Service, or matches none.
    pub(super) fn query(
        self,
        namespace: &str,
        selector: &str,
        keys: Vec<BackendKey>,
        timestamp: &str,
        demand: impl Fn(&BackendKey) -> Option<RequestDemand>,
    ) -> Result<Value, MetricError> {
        let parsed = LabelSelector::parse(selector).map_err(MetricError::bad_request)?;
        if let Some(label) = parsed.unknown_label(&LABELS) {
            let known = LABELS.join(", ");
            let message = format!("metric selector: there is no label {label:?}, only {known}");
            return Err(MetricError::bad_request(message));
        }
        if !parsed.names(SERVICE_LABEL) {
            // Without it the sum of all Services would scale one of them.
            let message = "metric selector: required, with the name of the Service, as \
                           matchLabels: {service: NAME}";
            return Err(MetricError::bad_request(message.to_owned()));
        }
        let mut sums: BTreeMap<(String, u16), f64> = BTreeMap::new();
        for key in keys.into_iter().filter(|key| *key.namespace == *namespace) {
            let label = |name: &str| match name {
                SERVICE_LABEL => Some(Cow::from(&*key.service)),
                PORT_LABEL => Some(Cow::from(key.port.to_string())),
                _ => None,
            };
            if parsed.matches(label)
                && let Some(demand) = demand(&key)
            {
                *sums.entry((key.service.to_string(), key.port)).or_default() += self.value(demand);
            }
        }
        if sums.is_empty() {
            let message = format!(
                "no route refers to a Service in namespace {namespace} that matches {selector:?}"
            );
            return Err(MetricError::not_found(message));
        }
        let item = |((service, port), value): ((String, u16), f64)| {
            json!({
                "metricName": self.name(),
                "metricLabels": { SERVICE_LABEL: service, PORT_LABEL: port.to_string() },
                "timestamp": timestamp,
                "windowSeconds": WINDOW.as_secs(),
                "value": quantity(value),
            })
        };
        Ok(json!({
            "kind": "ExternalMetricValueList",
            "apiVersion": GROUP_VERSION,
            "metadata": {},
            "items": sums.into_iter().map(item).collect::<Vec<_>>(),
        }))
    }
}

impl MetricError {
    pub(super) fn bad_request(message: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, reason: "BadRequest", message }
    }

    pub(super) fn not_found(message: String) -> Self {
        Self { status: StatusCode::NOT_FOUND, reason: "NotFound", message }
    }

    /// Returns it as a `Status` of the Kubernetes API: a HorizontalPodAutoscaler shows its message.
    pub(super) fn body(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": self.reason, "message": self.message, "code": self.status.as_u16(),
        })
    }
}

/// Returns a number as a quantity of Kubernetes, in thousandths and rounded up: some demand is never none.
fn quantity(value: f64) -> String {
    format!("{}m", (value.max(0.0) * 1000.0).ceil())
}

/// Returns the `APIGroup` of the API.
pub(super) fn group() -> Value {
    let version = json!({ "groupVersion": GROUP_VERSION, "version": VERSION });
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": GROUP,
        "versions": [version], "preferredVersion": version,
    })
}

/// Returns the `APIResourceList` of the API: its metrics.
pub(super) fn resources() -> Value {
    let resource = |metric: ExternalMetric| {
        json!({
            "name": metric.name(), "singularName": "", "namespaced": true,
            "kind": "ExternalMetricValueList", "verbs": ["get"],
        })
    };
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION,
        "resources": ExternalMetric::ALL.map(resource),
    })
}

#[cfg(test)]
mod tests {
    use gateway::snapshot::TransportProtocol;

    use super::*;

    fn key(namespace: &str, service: &str, port: u16) -> BackendKey {
        let transport = TransportProtocol::Tcp;
        BackendKey {
            namespace: namespace.into(),
            service: service.into(),
            port,
            transport,
            node: None,
        }
    }

    fn query(metric: ExternalMetric, selector: &str) -> Result<Value, MetricError> {
        let udp = BackendKey { transport: TransportProtocol::Udp, ..key("shop", "web", 80) };
        let keys = vec![
            key("shop", "web", 80),
            udp,
            key("shop", "web", 443),
            key("shop", "api", 80),
            key("other", "web", 80),
        ];
        let demand = |key: &BackendKey| {
            let in_flight = f64::from(key.port);
            (*key.namespace == *"shop").then_some(RequestDemand {
                in_flight,
                queued: 0.0001,
                rejected: 2.5,
            })
        };
        metric.query("shop", selector, keys, "2026-01-01T00:00:00Z", demand)
    }

    fn values(metric: ExternalMetric, selector: &str) -> Vec<(String, String, String)> {
        let list = query(metric, selector).unwrap();
        let items = list["items"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let item = |it: &Value| {
            let labels = &it["metricLabels"];
            (text(&labels["service"]), text(&labels["port"]), text(&it["value"]))
        };
        items.iter().map(item).collect()
    }

    fn one(service: &str, port: &str, value: &str) -> (String, String, String) {
        (service.to_owned(), port.to_owned(), value.to_owned())
    }

    #[test]
    fn values_are_those_of_the_selected_services_of_the_namespace() {
        use ExternalMetric::{Demand, InFlight, Rejected, Waiting};
        assert_eq!(values(Demand, "port=80,service=api"), [one("api", "80", "82501m")]);
        // Both transports of a port are one value, and no demand is rounded to none.
        assert_eq!(values(Waiting, "port=80,service=web"), [one("web", "80", "1m")]);
        assert_eq!(values(Rejected, "service=web,port!=443"), [one("web", "80", "5000m")]);
        let both = [one("web", "443", "443000m"), one("web", "80", "160000m")];
        let mut found = values(InFlight, "service=web");
        found.sort();
        assert_eq!(found, both);
    }

    #[test]
    fn query_without_an_answer_says_why() {
        let error = |selector: &str| query(ExternalMetric::Demand, selector).unwrap_err();
        assert_eq!(error("").status, StatusCode::BAD_REQUEST);
        assert!(error("").message.contains("matchLabels: {service: NAME}"));
        assert!(error("service").message.contains("required"));
        assert!(error("service!=api").message.contains("required"));
        assert!(error("service=web,app=web").message.contains("no label \"app\""));
        assert!(error("service in web").message.contains("is not a requirement"));
        let missing = error("service=cart");
        assert_eq!(missing.status, StatusCode::NOT_FOUND);
        assert!(missing.message.contains("namespace shop that matches \"service=cart\""));
        assert_eq!(missing.body()["code"], 404);
        let unknown = ExternalMetric::find("demand").unwrap_err();
        assert!(
            unknown.message.contains("sheave_demand, sheave_requests_in_flight"),
            "{unknown:?}"
        );
        assert_eq!(ExternalMetric::find("sheave_demand"), Ok(ExternalMetric::Demand));
    }

    #[test]
    fn quantities_are_never_negative_or_without_a_digit() {
        assert_eq!(quantity(0.0), "0m");
        assert_eq!(quantity(-0.5), "0m");
        assert_eq!(quantity(12.5), "12500m");
        assert_eq!(quantity(1e9), "1000000000000m");
    }
}
