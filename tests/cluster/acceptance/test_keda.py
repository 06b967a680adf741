"""Autoscaling by the manifests of the guide: the HorizontalPodAutoscaler alone, then KEDA's real operator, from zero
pods to several and back.

    scripts/acceptance --pattern test_keda.py
"""

from __future__ import annotations

import http.client
import json
import math
import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from lab.paths import MissingRequirement
from tests.cluster import keda_operator
from tests.cluster.acceptance import gateway, guide
from tests.cluster.acceptance.gateway import conditions, kubectl
from tests.cluster.acceptance.replicas import ReplicaGroupTest
from tests.cluster.acceptance.scaler_stream import ActivityStream
from tests.cluster.api import Object
from tests.cluster.tests import running

tearDownModule = running.stop

API_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.external.metrics.k8s.io"
# Cap of a pod in the guide's BackendPolicy, and the target of its HorizontalPodAutoscaler.
CAP, TARGET = 4, 3
CLIENTS = 12
# Poll interval for the replicas and the EndpointSlice.
POLL_SECONDS = 0.005
# Time from the first request until the message on KEDA's stream.
PUSH_SECONDS = 0.1
# KEDA asks each 30 s; the stream makes it act at once.
WAKE_SECONDS = 3.0
# Time from the readiness of the pod, as the test sees it, until the pod gets the request that waited.
ANSWER_SECONDS = 0.2
# KEDA's operator has a readiness probe after 20 s, and asks each 30 s whether a Service is idle.
PATIENCE_SECONDS = 180.0


def setUpModule() -> None:
    gateway.install_chart("metricsApi.enabled=true", workload="deployment")


class GuideManifestTest(ReplicaGroupTest):
    def setUp(self) -> None:
        super().setUp()
        self.serve_counting(1, CAP)
        self.apply_from_guide("BackendPolicy")

    def apply_from_guide(self, kind: str) -> None:
        text = guide.manifest(kind, self.namespace)
        kubectl("--namespace", self.namespace, "apply", "--filename", "-", text=text)

    def replicas_wanted(self) -> int:
        return self.api.get(self.path("deployments", "web"))["spec"]["replicas"]


class GuideAutoscalerTest(GuideManifestTest):
    """Before KEDA is there: the tests of this file run in the order of their classes' names."""

    def test_autoscaler_of_the_guide_follows_the_demand(self) -> None:
        self.apply_from_guide("HorizontalPodAutoscaler")
        needed = math.ceil(CLIENTS / TARGET)
        with self.load(0.0, CLIENTS):
            self.wait_for_replicas(needed, PATIENCE_SECONDS)
            self.assertEqual(self.replicas_wanted(), needed)


class KedaTest(GuideManifestTest):
    @classmethod
    def setUpClass(cls) -> None:
        try:
            keda_operator.require()
        except MissingRequirement as error:
            raise unittest.SkipTest(str(error)) from error
        keda_operator.install(kubectl)
        for path in keda_operator.DEPLOYMENTS:
            namespace, name = path.split("/")[-3::2]
            kubectl("--namespace", namespace, "rollout", "status", "--timeout=110s", f"deployment/{name}")

    def test_service_scales_from_zero_to_several_pods_and_back_without_a_failed_request(self) -> None:
        self.wait(self.is_available, "KEDA's API of metrics", PATIENCE_SECONDS)
        self.scale_by_keda()
        # A pod that ends would answer the first request.
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self.wait(lambda: not self.api.get(pods)["items"], "the end of the pods", PATIENCE_SECONDS)
        streams = self.streams()
        woken, ready = math.inf, {}
        with ThreadPoolExecutor() as threads:
            begun = time.monotonic()
            first = threads.submit(self.ask)
            while not first.done() or not ready:
                if woken == math.inf and self.replicas_wanted():
                    woken = time.monotonic() - begun
                for pod in self.ready():
                    ready.setdefault(pod, time.monotonic())
                time.sleep(POLL_SECONDS)
        answer = first.result()
        since = ready[answer["pod"]]
        waited = answer["began"] - since
        self.assert_pushed(streams, begun)
        print_result(f"replicas in the API {1000 * woken:.0f} ms after the first request")
        print_result(f"pod ready after {since - begun:.1f} s; got the request {1000 * waited:.0f} ms later")
        self.assertLessEqual(woken, WAKE_SECONDS)
        self.assertLessEqual(waited, ANSWER_SECONDS)

        needed = math.ceil(CLIENTS / CAP)
        with self.load(0.0, 1):
            with self.load(0.0, CLIENTS - 1):
                self.wait_for_replicas(needed, PATIENCE_SECONDS)
                self.assertEqual(self.replicas_wanted(), needed)
            self.wait_for_replicas(1, PATIENCE_SECONDS)
        self.wait_for_replicas(0, PATIENCE_SECONDS)

    def test_load_that_finds_no_pod_is_answered_without_a_failed_request(self) -> None:
        self.wait(self.is_available, "KEDA's API of metrics", PATIENCE_SECONDS)
        self.scale_by_keda()
        self.wait_for_replicas(0, PATIENCE_SECONDS)
        # At once: KEDA's write that scales from zero may conflict with the one that has scaled to zero.
        with self.load(0.0, CLIENTS):
            self.wait_for_replicas(math.ceil(CLIENTS / CAP), PATIENCE_SECONDS)

    def test_owner_of_the_api_of_metrics_is_named(self) -> None:
        told = f"belongs to Service {keda_operator.NAMESPACE}/keda-metrics-apiserver"
        pods = [pod["metadata"]["name"] for pod in self.replica_pods()]
        # A replica looks once a minute.
        self.wait(
            lambda: all(told in kubectl("--namespace", "sheave-system", "logs", pod) for pod in pods),
            "the owner's name in the log",
            PATIENCE_SECONDS,
        )
        self.assertEqual(self.api.get(API_SERVICE)["spec"]["service"]["namespace"], keda_operator.NAMESPACE)

    def streams(self) -> dict[str, ActivityStream]:
        """Returns a stream like KEDA's from each replica of Sheave, all of them inactive."""
        streams = {address: ActivityStream(address, self.namespace, "web") for address in self.replicas()}
        for stream in streams.values():
            self.addCleanup(stream.close)
        self.wait(
            lambda: all(it.is_active() is False for it in streams.values()), "inactive streams", PATIENCE_SECONDS
        )
        return streams

    def assert_pushed(self, streams: dict[str, ActivityStream], begun: float) -> None:
        """Asserts that each replica has said in time that the Service is active, whichever got the request."""
        pushed = {address: stream.active_since(begun) for address, stream in streams.items()}
        delays = {address: at - begun for address, at in pushed.items() if at is not None}
        told = ", ".join(f"{1000 * delay:.0f} ms" for delay in sorted(delays.values()))
        print_result(f"active on KEDA's stream of {len(delays)} of {len(streams)} replicas after {told}")
        self.assertEqual(delays.keys(), streams.keys())
        self.assertLessEqual(max(delays.values()), PUSH_SECONDS)

    def scale_by_keda(self) -> None:
        """Applies the guide's ScaledObject; then shortens the time after which pods that are not needed go."""
        self.apply_from_guide("ScaledObject")
        policies = [{"type": "Percent", "value": 100, "periodSeconds": 15}]
        behavior = {"scaleDown": {"stabilizationWindowSeconds": 0, "policies": policies}}
        spec = {
            "cooldownPeriod": 1,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        }
        path = f"/apis/keda.sh/v1alpha1/namespaces/{self.namespace}/scaledobjects/web"
        self.api.patch(path, {"spec": spec})
        self.wait(lambda: self.is_true(path, "Ready"), "a ScaledObject that is ready", PATIENCE_SECONDS)

    def is_true(self, path: str, condition: str) -> bool:
        found = conditions(self.api.get(path).get("status", {}))
        return any(it["type"] == condition and it["status"] == "True" for it in found)

    def is_available(self) -> bool:
        return self.is_true(API_SERVICE, "Available")

    def ask(self) -> Object:
        """Sends a request and returns the pod's answer."""
        connection = http.client.HTTPConnection(self.address, 80, timeout=PATIENCE_SECONDS)
        try:
            connection.request("GET", "/", headers={"Host": self.host})
            answer = connection.getresponse()
            body = answer.read()
            self.assertEqual(answer.status, http.HTTPStatus.OK, body)
            return json.loads(body)
        finally:
            connection.close()


def print_result(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
