//! The groups of APIs that Kubernetes' autoscaler reads metrics from.

use clap::ValueEnum;
use serde_json::{Value, json};

use super::{external_metric, object_metric};

/// Group of APIs. A cluster has one provider of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum ApiGroup {
    /// external.metrics.k8s.io: metrics of type `External`.
    External,
    /// custom.metrics.k8s.io: metrics of type `Object`, of Services and routes.
    Custom,
}

impl ApiGroup {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::External => "external.metrics.k8s.io",
            Self::Custom => "custom.metrics.k8s.io",
        }
    }

    pub(super) const fn version(self) -> &'static str {
        match self {
            Self::External => "v1beta1",
            Self::Custom => "v1beta2",
        }
    }

    pub(super) fn group_version(self) -> String {
        format!("{}/{}", self.name(), self.version())
    }

    /// Returns the verb of a request for values, as the API server derives it from the path.
    pub(super) const fn verb(self) -> &'static str {
        match self {
            Self::External => "list",
            Self::Custom => "get",
        }
    }

    /// Returns the name of the APIService.
    pub(super) fn api_service(self) -> String {
        format!("{}.{}", self.version(), self.name())
    }

    /// Returns the `APIGroup`.
    pub(super) fn description(self) -> Value {
        let version = json!({ "groupVersion": self.group_version(), "version": self.version() });
        json!({
            "kind": "APIGroup", "apiVersion": "v1", "name": self.name(),
            "versions": [version], "preferredVersion": version,
        })
    }

    /// Returns the `APIResourceList`.
    pub(super) fn resources(self) -> Value {
        let resources = match self {
            Self::External => external_metric::resources(),
            Self::Custom => object_metric::resources(),
        };
        json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": self.group_version(),
            "resources": resources,
        })
    }
}
