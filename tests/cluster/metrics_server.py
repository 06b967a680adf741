"""The metrics-server: the API of CPU and memory that a HorizontalPodAutoscaler and `kubectl top` read.

It is a process of the control plane, not a pod, so that it has the certificate that kubelets accept. A cluster has it
only on demand, because its build takes minutes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.cluster import certificates
from tests.cluster.api import Api, Object
from tests.cluster.control_plane import GROUP
from tests.cluster.layout import API_SERVER, CONTROL_PLANE_NAMESPACE, FOLDER, PROGRAMS, STATE
from tests.cluster.processes import Process, own_group
from tests.cluster.programs import GoProgram

MODULE = FOLDER / "metrics-server"
PROGRAM = GoProgram("metrics-server", MODULE, "sigs.k8s.io/metrics-server/cmd/metrics-server")
PORT = 4443
# Of its manifests; the flag's default is 60 s.
RESOLUTION = "15s"
VERSION = "v1beta1"
GROUP_NAME = "metrics.k8s.io"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
NAME, NAMESPACE = "metrics-server", "kube-system"


def make() -> None:
    """Builds the program if it is missing."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    PROGRAM.make()


def start(api: Api) -> Process:
    """Starts it, and registers its API."""
    config = certificates.kubeconfig("admin")
    flags = {
        "kubeconfig": config,
        "authentication-kubeconfig": config,
        "authorization-kubeconfig": config,
        "bind-address": API_SERVER,
        "secure-port": PORT,
        "cert-dir": STATE / "metrics-server",
        "kubelet-certificate-authority": certificates.authority(),
        "kubelet-client-certificate": certificates.certificate("to-kubelet"),
        "kubelet-client-key": certificates.key("to-kubelet"),
        "kubelet-preferred-address-types": "InternalIP",
        "kubelet-use-node-status-port": "true",
        "metric-resolution": RESOLUTION,
    }
    argv: Sequence[object] = [PROGRAM.path, *(f"--{name}={value}" for name, value in flags.items())]
    process = Process(NAME, argv, group=own_group(GROUP), namespace=CONTROL_PLANE_NAMESPACE, folder=STATE)
    for path, item in _objects():
        api.post(path, item)
    return process


def is_available(api: Api) -> bool:
    """Returns true if the API server reaches its API."""
    status = api.get(f"{API_SERVICES}/{VERSION}.{GROUP_NAME}").get("status", {})
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
    return conditions.get("Available") == "True"


def _objects() -> list[tuple[str, Object]]:
    """Returns paths and objects; the API server contacts the endpoint itself."""
    metadata = {"name": NAME, "namespace": NAMESPACE}
    labels = {"kubernetes.io/service-name": NAME}
    service = {"metadata": metadata, "spec": {"ports": [{"port": 443, "targetPort": PORT}]}}
    endpoints = {
        "metadata": {**metadata, "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": PORT, "protocol": "TCP"}],
        "endpoints": [{"addresses": [API_SERVER], "conditions": {"ready": True}}],
    }
    api_service = {
        "metadata": {"name": f"{VERSION}.{GROUP_NAME}"},
        "spec": {
            "group": GROUP_NAME,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            # It makes its certificate itself.
            "insecureSkipTLSVerify": True,
            "service": {"name": NAME, "namespace": NAMESPACE, "port": 443},
        },
    }
    return [
        (f"/api/v1/namespaces/{NAMESPACE}/services", service),
        (f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices", endpoints),
        (API_SERVICES, api_service),
    ]
