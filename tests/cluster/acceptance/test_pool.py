"""Pool addresses on the cluster's nodes: one node owns each, and another takes over after a failure."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.address_owners import AddressOwners
from tests.cluster.acceptance.gateway import NAMESPACE, POD_NAME, PROBE, GatewayTest, command, kubectl
from tests.cluster.acceptance.load import Load
from tests.cluster.layout import POOL, Node, node
from tests.cluster.tests import running
from tests.cluster.tests.running import ECHO, container

tearDownModule = running.stop

TAKEOVER_SECONDS = 5.0
# Pause between two requests, each on a new connection.
REQUEST_SECONDS = 0.02


def setUpModule() -> None:
    pool = f"addresses.pool={{{','.join(POOL)}}}"
    gateway.install_chart("kind=DaemonSet", "hostNetwork=true", "service.enabled=false", pool)


class ProbeClient:
    """Client that sends requests to a Gateway on new connections, and records the times of answers."""

    def __init__(self, address: str, host: str) -> None:
        self._target, self._host = (address, 80), host
        self._stopped = threading.Event()
        self._answered: list[float] = []
        self._thread = threading.Thread(target=self._send_requests, daemon=True)

    def __enter__(self) -> "ProbeClient":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _send_requests(self) -> None:
        request = f"GET / HTTP/1.1\r\nHost: {self._host}\r\nConnection: close\r\n\r\n".encode()
        while not self._stopped.is_set():
            try:
                with socket.create_connection(self._target, timeout=0.3) as connection:
                    connection.sendall(request)
                    if connection.recv(64).startswith(b"HTTP/1.1 200"):
                        self._answered.append(time.monotonic())
            except OSError:
                pass
            time.sleep(REQUEST_SECONDS)

    def answered(self, since: float) -> bool:
        return bool(self._answered) and self._answered[-1] > since

    def longest_silence(self, since: float) -> float:
        times = [since, *(at for at in self._answered if at > since)]
        return max(after - before for before, after in zip(times, times[1:], strict=False))


class PoolTest(GatewayTest):
    def setUp(self) -> None:
        super().setUp()
        # The previous test may have removed Sheave from a node.
        kubectl("--namespace", "sheave-system", "rollout", "status", "--timeout=60s", "daemonset/sheave")
        self.make("services", "web", spec={"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 3000}]})
        self.run_on("n2", 1)
        self.wait_for_replicas(1)
        # The Gateway comes last, so that the choice of the node is immediate.
        self.create(
            "httproutes", "web", parentRefs=[{"name": "web"}], rules=[{"backendRefs": [{"name": "web", "port": 80}]}]
        )
        listener = {"name": "http", "port": 80, "protocol": "HTTP"}
        self.create("gateways", "web", gatewayClassName="sheave", listeners=[listener])
        path = self.path("gateways", "web")
        assigned = self.wait(lambda: self.api.get(path)["status"].get("addresses"), "addresses")
        self.address, self.address_v6 = sorted((it["value"] for it in assigned), key=lambda text: ":" in text)
        self.addCleanup(self.delete_gateway, path)

    def delete_gateway(self, path: str) -> None:
        """Deletes the Gateway and waits until no node owns its addresses: the next Gateway gets the same ones."""
        self.api.delete(path)
        leases = "/apis/coordination.k8s.io/v1/namespaces/sheave-system/leases"
        held = lambda: [
            it
            for it in self.api.get(leases, labelSelector="sheave.dev/lease=address")["items"]
            if it["spec"]["holderIdentity"]
        ]
        self.wait(lambda: not held(), "addresses without an owner")

    def find_address(self) -> None:
        """Returns the Gateway's own address, which exists later."""

    def run_on(self, name: str, replicas: int) -> None:
        """Starts `replicas` pods behind the Gateway on a node."""
        image = container(ECHO, env=[POD_NAME, NAMESPACE], readinessProbe=PROBE)
        labels = {"app": "web", "on": name}
        spec = {"containers": [image], "nodeName": name, "terminationGracePeriodSeconds": 1}
        template = {"metadata": {"labels": labels}, "spec": spec}
        selector = {"matchLabels": labels}
        self.make("deployments", f"web-{name}", spec={"replicas": replicas, "selector": selector, "template": template})

    @contextmanager
    def watch_owners(self) -> Iterator[tuple[AddressOwners, ProbeClient]]:
        """Waits for an owner of each address; asserts that there are never two."""
        with AddressOwners(self.address) as owners, AddressOwners(self.address_v6) as others:
            self.wait(
                lambda: len(owners.current_owners()) == 1 and len(others.current_owners()) == 1,
                "a node with each address",
            )
            with ProbeClient(self.address, self.host) as probe_client:
                began = time.monotonic()
                self.wait(lambda: probe_client.answered(began), "an answer")
                yield owners, probe_client
        for each_owners in (owners, others):
            print(
                f"{self.id()}: {[(it.node, round(it.begin, 2), round(it.end, 2)) for it in each_owners.intervals()]}",
                file=sys.stderr,
            )
            self.assertEqual(each_owners.overlaps(), [])

    def assert_taken_over(self, owners: AddressOwners, probe_client: ProbeClient, since: float, before: str) -> None:
        """Asserts that another node takes over within the promised time and requests are answered again."""
        self.wait(lambda: [it for it in owners.current_owners() if it != before], "another node with the address")
        self.wait(
            lambda: probe_client.answered(since + 1) and probe_client.answered(owners.intervals()[-1].begin),
            "answers from there",
        )
        taken = owners.intervals()[-1].begin - since
        silence = probe_client.longest_silence(since - 1)
        print(f"{self.id()}: taken over after {taken:.2f} s; no answer for {silence:.2f} s", file=sys.stderr)
        # The exact time of the power failure is unknown, so the interruption seen by the client counts.
        self.assertLess(silence, TAKEOVER_SECONDS)

    def test_the_node_with_the_endpoints_carries_it_and_an_outage_of_the_api_server_changes_nothing(self) -> None:
        with self.watch_owners() as (owners, _):
            self.assertEqual(owners.current_owners(), ["n2"])
            with Load(self.address, self.host, 4, 0.01) as load:
                command("stop-api-server")
                time.sleep(12)  # The length of the outage.
                command("start-api-server")
                time.sleep(6)  # Time in which the returned API server could change something.
            self.assertEqual(load.problems(), [])
            self.assertEqual([it.node for it in owners.intervals()], ["n2"])

    def test_it_moves_to_where_most_endpoints_are_when_that_has_settled(self) -> None:
        with self.watch_owners() as (owners, probe_client):
            self.run_on("n3", 3)
            since = time.monotonic()
            self.wait(lambda: owners.current_owners() == ["n3"], "the address where most endpoints are", patience=120)
            moved = time.monotonic() - since
            self.wait(lambda: probe_client.answered(since + moved), "answers from there")
            silence = probe_client.longest_silence(since)
            print(f"{self.id()}: moved after {moved:.0f} s; no answer for {silence:.2f} s", file=sys.stderr)
            self.assertGreater(moved, 30)
            self.assertLess(silence, 2)

    def test_another_node_takes_over_from_an_announcer_that_is_stopped(self) -> None:
        with self.watch_owners() as (owners, probe_client):
            (owner,) = owners.current_owners()
            stopped = announcers(node(owner))
            since = time.monotonic()
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            try:
                self.assert_taken_over(owners, probe_client, since, owner)
            finally:
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
            moves = len(owners.intervals())
            time.sleep(5)  # Time in which the address must not move again.
            self.assertEqual(len(owners.intervals()), moves)

    def test_an_announcer_that_is_killed_leaves_the_address_to_the_kernel(self) -> None:
        with self.watch_owners() as (owners, probe_client):
            (owner,) = owners.current_owners()
            since = time.monotonic()
            for pid in announcers(node(owner)):
                os.kill(pid, signal.SIGKILL)
            time.sleep(TAKEOVER_SECONDS + 1)  # Time in which another node could take over.
            self.assertEqual(len(owners.current_owners()), 1)
            silence = probe_client.longest_silence(since - 1)
            print(
                f"{self.id()}: {owner}, then {owners.current_owners()}; no answer for {silence:.2f} s", file=sys.stderr
            )
            self.assertLess(silence, TAKEOVER_SECONDS)

    def test_another_node_takes_over_from_one_without_power(self) -> None:
        # The pods of that node fail too.
        self.run_on("n3", 1)
        self.run_on("n1", 1)
        self.wait_for_replicas(3)
        with self.watch_owners() as (owners, probe_client):
            (owner,) = owners.current_owners()
            since = time.monotonic()
            command("stop-node", owner)
            try:
                self.assert_taken_over(owners, probe_client, since, owner)
            finally:
                command("start-node", owner)

    def test_a_pod_that_ends_hands_it_over_before_it_stops_taking_connections(self) -> None:
        with self.watch_owners() as (owners, probe_client):
            (owner,) = owners.current_owners()
            pods = self.api.get("/api/v1/namespaces/sheave-system/pods")["items"]
            (pod,) = (it["metadata"]["name"] for it in pods if it["spec"].get("nodeName") == owner)
            since = time.monotonic()
            kubectl("--namespace", "sheave-system", "delete", "pod", pod, "--wait=false")
            self.assert_taken_over(owners, probe_client, since, owner)
            time.sleep(3)  # Time in which the pod ends.
            silence = probe_client.longest_silence(since - 1)
            self.assertLess(silence, 1.5)
        kubectl("--namespace", "sheave-system", "rollout", "status", "--timeout=60s", "daemonset/sheave")


def announcers(where: Node) -> list[int]:
    """Returns the announcing processes on a node."""
    network = os.stat(f"/run/netns/{where.namespace}").st_ino
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _announces(path, network)]


def _announces(process: Path, network: int) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        return words[1:2] == [b"announce"] and os.stat(process / "ns/net").st_ino == network
    except OSError:
        # The process has ended meanwhile.
        return False
