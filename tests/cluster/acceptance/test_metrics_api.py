"""The API of metrics behind the API server: the real HorizontalPodAutoscaler scales by demand, and everybody else gets
what they may.

    scripts/acceptance --pattern test_metrics_api.py
"""

from __future__ import annotations

import http.client
import json
import math
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.autoscaling import API_SERVICE, PATIENCE_SECONDS, AutoscalingTest
from tests.cluster.acceptance.gateway import SYSTEM, kubectl
from tests.cluster.acceptance.replicas import PODS_OF_SHEAVE
from tests.cluster.tests import running

tearDownModule = running.stop

GROUP = "/apis/external.metrics.k8s.io/v1beta1"
METRICS_PORT = 9904
# Settings of the test cluster's controller, and the window of the metric.
SYNC_SECONDS = 5.0
WINDOW_SECONDS = 15.0
CAP = 2
CLIENTS = 8


def setUpModule() -> None:
    gateway.install_chart("metricsApi.enabled=true", workload="deployment")


class MetricsApiTest(AutoscalingTest):
    CAP = CAP

    def setUp(self) -> None:
        super().setUp()
        self.serve_counting(1, CAP)
        self.limit(maxInFlightPerEndpoint=CAP, queue={"timeout": "60s"})
        self.wait(self.is_available, "the API of metrics", PATIENCE_SECONDS)

    def test_autoscaler_follows_demand_up_and_down_without_a_failed_request(self) -> None:
        self.autoscale("sheave_demand", maxReplicas=6)
        needed = math.ceil(CLIENTS / CAP)
        with self.load(0.0, 1):
            with self.load(0.0, CLIENTS - 1):
                began = time.monotonic()
                self.wait(lambda: self.wanted() >= needed, f"{needed} replicas", PATIENCE_SECONDS)
                print(f"{self.id()}: wanted after {time.monotonic() - began:.1f} s", file=sys.stderr)
                self.wait_for_replicas(needed, PATIENCE_SECONDS)
                # Demand is what the clients want, however many pods there are: no more of them are wanted.
                self.wait(lambda: self.demand() > CLIENTS / 2, "the demand", PATIENCE_SECONDS)
                self.assertLessEqual(self.demand(), CLIENTS * 1.01)
                self.assertEqual(self.wanted(), needed)
            self.wait_for_replicas(1, PATIENCE_SECONDS)

    def test_replica_that_goes_costs_no_more_than_a_sync(self) -> None:
        self.autoscale("sheave_requests_in_flight", maxReplicas=2)
        with self.load(0.01, 1):
            self.wait(self.is_scaling_active, "a metric", PATIENCE_SECONDS)
            pod = self.replica_pods()[0]["metadata"]["name"]
            self.api.delete(f"{PODS_OF_SHEAVE}/{pod}")
            failed = longest = 0.0
            end = time.monotonic() + 4 * SYNC_SECONDS
            while time.monotonic() < end:
                at = time.monotonic()
                time.sleep(0.1)  # The interval of the samples.
                failed = 0.0 if self.is_scaling_active() else failed + time.monotonic() - at
                longest = max(longest, failed)
            print(f"{self.id()}: without a metric for {longest:.1f} s", file=sys.stderr)
            self.assertLessEqual(longest, 1.5 * SYNC_SECONDS)
        self.wait(lambda: self.is_rolled_out(SYSTEM, 0), "the replica again", PATIENCE_SECONDS)

    def test_reason_of_a_metric_that_does_not_exist_is_in_the_condition(self) -> None:
        self.autoscale("demand", maxReplicas=2)
        self.wait_for_reason("there are: sheave_demand")
        self.api.delete(self.autoscaler())
        self.autoscale("sheave_demand", service="cart", maxReplicas=2)
        self.wait_for_reason("no route refers to a Service")
        self.api.delete(self.autoscaler())
        self.autoscale("sheave_demand", service="", maxReplicas=2)
        self.wait_for_reason("matchLabels: {service: NAME}")

    def test_users_read_what_they_may(self) -> None:
        path = f"{GROUP}/namespaces/{self.namespace}/sheave_demand?labelSelector=service%3Dweb"
        found = json.loads(kubectl("get", "--raw", path))
        self.assertEqual(found["kind"], "ExternalMetricValueList")
        self.assertEqual(found["items"][0]["metricLabels"], {"service": "web", "port": "80"})
        names = [it["name"] for it in json.loads(kubectl("get", "--raw", GROUP))["resources"]]
        self.assertIn("sheave_demand", names)
        user = f"system:serviceaccount:{self.namespace}:default"
        with self.assertRaisesRegex(AssertionError, "Forbidden|forbidden|cannot list"):
            kubectl("get", "--raw", path, "--as", user)

    def test_clients_besides_the_api_server_are_refused(self) -> None:
        path = f"{GROUP}/namespaces/{self.namespace}/sheave_demand?labelSelector=service%3Dweb"
        fields = {"X-Remote-User": "system:admin", "X-Remote-Group": "system:masters"}
        for replica in self.replicas():
            with self.tls(replica) as connection:
                connection.request("GET", path, headers=fields)
                answer = connection.getresponse()
                self.assertEqual(answer.status, http.HTTPStatus.UNAUTHORIZED)
                self.assertIn("only the API server", answer.read().decode())

    def test_api_service_of_another_provider_stays_as_it_is(self) -> None:
        ours = self.api.get(API_SERVICE)["spec"]
        self.assertTrue(ours["caBundle"])
        theirs = {"namespace": "keda", "name": "keda-operator-metrics-apiserver", "port": 443}
        self.api.patch(API_SERVICE, {"spec": {"service": theirs, "caBundle": None, "insecureSkipTLSVerify": True}})
        self.addCleanup(self.wait, self.is_available, "the API of metrics again", PATIENCE_SECONDS)
        self.addCleanup(
            self.api.patch, API_SERVICE, {"spec": {"service": ours["service"], "insecureSkipTLSVerify": False}}
        )
        # A replica that starts looks at once.
        self.roll_out(SYSTEM, PATIENCE_SECONDS)
        pods = [pod["metadata"]["name"] for pod in self.replica_pods()]
        told = "belongs to Service keda/keda-operator-metrics-apiserver"
        self.wait(
            lambda: all(told in kubectl("--namespace", "sheave-system", "logs", pod) for pod in pods),
            "the owner's name in the log",
            PATIENCE_SECONDS,
        )
        self.assertNotIn("caBundle", self.api.get(API_SERVICE)["spec"])

    def is_scaling_active(self) -> bool:
        found = self.status().get("conditions") or []
        return any(it["type"] == "ScalingActive" and it["status"] == "True" for it in found)

    def wait_for_reason(self, text: str) -> None:
        def message() -> bool:
            return any(text in it.get("message", "") for it in self.status().get("conditions") or [])

        self.wait(message, f"a condition with {text!r}", PATIENCE_SECONDS)

    def demand(self) -> float:
        """Returns the demand as kubectl reads it."""
        path = f"{GROUP}/namespaces/{self.namespace}/sheave_demand?labelSelector=service%3Dweb"
        value = json.loads(kubectl("get", "--raw", path))["items"][0]["value"]
        return float(value.removesuffix("m")) / 1000 if value.endswith("m") else float(value)

    @contextmanager
    def tls(self, replica: str) -> Iterator[http.client.HTTPSConnection]:
        """Connects to the API of a replica, as any pod can."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(replica, METRICS_PORT, timeout=10, context=context)
        try:
            yield connection
        finally:
            connection.close()
