"""Sheave in front of a Service, as its chart installs it: a Gateway with an address that this machine reaches."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from lab.child import ChildFailed
from lab.kubernetes import containers
from lab.kubernetes.agents import CRDS
from lab.kubernetes.deployment import APP, SERVICE_PORT
from lab.kubernetes.session import ClusterSession, wait
from lab.paths import REPOSITORY, binary
from tests.cluster.acceptance.gateway import CAPABILITIES
from tests.cluster.api import Object
from tests.cluster.layout import IMAGES, STATE

NAMESPACE = "sheave-system"
SERVICE = f"/api/v1/namespaces/{NAMESPACE}/services/sheave"
ADMIN_PORT = 9900
GATEWAY_API = "gateway.networking.k8s.io/v1"
ADDRESS_SECONDS = 60


class Gateway:
    """Sheave's pods, a Gateway with one route to the Service `app`, and the policy of that Service."""

    def __init__(self, session: ClusterSession, settings: Sequence[str]) -> None:
        self._session = session
        program = STATE / "sheave"
        shutil.copy(binary("sheave"), program)
        os.setxattr(program, "security.capability", CAPABILITIES)
        IMAGES.write_text(f'{containers.IMAGES}["sheave"]\nprogram = "{program}"\n')
        session.kubectl("apply", "--server-side", "--filename", str(CRDS))
        session.kubectl("apply", "--server-side", "--filename", "-", text=_manifests(settings))
        session.kubectl("--namespace", NAMESPACE, "rollout", "status", "--timeout=55s", "deployment/sheave")
        wait(self._addresses, "an address of the Gateway", ADDRESS_SECONDS)

    @property
    def address(self) -> str:
        """Address and port for clients."""
        return f"{self._addresses()[0]}:{SERVICE_PORT}"

    @property
    def admins(self) -> list[str]:
        """Addresses of the pods' metrics."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        pods = self._session.api.get(path, labelSelector="app.kubernetes.io/name=sheave")["items"]
        return [f"{pod['status']['podIP']}:{ADMIN_PORT}" for pod in pods if "podIP" in pod["status"]]

    def route(self, policy: Object) -> None:
        """Creates the Gateway, its route, and the policy of the Service."""
        self._session.apply(*_objects(policy))

    def _addresses(self) -> list[str]:
        status = self._session.api.get(SERVICE)["status"]
        return [ingress["ip"] for ingress in status.get("loadBalancer", {}).get("ingress") or []]


def _manifests(settings: Sequence[str]) -> str:
    argv = [str(REPOSITORY / "scripts/helm"), "template", "sheave", str(REPOSITORY / "deploy/chart")]
    argv += ["--namespace", NAMESPACE, "--kube-version", "1.36.0"]
    for setting in ("namespace.create=true", *settings):
        argv += ["--set", setting]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChildFailed(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def _objects(policy: Object) -> list[Object]:
    metadata = {"name": APP, "namespace": "default"}
    listener = {"name": "http", "port": SERVICE_PORT, "protocol": "HTTP"}
    backend = {"name": APP, "port": SERVICE_PORT}
    return [
        {
            "apiVersion": GATEWAY_API,
            "kind": "Gateway",
            "metadata": metadata,
            "spec": {"gatewayClassName": "sheave", "listeners": [listener]},
        },
        {
            "apiVersion": GATEWAY_API,
            "kind": "HTTPRoute",
            "metadata": metadata,
            "spec": {"parentRefs": [{"name": APP}], "rules": [{"backendRefs": [backend]}]},
        },
        {
            "apiVersion": "sheave.dev/v1alpha1",
            "kind": "BackendPolicy",
            "metadata": metadata,
            "spec": {"targetRefs": [{"kind": "Service", "name": APP}], **policy},
        },
    ]
