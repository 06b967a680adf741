"""A Gateway in the test cluster, served by Sheave with its manifests."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
import unittest
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import golang
from lab.article002.setup import MODULE
from tests.cluster.acceptance.load import Load
from tests.cluster.api import Object
from tests.cluster.layout import IMAGES, KUBECONFIG, PROGRAMS, REPOSITORY, STATE
from tests.cluster.tests import running
from tests.cluster.tests.running import ECHO, ClusterTest, container

CONNECTIONS = Path(__file__).with_name("connections")
SYSTEM = "/apis/apps/v1/namespaces/sheave-system/deployments/sheave"
GATEWAY_API = "/apis/gateway.networking.k8s.io/v1"
CLIENTS = 12
PAUSE_SECONDS = 0.004
POD_NAME = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
NAMESPACE = {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
PROBE = {"httpGet": {"path": "/", "port": 3000}, "periodSeconds": 1}
WEB = container(ECHO, env=[POD_NAME, NAMESPACE], readinessProbe=PROBE)
# File capabilities of deploy/image/pack.py: NET_BIND_SERVICE, NET_ADMIN, NET_RAW.
CAPABILITIES = struct.pack("<5I", 0x02000000, 1 << 10 | 1 << 12 | 1 << 13, 0, 0, 0)
KINDS = {
    "gateways": {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway"},
    "httproutes": {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute"},
    "grpcroutes": {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GRPCRoute"},
}


def python_server(program: str, *env: Object) -> Object:
    """Returns a container with a server in Python on port 3000. A probe by HTTP would be a request to it."""
    probe = {"tcpSocket": {"port": 3000}, "periodSeconds": 1}
    return container("busybox:1", "python3", "-c", program, env=[POD_NAME, *env], readinessProbe=probe)


def install() -> None:
    """Starts a cluster with Sheave for the tests of a module; skips them if that is impossible."""
    start_cluster()
    kubectl("apply", "--server-side", "--filename", str(REPOSITORY / "deploy/manifests/install.yaml"))
    kubectl("--namespace", "sheave-system", "rollout", "status", "--timeout=60s", "deployment/sheave")


def install_chart(*settings: str, workload: str = "daemonset", namespaces: tuple[str, ...] = ()) -> None:
    """Does the same with settings of the chart, which may name further namespaces."""
    helm = [str(REPOSITORY / "scripts/helm"), "template", "sheave", str(REPOSITORY / "deploy/chart")]
    helm += ["--namespace", "sheave-system", "--kube-version", "1.36.0", "--set", "namespace.create=true"]
    for setting in settings:
        helm += ["--set", setting]
    manifests = subprocess.run(helm, capture_output=True, text=True, check=True).stdout
    start_cluster()
    for namespace in namespaces:
        kubectl("create", "namespace", namespace)
    kubectl("apply", "--server-side", "--filename", "-", text=manifests)
    kubectl("--namespace", "sheave-system", "rollout", "status", "--timeout=60s", f"{workload}/sheave")


def start_cluster() -> None:
    """Starts a cluster with the CRDs and the image."""
    binary = find_binary()
    running.start()
    program = STATE / "sheave"
    shutil.copy(binary, program)
    os.setxattr(program, "security.capability", CAPABILITIES)
    programs = {"sheave": program, "lab/echo": golang.build(MODULE), "lab/connections": golang.build(CONNECTIONS)}
    IMAGES.write_text("".join(f'["{image}"]\nprogram = "{path}"\n' for image, path in programs.items()))
    kubectl("apply", "--server-side", "--filename", str(REPOSITORY / "deploy/chart/crds"))


def find_binary() -> Path:
    """Returns the program under test; skips the tests if there is none."""
    binary = Path(os.environ.get("SHEAVE_BINARY", REPOSITORY / "target" / "release" / "sheave"))
    if not binary.exists():
        raise unittest.SkipTest(f"{binary} is missing: run `cargo build --release --package sheave`")
    return binary


def kubectl(*words: str, text: str | None = None) -> str:
    argv = [str(PROGRAMS / "kubectl"), "--kubeconfig", str(KUBECONFIG), *words]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise AssertionError(f"kubectl {' '.join(words)}: {done.stderr}")
    return done.stdout


def command(*words: str) -> None:
    """Runs a command of the test cluster."""
    subprocess.run([sys.executable, "-m", "tests.cluster", *words], cwd=REPOSITORY, check=True, timeout=120)


class GatewayTest(ClusterTest):
    LOAD = Load

    def setUp(self) -> None:
        super().setUp()
        self.host = f"{self.namespace}.test"
        self.find_address()

    def find_address(self) -> None:
        service = self.wait(
            lambda: (
                self.api.get("/api/v1/namespaces/sheave-system/services/sheave")["status"]
                .get("loadBalancer", {})
                .get("ingress")
            ),
            "an address for Sheave",
        )
        self.address = service[0]["ip"]

    def serve(
        self,
        replicas: int,
        image: Object,
        route: str = "httproutes",
        spread: bool = False,
        pod_settings: Object | None = None,
        **port_settings: str,
    ) -> None:
        """Creates pods behind a Service, a route and a Gateway, and waits for an answer; `spread` limits the skew over
        nodes to 1, and `pod_settings` are fields of the pods' spec.
        """
        labels = {"app": "web"}
        template = {
            "metadata": {"labels": labels},
            "spec": {"containers": [image], "terminationGracePeriodSeconds": 10, **(pod_settings or {})},
        }
        if spread:
            even = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
            template["spec"]["topologySpreadConstraints"] = [{**even, "labelSelector": {"matchLabels": labels}}]
        self.make(
            "deployments", "web", spec={"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        )
        self.make(
            "services", "web", spec={"selector": labels, "ports": [{"port": 80, "targetPort": 3000, **port_settings}]}
        )
        listener = {"name": "http", "port": 80, "protocol": "HTTP", "hostname": self.host}
        self.create("gateways", "web", gatewayClassName="sheave", listeners=[listener])
        self.create(route, "web", parentRefs=[{"name": "web"}], rules=[{"backendRefs": [{"name": "web", "port": 80}]}])
        self.wait_for_replicas(replicas)
        self.wait(self.answers, "an answer through the Gateway")

    def path(self, kind: str, name: str = "", namespace: str = "") -> str:
        """Returns the path of an object, also of the Gateway API's kinds."""
        if kind not in KINDS:
            return super().path(kind, name)
        return f"{GATEWAY_API}/namespaces/{namespace or self.namespace}/{kind}" + (f"/{name}" if name else "")

    def create(self, kind: str, name: str, namespace: str = "", **spec: object) -> None:
        """Creates an object of the Gateway API."""
        self.api.post(self.path(kind, namespace=namespace), {"metadata": {"name": name}, "spec": spec, **KINDS[kind]})

    def answers(self) -> bool:
        with self.LOAD(self.address, self.host, 1, 0.05) as load:
            time.sleep(0.5)  # A short load, whose answers are known after it.
        return bool(load.answers) and not load.problems()

    def scale(self, replicas: int) -> None:
        self.api.patch(self.path("deployments", "web"), {"spec": {"replicas": replicas}})

    def wait_for_replicas(self, replicas: int, patience: float = running.PATIENCE_SECONDS) -> None:
        self.wait(lambda: len(self.ready()) == replicas, f"{replicas} ready endpoints", patience)

    def ready(self) -> set[str]:
        """Returns the names of the ready pods, from the Service's EndpointSlices."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        slices = self.api.get(path, labelSelector="kubernetes.io/service-name=web")["items"]
        endpoints = [endpoint for it in slices for endpoint in it.get("endpoints") or []]
        return {endpoint["targetRef"]["name"] for endpoint in endpoints if endpoint["conditions"].get("ready")}

    def roll_out(self, path: str, patience: float = running.PATIENCE_SECONDS) -> None:
        """Restarts a Deployment: a rolling update of every pod."""
        annotations = {"rolled-over": str(time.time())}
        patched = self.api.patch(path, {"spec": {"template": {"metadata": {"annotations": annotations}}}})
        self.wait(lambda: self.is_rolled_out(path, patched["metadata"]["generation"]), "the rollout", patience)
        pods = path.replace("/apis/apps/v1", "/api/v1").rsplit("/deployments/", 1)[0] + "/pods"
        self.wait(
            lambda: not any(is_ending(pod) for pod in self.api.get(pods)["items"]), "the end of the old pods", patience
        )

    def is_rolled_out(self, path: str, generation: int) -> bool:
        now = self.api.get(path)
        status, wanted = now["status"], now["spec"]["replicas"]
        counts = [status.get(name) for name in ("replicas", "updatedReplicas", "readyReplicas")]
        return status.get("observedGeneration", 0) >= generation and counts == [wanted] * 3

    @contextmanager
    def load(self, pause_seconds: float = PAUSE_SECONDS, clients: int = CLIENTS) -> Iterator[Load]:
        """Runs a load and asserts that no request fails."""
        with self.LOAD(self.address, self.host, clients, pause_seconds) as load:
            yield load
        problems = load.problems()
        counts = f"{len(load.answers)} answers, {len(problems)} failures"
        print(f"{self.id()}: {counts}, longest request {1000 * load.longest():.0f} ms", file=sys.stderr)
        self.assertEqual(problems, [])
        self.assertGreater(len(load.answers), clients)


def metric(address: str, name: str) -> float:
    """Returns a metric without labels, from the replica at this address."""
    return next(float(line.split()[1]) for line in metric_lines(address) if line.startswith(f"{name} "))


def metric_sum(address: str, name: str) -> float:
    """Returns the sum of a metric over all its labels; 0 if there is none."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in metric_lines(address) if line.startswith(f"{name}{{"))


def metric_lines(address: str) -> list[str]:
    with urllib.request.urlopen(f"http://{address}:9900/metrics", timeout=10) as response:
        return response.read().decode().splitlines()


def is_ending(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def conditions(status: object) -> list[Object]:
    """Returns all conditions of a status at any depth."""
    if isinstance(status, list):
        return [it for entry in status for it in conditions(entry)]
    if not isinstance(status, dict):
        return []
    own = [it for it in status.get("conditions", []) if isinstance(it, dict)]
    return own + [it for name, part in status.items() if name != "conditions" for it in conditions(part)]
