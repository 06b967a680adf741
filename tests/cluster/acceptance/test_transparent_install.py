"""Transparent mode as it is installed: a DaemonSet, which is updated under load."""

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.agents import NodeTables
from tests.cluster.acceptance.gateway import kubectl
from tests.cluster.acceptance.transparent import WEB, TransparentTest
from tests.cluster.layout import NODES, REPOSITORY
from tests.cluster.tests import running

tearDownModule = running.stop

DAEMON_SET = "/apis/apps/v1/namespaces/sheave-system/daemonsets/sheave-transparent"


def setUpModule() -> None:
    gateway.start_cluster()
    kubectl("apply", "--server-side", "--filename", str(REPOSITORY / "deploy/manifests/transparent.yaml"))
    kubectl("--namespace", "sheave-system", "rollout", "status", "--timeout=60s", "daemonset/sheave-transparent")


class InstallTest(TransparentTest):
    def test_no_request_fails_as_the_agents_are_updated(self) -> None:
        self.run_app(2, WEB)
        self.annotate(balance="requests")
        self.wait(self.is_taken, "rules on each node")
        with self.loads() as loads:
            kubectl("--namespace", "sheave-system", "rollout", "restart", "daemonset/sheave-transparent")
            self.wait(self.is_updated, "new agents on all nodes", 120.0)
        self.assert_no_failure(loads)
        self.assertTrue(self.is_taken())

    def is_taken(self) -> bool:
        """Returns true if an agent of each node takes both addresses."""
        for node in NODES:
            tables = NodeTables(node)
            try:
                taken = [
                    any(tables.takes(table, address, 80) for table in tables.of_agents()) for address in self.addresses
                ]
            finally:
                tables.close()
            if not all(taken):
                return False
        return True

    def is_updated(self) -> bool:
        """Returns true if each node has the new pod, and no old one is left."""
        daemon_set = self.api.get(DAEMON_SET)
        status, nodes = daemon_set["status"], len(NODES)
        counts = [status.get(name) for name in ("updatedNumberScheduled", "numberReady", "numberAvailable")]
        if status["observedGeneration"] < daemon_set["metadata"]["generation"] or counts != [nodes] * 3:
            return False
        return len(self.api.get("/api/v1/namespaces/sheave-system/pods")["items"]) == nodes
