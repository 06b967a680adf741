"""Large numbers of objects: delay of a change, memory, and effect on requests."""

import http.client
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.gateway import WEB, GatewayTest, is_ending, metric
from tests.cluster.api import Object
from tests.cluster.tests import running

setUpModule = gateway.install
tearDownModule = running.stop

ROUTES, MANY_ROUTES = 1000, 5000
CHANGES = 200
PROPAGATION_SECONDS = 0.1
MANY_ROUTES_BYTES = 100e6
SERVICES, ENDPOINTS = 1000, 100
# Concurrent requests to the API server.
CONCURRENCY = 4
# Poll interval for the served configuration.
POLL_SECONDS = 0.001
PATIENCE_SECONDS = 60.0
IDLE_SECONDS = 10.0
# Clients in Python use a whole core in a tight loop, which would disturb the measurement.
LIGHT_PAUSE_SECONDS = 0.05


class ScaleTest(GatewayTest):
    def test_changes_among_many_routes_are_served_at_once(self) -> None:
        self.serve(2, WEB)
        empty = self.memory()
        self.run_concurrently(self.make_route, range(ROUTES))
        self.until_served(ROUTES - 1, 0)
        with self.load(LIGHT_PAUSE_SECONDS):
            changes = [self.change(index * 7 % ROUTES, index + 1) for index in range(CHANGES)]
            waits = sorted(map(sum, changes))
            print_result(f"apply to served, {ROUTES} routes, {CHANGES} changes", milliseconds(waits))
            print_result("API server's part", milliseconds(sorted(api_seconds for api_seconds, _ in changes)))
            print_result("and Sheave", milliseconds(sorted(served for _, served in changes)))
            self.run_concurrently(self.make_route, range(ROUTES, MANY_ROUTES))
            self.until_served(MANY_ROUTES - 1, 0)
        busy = self.memory()
        time.sleep(IDLE_SECONDS)  # The idle time in which statuses are written and unused memory is returned.
        many = self.memory()
        told = f"{megabytes(empty)}, {megabytes(busy)}, and when idle {megabytes(many)}"
        print_result(f"memory with no, then {MANY_ROUTES} routes", told)
        self.assertLessEqual(waits[int(0.99 * CHANGES)], PROPAGATION_SECONDS)
        self.assertLessEqual(many, MANY_ROUTES_BYTES)

    def test_many_endpoints_are_held(self) -> None:
        self.serve(1, WEB)
        empty = self.memory()
        with self.load():
            self.run_concurrently(self.make_service, range(SERVICES))
            self.until_served(SERVICES - 1, SERVICES - 1)
            begun = time.monotonic()
            self.scale(2)
            self.wait(lambda: len(self.ready()) == 2, "a second pod")
            print_result("a second pod was ready after", f"{time.monotonic() - begun:.1f} s")
        print_result(
            f"memory with no, then {SERVICES} x {ENDPOINTS} endpoints",
            f"{megabytes(empty)}, {megabytes(self.memory())}",
        )

    def make_route(self, index: int) -> None:
        self.create("httproutes", f"route-{index}", **self.redirection(index, 0))

    def redirection(self, index: int, revision: int) -> Object:
        """Returns a route with its own path, which answers with the revision."""
        path = {"type": "ReplaceFullPath", "replaceFullPath": f"/edition-{revision}"}
        filters = [{"type": "RequestRedirect", "requestRedirect": {"path": path}}]
        match = {"path": {"type": "PathPrefix", "value": f"/route-{index}"}}
        return {"parentRefs": [{"name": "web"}], "rules": [{"matches": [match], "filters": filters}]}

    def change(self, index: int, revision: int) -> tuple[float, float]:
        """Changes a route; returns the seconds of the API server, and from its answer until the change is served."""
        body = {"spec": self.redirection(index, revision)}
        begun = time.monotonic()
        self.api.patch(self.path("httproutes", f"route-{index}"), body)
        answered = time.monotonic()
        self.until_served(index, revision)
        return answered - begun, time.monotonic() - answered

    def until_served(self, index: int, revision: int) -> None:
        connection = http.client.HTTPConnection(self.address, 80, timeout=PATIENCE_SECONDS)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            connection.request("GET", f"/route-{index}", headers={"Host": self.host})
            answer = connection.getresponse()
            answer.read()
            if (answer.getheader("Location") or "").endswith(f"/edition-{revision}"):
                return connection.close()
            if time.monotonic() > deadline:
                raise AssertionError(f"edition {revision} of route {index} is not served")
            time.sleep(POLL_SECONDS)

    def make_service(self, index: int) -> None:
        """Creates a Service with endpoints that get no requests, and a route to it."""
        name = f"many-{index}"
        self.make("services", name, spec={"clusterIP": "None", "ports": [{"port": 80}]})
        addresses = (f"10.{128 + index // 250}.{index % 250}.{1 + place}" for place in range(ENDPOINTS))
        slices = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": 80}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
        }
        self.api.post(f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices", slices)
        spec = self.redirection(index, index)
        match = {"path": {"type": "PathPrefix", "value": f"/many-{index}"}}
        spec["rules"].append({"matches": [match], "backendRefs": [{"name": name, "port": 80}]})
        self.create("httproutes", name, **spec)

    def run_concurrently(self, make: Callable[[int], None], indices: Iterable[int]) -> None:
        begun = time.monotonic()
        with ThreadPoolExecutor(CONCURRENCY) as threads:
            made = list(threads.map(make, indices))
        print_result(f"{len(made)} made in", f"{time.monotonic() - begun:.1f} s")

    def memory(self) -> float:
        """Returns the memory of the largest replica in bytes."""
        pods = self.api.get("/api/v1/namespaces/sheave-system/pods", labelSelector="app.kubernetes.io/name=sheave")[
            "items"
        ]
        addresses = (pod["status"]["podIP"] for pod in pods if not is_ending(pod))
        return max(metric(address, "process_resident_memory_bytes") for address in addresses)


def milliseconds(waits: list[float]) -> str:
    """Formats sorted seconds."""
    share = {"median": statistics.median(waits), "p99": waits[int(0.99 * len(waits))], "most": waits[-1]}
    return ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in share.items())


def megabytes(count: float) -> str:
    return f"{count / 1e6:.0f} MB"


def print_result(what: str, value: str) -> None:
    print(f"{what}: {value}", file=sys.stderr, flush=True)
