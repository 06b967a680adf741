"""KEDA in a cluster, by the manifests of its module: its operator, and its server of external metrics.

They are pods, and find one another and Sheave by the cluster's DNS, which is installed with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from lab.paths import MissingRequirement
from tests.cluster import programs
from tests.cluster.layout import FOLDER, PROGRAMS

NAMESPACE = "keda"
DNS = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"
NAMES = ("keda-operator", "keda-metrics-apiserver")
DEPLOYMENTS = (DNS, *(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{name}" for name in NAMES))

Kubectl = Callable[..., str]


def require() -> None:
    """Raises if KEDA is not built."""
    if missing := [it.name for it in programs.KEDA_PROGRAMS if not (PROGRAMS / it.name).is_file()]:
        raise MissingRequirement(f"{', '.join(missing)} missing: scripts/python -m tests.cluster build --keda")


def install(kubectl: Kubectl) -> None:
    """Installs KEDA, which takes the API of external metrics over, as any provider that is installed later."""
    kubectl("apply", "--filename", str(FOLDER / "dns.yaml"))
    manifests = str(programs.keda_manifests() / "minimal")
    kubectl("apply", "--server-side", "--force-conflicts", "--kustomize", manifests)
    for name in NAMES:
        # KEDA's images have a user, programs do not.
        user = {"spec": {"template": {"spec": {"securityContext": {"runAsUser": 1000}}}}}
        kubectl("--namespace", NAMESPACE, "patch", "deployment", name, "--patch", json.dumps(user))
