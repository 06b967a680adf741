"""Many objects: how soon a change is served, what is held in memory, and whether requests notice."""

import http.client
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.gateway import WEB, GatewayTest
from tests.cluster.api import Object
from tests.cluster.tests import running

setUpModule = gateway.install
tearDownModule = running.stop

ROUTES, MANY_ROUTES = 1000, 5000
CHANGES = 200
PROPAGATION_SECONDS = 0.1
MANY_ROUTES_BYTES = 100e6
SERVICES, ENDPOINTS = 1000, 100
# Requests to the API server at once.
HANDS = 4
# Between looks at what is served.
LOOK_SECONDS = 0.001
PATIENCE_SECONDS = 60.0
CALM_SECONDS = 10.0
# Clients in Python take a core where they ask as fast as they can, and it is not they who are measured.
LIGHT_PAUSE_SECONDS = 0.05


class ScaleTest(GatewayTest):
    def test_changes_among_many_routes_are_served_at_once(self) -> None:
        self.serve(2, WEB)
        empty = self.memory()
        self.at_hand(self.make_route, range(ROUTES))
        self.until_served(ROUTES - 1, 0)
        with self.load(LIGHT_PAUSE_SECONDS):
            changes = [self.change(index * 7 % ROUTES, index + 1) for index in range(CHANGES)]
            waits = sorted(map(sum, changes))
            tell(f"apply to served, {ROUTES} routes, {CHANGES} changes", milliseconds(waits))
            tell("of which the API server took", milliseconds(sorted(api_seconds for api_seconds, _ in changes)))
            tell("and Sheave", milliseconds(sorted(served for _, served in changes)))
            self.at_hand(self.make_route, range(ROUTES, MANY_ROUTES))
            self.until_served(MANY_ROUTES - 1, 0)
        busy = self.memory()
        # Statuses are written, and what changes have left over is given back.
        time.sleep(CALM_SECONDS)
        many = self.memory()
        told = f"{megabytes(empty)}, {megabytes(busy)}, and when all is calm {megabytes(many)}"
        tell(f"memory with no, then {MANY_ROUTES} routes", told)
        self.assertLessEqual(waits[int(0.99 * CHANGES)], PROPAGATION_SECONDS)
        self.assertLessEqual(many, MANY_ROUTES_BYTES)

    def test_many_endpoints_are_held(self) -> None:
        self.serve(1, WEB)
        empty = self.memory()
        with self.load():
            self.at_hand(self.make_service, range(SERVICES))
            self.until_served(SERVICES - 1, SERVICES - 1)
            begun = time.monotonic()
            self.scale(2)
            self.wait(lambda: len(self.ready()) == 2, "a second pod")
            tell("a second pod was ready after", f"{time.monotonic() - begun:.1f} s")
        tell(
            f"memory with no, then {SERVICES} x {ENDPOINTS} endpoints",
            f"{megabytes(empty)}, {megabytes(self.memory())}",
        )

    def make_route(self, index: int) -> None:
        self.create("httproutes", f"route-{index}", **self.redirection(index, 0))

    def redirection(self, index: int, edition: int) -> Object:
        """A route of a path of its own, which answers with the edition."""
        path = {"type": "ReplaceFullPath", "replaceFullPath": f"/edition-{edition}"}
        filters = [{"type": "RequestRedirect", "requestRedirect": {"path": path}}]
        match = {"path": {"type": "PathPrefix", "value": f"/route-{index}"}}
        return {"parentRefs": [{"name": "web"}], "rules": [{"matches": [match], "filters": filters}]}

    def change(self, index: int, edition: int) -> tuple[float, float]:
        """Seconds until the API server has answered, and from then until it is served."""
        body = {"spec": self.redirection(index, edition)}
        begun = time.monotonic()
        self.api.patch(self.path("httproutes", f"route-{index}"), body)
        answered = time.monotonic()
        self.until_served(index, edition)
        return answered - begun, time.monotonic() - answered

    def until_served(self, index: int, edition: int) -> None:
        connection = http.client.HTTPConnection(self.address, 80, timeout=PATIENCE_SECONDS)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            connection.request("GET", f"/route-{index}", headers={"Host": self.host})
            answer = connection.getresponse()
            answer.read()
            if (answer.getheader("Location") or "").endswith(f"/edition-{edition}"):
                return connection.close()
            if time.monotonic() > deadline:
                raise AssertionError(f"edition {edition} of route {index} is not served")
            time.sleep(LOOK_SECONDS)

    def make_service(self, index: int) -> None:
        """A Service of endpoints that nobody asks, and a route to it."""
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

    def at_hand(self, make: Callable[[int], None], indices: Iterable[int]) -> None:
        begun = time.monotonic()
        with ThreadPoolExecutor(HANDS) as hands:
            made = list(hands.map(make, indices))
        tell(f"{len(made)} made in", f"{time.monotonic() - begun:.1f} s")

    def memory(self) -> float:
        """Of the replica that has most, in bytes."""
        pods = self.api.get("/api/v1/namespaces/sheave-system/pods", labelSelector="app.kubernetes.io/name=sheave")[
            "items"
        ]
        return max(resident(pod["status"]["podIP"]) for pod in pods if "deletionTimestamp" not in pod["metadata"])


def resident(address: str) -> float:
    with urllib.request.urlopen(f"http://{address}:9900/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("process_resident_memory_bytes "))


def milliseconds(waits: list[float]) -> str:
    """Of sorted seconds."""
    share = {"median": statistics.median(waits), "p99": waits[int(0.99 * len(waits))], "most": waits[-1]}
    return ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in share.items())


def megabytes(count: float) -> str:
    return f"{count / 1e6:.0f} MB"


def tell(what: str, value: str) -> None:
    print(f"{what}: {value}", file=sys.stderr, flush=True)
