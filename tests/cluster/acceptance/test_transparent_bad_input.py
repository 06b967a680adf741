"""Invalid input of transparent mode: an Event, a log line and a metric each, while a valid Service has load."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster import network
from tests.cluster.acceptance import transparent
from tests.cluster.acceptance.agents import Agent, NodeTables
from tests.cluster.acceptance.transparent import WEB, TransparentTest, agents
from tests.cluster.layout import NODES

setUpModule = transparent.set_up
tearDownModule = transparent.tear_down

# Number of an agent that a test starts beside the ordinary one.
SECOND = 50
TABLE_PORT = 15999
NOT_STARTED = "TransparentModeNotStarted"
LISTENER = """
import socket, time
families = {False: socket.AF_INET, True: socket.AF_INET6}
listeners = [socket.create_server((address, %d), family=families[":" in address]) for address in %r]
print("ready", flush=True)
time.sleep(600)
"""


class ServicesTest(TransparentTest):
    """`web` is valid and has load; `other` is not."""

    def setUp(self) -> None:
        super().setUp()
        self.run_app(2, WEB)
        self.take()

    def check(self, wanted: str, annotations: dict[str, str], **spec: object) -> None:
        """Makes an annotated Service, and waits for its Event, its line in a log, and its metric."""
        metadata = {"name": "other", "annotations": {f"sheave.dev/{name}": it for name, it in annotations.items()}}
        with self.loads() as loads:
            self.api.post(self.path("services"), {"metadata": metadata, "spec": spec})
            reason = self.wait(lambda: self.reason_of(wanted), f"an Event with {wanted}")
            self.wait(lambda: self.findings(reason), "a metric")
            self.wait(lambda: any(self.is_logged(agent) for agent in agents.values()), "a line in a log")
            self.api.delete(self.path("services", "other"))
            self.wait(lambda: not self.findings(reason), "the end of the metric")
        self.assert_no_failure(loads)

    def reason_of(self, wanted: str) -> str | None:
        """Returns the reason of the Event of `other` whose message has these words."""
        return next((reason for reason, message in self.events("other").items() if wanted in message), None)

    def is_logged(self, agent: Agent) -> bool:
        return f"{self.namespace}/other" in agent.log()

    def findings(self, reason: str) -> float:
        """Returns the findings of a reason, by the agent of the first node."""
        return agents["n1"].metric(f'sheave_transparent_findings{{reason="{reason}"}}')

    def test_external_name_is_not_taken(self) -> None:
        self.check("ExternalName", {"balance": "requests"}, type="ExternalName", externalName="example.com")

    def test_headless_service_is_not_taken(self) -> None:
        self.check("headless", {"balance": "requests"}, clusterIP="None", ports=[{"port": 80}])

    def test_udp_port_is_not_taken(self) -> None:
        self.check("UDP", {"balance": "requests"}, ports=[{"port": 53, "protocol": "UDP"}])

    def test_unknown_value_of_an_annotation_is_reported(self) -> None:
        for annotations in ({"balance": "everything"}, {"balance": "requests", "adopt": "maybe"}):
            with self.subTest(annotations=annotations):
                (_, value) = list(annotations.items())[-1]
                self.check(value, annotations, ports=[{"port": 80}])


    def test_service_whose_clients_would_be_hidden_from_a_network_policy_is_not_taken(self) -> None:
        policy = {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": [{}]}
        path = f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies"
        body = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "narrow"}}
        self.api.post(path, {**body, "spec": policy})
        annotations = {"balance": "requests", "client-address": "node"}
        self.check("NetworkPolicy", annotations, selector={"app": "web"}, ports=[{"port": 80}])


class NodesTest(TransparentTest):
    """An agent that cannot work beside one that does: the node has an Event, and nothing else is touched."""

    def setUp(self) -> None:
        super().setUp()
        self.node = NODES[2]
        self.run_app(2, WEB)
        self.take()

    def node_events(self) -> dict[str, str]:
        return dict(self.events(self.node.name, "default"))

    def wait_for_event(self, reason: str, *words: str) -> None:
        def found() -> bool:
            message = self.node_events().get(reason, "")
            return bool(message) and all(word in message for word in words)

        self.wait(found, f"an Event {reason} with {words}")

    def assert_refused(self, agent: Agent, *words: str) -> None:
        """Asserts that an agent ends with a message, and that the node has an Event with it."""
        try:
            code = agent.wait()
        finally:
            agent.kill()
        self.assertEqual(code, 1, agent.log())
        for word in words:
            self.assertIn(word, agent.log())
        self.wait_for_event(NOT_STARTED, *words)

    def test_two_agents_on_a_node_are_reported(self) -> None:
        with self.loads() as loads:
            second = Agent(self.node, SECOND)
            try:
                second.wait_until_taken(transparent.ADDRESSES_OF_SERVICE)
                self.wait_for_event("AnotherAgentFound")
                label = 'sheave_transparent_findings{reason="AnotherAgentFound"}'
                second.wait_until("a finding", label, 1)
                self.assertIn("another", second.log().lower())
            finally:
                second.signal(signal.SIGTERM)
                self.assertEqual(second.wait(), 0)
        self.assert_no_failure(loads)

    def test_foreign_table_of_the_same_name_is_left_alone(self) -> None:
        tables = NodeTables(self.node)
        try:
            name = f"sheave_{TABLE_PORT}"
            self.assertIsNotNone(tables.run(f"add table inet {name}"))
            try:
                flags = [f"--transparent-ports={TABLE_PORT}-{TABLE_PORT}"]
                with self.loads() as loads:
                    self.assert_refused(Agent(self.node, SECOND, flags), name)
                self.assert_no_failure(loads)
                self.assertIsNotNone(tables.run(f"list table inet {name}"))
            finally:
                tables.run(f"delete table inet {name}")
        finally:
            tables.close()

    def test_missing_capability_is_named(self) -> None:
        launcher = ["setpriv", "--bounding-set=-net_admin", "--"]
        with self.loads() as loads:
            self.assert_refused(Agent(self.node, SECOND, launcher=launcher), "NET_ADMIN")
        self.assert_no_failure(loads)

    def test_taken_port_is_named(self) -> None:
        code = LISTENER % (TABLE_PORT, self.node.addresses)
        with self.loads() as loads, self.program(code):
            flags = [f"--transparent-ports={TABLE_PORT}-{TABLE_PORT}"]
            self.assert_refused(Agent(self.node, SECOND, flags), str(TABLE_PORT))
        self.assert_no_failure(loads)

    @contextmanager
    def program(self, code: str) -> Iterator[None]:
        """Runs a program on the node, from the time at which it says that it is ready."""
        argv = [*network.netns_prefix(self.node.namespace), sys.executable, "-c", code]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as running:
            try:
                self.assertEqual(running.stdout.readline(), b"ready\n")
                yield
            finally:
                running.kill()
