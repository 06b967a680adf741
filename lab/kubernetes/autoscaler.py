"""HorizontalPodAutoscalers of the Deployment, and the metrics-server for those that read CPU."""

from __future__ import annotations

from lab.kubernetes.deployment import APP
from lab.kubernetes.session import ClusterSession, wait
from lab.paths import MissingRequirement
from tests.cluster import metrics_server
from tests.cluster.api import Object

PATH = f"/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/{APP}"
AVAILABLE_SECONDS = 90


def require_metrics_server() -> None:
    """Raises if autoscalers cannot read CPU."""
    if not metrics_server.PROGRAM.path.is_file():
        raise MissingRequirement(
            "the metrics-server is not built: run `scripts/python -m tests.cluster build --metrics-server`"
        )


def start_metrics_server(session: ClusterSession) -> None:
    """Starts the metrics-server, which answers for the CPU of pods."""
    process = metrics_server.start(session.api)

    def is_available() -> bool:
        process.check()
        return metrics_server.is_available(session.api)

    wait(is_available, "the API of metrics-server", AVAILABLE_SECONDS)


def by_cpu(percent: int) -> Object:
    """Returns a metric: the CPU that pods use, as a percentage of what they request."""
    target = {"type": "Utilization", "averageUtilization": percent}
    return {"type": "Resource", "resource": {"name": "cpu", "target": target}}


def by_demand(requests: int) -> Object:
    """Returns a metric: Sheave's demand on the Service, in concurrent requests for each pod."""
    metric = {"name": "sheave_demand", "selector": {"matchLabels": {"service": APP}}}
    return {
        "type": "External",
        "external": {"metric": metric, "target": {"type": "AverageValue", "averageValue": str(requests)}},
    }


def by_demand_on_object(requests: int) -> Object:
    """Returns the same metric as one of the object, beside a provider of external metrics."""
    described = {"apiVersion": "v1", "kind": "Service", "name": APP}
    target = {"type": "AverageValue", "averageValue": str(requests)}
    return {
        "type": "Object",
        "object": {"describedObject": described, "metric": {"name": "sheave_demand"}, "target": target},
    }


class Autoscaler:
    """An autoscaler of the Deployment `app`."""

    def __init__(self, session: ClusterSession, metric: Object, least: int, most: int, down_seconds: int) -> None:
        self._session = session
        session.apply(
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": APP, "namespace": "default"},
                "spec": {
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": APP},
                    "minReplicas": least,
                    "maxReplicas": most,
                    "metrics": [metric],
                    "behavior": {"scaleDown": {"stabilizationWindowSeconds": down_seconds}},
                },
            }
        )

    def is_active(self) -> bool:
        """Returns true if it reads its metric."""
        conditions = self._session.api.get(PATH).get("status", {}).get("conditions") or []
        return any(it["type"] == "ScalingActive" and it["status"] == "True" for it in conditions)

    def remove(self) -> None:
        self._session.kubectl("delete", "--wait=true", f"horizontalpodautoscaler/{APP}")
