"""The API of metrics behind the API server: the real HorizontalPodAutoscaler scales by demand, and everybody else gets
what they may.

    scripts/acceptance --pattern test_metrics_api.py
"""

from __future__ import annotations

import http.client
import json
import math
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from tests.cluster import certificates
from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.autoscaling import (
    API_SERVICE,
    PATIENCE_SECONDS,
    AutoscalingTest,
    is_scaling_active,
)
from tests.cluster.acceptance.gateway import SYSTEM, kubectl
from tests.cluster.acceptance.pod_processes import kill
from tests.cluster.acceptance.replicas import PODS_OF_SHEAVE, fetch
from tests.cluster.api import ApiError, Object
from tests.cluster.control_plane import AGGREGATOR
from tests.cluster.layout import KUBECONFIG
from tests.cluster.tests import running
from tests.cluster.tests.running import shell

tearDownModule = running.stop

GROUP = "/apis/external.metrics.k8s.io/v1beta1"
OBJECT_GROUP = "/apis/custom.metrics.k8s.io/v1beta2"
METRICS_PORT = 9904
# Settings of the test cluster's controller, and the window of the metric.
SYNC_SECONDS = 5.0
WINDOW_SECONDS = 15.0
# The API server asks every 30 s whether the API is available.
AVAILABILITY_SECONDS = 35.0
# Autoscalers whose syncs are spread over the period.
AUTOSCALERS = 10
CAP = 2
CLIENTS = 8


def setUpModule() -> None:
    # With the policy Local one node has the address, so that all requests are those of one replica.
    cluster = "service.externalTrafficPolicy=Cluster"
    settings = ("metricsApi.enabled=true", "metricsApi.groups={external,custom}", cluster)
    gateway.install_chart(*settings, workload="deployment")


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
            self.assert_short_outages(4 * SYNC_SECONDS)
        self.wait(lambda: self.is_rolled_out(SYSTEM, 0), "the replica again", PATIENCE_SECONDS)

    def test_replica_that_is_killed_costs_no_autoscaler_more_than_a_sync(self) -> None:
        names = [f"idle-{number}" for number in range(AUTOSCALERS)]
        for name in names:
            self.make_pending(name)
            self.autoscale("sheave_requests_in_flight", name=name, maxReplicas=2)
            time.sleep(SYNC_SECONDS / AUTOSCALERS)  # So that syncs are spread over the period.
        self.wait(
            lambda: all(map(is_scaling_active, self.api.get(self.autoscaler(""))["items"])), "metrics", PATIENCE_SECONDS
        )
        for pod in [it["metadata"]["name"] for it in self.replica_pods()]:
            kill(pod)
            self.assert_short_outages(3 * SYNC_SECONDS)
            path = f"{PODS_OF_SHEAVE}/{pod}"
            self.wait(lambda path=path: is_restarted(self.api.get(path)), "the replica again", PATIENCE_SECONDS)

    def test_reason_of_a_metric_that_does_not_exist_is_in_the_condition(self) -> None:
        self.autoscale("demand", maxReplicas=2)
        self.wait_for_reason("there are: sheave_demand")
        self.api.delete(self.autoscaler())
        self.autoscale("sheave_demand", service="cart", maxReplicas=2)
        self.wait_for_reason("no route refers to a Service")
        self.api.delete(self.autoscaler())
        self.autoscale("sheave_demand", service="", maxReplicas=2)
        self.wait_for_reason("matchLabels: {service: NAME}")
        self.api.delete(self.autoscaler())
        self.autoscale("sheave_demand", port="81", maxReplicas=2)
        self.wait_for_reason('that matches "port=81,service=web"')

    def test_target_that_is_hardly_meant_is_explained(self) -> None:
        with self.assertRaisesRegex(ApiError, "must be positive"):
            self.autoscale("sheave_demand", target="0", maxReplicas=1)
        self.autoscale("sheave_demand", target="1m", maxReplicas=1)
        with self.load(0.0, 1):
            self.wait_for_condition("ScalingLimited", "TooManyReplicas")
            told = self.explain(f"{self.namespace}/web")
        self.assertIn(f"warning    the target 0.001 is less than a hundredth of the {CAP} requests", told)
        self.assertIn("TooManyReplicas", told)

    def test_reason_of_an_invalid_certificate_is_in_the_condition(self) -> None:
        self.autoscale("sheave_demand", maxReplicas=1)
        now, day = datetime.now(UTC), timedelta(days=1)
        for begin, reason in [(now - 2 * day, "has expired"), (now + day, "is not valid yet")]:
            self.wait(self.is_scaling_active, "a metric", PATIENCE_SECONDS)
            with certificate_of_api_server(begin, begin + day):
                self.wait_for_reason(f"the certificate of the API server's proxy {reason}")
                self.wait_for_reason("Sheave's clock has 20")
                time.sleep(AVAILABILITY_SECONDS)  # The API server looks whether the API is available.
                self.assertTrue(self.is_available())
                self.wait_for_reason(f"the certificate of the API server's proxy {reason}")
        self.wait(self.is_scaling_active, "a metric again", PATIENCE_SECONDS)

    def test_reason_of_an_object_without_a_metric_is_in_the_condition(self) -> None:
        self.autoscale_by_object("httproutes", "sheave_demand")
        self.wait_for_reason("routes have no sheave_demand")
        self.api.delete(self.autoscaler())
        self.autoscale_by_object("services", "sheave_demand", name="cart")
        self.wait_for_reason("no route refers to a Service")
        self.api.delete(self.autoscaler())
        self.autoscale_by_object("httproutes", "sheave_requests_per_second", name="cart")
        self.wait_for_reason("there is no route in namespace")

    def test_autoscaler_reads_metrics_of_a_service_and_of_a_route(self) -> None:
        for kind, metric in [("services", "sheave_demand"), ("httproutes", "sheave_requests_per_second")]:
            self.autoscale_by_object(kind, metric)
            self.wait(self.is_scaling_active, f"a metric of {kind}", PATIENCE_SECONDS)
            current = self.status()["currentMetrics"][0]
            self.assertEqual(current["object"]["metric"]["name"], metric)
            self.api.delete(self.autoscaler())

    def test_rates_of_services_and_routes_are_those_of_all_replicas(self) -> None:
        self.have_replicas(2)
        with self.load(0.2, 2 * CLIENTS) as load:
            self.wait(lambda: len(self.serving()) == 2, "requests at both replicas", PATIENCE_SECONDS)
            time.sleep(WINDOW_SECONDS + 2)  # The window of the rates.
            end = time.monotonic()
            sent = sum(load.between(end - WINDOW_SECONDS, end).values()) / WINDOW_SECONDS
            names = ["service=web", "route=web", "route=web,rule=0"]
            rates = [self.value("sheave_requests_per_second", name) for name in names]
            objects = [
                "services/web/sheave_requests_per_second",
                "httproutes.gateway.networking.k8s.io/web/sheave_requests_per_second",
            ]
            rates += [self.object_value(path) for path in objects]
            print(f"{self.id()}: {sent:.1f}/s sent, {rates} read", file=sys.stderr)
            for rate in rates:
                self.assertGreater(rate, 0.7 * sent)
                self.assertLess(rate, 1.4 * sent)
        self.assertEqual(self.value("sheave_rejections_per_second", "service=web"), 0)

    def test_next_step_of_the_autoscaler_is_explained(self) -> None:
        self.autoscale("sheave_demand", maxReplicas=1)
        with self.load(0.0, CLIENTS):
            self.wait(lambda: self.demand() > CLIENTS / 2, "the demand", PATIENCE_SECONDS)
            self.wait(lambda: "currentReplicas" in self.status(), "a sync", PATIENCE_SECONDS)
            told = self.explain(f"{self.namespace}/web")
        for text in ["sheave_demand of service=web", f"/ {CAP} for each pod", "maxReplicas is 1", "next sync  1 pods"]:
            self.assertIn(text, told)
        self.api.delete(self.autoscaler())
        self.autoscale_by_object("httproutes", "sheave_requests_per_second")
        self.wait(lambda: "currentReplicas" in self.status(), "a sync", PATIENCE_SECONDS)
        told = self.explain(f"{self.namespace}/web")
        self.assertRegex(told, r"metric     sheave_requests_per_second of HTTPRoute web is \d")
        with self.assertRaisesRegex(AssertionError, "no route refers to Service .*/cart"):
            self.explain(f"{self.namespace}/cart")

    def test_users_read_what_they_may(self) -> None:
        path = f"{GROUP}/namespaces/{self.namespace}/sheave_demand?labelSelector=service%3Dweb"
        found = json.loads(kubectl("get", "--raw", path))
        self.assertEqual(found["kind"], "ExternalMetricValueList")
        self.assertEqual(found["items"][0]["metricLabels"], {"service": "web", "port": "80"})
        names = [it["name"] for it in json.loads(kubectl("get", "--raw", GROUP))["resources"]]
        self.assertIn("sheave_demand", names)
        user = f"system:serviceaccount:{self.namespace}:default"
        of_object = f"{OBJECT_GROUP}/namespaces/{self.namespace}/services/web/sheave_demand"
        self.assertEqual(json.loads(kubectl("get", "--raw", of_object))["kind"], "MetricValueList")
        for asked in (path, of_object):
            with self.assertRaisesRegex(AssertionError, "Forbidden|forbidden|cannot"):
                kubectl("get", "--raw", asked, "--as", user)

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
        # The API server knows no reason of ours; the guide says where it is.
        self.autoscale("sheave_demand", maxReplicas=2)
        self.wait_for_reason("the server is currently unable to handle the request")

    def make_pending(self, name: str) -> None:
        """Creates a Deployment for an autoscaler, whose pod no node takes."""
        labels = {"app": name}
        pod = {"containers": [shell("true")], "nodeSelector": {"kubernetes.io/hostname": "none"}}
        template = {"metadata": {"labels": labels}, "spec": pod}
        self.make("deployments", name, spec={"selector": {"matchLabels": labels}, "template": template})

    def assert_short_outages(self, seconds: float) -> None:
        """Asserts that no autoscaler is without a metric for more than a sync, in the next seconds."""
        outages = self.outages(seconds)
        count, longest = sum(1 for it in outages.values() if it), max(outages.values())
        print(f"{self.id()}: {count} of {len(outages)} without a metric, for {longest:.1f} s at most", file=sys.stderr)
        self.assertLessEqual(longest, 1.5 * SYNC_SECONDS)

    def wait_for_condition(self, kind: str, reason: str) -> None:
        def is_there() -> bool:
            found = self.status().get("conditions") or []
            return any((it["type"], it["status"], it["reason"]) == (kind, "True", reason) for it in found)

        self.wait(is_there, f"{kind} with {reason}", PATIENCE_SECONDS)

    def wait_for_reason(self, text: str) -> None:
        def message() -> bool:
            return any(text in it.get("message", "") for it in self.status().get("conditions") or [])

        self.wait(message, f"a condition with {text!r}", PATIENCE_SECONDS)

    def demand(self) -> float:
        return self.value("sheave_demand", "service=web")

    def value(self, metric: str, selector: str) -> float:
        """Returns the sum of an external metric."""
        found = self.api.get(f"{GROUP}/namespaces/{self.namespace}/{metric}", labelSelector=selector)
        return sum(number(it["value"]) for it in found["items"])

    def object_value(self, path: str) -> float:
        """Returns the only value of a metric of an object."""
        (item,) = self.api.get(f"{OBJECT_GROUP}/namespaces/{self.namespace}/{path}")["items"]
        return number(item["value"])

    def serving(self) -> list[str]:
        """Returns the replicas with demand of their own."""

        def own_demand(replica: str) -> float:
            backends = fetch(replica, 9900, "/api/v1/backends")["backends"]
            return sum(it["demand"]["total"] for it in backends if it["namespace"] == self.namespace)

        return [replica for replica in self.replicas() if own_demand(replica) > 0]

    def explain(self, service: str) -> str:
        replica = next(iter(self.replicas()))
        argv = [str(gateway.find_binary()), "explain", "--scaling", service, "--admin", f"{replica}:9900"]
        environment = os.environ | {"KUBECONFIG": str(KUBECONFIG)}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise AssertionError(done.stderr)
        return done.stdout

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


@contextmanager
def certificate_of_api_server(begin: datetime, end: datetime) -> Iterator[None]:
    """Gives the API server's proxy a certificate for another time; the API server reads it anew."""
    path = certificates.certificate(AGGREGATOR)
    before = path.read_bytes()
    certificates.sign_for_time(AGGREGATOR, begin, end)
    try:
        yield
    finally:
        path.write_bytes(before)


def is_restarted(pod: Object) -> bool:
    """True if a container of the pod has been started again, and is ready."""
    return any(it["restartCount"] and it["ready"] for it in pod["status"].get("containerStatuses") or [])


def number(quantity: str) -> float:
    return float(quantity.removesuffix("m")) / 1000 if quantity.endswith("m") else float(quantity)
