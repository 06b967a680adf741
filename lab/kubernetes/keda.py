"""KEDA in the cluster, and its autoscaler of the Deployment by Sheave's external scaler."""

from __future__ import annotations

from lab.kubernetes.deployment import APP
from lab.kubernetes.session import ClusterSession, wait
from tests.cluster import keda_operator
from tests.cluster.api import ApiError, Object

OBJECT = f"/apis/keda.sh/v1alpha1/namespaces/default/scaledobjects/{APP}"
# The autoscaler that KEDA creates for the object.
AUTOSCALER = f"/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/keda-hpa-{APP}"
SCALER = "sheave-scaler.sheave-system:9901"
# Its readiness probe begins after 20 s.
AVAILABLE_SECONDS = 180
GONE_SECONDS = 60
NOT_FOUND = 404


def install_keda(session: ClusterSession) -> None:
    """Installs KEDA, and waits until it is available."""
    keda_operator.install(session.kubectl)
    for path in keda_operator.DEPLOYMENTS:
        wait(lambda path=path: _has(session, path, "Available"), f"KEDA: {path}", AVAILABLE_SECONDS)


class PushAutoscaler:
    """A ScaledObject of the Deployment `app`, whose trigger is pushed by Sheave."""

    def __init__(self, session: ClusterSession, least: int, most: int, down_seconds: int) -> None:
        self._session = session
        session.apply(scaled_object(least, most, down_seconds))

    def is_active(self) -> bool:
        """Returns true if KEDA's autoscaler reads its metric."""
        return _has(self._session, OBJECT, "Ready") and _has(self._session, AUTOSCALER, "ScalingActive")

    def remove(self) -> None:
        self._session.kubectl("delete", "--wait=true", f"scaledobject/{APP}")
        wait(lambda: _status(self._session, AUTOSCALER) is None, "the end of KEDA's autoscaler", GONE_SECONDS)


def scaled_object(least: int, most: int, down_seconds: int) -> Object:
    """Returns the ScaledObject; its target is the cap of a pod."""
    behavior = {"scaleDown": {"stabilizationWindowSeconds": down_seconds}}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": APP, "namespace": "default"},
        "spec": {
            "scaleTargetRef": {"name": APP},
            "minReplicaCount": least,
            "maxReplicaCount": most,
            "triggers": [{"type": "external-push", "metadata": {"scalerAddress": SCALER, "service": APP}}],
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        },
    }


def _has(session: ClusterSession, path: str, condition: str) -> bool:
    found = (_status(session, path) or {}).get("conditions") or []
    return any(it["type"] == condition and it["status"] == "True" for it in found)


def _status(session: ClusterSession, path: str) -> Object | None:
    """Returns the status of an object; None: there is no such object."""
    try:
        return session.api.get(path).get("status", {})
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None
