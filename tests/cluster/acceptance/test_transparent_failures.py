"""New connections while an agent is killed, stopped and upgraded, on nodes with each mode of kube-proxy.

RATE=200 makes fewer connections a second, for a busy machine.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.cluster.acceptance import transparent
from tests.cluster.acceptance.agents import Agent
from tests.cluster.acceptance.connection_load import Connection, ConnectionLoad
from tests.cluster.acceptance.transparent import ADDRESSES_OF_SERVICE, WEB, TransparentTest, agents, print_result
from tests.cluster.layout import NODES, Node

setUpModule = transparent.set_up
tearDownModule = transparent.tear_down

# Connections a second of a node, half of each IP version.
RATE = float(os.environ.get("RATE", "1000"))
# One node for each mode of kube-proxy.
PLACES = NODES[:2]
STEADY_SECONDS = 2.0
TIMEOUT_SECONDS = 3.0
AFTER_KILL_SECONDS = 0.1
# The lease, and what is allowed beside it.
AFTER_STOP_SECONDS = 2.0
OBSERVED_SECONDS = 3.0
UPGRADES = 20
# Largest share of connections from a port whose connection was reset shortly before.
REUSED_SHARE = 0.001


class FailuresTest(TransparentTest):
    def setUp(self) -> None:
        super().setUp()
        self.run_app(2, WEB)
        self.take()

    def test_new_connections_succeed_at_once_after_the_agent_was_killed(self) -> None:
        for node in PLACES:
            with self.subTest(node=node.name, kube_proxy=node.proxy_mode):
                agent = agents[node.name]
                with self.connections(node) as loads:
                    self.use_steadily(agent)
                    killed = time.monotonic()
                    agent.kill()
                    time.sleep(OBSERVED_SECONDS)
                self.replace(node)
                self.assert_served(f"kill -9 on {node.name}", loads, killed + AFTER_KILL_SECONDS)

    def test_new_connections_succeed_while_the_agent_is_stopped(self) -> None:
        for node in PLACES:
            with self.subTest(node=node.name, kube_proxy=node.proxy_mode):
                agent = agents[node.name]
                with self.connections(node) as loads:
                    self.use_steadily(agent)
                    halted = time.monotonic()
                    with transparent.stopped(agent):
                        time.sleep(AFTER_STOP_SECONDS + OBSERVED_SECONDS)
                    # The agent takes connections again.
                    agent.wait_until("rules in force", "sheave_transparent_rules_in_force", 1)
                    self.use_steadily(agent)
                self.assert_served(f"SIGSTOP on {node.name}", loads, halted + AFTER_STOP_SECONDS)

    def test_no_new_connection_fails_as_the_agent_is_upgraded(self) -> None:
        for node in PLACES:
            with self.subTest(node=node.name, kube_proxy=node.proxy_mode):
                with self.connections(node) as loads:
                    begun = time.monotonic()
                    for number in range(1, UPGRADES + 1):
                        self.upgrade(node, number)
                    self.wait_for_use(agents[node.name])
                self.assert_served(f"{UPGRADES} upgrades on {node.name}", loads, begun)

    @contextmanager
    def connections(self, node: Node) -> Iterator[list[ConnectionLoad]]:
        """Opens connections from a pod of the node, to each address of the Service."""
        targets = (f"[{address}]:80" if ":" in address else f"{address}:80" for address in self.addresses)
        rate = RATE / len(self.addresses)
        with ExitStack() as stack:
            yield [
                stack.enter_context(ConnectionLoad(self.networks[node.name], target, rate, TIMEOUT_SECONDS))
                for target in targets
            ]

    def wait_for_use(self, agent: Agent) -> None:
        """Waits until the agent gets connections."""
        counter = "sheave_intercepted_connections_total"
        agent.wait_until("connections", counter, agent.metric(counter) + 10)

    def use_steadily(self, agent: Agent) -> None:
        """Waits until the agent has had connections for a while."""
        self.wait_for_use(agent)
        time.sleep(STEADY_SECONDS)

    def upgrade(self, node: Node, number: int) -> None:
        """Starts a new process, then ends the old one."""
        old, new = agents[node.name], Agent(node, number)
        try:
            new.wait_until_taken(ADDRESSES_OF_SERVICE)
        except BaseException:
            new.kill()
            raise
        agents[node.name] = new
        old.signal(signal.SIGTERM)
        try:
            self.assertEqual(old.wait(), 0, old.log()[-2000:])
        finally:
            old.kill()

    def replace(self, node: Node) -> None:
        """Starts an agent in place of one that has ended."""
        agents[node.name] = Agent(node)
        agents[node.name].wait_until_taken(ADDRESSES_OF_SERVICE)

    def assert_served(self, what: str, loads: list[ConnectionLoad], start: float) -> None:
        """Asserts that no connection failed from then on, except those from ports of connections that were reset."""
        for load, address in zip(loads, self.addresses, strict=True):
            late = load.failures(start)
            reused = [it for it in late if load.reuses_port(it)]
            failed = [it for it in late if it not in reused]
            early = len(load.failures(0)) - len(late)
            count = len(load.between(start))
            print_result(
                f"{what}, {address}: {count} connections since, {len(failed)} failed, {len(reused)} from ports of "
                f"connections that were reset; {early} failed before, {slowest(load.between(start)):.0f} ms the slowest"
            )
            self.assertEqual([f"{it.begun - start:+.3f} s: {it.outcome}" for it in failed], [])
            self.assertLessEqual(len(reused), REUSED_SHARE * len(load.connections))
            self.assertGreater(count, RATE / 4)


def slowest(connections: list[Connection]) -> float:
    """Returns the duration of the slowest connection in milliseconds."""
    return 1000 * max((it.seconds for it in connections), default=0.0)
