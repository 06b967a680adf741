//! Metrics of one object, as `custom.metrics.k8s.io` has them: of a Service, or of a route.
//!
//! Source: `k8s.io/metrics/pkg/apis/custom_metrics/v1beta2`.

use proxy::WINDOW;
use serde_json::{Value, json};

use super::api_group::ApiGroup;
use super::metric::{MetricError, ScalingMetric, quantity};
use super::selection::{LabelledValues, SelectedKind};

/// Resource whose objects have metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectResource {
    /// Name, as the path of a request has it.
    pub(super) name: &'static str,
    pub(super) kind: SelectedKind,
    object_kind: &'static str,
    api_version: &'static str,
}

const SERVICES: ObjectResource = ObjectResource {
    name: "services",
    kind: SelectedKind::Service,
    object_kind: "Service",
    api_version: "v1",
};
const HTTP_ROUTES: ObjectResource = ObjectResource {
    name: "httproutes.gateway.networking.k8s.io",
    kind: SelectedKind::Route,
    object_kind: "HTTPRoute",
    api_version: "gateway.networking.k8s.io/v1",
};
const GRPC_ROUTES: ObjectResource = ObjectResource {
    name: "grpcroutes.gateway.networking.k8s.io",
    kind: SelectedKind::Route,
    object_kind: "GRPCRoute",
    api_version: "gateway.networking.k8s.io/v1",
};
const ALL: [ObjectResource; 3] = [SERVICES, HTTP_ROUTES, GRPC_ROUTES];

impl ObjectResource {
    /// Finds a resource by its name.
    ///
    /// # Errors
    /// If objects of the resource have no metrics.
    pub(super) fn find(name: &str) -> Result<Self, MetricError> {
        ALL.into_iter().find(|it| it.name == name).ok_or_else(|| {
            let known = ALL.map(|it| it.name).join(", ");
            MetricError::not_found(format!("{name:?} have no metrics here, only {known}"))
        })
    }

    /// Returns the sum of values as a `MetricValueList` of one object.
    pub(super) fn list(
        self,
        metric: ScalingMetric,
        namespace: &str,
        name: &str,
        values: LabelledValues,
        timestamp: &str,
    ) -> Value {
        let item = json!({
            "describedObject": {
                "kind": self.object_kind, "apiVersion": self.api_version,
                "namespace": namespace, "name": name,
            },
            "metric": { "name": metric.name(), "selector": null },
            "timestamp": timestamp,
            "windowSeconds": WINDOW.as_secs(),
            "value": quantity(values.into_values().sum()),
        });
        json!({
            "kind": "MetricValueList",
            "apiVersion": ApiGroup::Custom.group_version(),
            "metadata": {},
            "items": [item],
        })
    }
}

/// Returns the resources of the API: the metrics of each resource.
pub(super) fn resources() -> Vec<Value> {
    let of_resource = |resource: ObjectResource| {
        let is_known =
            move |it: &ScalingMetric| resource.kind == SelectedKind::Service || it.is_rate();
        ScalingMetric::ALL.into_iter().filter(is_known).map(move |metric| {
            json!({
                "name": format!("{}/{}", resource.name, metric.name()), "singularName": "",
                "namespaced": true, "kind": "MetricValueList", "verbs": ["get"],
            })
        })
    };
    ALL.into_iter().flat_map(of_resource).collect()
}

#[cfg(test)]
mod tests {
    use super::super::selection::MetricLabels;
    use super::*;

    #[test]
    fn value_of_an_object_is_the_sum_of_its_parts() {
        let labels = |part: &str| MetricLabels {
            kind: SelectedKind::Service,
            object: "web".to_owned(),
            part: part.to_owned(),
        };
        let values = [(labels("80"), 2.0), (labels("443"), 1.25)].into_iter().collect();
        let resource = ObjectResource::find("services").unwrap();
        let list = resource.list(ScalingMetric::Demand, "shop", "web", values, "now");
        assert_eq!(list["items"].as_array().unwrap().len(), 1, "the autoscaler takes one alone");
        assert_eq!(list["items"][0]["value"], "3250m");
        assert_eq!(list["items"][0]["describedObject"]["kind"], "Service");
        assert_eq!(list["items"][0]["describedObject"]["name"], "web");
    }

    #[test]
    fn resources_are_the_metrics_of_services_and_routes() {
        let names: Vec<_> = resources().iter().map(|it| it["name"].clone()).collect();
        assert!(names.contains(&"services/sheave_demand".into()), "{names:?}");
        let rate = "httproutes.gateway.networking.k8s.io/sheave_requests_per_second";
        assert!(names.contains(&rate.into()), "{names:?}");
        assert!(!names.contains(&"httproutes.gateway.networking.k8s.io/sheave_demand".into()));
        let error = ObjectResource::find("pods").unwrap_err().message;
        assert!(error.contains("\"pods\" have no metrics here, only services, "), "{error}");
    }
}
