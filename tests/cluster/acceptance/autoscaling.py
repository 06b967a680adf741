"""A HorizontalPodAutoscaler that scales the pods by Sheave's metrics."""

from __future__ import annotations

from tests.cluster.acceptance.gateway import conditions
from tests.cluster.acceptance.replicas import ReplicaGroupTest
from tests.cluster.api import Object

API_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.external.metrics.k8s.io"
# Starting pods takes its time on a busy machine.
PATIENCE_SECONDS = 120.0


class AutoscalingTest(ReplicaGroupTest):
    """Test with pods whose cap is the target of an HPA."""

    CAP: int

    def is_available(self) -> bool:
        found = conditions(self.api.get(API_SERVICE).get("status", {}))
        return any(it["type"] == "Available" and it["status"] == "True" for it in found)

    def autoscaler(self, name: str = "web") -> str:
        path = f"/apis/autoscaling/v2/namespaces/{self.namespace}/horizontalpodautoscalers"
        return f"{path}/{name}" if name else path

    def autoscale(self, metric: str, service: str = "web", **spec: object) -> None:
        """Creates an HPA by a metric, whose target is the cap of a pod."""
        selector = {"selector": {"matchLabels": {"service": service}}} if service else {}
        self.make_autoscaler({"type": "External", "external": {"metric": {"name": metric, **selector}}}, spec)

    def autoscale_by_object(self, kind: str, metric: str, name: str = "web") -> None:
        """Creates an HPA by a metric of a Service or an HTTPRoute."""
        kinds = {"services": ("v1", "Service"), "httproutes": ("gateway.networking.k8s.io/v1", "HTTPRoute")}
        described = dict(zip(("apiVersion", "kind"), kinds[kind], strict=True)) | {"name": name}
        object_metric = {"describedObject": described, "metric": {"name": metric}}
        self.make_autoscaler({"type": "Object", "object": object_metric}, {"maxReplicas": 1})

    def make_autoscaler(self, metric: Object, spec: Object) -> None:
        source = metric["external" if metric["type"] == "External" else "object"]
        source["target"] = {"type": "AverageValue", "averageValue": str(self.CAP)}
        body = {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "web"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "metrics": [metric],
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
                **spec,
            },
        }
        self.api.post(self.autoscaler(""), body)

    def status(self) -> Object:
        return self.api.get(self.autoscaler()).get("status", {})

    def wanted(self) -> int:
        return self.status().get("desiredReplicas", 0)
