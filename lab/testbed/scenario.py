"""Plays a scenario: users before one replica or two, a second replica in the middle, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lab.article.crowd import Crowd, answers, hypercorn, locust
from lab.child import ChildFailed, wait_until
from lab.testbed import conntrack
from lab.testbed.cluster import NODE, SERVICE, Cluster, Node
from lab.testbed.other_work import OtherWork
from lab.testbed.pods import Application, Limits, Pod, Probe
from lab.testbed.recording import Recording, Sample

APPLICATION = Application(hypercorn, answers)
# A probe that a saturated replica still passes: the article's is not known, and is no part of its claim.
PATIENT = Probe(period_seconds=5, timeout_seconds=60, failure_threshold=3)
REPLICAS = ("app-1", "app-2")
# Nothing but the replica's own start: with the CPU of its limit alone that takes ten seconds and more.
READY_SECONDS = 120


@dataclass(frozen=True)
class Scenario:
    """What differs from one variant of an experiment to the next."""

    id: str
    # clusterip, nodeport, or the name of a balancer.
    entry: str
    users: str = "KeepAliveUser"
    replicas: int = 1
    scale: bool = True
    # Without the gate a replica is published when it is started.
    gate: bool = True
    probe: Probe = PATIENT
    # So many times the users of the other variants.
    crowding: float = 1.0


@dataclass(frozen=True)
class Load:
    """How much, and for how long."""

    users: int
    millicores: int
    # A replica may start with more than its limit, where its start is not the subject.
    startup_millicores: int
    seconds_before: float
    seconds_after: float


# Told once a second: the second's number and the recording so far.
Watcher = Callable[[int, Recording], None]


def play(node: Node, scenario: Scenario, load: Load, folder: Path, watch: Watcher) -> Recording:
    """Runs it from an empty cluster to an empty cluster."""
    with ExitStack() as running:
        cluster = running.enter_context(node.cluster(folder))
        for _ in range(scenario.replicas):
            _start_pod(cluster, scenario, load)
        for pod in cluster.pods:
            wait_until(lambda pod=pod: pod.ready, pod.child, pod.name, READY_SECONDS)
            pod.settle()
        cluster.publish(cluster.pods)
        address = _entry(cluster, scenario)
        crowd = Crowd(cluster.start_client(locust(address, load.users, scenario.users)))
        return _Play(node, cluster, scenario, load, crowd, watch).run()


class _Play:
    """The time from the first user to the last answer."""

    def __init__(
        self, node: Node, cluster: Cluster, scenario: Scenario, load: Load, crowd: Crowd, watch: Watcher
    ) -> None:
        self._node = node
        self._cluster = cluster
        self._scenario = scenario
        self._load = load
        self._crowd = crowd
        self._watch = watch
        self._recording = Recording(REPLICAS[: scenario.replicas + scenario.scale], began=time.time())
        self._recording.answers, self._recording.users = crowd.answers, crowd.joined

    def run(self) -> Recording:
        recording, others = self._recording, OtherWork(self._node)
        self._seconds_until(recording.began + self._load.seconds_before)
        if self._scenario.scale:
            self._scale()
            self._wait_for_newcomer()
            self._seconds_until((recording.published or 0) + self._load.seconds_after)
        recording.ended = time.time()
        recording.other_work = others.cpus()
        self._crowd.stop()
        recording.arrivals = {pod.name: pod.arrivals() for pod in self._cluster.pods}
        return recording

    def _scale(self) -> None:
        self._recording.started = time.time()
        newcomer = _start_pod(self._cluster, self._scenario, self._load)
        if not self._scenario.gate:
            # As if it had no probe: Kubernetes publishes a pod whose container runs.
            newcomer.settle()
            self._publish([*self._cluster.pods])

    def _wait_for_newcomer(self) -> None:
        deadline, newcomer = time.time() + READY_SECONDS, self._cluster.pods[-1]
        while self._recording.published is None:
            if time.time() > deadline:
                raise ChildFailed(f"{newcomer.name} was not ready after {READY_SECONDS} s{newcomer.child.log_end()}")
            self._seconds_until(time.time() + 0.02)

    def _seconds_until(self, end: float) -> None:
        """Takes in answers; publishes who is ready; a sample and a word each second."""
        recording = self._recording
        while (now := time.time()) < end:
            second = len(recording.samples)
            if now >= recording.began + second:
                self._sample(now)
                if second:
                    self._watch(second, recording)
            self._crowd.collect(min(end, recording.began + len(recording.samples)), self._reconcile)

    def _reconcile(self) -> None:
        self._cluster.check()
        if self._scenario.gate:
            self._publish([pod for pod in self._cluster.pods if pod.ready])

    def _publish(self, pods: list[Pod]) -> None:
        recording, first, newcomer = self._recording, self._cluster.pods[0], self._cluster.pods[-1]
        now = time.time()
        if not self._cluster.publish(pods, newcomer.settle if newcomer in pods else lambda: None):
            return
        if first not in pods and recording.withdrawn is None:
            recording.withdrawn = now
        if recording.started and newcomer in pods and recording.published is None:
            recording.published = now

    def _sample(self, now: float) -> None:
        connections = conntrack.of_node()
        self._recording.samples.append(
            Sample(
                now,
                {pod.name: pod.cpu_seconds() for pod in self._cluster.pods},
                {pod.name: connections[pod.address.partition(":")[0]] for pod in self._cluster.pods},
            )
        )


def _start_pod(cluster: Cluster, scenario: Scenario, load: Load) -> Pod:
    # The first pods of a run are there before the load; only a newcomer can be published too early.
    hurried = scenario.gate or len(cluster.pods) < scenario.replicas
    startup = load.startup_millicores if hurried else load.millicores
    return cluster.start_pod(APPLICATION, Limits(startup, load.millicores), scenario.probe)


def _entry(cluster: Cluster, scenario: Scenario) -> str:
    if scenario.entry == "clusterip":
        return f"{SERVICE.address}:{SERVICE.port}"
    if scenario.entry == "nodeport":
        return f"{NODE}:{SERVICE.node_port}"
    return cluster.start_balancer(scenario.entry)
