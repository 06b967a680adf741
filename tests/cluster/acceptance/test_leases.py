"""Replicas that lease slots to one another, under load: none of their requests fails, and no pod has one over its cap
beyond the bound, as replicas come, go and are replaced, and as a node stops.

    scripts/acceptance --pattern test_leases.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.cluster.acceptance import gateway
from tests.cluster.acceptance.counting_server import LONG_SECONDS
from tests.cluster.acceptance.gateway import SYSTEM, command
from tests.cluster.acceptance.load import Load
from tests.cluster.acceptance.replicas import PODS_OF_SHEAVE, ReplicaGroupTest, fetch
from tests.cluster.api import Object
from tests.cluster.tests import running

tearDownModule = running.stop

REPLICAS = 3
STATE_PATH = "/api/v1/replicas"
# With Local, the cluster's one address leads to the replicas of one node, and moves with them.
SETTINGS = ("service.externalTrafficPolicy=Cluster",)
# The first node has the Service's address and the pods; another one stops.
NODE = "n1"
CLIENTS = 24
# Pause of clients whose replica may refuse connections; shorter than a request, so that the load exceeds the slots.
PAUSE_SECONDS = 0.05
# The bound of docs/internals/replicas.md: a request may begin over the cap beside requests that have lost their slot.
# A replica whose part has become smaller learns of it within a second, and others use the slots two seconds after the
# change: what it still has in flight then has lasted for this time.
LOST_SLOT_SECONDS = 1.0
# Throughput is back if so much of the slots that were in use before are in use over a time. On a busy machine slots are
# free while a replica or a pod waits for a processor.
RETURNED_SHARE = 0.7
OBSERVED_SECONDS = 3.0
# Number of replicas that may be replaced so that each has a node of its own.
MAX_REPLACED = 5
# Number of requests over the cap that are printed.
MAX_PRINTED = 3
# The node controller waits for 20 s, a replica that drains for 35 s at most; the machine may be busy.
PATIENCE_SECONDS = 180.0


def setUpModule() -> None:
    """Installs Sheave as it is by default: replicas issue their certificates themselves, and lease slots."""
    gateway.install_chart(*SETTINGS, workload="deployment")


class LeasesTest(ReplicaGroupTest):
    CAP = 4
    PODS = 3
    # Some requests last longer than a change of members takes.
    LONG_EVERY = 50

    def setUp(self) -> None:
        super().setUp()
        # Intervals in which replicas come and go, and the last time at which a request of each dead one can have begun.
        self.changes: list[tuple[float, float]] = []
        self.dead: dict[str, float] = {}
        # Mean number of slots in use under the first load that exceeds them.
        self.used_first = 0.0
        self.have_replicas(REPLICAS)
        self.addCleanup(self.have_replicas, REPLICAS)
        self.serve_counting(self.PODS, self.CAP, self.LONG_EVERY, nodeName=NODE)
        self.limit(maxInFlightPerEndpoint=self.CAP, queue={"timeout": "60s"})
        self.wait_for_leases(REPLICAS)
        self.assert_one_replica_uses_all_slots()

    def test_slots_follow_replicas_from_three_to_five_to_two(self) -> None:
        with self.load(0.0, CLIENTS), ExitStack() as stack:
            self.wait_until_all_slots_are_used("3 replicas")
            with self.change():
                self.have_replicas(5)
                self.wait_for_leases(5)
            self.wait_until_all_slots_are_used("5 replicas, no clients of the new ones")
            # New connections reach the new replicas, too.
            stack.enter_context(self.load(0.0, CLIENTS))
            self.wait_until_all_slots_are_used("5 replicas")
            with self.change():
                self.have_replicas(2)
                self.wait_for_leases(2)
            self.wait_until_all_slots_are_used("2 replicas")
        self.assert_one_replica_uses_all_slots()
        self.assert_cap()

    def test_slots_move_to_new_replicas_in_a_rolling_update(self) -> None:
        with self.load(0.0, CLIENTS):
            self.wait_until_all_slots_are_used("before the update")
            before = self.replicas()
            with self.change():
                self.roll_out(SYSTEM, PATIENCE_SECONDS)
                self.wait_for_leases(REPLICAS)
            self.assertTrue(before.isdisjoint(self.replicas()))
            self.wait_until_all_slots_are_used("after the update")
        self.assert_one_replica_uses_all_slots()
        self.assert_cap()

    def test_slots_of_a_stopped_node_are_used_by_others_until_it_is_back(self) -> None:
        nodes = self.spread_replicas()
        lost, node = next((address, node) for address, node in nodes.items() if node != NODE)
        with ExitStack() as stack:
            # Each client is one of a replica: those of the dead one fail.
            loads = {
                it: stack.enter_context(Load(it, self.host, CLIENTS // 2, PAUSE_SECONDS)) for it in sorted(nodes)
            }
            self.wait_until_all_slots_are_used("before the node stops")
            node_stop = stack.enter_context(ExitStack())
            with self.change():
                began = time.monotonic()
                node_stop.enter_context(stopped_node(node))
                self.dead = {lost: time.monotonic()}
                self.wait_for_leases(REPLICAS - 1, without=lost)
            print(f"{self.id()}: others have its slots after {time.monotonic() - began:.1f} s", file=sys.stderr)
            self.wait_until_all_slots_are_used(f"without {node}")
            with self.change():
                node_stop.close()
                self.wait(lambda: self.is_rolled_out(SYSTEM, 0), "the replica again", PATIENCE_SECONDS)
                self.wait_for_leases(REPLICAS)
            self.wait_until_all_slots_are_used(f"with {node} again")
        for address, load in loads.items():
            fate = "its node stopped" if address == lost else "its node stayed"
            print(f"{address}, {fate}: {len(load.answers)} answers, {len(load.problems())} failures", file=sys.stderr)
            if address != lost:
                self.assertEqual(load.problems(), [])
                self.assertGreater(len(load.answers), CLIENTS)
        self.assert_one_replica_uses_all_slots()
        self.assert_cap()

    def spread_replicas(self) -> dict[str, str]:
        """Replaces replicas that share a node until each has its own; returns the node of each address."""
        for _ in range(MAX_REPLACED):
            pods = self.replica_pods()
            on_nodes = {pod["spec"]["nodeName"]: pod for pod in pods}
            if len(on_nodes) == REPLICAS:
                return {pod["status"]["podIP"]: node for node, pod in on_nodes.items()}
            superfluous = next(pod for pod in pods if pod not in on_nodes.values())
            # The scheduler prefers a node without a replica.
            self.api.delete(f"{PODS_OF_SHEAVE}/{superfluous['metadata']['name']}")
            self.have_replicas(REPLICAS)
        raise AssertionError(f"replicas share nodes: {on_nodes.keys()}")

    def wait_for_leases(self, count: int, without: str = "") -> None:
        """Waits until the replicas are connected to one another, and hold all slots together."""
        seen: list[Object] = []

        def are_leased() -> bool:
            nonlocal seen
            seen = [fetch(address, 9900, STATE_PATH) for address in sorted(self.replicas() - {without})]
            peers = [[peer["connected_seconds"] is not None for peer in it["peers"]] for it in seen]
            return peers == [[True] * (count - 1)] * count and sum(it["slots_held"] for it in seen) == self.slots

        try:
            self.wait(are_leased, f"{count} replicas that lease {self.slots} slots", PATIENCE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}; they report {seen}") from None

    def wait_until_all_slots_are_used(self, when: str) -> None:
        """Waits until each pod has had as many requests at once as its cap, and the throughput is as at first. The load
        is to exceed the slots.
        """
        began, used = time.monotonic(), []
        most: dict[str, int] = {}

        def are_used() -> bool:
            mean, newest = self.observe_pods(OBSERVED_SECONDS)
            used.append(mean)
            most.update({pod: max(count, most.get(pod, 0)) for pod, count in newest.items()})
            self.used_first = self.used_first or mean
            return min(most.values()) >= self.CAP and mean >= RETURNED_SHARE * self.used_first

        try:
            self.wait(are_used, f"{when}: a load on all slots", PATIENCE_SECONDS)
        finally:
            means = ", ".join(f"{mean:.1f}" for mean in used[-10:])
            print(
                f"{self.id()}: {when}: slots in use on average {means} of {self.slots}, at most "
                f"{sorted(most.values())} at a pod, in {time.monotonic() - began:.0f} s",
                file=sys.stderr,
            )

    def assert_one_replica_uses_all_slots(self) -> None:
        """Asserts that slots are lent: a replica that has all requests has no other way to use them all."""
        # One may have all slots of its own if a pod has one.
        replica, *others = sorted(self.replicas(), key=own_slots)
        with self.load_at(replica):
            self.wait_until_all_slots_are_used("all requests at one replica")
            states = [fetch(address, 9900, STATE_PATH) for address in (replica, *others)]
        self.assertGreater(states[0]["slots_borrowed"], 0)
        self.assertGreater(sum(it["slots_lent"] for it in states[1:]), 0)
        # No slot is lost on its way back.
        self.wait_for_leases(len(states))

    @contextmanager
    def load_at(self, address: str) -> Iterator[None]:
        """Runs a load at one address and asserts that no request fails."""
        with Load(address, self.host, CLIENTS, 0.0) as load:
            yield
        self.assertEqual(load.problems(), [])

    def assert_cap(self) -> None:
        """Asserts that each pod has had as many requests at once as its cap, and more only within the bound."""
        counts = self.counts()
        self.assertEqual(len(counts), self.PODS)
        over = [record for it in counts for record in it["records"]]
        beyond = [record for record in over if not self.is_within_bound(record)]
        print(
            f"{self.id()}: {sum(it['served'] for it in counts)} requests at pods, at most "
            f"{sorted(it['most'] for it in counts)} at once, {sum(it['over_cap'] for it in counts)} began over the cap "
            f"of {self.CAP}, {len(beyond)} of them beyond the bound",
            file=sys.stderr,
        )
        for record in over[:MAX_PRINTED]:
            others = ", ".join(f"{replica} for {record['at'] - began:.2f} s" for replica, began in record["others"])
            print(f"over the cap: one of {record['replica']} beside {others}", file=sys.stderr)
        self.assertEqual(beyond[:MAX_PRINTED], [], f"the first of {len(beyond)}")
        self.assertEqual(sum(it["over_cap"] for it in counts), len(over))
        self.assertGreaterEqual(min(it["most"] for it in counts), self.CAP)

    def is_within_bound(self, record: Object) -> bool:
        """Returns true if the pod has no more requests over its cap than those in flight that have lost their slot by a
        change: those of a dead replica, and those that have lasted.
        """
        at = record["at"]
        if not any(begin <= at <= end + LONG_SECONDS for begin, end in self.changes):
            return False
        have_lost_slot = [
            began <= self.dead.get(replica, 0) or at - began >= LOST_SLOT_SECONDS for replica, began in record["others"]
        ]
        return len(record["others"]) + 1 - self.CAP <= sum(have_lost_slot)

    @contextmanager
    def change(self) -> Iterator[None]:
        """Records the interval in which replicas come and go, until all slots are held again."""
        began = time.monotonic()
        yield
        self.changes.append((began, time.monotonic()))

    @property
    def slots(self) -> int:
        return self.CAP * self.PODS


class SingleSlotTest(LeasesTest):
    """The same tests with single-threaded pods, and fewer slots than replicas at each: some have none of their own."""

    CAP = 1
    # A replica that has all of their slots is improbable.
    PODS = 9
    LONG_EVERY = 0


def own_slots(address: str) -> int:
    """Returns the number of slots that a replica has by the assignment."""
    state = fetch(address, 9900, STATE_PATH)
    return state["slots_held"] - state["slots_borrowed"] + state["slots_lent"]


@contextmanager
def stopped_node(node: str) -> Iterator[None]:
    command("stop-node", node)
    try:
        yield
    finally:
        command("start-node", node)
