"""Many annotated Services: the delay from a change to the rules of the kernel."""

import contextlib
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from tests.cluster.acceptance import transparent
from tests.cluster.acceptance.agents import NodeTables
from tests.cluster.acceptance.test_scale import CONCURRENCY, milliseconds
from tests.cluster.acceptance.transparent import WEB, TransparentTest, agents, print_result
from tests.cluster.api import MERGE
from tests.cluster.layout import NODES

setUpModule = transparent.set_up
tearDownModule = transparent.tear_down

SERVICES, CHANGES = 1000, 100
IN_FORCE_SECONDS = 0.05
PATIENCE_SECONDS = 60.0
CREATION_SECONDS = 180.0
POLL_SECONDS = 0.001
# After each change, for the agents' work after the rules.
PAUSE_SECONDS = 0.05

# The rules of a node, and the name of the agent's table among them.
NodeRules = tuple[NodeTables, str]


class TransparentScaleTest(TransparentTest):
    def test_change_among_many_services_is_in_force_at_once(self) -> None:
        self.run_app(1, WEB)
        self.take()
        with ThreadPoolExecutor(CONCURRENCY) as threads:
            addresses = list(threads.map(self.make_service, range(SERVICES)))
        for agent in agents.values():
            agent.wait_until("all addresses", "sheave_transparent_addresses", SERVICES + 2, PATIENCE_SECONDS)
        self.wait_for_endpoints()
        with contextlib.ExitStack() as stack:
            tables = [stack.enter_context(contextlib.closing(NodeTables(node))) for node in NODES]
            nodes = [(node, node.of_agents()[0]) for node in tables]
            with self.loads(pause_seconds=0.05) as loads:
                waits = [
                    self.change(index * 7 % SERVICES, addresses[index * 7 % SERVICES], nodes, balance)
                    for index in range(CHANGES)
                    for balance in (None, "requests")
                ]
        self.assert_no_failure(loads)
        print_result(f"{self.id()}: {SERVICES} Services, {len(waits)} changes in force {milliseconds(sorted(waits))}")
        self.assertLessEqual(statistics.quantiles(waits, n=100)[-1], IN_FORCE_SECONDS)

    def wait_for_endpoints(self) -> None:
        """Waits until each Service has its endpoint. Before, the control plane and kube-proxy still work on them."""
        deadline = time.monotonic() + CREATION_SECONDS
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        while (made := sum(bool(it.get("endpoints")) for it in self.api.get(path)["items"])) < SERVICES:
            if time.monotonic() > deadline:
                raise AssertionError(f"{made} of {SERVICES} Services have an endpoint")
            time.sleep(1)

    def make_service(self, index: int) -> str:
        body = {
            "metadata": {"name": f"many-{index}", "annotations": {transparent.BALANCE: "requests"}},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 3000}]},
        }
        return self.api.post(self.path("services"), body)["spec"]["clusterIP"]

    def change(self, index: int, address: str, nodes: list[NodeRules], balance: str | None) -> float:
        """Sets or removes an annotation; returns the seconds from the API server's answer until the rules of the first
        node follow. The next change begins when all nodes have followed: all of them share the processors of this
        machine, which clusters do not do."""
        body = {"metadata": {"annotations": {transparent.BALANCE: balance}}}
        self.api.patch(self.path("services", f"many-{index}"), body, MERGE)
        answered = time.monotonic()
        waits = [self.wait_for_rules(node, f"many-{index}", address, balance, answered) for node in nodes]
        time.sleep(PAUSE_SECONDS)
        return waits[0]

    def wait_for_rules(self, node: NodeRules, name: str, address: str, balance: str | None, since: float) -> float:
        tables, table = node
        while tables.takes(table, address, 80) != (balance is not None):
            if time.monotonic() > since + PATIENCE_SECONDS:
                raise AssertionError(f"{name} with {balance} is not in force")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - since
