"""Soak in the test cluster: load for an hour while pods, replicas, objects and the API server come and go.

Afterwards each process of Sheave that was there before holds what it held, no request has failed, and no pod with a
limit has had more requests than that. MINUTES=60, SEED=1; SUMMARY=FILE keeps the result.

    make soak CLUSTER=1
"""

from __future__ import annotations

import http.client
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.calls import Calls
from tests.cluster.acceptance.gateway import SYSTEM, WEB, GatewayTest, command, metric
from tests.cluster.acceptance.load import Load, clock
from tests.cluster.acceptance.pod_processes import kill, processes, words
from tests.cluster.acceptance.replicas import PODS_OF_SHEAVE, ReplicaGroupTest
from tests.cluster.acceptance.test_sheave import ECHO_CALLS
from tests.cluster.tests import running

setUpModule = gateway.install
tearDownModule = running.stop

SECONDS = 60 * float(os.environ.get("MINUTES", "60"))
SEED = int(os.environ.get("SEED", "1"))
SUMMARY = os.environ.get("SUMMARY")
# Part of the time for which load and faults run before the baseline is taken.
WARM_UP_SHARE = 0.1
# Clients in Python use a core in a tight loop.
CLIENTS, PAUSE_SECONDS = 8, 0.05
CALLS_EACH_SECOND = 50
# Time between two faults, and without the API server.
CALM_SECONDS = (1.0, 8.0)
OUTAGE_SECONDS = (2.0, 40.0)
# The controllers of Kubernetes need this long after an outage, and a replica drains for 35 s.
PATIENCE_SECONDS = 240.0
PODS = (2, 5)
LIMIT, LIMITED_PODS = 4, 3
REPLICAS = 2
# Memory that may be added to the baseline: the allocator keeps pages that it has once used.
MEMORY_GROWTH, MEMORY_GROWTH_BYTES = 1.1, 8 * 2**20
# Longer than connections to endpoints stay idle.
REST_SECONDS = 120.0
# Problems that the report has.
MAX_SHOWN = 100
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


class SoakCalls(Calls):
    """Calls over one connection for the whole time."""

    RATE = CALLS_EACH_SECOND
    SECONDS = int(SECONDS) + 3600


@dataclass(frozen=True)
class Holdings:
    """What one process of Sheave holds."""

    memory_bytes: float
    descriptors: int
    threads: int
    connections: float

    def __str__(self) -> str:
        counts = f"{self.descriptors} descriptors, {self.threads} threads, {self.connections:.0f} client connections"
        return f"{self.memory_bytes / 2**20:.1f} MiB, {counts}"

    def order(self) -> tuple[float, ...]:
        return self.descriptors, self.threads, self.memory_bytes

    def problems(self, before: Holdings) -> Iterator[str]:
        """Yields a sentence for each resource of which there is more than before."""
        checks = {
            "memory": self.memory_bytes <= before.memory_bytes * MEMORY_GROWTH + MEMORY_GROWTH_BYTES,
            "descriptors": self.descriptors <= before.descriptors,
            "threads": self.threads <= before.threads,
            "client connections": self.connections == 0,
        }
        yield from (f"{name}: {self}; before: {before}" for name, holds in checks.items() if not holds)


class Application(ReplicaGroupTest):
    """An application in a namespace of its own, without tests."""

    def runTest(self) -> None:
        """Does nothing: the soak uses the helpers alone."""


class CallsApplication(Application):
    """The same with gRPC."""

    LOAD = SoakCalls


class SoakTest(GatewayTest):
    """The soak."""

    def setUp(self) -> None:
        super().setUp()
        self.random = random.Random(SEED)
        self.revision = 0
        self.faults: Counter[str] = Counter()
        # With Local, the address moves to another node as replicas come and go, and breaks connections.
        service = "/api/v1/namespaces/sheave-system/services/sheave"
        self.api.patch(service, {"spec": {"externalTrafficPolicy": "Cluster"}})
        self.web, self.limited = self.application(Application), self.application(Application)
        self.calls = self.application(CallsApplication)
        self.web.serve(PODS[0], WEB)
        self.calls.serve(PODS[0], ECHO_CALLS, "grpcroutes", appProtocol="kubernetes.io/h2c")
        self.limited.serve_counting(LIMITED_PODS, LIMIT)
        self.limited.limit(maxInFlightPerEndpoint=LIMIT)
        self.limited.have_replicas(REPLICAS)

    def application(self, kind: type[Application]) -> Application:
        made = kind()
        made.setUp()
        self.addCleanup(made.doCleanups)
        return made

    def test_everything_is_where_it_was_after_an_hour_of_faults(self) -> None:
        with self.loads():
            self.inject_faults(SECONDS * WARM_UP_SHARE)
        self.keep_replicas()
        before = self.rest()
        with self.loads() as loads:
            self.inject_faults(SECONDS)
        after = self.rest()
        problems = [problem for load in loads.values() for problem in load.problems()]
        problems += [f"no answer: {name}" for name, load in loads.items() if not load.answers]
        for pod, holdings in before.items():
            problems += [f"{pod}: {it}" for it in after[pod].problems(holdings)] if pod in after else [f"{pod} is gone"]
        problems += self.pods_over_their_limit() + self.restarts()
        self.report(before, after, loads, problems)
        self.assertEqual(problems[:MAX_SHOWN], [])

    @contextmanager
    def loads(self) -> Iterator[dict[str, Load]]:
        """Runs the load of all applications."""
        applications = {
            "HTTP/1.1": self.web,
            f"HTTP/1.1, {LIMIT} requests at a pod": self.limited,
            "gRPC over one connection": self.calls,
        }
        with ExitStack() as stack:
            yield {
                name: stack.enter_context(it.LOAD(it.address, it.host, CLIENTS, PAUSE_SECONDS))
                for name, it in applications.items()
            }

    def inject_faults(self, seconds: float) -> None:
        faults = [
            self.scale_http,
            self.scale_grpc,
            self.roll_out_http,
            self.roll_out_grpc,
            self.kill_a_pod,
            self.stop_the_api_server,
            self.change_a_route,
            self.add_an_invalid_route,
            self.add_a_replica,
        ]
        begun = time.monotonic()
        waiting: list[Callable[[], None]] = []
        while time.monotonic() - begun < seconds:
            # Rounds: each fault once in every round.
            waiting = waiting or self.random.sample(faults, len(faults))
            fault = waiting.pop()
            started = time.monotonic()
            fault()
            name = fault.__name__.replace("_", " ")
            self.faults[name] += 1
            took = time.monotonic() - started
            print(f"{clock(time.time())} {name} took {took:.0f} s", file=sys.stderr, flush=True)
            time.sleep(self.random.uniform(*CALM_SECONDS))  # Faults come at random times.

    def scale_http(self) -> None:
        self.scale_application(self.web)

    def scale_grpc(self) -> None:
        self.scale_application(self.calls)

    def scale_application(self, application: Application) -> None:
        pods = self.random.randint(*PODS)
        application.scale(pods)
        application.wait_for_replicas(pods, PATIENCE_SECONDS)

    def roll_out_http(self) -> None:
        self.web.roll_out(self.web.path("deployments", "web"), PATIENCE_SECONDS)

    def roll_out_grpc(self) -> None:
        self.calls.roll_out(self.calls.path("deployments", "web"), PATIENCE_SECONDS)

    def kill_a_pod(self) -> None:
        """Kills a pod, whose requests in flight another one gets."""
        ready = sorted(self.web.ready())
        kill(self.random.choice(ready))
        self.web.wait_for_replicas(len(ready), PATIENCE_SECONDS)

    def stop_the_api_server(self) -> None:
        command("stop-api-server")
        time.sleep(self.random.uniform(*OUTAGE_SECONDS))
        command("start-api-server")
        # The next fault needs the controllers, and Sheave's watches.
        self.change_a_route()

    def change_a_route(self) -> None:
        self.revision += 1
        field = {"name": "x-revision", "value": str(self.revision)}
        filters = [{"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [field]}}]
        rules = [{"filters": filters, "backendRefs": [{"name": "web", "port": 80}]}]
        self.web.api.patch(self.web.path("httproutes", "web"), {"spec": {"rules": rules}})
        served = lambda: self.served_revision() == str(self.revision)  # noqa: E731
        self.wait(served, f"revision {self.revision} of the route", PATIENCE_SECONDS)

    def served_revision(self) -> str | None:
        connection = http.client.HTTPConnection(self.web.address, 80, timeout=PATIENCE_SECONDS)
        connection.request("GET", "/", headers={"Host": self.web.host})
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.getheader("x-revision")

    def add_an_invalid_route(self) -> None:
        """Adds a route to a Service that does not exist, and removes it when its status says so."""
        rules = [{"backendRefs": [{"name": "missing", "port": 80}]}]
        self.web.create("httproutes", "invalid", parentRefs=[{"name": "web"}], hostnames=["invalid.test"], rules=rules)
        path = self.web.path("httproutes", "invalid")
        reasons = lambda: [it["reason"] for it in gateway.conditions(self.api.get(path).get("status"))]  # noqa: E731
        self.wait(lambda: "BackendNotFound" in reasons(), "a status of the invalid route", PATIENCE_SECONDS)
        self.api.delete(path)

    def add_a_replica(self) -> None:
        """Adds a replica of Sheave, which takes its part of the requests, and removes one."""
        self.limited.have_replicas(REPLICAS + 1)
        self.limited.have_replicas(REPLICAS)

    def keep_replicas(self) -> None:
        """Marks the replicas of the baseline, so that a later one is removed in their place."""
        for pod in self.limited.replica_pods():
            path = f"{PODS_OF_SHEAVE}/{pod['metadata']['name']}"
            self.api.patch(path, {"metadata": {"annotations": {DELETION_COST: "1000"}}})

    def rest(self) -> dict[str, Holdings]:
        """Waits until no client is connected, with as many pods each time; returns the least that each process of Sheave
        holds afterwards.
        """
        for application in (self.web, self.calls):
            application.scale(PODS[0])
            application.wait_for_replicas(PODS[0], PATIENCE_SECONDS)
        pods = {it["metadata"]["name"]: it["status"]["podIP"] for it in self.limited.replica_pods()}
        self.wait(lambda: not any(map(connections, pods.values())), "replicas without clients", PATIENCE_SECONDS)
        least: dict[str, Holdings] = {}
        rested = time.monotonic() + REST_SECONDS
        while time.monotonic() < rested:
            for pod, address in pods.items():
                held = holdings(pod, address)
                least[pod] = min(least.get(pod, held), held, key=Holdings.order)
            time.sleep(1)  # Unused memory is returned after some seconds.
        return least

    def pods_over_their_limit(self) -> list[str]:
        counts = self.limited.counts()
        over = [f"{it['pod']} had {it['most']} requests at once" for it in counts if it["most"] > LIMIT]
        return over if len(counts) == LIMITED_PODS else [*over, f"{len(counts)} pods with a limit"]

    def restarts(self) -> list[str]:
        """Returns Sheave's containers that have ended, as after a panic."""
        return [
            f"{pod['metadata']['name']} has restarted"
            for pod in self.limited.replica_pods()
            for it in pod["status"].get("containerStatuses", [])
            if it["restartCount"]
        ]

    def report(
        self,
        before: dict[str, Holdings],
        after: dict[str, Holdings],
        loads: dict[str, Load],
        problems: list[str],
    ) -> None:
        lines = [f"# Soak of {SECONDS / 60:.0f} minutes in the test cluster, seed {SEED}", ""]
        lines += [f"- before: {pod}: {it}" for pod, it in before.items()]
        lines += [f"- after: {pod}: {it}" for pod, it in after.items()]
        lines += ["", "| clients | succeeded | failed | longest |", "| --- | --- | --- | --- |"]
        for name, load in loads.items():
            succeeded = len(load.answers) + len(load.failures) - len(load.problems())
            lines += [f"| {name} | {succeeded} | {len(load.problems())} | {load.longest():.2f} s |"]
        lines += ["", "| faults, with those of the warm-up | times |", "| --- | --- |"]
        lines += [f"| {name} | {times} |" for name, times in sorted(self.faults.items())]
        shown = [f"PROBLEM: {it}" for it in problems[:MAX_SHOWN]]
        lines += ["", *shown, f"{len(problems)} problems were found." if problems else "No problem was found."]
        text = "\n".join(lines) + "\n"
        print(text, file=sys.stderr)
        if SUMMARY:
            Path(SUMMARY).write_text(text)


def holdings(pod: str, address: str) -> Holdings:
    """Returns what the process of a replica holds; pipes, of which workers keep some, are not counted."""
    process = next(process for _, process in processes() if f"POD_NAME={pod}".encode() in words(process / "environ"))
    targets = [os.readlink(it) for it in (process / "fd").iterdir() if it.is_symlink()]
    return Holdings(
        memory_bytes=metric(address, "process_resident_memory_bytes"),
        descriptors=sum(not target.startswith("pipe:") for target in targets),
        threads=len(list((process / "task").iterdir())),
        connections=connections(address),
    )


def connections(address: str) -> float:
    """Returns the number of open connections of clients at a replica."""
    return gateway.metric_sum(address, "sheave_listener_connections_open")
