"""What a Gateway's clients see while pods, Sheave's replicas and the API server come and go."""

import json
import os
import subprocess
import sys
import time
import unittest
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.acceptance.load import Load
from tests.cluster.api import Object
from tests.cluster.places import IMAGES, KUBECONFIG, PROGRAMS, REPOSITORY
from tests.cluster.tests import running
from tests.cluster.tests.running import ECHO, ClusterTest, container

tearDownModule = running.stop

SYSTEM = "/apis/apps/v1/namespaces/sheave-system/deployments/sheave"
GATEWAY_API = "/apis/gateway.networking.k8s.io/v1"
CLIENTS = 12
PAUSE_SECONDS = 0.004
# Of how many requests a window of five seconds has, this is far from chance.
SHARE_TOLERANCE = 0.10
FIRST_REQUEST_SECONDS = 0.1
# Between looks at an EndpointSlice.
LOOK_SECONDS = 0.005

# Answers after 50 ms, and says how many requests it has had at once at most.
COUNTER = """
import json, os, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
lock, now, most = threading.Lock(), 0, 0
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        global now, most
        with lock:
            now += 1
            most = max(now, most)
        time.sleep(0.05)
        body = json.dumps({"pod": os.environ["POD_NAME"], "most": most}).encode()
        with lock:
            now -= 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("", 3000), Handler).serve_forever()
"""
POD_NAME = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
NAMESPACE = {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
PROBE = {"httpGet": {"path": "/", "port": 3000}, "periodSeconds": 1}
# Not a request, which would be counted.
CONNECTS = {"tcpSocket": {"port": 3000}, "periodSeconds": 1}


def setUpModule() -> None:
    binary = Path(os.environ.get("SHEAVE_BINARY", REPOSITORY / "target" / "debug" / "sheave"))
    if not binary.exists():
        raise unittest.SkipTest(f"{binary} is not there: `cargo build --package sheave` builds it")
    running.start()
    IMAGES.write_text(f'["sheave"]\nprogram = "{binary}"\n')
    for path in ("deploy/chart/crds", "deploy/manifests/install.yaml"):
        kubectl("apply", "--server-side", "--filename", str(REPOSITORY / path))
    kubectl("--namespace", "sheave-system", "rollout", "status", "--timeout=60s", "deployment/sheave")


def kubectl(*words: str) -> str:
    argv = [str(PROGRAMS / "kubectl"), "--kubeconfig", str(KUBECONFIG), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise AssertionError(f"kubectl {' '.join(words)}: {done.stderr}")
    return done.stdout


class GatewayTest(ClusterTest):
    def setUp(self) -> None:
        super().setUp()
        self.host = f"{self.namespace}.test"
        service = self.wait(
            lambda: self.api.get("/api/v1/namespaces/sheave-system/services/sheave")["status"]
            .get("loadBalancer", {})
            .get("ingress"),
            "an address for Sheave",
        )
        self.address = service[0]["ip"]

    def serve(self, replicas: int, image: Object) -> None:
        """Pods behind a Service, a route and a Gateway, until they answer."""
        labels = {"app": "web"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [image], "terminationGracePeriodSeconds": 10}}
        self.make("deployments", "web", spec={"replicas": replicas, "selector": {"matchLabels": labels}, "template": template})
        self.make("services", "web", spec={"selector": labels, "ports": [{"port": 80, "targetPort": 3000}]})
        listener = {"name": "http", "port": 80, "protocol": "HTTP", "hostname": self.host}
        self.gateway_api("gateways", gatewayClassName="sheave", listeners=[listener])
        self.gateway_api("httproutes", parentRefs=[{"name": "web"}], rules=[{"backendRefs": [{"name": "web", "port": 80}]}])
        self.wait_for_replicas(replicas)
        self.wait(self.answers, "an answer through the Gateway")

    def gateway_api(self, kind: str, **spec: object) -> None:
        path = f"{GATEWAY_API}/namespaces/{self.namespace}/{kind}"
        self.api.post(path, {"metadata": {"name": "web"}, "spec": spec, **KINDS[kind]})

    def answers(self) -> bool:
        with Load(self.address, self.host, 1, 0.05) as load:
            time.sleep(0.2)
        return bool(load.answers) and not load.problems()

    def scale(self, replicas: int) -> None:
        self.api.patch(self.path("deployments", "web"), {"spec": {"replicas": replicas}})

    def wait_for_replicas(self, replicas: int) -> None:
        self.wait(lambda: len(self.ready()) == replicas, f"{replicas} ready endpoints")

    def ready(self) -> set[str]:
        """The pods that are ready, by the Service's slices."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        slices = self.api.get(path, labelSelector="kubernetes.io/service-name=web")["items"]
        endpoints = [endpoint for it in slices for endpoint in it.get("endpoints") or []]
        return {endpoint["targetRef"]["name"] for endpoint in endpoints if endpoint["conditions"].get("ready")}

    def roll_over(self, path: str) -> None:
        """Replaces every pod of a Deployment."""
        annotations = {"rolled-over": str(time.time())}
        asked = self.api.patch(path, {"spec": {"template": {"metadata": {"annotations": annotations}}}})
        self.wait(lambda: self.is_rolled_over(path, asked["metadata"]["generation"]), "the roll-over")
        time.sleep(1)

    def is_rolled_over(self, path: str, generation: int) -> bool:
        now = self.api.get(path)
        status, wanted = now["status"], now["spec"]["replicas"]
        counts = [status.get(name) for name in ("replicas", "updatedReplicas", "readyReplicas")]
        return status.get("observedGeneration", 0) >= generation and counts == [wanted] * 3

    @contextmanager
    def load(self) -> Iterator[Load]:
        """Under load; nobody's request may fail."""
        with Load(self.address, self.host, CLIENTS, PAUSE_SECONDS) as load:
            yield load
        problems = load.problems()
        print(f"{self.id()}: {len(load.answers)} answers, {len(problems)} failures", file=sys.stderr)
        self.assertEqual(problems, [])
        self.assertGreater(len(load.answers), CLIENTS)


KINDS = {
    "gateways": {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway"},
    "httproutes": {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute"},
}
WEB = container(ECHO, env=[POD_NAME, NAMESPACE], readinessProbe=PROBE)


class PodsTest(GatewayTest):
    def test_new_pods_have_their_share_at_once_and_no_request_fails_as_pods_come_and_go(self) -> None:
        self.serve(1, WEB)
        with self.load() as load:
            old = self.ready()
            self.scale(3)
            since: dict[str, float] = {}
            while len(since) < 2:
                for pod in self.ready() - old - since.keys():
                    since[pod] = time.monotonic()
                time.sleep(LOOK_SECONDS)
            start = max(since.values()) + 0.5
            time.sleep(6)
            for pod, ready in since.items():
                waited = (load.first(pod) or time.monotonic()) - ready
                print(f"first request {1000 * waited:.0f} ms after readiness was seen", file=sys.stderr)
                self.assertLessEqual(waited, FIRST_REQUEST_SECONDS)
            shares = load.between(start, start + 5)
            print(f"shares over 5 s: {sorted(shares.values())}", file=sys.stderr)
            fair = shares.total() / 3
            for pod in self.ready():
                self.assertAlmostEqual(shares[pod] / fair, 1, delta=SHARE_TOLERANCE)
            self.scale(1)
            self.wait_for_replicas(1)
            time.sleep(2)
        with self.load():
            self.roll_over(self.path("deployments", "web"))


class ReplicasTest(GatewayTest):
    def test_no_request_fails_as_sheave_is_rolled_over(self) -> None:
        self.serve(2, WEB)
        with self.load():
            self.roll_over(SYSTEM)

    def test_no_request_fails_without_the_api_server_and_then_all_is_caught_up_with(self) -> None:
        self.serve(1, WEB)
        with self.load():
            command("stop-api-server")
            time.sleep(float(os.environ.get("OUTAGE_SECONDS", "10")))
            command("start-api-server")
            self.scale(2)
            self.wait_for_replicas(2)
        with self.load() as load:
            self.wait(lambda: len(load.between(0, time.monotonic())) == 2, "requests at the second pod")
            time.sleep(1)

    def test_replicas_keep_to_a_cap_together(self) -> None:
        image = container("busybox:1", "python3", "-c", COUNTER, env=[POD_NAME], readinessProbe=CONNECTS)
        self.serve(5, image)
        policy = {"targetRefs": [{"kind": "Service", "name": "web"}], "maxInFlightPerEndpoint": 4}
        body = {"apiVersion": "sheave.dev/v1alpha1", "kind": "BackendPolicy", "metadata": {"name": "web"}, "spec": policy}
        self.api.post(f"/apis/sheave.dev/v1alpha1/namespaces/{self.namespace}/backendpolicies", body)
        self.api.patch(SYSTEM, {"spec": {"replicas": 3}})
        self.addCleanup(self.api.patch, SYSTEM, {"spec": {"replicas": 2}})
        self.wait(lambda: self.is_rolled_over(SYSTEM, 0), "three replicas of Sheave")
        # The third uses its part only when the others have let go of it.
        time.sleep(4)
        self.forget_counts()
        with Load(self.address, self.host, 60, 0.001) as load:
            time.sleep(6)
        self.assertEqual(load.problems(), [])
        most = self.most_at_once()
        print(f"{len(load.answers)} answers; requests at once at each pod: {sorted(most.values())}", file=sys.stderr)
        self.assertEqual(len(most), 5)
        self.assertLessEqual(max(most.values()), 4)

    def forget_counts(self) -> None:
        """Pods that began before the cap did have seen more: others take their place."""
        self.roll_over(self.path("deployments", "web"))

    def most_at_once(self) -> dict[str, int]:
        """What each pod says of itself, asked directly."""
        pods = self.api.get(self.path("pods"), labelSelector="app=web")["items"]
        left = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return {pod["metadata"]["name"]: _most(pod["status"]["podIP"]) for pod in left}


def _most(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}:3000/", timeout=5) as response:
        return json.load(response)["most"]


def command(name: str) -> None:
    subprocess.run([sys.executable, "-m", "tests.cluster", name], cwd=REPOSITORY, check=True, timeout=120)
