"""Requests under the default policy while a pod is killed, a node stops, and a Deployment shrinks.

RUNS=10 repeats each test ten times, with new pods every time:

    RUNS=10 scripts/acceptance --pattern test_lost_endpoints.py
"""

from __future__ import annotations

import os
import signal
import sys
import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.gateway import GatewayTest, command
from tests.cluster.acceptance.load import Load
from tests.cluster.acceptance.pod_processes import kill, processes, words
from tests.cluster.tests import running

setUpModule = gateway.install
tearDownModule = running.stop

RUNS = int(os.environ.get("RUNS", "1"))
CLIENTS = 40
# Load before a fault, and after the last change.
STEADY_SECONDS = 2.0
# Time for which the EndpointSlice still lists a killed pod; a kubelet notices after about a second.
UNNOTICED_SECONDS = 3.0
# A connection to a silent endpoint breaks after 3 s (`timeouts.unacknowledged`); then the request is retried elsewhere.
LONGEST_SECONDS = 4.0
# The node controller waits for 20 s.
LEAST_LISTED_SECONDS = 10.0

# Answers after 10 ms. At SIGTERM it exits at once, with requests in flight, like many servers.
SERVER = r"""
import asyncio, json, os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
body = json.dumps({"pod": os.environ["POD_NAME"]})
response = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
class Connection(asyncio.Protocol):
    received = b""
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.received += data
        if self.received.endswith(b"\r\n\r\n"):
            self.received = b""
            asyncio.get_running_loop().call_later(0.01, self.transport.write, response)
async def main():
    server = await asyncio.get_running_loop().create_server(Connection, "", 3000, backlog=1024)
    await server.serve_forever()
asyncio.run(main())
"""
IMAGE = gateway.python_server(SERVER)


def load_tests(loader: unittest.TestLoader, *_: object) -> unittest.TestSuite:
    return unittest.TestSuite(loader.loadTestsFromTestCase(LostEndpointsTest) for _ in range(RUNS))


class LostEndpointsTest(GatewayTest):
    def setUp(self) -> None:
        super().setUp()
        self.serve(3, IMAGE, spread=True)

    def test_no_get_fails_as_a_pod_is_killed_while_its_slice_lists_it(self) -> None:
        pod, node = next(iter(self.pod_nodes().items()))
        with self.clients() as load:
            time.sleep(STEADY_SECONDS)
            with paused_kubelet(node):
                kill(pod)
                killed = time.monotonic()
                time.sleep(UNNOTICED_SECONDS)
                self.assertIn(pod, self.ready())
                listed = time.monotonic()
            self.wait(lambda: load.between(listed, time.monotonic())[pod], f"answers from {pod} again")
            time.sleep(STEADY_SECONDS)
        late = load.between(killed + LONGEST_SECONDS / 10, listed)
        self.assertNotIn(pod, late)
        self.assertGreater(late.total(), CLIENTS)
        self.assertEqual(len(self.ready()), 3)

    def test_no_get_fails_as_a_node_stops_while_the_slice_lists_its_pods(self) -> None:
        # A node that runs Sheave would break its clients' connections.
        occupied = set(self.pod_nodes("sheave-system").values())
        pod, node = next((pod, node) for pod, node in self.pod_nodes().items() if node not in occupied)
        with self.clients() as load:
            time.sleep(STEADY_SECONDS)
            stopped = time.monotonic()
            command("stop-node", node)
            try:
                self.wait(lambda: pod not in self.ready(), f"a slice without {pod}")
                unlisted = time.monotonic()
                time.sleep(STEADY_SECONDS)
            finally:
                started = time.monotonic()
                command("start-node", node)
            self.wait(lambda: load.between(started, time.monotonic())[pod], f"answers from {pod} again")
            time.sleep(STEADY_SECONDS)
        self.assertLessEqual(load.longest(), LONGEST_SECONDS)
        print_result(f"{self.id()}: the slice listed a silent pod for {unlisted - stopped:.1f} s")
        self.assertGreater(unlisted - stopped, LEAST_LISTED_SECONDS)
        self.assertGreater(load.between(stopped + LONGEST_SECONDS, unlisted).total(), CLIENTS)
        self.assertEqual(len(self.ready()), 3)

    def test_no_get_fails_as_a_deployment_shrinks_to_one_pod_and_grows_again(self) -> None:
        with self.clients() as load:
            time.sleep(STEADY_SECONDS)
            self.scale(1)
            self.wait(lambda: len(self.pod_nodes()) == 1, "the end of two pods")
            time.sleep(STEADY_SECONDS)
            grown = time.monotonic()
            self.scale(3)
            self.wait(lambda: len(load.between(grown, time.monotonic())) == 3, "answers from three pods")
            time.sleep(STEADY_SECONDS)

    @contextmanager
    def clients(self) -> Iterator[Load]:
        """Starts closed-loop clients."""
        with self.load(pause_seconds=0.0, clients=CLIENTS) as load:
            yield load

    def pod_nodes(self, namespace: str = "") -> dict[str, str]:
        """Returns the node of each pod."""
        pods = self.api.get(f"/api/v1/namespaces/{namespace or self.namespace}/pods")["items"]
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}


@contextmanager
def paused_kubelet(node: str) -> Iterator[None]:
    """Pauses a node's kubelet, so that it does not report changes of its pods."""
    command_line = [b"-m", b"tests.cluster.kubelet", node.encode()]
    pids = [pid for pid, process in processes() if words(process / "cmdline")[1:4] == command_line]
    if not pids:
        raise AssertionError(f"node {node} has no kubelet")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def print_result(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
