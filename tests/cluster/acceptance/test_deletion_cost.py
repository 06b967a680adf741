"""Scale down by the real ReplicaSet controller: with deletion costs it deletes the pod with the fewest requests.

    scripts/acceptance --pattern test_deletion_cost.py
"""

from __future__ import annotations

import http.client
import json
from collections import Counter

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.gateway import GatewayTest, kubectl
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.layout import KUBECONFIG
from tests.cluster.tests import running

tearDownModule = running.stop

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
PODS = 3
# Requests that are held at each pod.
HELD = 3
# A cost is written at most each 20 s, and follows the mean of 10 s.
PATIENCE_SECONDS = 120.0

# Answers at once. A request for /hold gets the head and the name of the pod at once, and its end when the client closes
# the connection, or 5 s after SIGTERM.
SERVER = r"""
import asyncio, json, os, signal
body = json.dumps({"pod": os.environ["POD_NAME"]}).encode()
held = set()
class Connection(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.received = transport, b""
    def data_received(self, data):
        self.received += data
        if not self.received.endswith(b"\r\n\r\n"):
            return
        if self.received.startswith(b"GET /hold "):
            held.add(self.transport)
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            self.transport.write(head + b"%x\r\n%s\r\n" % (len(body), body))
        else:
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        self.received = b""
    def connection_lost(self, error):
        held.discard(self.transport)
def end():
    for transport in held:
        transport.write(b"0\r\n\r\n")
    asyncio.get_running_loop().call_later(1, os._exit, 0)
async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: loop.call_later(5, end))
    server = await loop.create_server(Connection, "", 3000, backlog=1024)
    await server.serve_forever()
asyncio.run(main())
"""
IMAGE = gateway.python_server(SERVER)


def setUpModule() -> None:
    # One replica: its own requests in flight are all there are.
    gateway.install_chart("podDeletionCost.enabled=true", "replicas=1", workload="deployment")


class DeletionCostTest(GatewayTest):
    def setUp(self) -> None:
        super().setUp()
        # One pod on each node: otherwise the controller prefers pods of a node with several.
        self.serve(PODS, IMAGE, spread=True)

    def test_pod_with_the_fewest_requests_is_deleted_and_no_request_is_lost(self) -> None:
        held = self.hold(PODS * HELD)
        self.assertEqual(Counter(held.values()), Counter({pod: HELD for pod in self.ready()}))
        # Without costs the controller would delete the pod that became ready last.
        idle = min(self.pods(), key=ready_since)["metadata"]["name"]
        for request in [it for it, pod in held.items() if pod == idle]:
            del held[request]
            request.close()
        busy = {pod: str(HELD) for pod in self.ready() - {idle}}
        self.wait(lambda: self.costs() in ({idle: "0", **busy}, busy), "costs of the pods", PATIENCE_SECONDS)
        with self.load():
            self.scale(PODS - 1)
            self.wait(lambda: len(self.pods()) == PODS - 1, "the end of a pod", PATIENCE_SECONDS)
        self.assertEqual({pod["metadata"]["name"] for pod in self.pods()}, set(busy))
        with self.load():
            self.scale(1)
            # The pod that goes has time to end its requests.
            self.wait(lambda: len(self.pods()) == 1, "the end of another pod", PATIENCE_SECONDS)
        last = self.pods()[0]["metadata"]["name"]
        for request, pod in held.items():
            if pod != last:
                self.assertEqual(request.read(), b"")
            request.close()

    def test_cost_of_another_writer_stays(self) -> None:
        pod = sorted(self.ready())[0]
        kubectl("--namespace", self.namespace, "annotate", "pod", pod, f"{ANNOTATION}=-7", "--overwrite")
        held = self.hold(PODS * HELD)
        others = {it: str(HELD) for it in self.ready() - {pod}}
        self.wait(lambda: self.costs() == {pod: "-7", **others}, "costs of the other pods", PATIENCE_SECONDS)
        for request in held:
            request.close()

    def test_sheave_may_change_nothing_else_of_a_pod(self) -> None:
        pod = self.path("pods", sorted(self.ready())[0])
        sheave = Api(KUBECONFIG, "system:serviceaccount:sheave-system:sheave")
        self.addCleanup(sheave.close)
        for change in (
            {"metadata": {"labels": {"app": "other"}}},
            {"metadata": {"annotations": {"other": "1"}}},
            {"spec": {"activeDeadlineSeconds": 1}},
        ):
            with self.assertRaisesRegex(ApiError, "Sheave changes "):
                sheave.patch(pod, change)
        sheave.patch(pod, {"metadata": {"annotations": {ANNOTATION: "1"}}})

    def hold(self, count: int) -> dict[http.client.HTTPResponse, str]:
        """Begins requests that stay in flight; returns the pod of each."""
        held = {}
        for _ in range(count):
            connection = http.client.HTTPConnection(self.address, 80, timeout=PATIENCE_SECONDS)
            connection.request("GET", "/hold", headers={"Host": self.host})
            response = connection.getresponse()
            held[response] = json.loads(response.read1())["pod"]
        return held

    def pods(self) -> list[Object]:
        return self.api.get(self.path("pods"), labelSelector="app=web")["items"]

    def costs(self) -> dict[str, str]:
        annotations = {pod["metadata"]["name"]: pod["metadata"].get("annotations", {}) for pod in self.pods()}
        return {pod: its[ANNOTATION] for pod, its in annotations.items() if ANNOTATION in its}


def ready_since(pod: Object) -> str:
    return next(it["lastTransitionTime"] for it in pod["status"]["conditions"] if it["type"] == "Ready")
