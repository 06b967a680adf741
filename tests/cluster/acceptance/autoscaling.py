"""A HorizontalPodAutoscaler that scales the pods by Sheave's metrics."""

from __future__ import annotations

import time

from tests.cluster.acceptance.gateway import conditions
from tests.cluster.acceptance.replicas import ReplicaGroupTest
from tests.cluster.api import Object

API_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.external.metrics.k8s.io"
# Starting pods takes its time on a busy machine.
PATIENCE_SECONDS = 120.0
SAMPLE_SECONDS = 0.1


class AutoscalingTest(ReplicaGroupTest):
    """Test with pods whose cap is the target of an HPA."""

    CAP: int

    def is_available(self) -> bool:
        found = conditions(self.api.get(API_SERVICE).get("status", {}))
        return any(it["type"] == "Available" and it["status"] == "True" for it in found)

    def autoscaler(self, name: str = "web") -> str:
        path = f"/apis/autoscaling/v2/namespaces/{self.namespace}/horizontalpodautoscalers"
        return f"{path}/{name}" if name else path

    def autoscale(
        self, metric: str, service: str = "web", *, target: str = "", name: str = "web", port: str = "", **spec: object
    ) -> None:
        """Creates an HPA by a metric of a Service; its target is the cap of a pod, if none is named."""
        labels = {label: value for label, value in (("service", service), ("port", port)) if value}
        selector = {"selector": {"matchLabels": labels}} if labels else {}
        source = {"type": "External", "external": {"metric": {"name": metric, **selector}}}
        self.make_autoscaler(source, spec, target=target, name=name)

    def autoscale_by_object(self, kind: str, metric: str, name: str = "web") -> None:
        """Creates an HPA by a metric of a Service or an HTTPRoute."""
        kinds = {"services": ("v1", "Service"), "httproutes": ("gateway.networking.k8s.io/v1", "HTTPRoute")}
        described = dict(zip(("apiVersion", "kind"), kinds[kind], strict=True)) | {"name": name}
        object_metric = {"describedObject": described, "metric": {"name": metric}}
        self.make_autoscaler({"type": "Object", "object": object_metric}, {"maxReplicas": 1})

    def make_autoscaler(self, metric: Object, spec: Object, *, target: str = "", name: str = "web") -> None:
        """Creates the HPA of the Deployment of the same name."""
        source = metric["external" if metric["type"] == "External" else "object"]
        source["target"] = {"type": "AverageValue", "averageValue": target or str(self.CAP)}
        body = {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": name},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
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

    def is_scaling_active(self) -> bool:
        return is_scaling_active(self.api.get(self.autoscaler()))

    def outages(self, seconds: float) -> dict[str, float]:
        """Returns for each HPA the longest time without a metric, of the next seconds."""
        failed: dict[str, float] = {}
        longest: dict[str, float] = {}
        at = time.monotonic()
        end = at + seconds
        while at < end:
            time.sleep(SAMPLE_SECONDS)  # The interval of the samples.
            found, before = self.api.get(self.autoscaler(""))["items"], at
            at = time.monotonic()
            for autoscaler in found:
                name = autoscaler["metadata"]["name"]
                failed[name] = 0.0 if is_scaling_active(autoscaler) else failed.get(name, 0.0) + at - before
                longest[name] = max(longest.get(name, 0.0), failed[name])
        return longest


def is_scaling_active(autoscaler: Object) -> bool:
    """True if the HPA has its metric."""
    found = autoscaler.get("status", {}).get("conditions") or []
    return any(it["type"] == "ScalingActive" and it["status"] == "True" for it in found)
