"""A Service that Sheave takes on each node, and clients in pods of each node."""

from __future__ import annotations

import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.agents import PROGRAM, Agent
from tests.cluster.acceptance.gateway import CLIENTS, NAMESPACE, PAUSE_SECONDS, POD_NAME, GatewayTest
from tests.cluster.acceptance.load import LoadGroup, enter_network
from tests.cluster.api import MERGE, Object
from tests.cluster.layout import NODES
from tests.cluster.tests import running
from tests.cluster.tests.running import container, shell

BALANCE, ADOPT = "sheave.dev/balance", "sheave.dev/adopt"
CONNECT_SECONDS = 1.0
# One address for each IP version.
ADDRESSES_OF_SERVICE = 2
WEB = container(
    "lab/connections:1",
    "/connections",
    "serve",
    ":3000",
    env=[POD_NAME, NAMESPACE],
    readinessProbe={"httpGet": {"path": "/", "port": 3000}, "periodSeconds": 1},
    lifecycle={"preStop": {"sleep": {"seconds": 2}}},
)

# The agent of each node, while a module runs.
agents: dict[str, Agent] = {}


def set_up(flags: Sequence[str] = (), prepare: Callable[[], None] = lambda: None) -> None:
    """Starts a cluster with an agent on each node; with flags, each also gets its address."""
    gateway.start_cluster()
    shutil.copy(gateway.find_binary(), PROGRAM)
    prepare()
    for node in NODES:
        agents[node.name] = Agent(node, flags=[*flags, f"--replica={node.addresses[0]}"] if flags else [])
    for agent in agents.values():
        agent.wait_until("rules in force", "sheave_transparent_rules_in_force", 1)


def tear_down() -> None:
    for agent in agents.values():
        agent.kill()
    agents.clear()
    running.stop()


class TransparentTest(GatewayTest):
    def find_address(self) -> None:
        """Makes a pod for clients on each node."""
        names = {node.name: f"client-{node.name}" for node in NODES}
        for node, name in names.items():
            pause = shell("sleep 3600", env=[POD_NAME, NAMESPACE])
            self.make_pod(name, pause, nodeName=node, terminationGracePeriodSeconds=0)
        for name in names.values():
            self.wait_until_ready(name)
        self.networks = {node: self.network_of(name) for node, name in names.items()}

    def network_of(self, pod: str) -> Path:
        """Returns the network namespace of a pod on this machine."""
        wanted = {f"POD_NAME={pod}".encode(), f"NAMESPACE={self.namespace}".encode()}
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and wanted <= set(_words(process / "environ")):
                return process / "ns" / "net"
        raise AssertionError(f"pod {pod} has no process")

    def run_app(self, replicas: int, image: Object, *, dual: bool = True, **port_settings: object) -> None:
        """Creates pods behind a Service of both IP versions, or of IPv4 alone."""
        labels = {"app": "web"}
        template = {
            "metadata": {"labels": labels},
            "spec": {"containers": [image], "terminationGracePeriodSeconds": 30},
        }
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        self.make("deployments", "web", spec=spec)
        ports = [{"port": 80, "targetPort": 3000, **port_settings}]
        policy = "RequireDualStack" if dual else "SingleStack"
        service = {"ipFamilyPolicy": policy, "selector": labels, "ports": ports}
        self.addresses = self.make("services", "web", spec=service)["spec"]["clusterIPs"]
        self.address = self.addresses[0]
        self.wait_for_replicas(replicas)
        for network in self.networks.values():
            for address in self.addresses:
                self.wait(lambda network=network, address=address: _reaches(network, address), f"kube-proxy's {address}")

    def annotate(self, service: str = "web", **annotations: str) -> None:
        """Sets annotations of Sheave, named without their domain."""
        body = {"metadata": {"annotations": {f"sheave.dev/{name}": value for name, value in annotations.items()}}}
        self.api.patch(self.path("services", service), body, MERGE)

    def take(self, **annotations: str) -> None:
        """Annotates the Service, and waits until each agent takes its connections."""
        before = {name: agent.metric("sheave_transparent_addresses") for name, agent in agents.items()}
        self.annotate(balance="requests", **annotations)
        for name, agent in agents.items():
            agent.wait_until_taken(int(before[name]) + len(self.addresses))

    @contextmanager
    def loads(self, pause_seconds: float = PAUSE_SECONDS, clients: int = CLIENTS) -> Iterator[LoadGroup]:
        """Runs clients in pods of all nodes; the results may have failures."""
        with ExitStack() as stack:
            each = clients // len(self.networks)
            yield LoadGroup(
                [
                    stack.enter_context(self.LOAD(self.address, "web", each, pause_seconds, network))
                    for network in self.networks.values()
                ]
            )

    def assert_no_failure(self, loads: LoadGroup) -> None:
        problems = loads.problems()
        print_result(f"{self.id()}: {loads.count()} answers, {len(problems)} failures")
        self.assertEqual(problems, [])
        self.assertGreater(loads.count(), CLIENTS)

    def events(self, name: str, namespace: str = "") -> Mapping[str, str]:
        """Returns the messages of an object's Events by their reason."""
        path = f"/api/v1/namespaces/{namespace or self.namespace}/events"
        found = self.api.get(path, fieldSelector=f"involvedObject.name={name}")["items"]
        return {event["reason"]: event.get("message", "") for event in found}


@contextmanager
def stopped(agent: Agent) -> Iterator[None]:
    """Stops an agent by SIGSTOP, as if it were wedged."""
    agent.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        agent.signal(signal.SIGCONT)


def print_result(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _reaches(network: Path, address: str) -> bool:
    """Returns true if a connection from a network namespace is accepted."""

    def connect() -> bool:
        enter_network(network)
        try:
            socket.create_connection((address, 80), CONNECT_SECONDS).close()
        except OSError:
            return False
        return True

    # The thread is in the other namespace for good.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(connect).result()


def _words(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []
