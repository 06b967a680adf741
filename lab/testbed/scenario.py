"""Plays a scenario: users before one replica or two, a second replica in the middle, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab import certificate
from lab.article import http3
from lab.article.locust_run import LocustRun, hypercorn, locust, responds
from lab.balancers import BalancerTask
from lab.certificate import Certificate
from lab.child import ChildFailed, wait_until
from lab.testbed import conntrack
from lab.testbed.cluster import HTTPS, NODE, SERVICE, Cluster, Node
from lab.testbed.other_work import OtherCpuTime
from lab.testbed.pods import Application, CpuLimits, Pod, Probe
from lab.testbed.recording import Recording, Sample

APPLICATION = Application(hypercorn, responds)
# A probe that a saturated replica still passes: the article's is not known, and is no part of its claim.
PATIENT_PROBE = Probe(period_seconds=5, timeout_seconds=60, failure_threshold=3)
REPLICAS = ("app-1", "app-2")
# What leads to replicas without a balancer.
CLUSTER_ENTRIES = ("clusterip", "nodeport")
QUIC_USERS = ("Http3User", "DiscoveringUser")
# Nothing but the replica's own start: with the CPU of its limit alone that takes ten seconds and more.
READY_SECONDS = 120


@dataclass(frozen=True)
class Scenario:
    """What differs from one variant of an experiment to the next."""

    id: str
    # One of CLUSTER_ENTRIES, or the name of a balancer.
    entry: str
    users: str = "KeepAliveUser"
    replicas: int = 1
    scale: bool = True
    # Without the gate a replica is published when it is started.
    gate: bool = True
    probe: Probe = PATIENT_PROBE
    # So many times the users of the other variants, and the CPU of each replica.
    user_multiplier: float = 1.0
    cpu_multiplier: float = 1.0
    # What a balancer speaks to replicas.
    endpoint_protocol: Literal["http1", "http3"] = "http1"
    # The UDP port that replicas with HTTP/3 name to their clients: whether a client can reach it is another matter.
    advertised_port: int = HTTPS.port

    @property
    def secure(self) -> bool:
        """Whether clients come by TLS."""
        return self.users in http3.KINDS

    @property
    def transport(self) -> conntrack.Transport:
        """Of the connections that end at replicas."""
        by_balancer = self.entry not in CLUSTER_ENTRIES
        quic = self.endpoint_protocol == "http3" if by_balancer else self.users in QUIC_USERS
        return "udp" if quic else "tcp"


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


def run_scenario(node: Node, scenario: Scenario, load: Load, folder: Path, watch: Watcher) -> Recording:
    """Runs it from an empty cluster to an empty cluster."""
    with ExitStack() as running:
        cluster = running.enter_context(node.cluster(folder))
        setup = _ScenarioSetup(cluster, scenario, load, folder)
        for _ in range(scenario.replicas):
            setup.start_pod()
        for pod in cluster.pods:
            wait_until(lambda pod=pod: pod.ready, pod.child, pod.name, READY_SECONDS)
            pod.apply_cpu_limit()
        cluster.publish(cluster.pods)
        locust_run = LocustRun(cluster.start_client(setup.users(setup.entry())))
        recording = _ScenarioRun(node, setup, locust_run, watch).run()
        (folder / "conntrack.txt").write_text(conntrack.entries(scenario.transport))
        return recording


class _ScenarioSetup:
    """What a scenario is played on: replicas of its application, its entry, its users."""

    def __init__(self, cluster: Cluster, scenario: Scenario, load: Load, folder: Path) -> None:
        self.cluster = cluster
        self.scenario = scenario
        self.load = load
        self._certificate: Certificate | None = None
        self._application = APPLICATION
        if scenario.secure or scenario.endpoint_protocol == "http3":
            self._certificate = certificate.make(folder)
            self._application = http3.application(folder, self._certificate, scenario.advertised_port)

    def start_pod(self) -> Pod:
        # The first pods of a run are there before the load; only a newcomer can be published too early.
        boosted = self.scenario.gate or len(self.cluster.pods) < self.scenario.replicas
        startup = self.load.startup_millicores if boosted else self.load.millicores
        limits = CpuLimits(startup, self.load.millicores)
        return self.cluster.start_pod(self._application, limits, self.scenario.probe)

    def entry(self) -> str:
        """The address that users are given."""
        service = HTTPS if self.scenario.secure else SERVICE
        match self.scenario.entry:
            case "clusterip":
                return f"{service.address}:{service.port}"
            case "nodeport":
                return f"{NODE}:{service.node_port}"
            case name:
                return self.cluster.start_balancer(name, self._task())

    def _task(self) -> BalancerTask:
        secure, endpoint_protocol = self.scenario.secure, self.scenario.endpoint_protocol
        return BalancerTask(
            (),
            certificate=self._certificate if secure else None,
            http3=secure,
            endpoint_protocol=endpoint_protocol,
            endpoint_ca=self._certificate if endpoint_protocol == "http3" else None,
            # Hypercorn names a port of its own, which clients of the balancer are not to go to.
            removed_headers=("Alt-Svc",) if self._certificate else (),
        )

    def users(self, address: str) -> list[object]:
        """The command that is the load."""
        count, kind = self.load.users, self.scenario.users
        return http3.locust(address, count, kind) if self.scenario.secure else locust(f"http://{address}", count, kind)


class _ScenarioRun:
    """The time from the first user to the last answer."""

    def __init__(self, node: Node, setup: _ScenarioSetup, locust_run: LocustRun, watch: Watcher) -> None:
        self._node = node
        self._setup = setup
        self._cluster, self._scenario, self._load = setup.cluster, setup.scenario, setup.load
        self._locust = locust_run
        self._watch = watch
        count = self._scenario.replicas + self._scenario.scale
        self._recording = Recording(REPLICAS[:count], began=time.time())
        self._recording.answers, self._recording.users = locust_run.answers, locust_run.joined

    def run(self) -> Recording:
        recording, others = self._recording, OtherCpuTime(self._node)
        self._run_until(recording.began + self._load.seconds_before)
        if self._scenario.scale:
            self._add_replica()
            self._wait_until_published()
            self._run_until((recording.published or 0) + self._load.seconds_after)
        recording.ended = time.time()
        recording.other_work = others.cpus()
        self._locust.stop()
        recording.arrivals = {pod.name: pod.arrivals() for pod in self._cluster.pods}
        return recording

    def _add_replica(self) -> None:
        self._recording.started = time.time()
        newcomer = self._setup.start_pod()
        if not self._scenario.gate:
            # As if it had no probe: Kubernetes publishes a pod whose container runs.
            newcomer.apply_cpu_limit()
            self._publish([*self._cluster.pods])

    def _wait_until_published(self) -> None:
        deadline, newcomer = time.time() + READY_SECONDS, self._cluster.pods[-1]
        while self._recording.published is None:
            if time.time() > deadline:
                raise ChildFailed(f"{newcomer.name} was not ready after {READY_SECONDS} s{newcomer.child.log_end()}")
            self._run_until(time.time() + 0.02)

    def _run_until(self, end: float) -> None:
        """Takes in answers; publishes who is ready; a sample and a word each second."""
        recording = self._recording
        while (now := time.time()) < end:
            second = len(recording.samples)
            if now >= recording.began + second:
                self._sample(now)
                if second:
                    self._watch(second, recording)
            self._locust.collect(min(end, recording.began + len(recording.samples)), self._reconcile)

    def _reconcile(self) -> None:
        self._cluster.check()
        if self._scenario.gate:
            self._publish([pod for pod in self._cluster.pods if pod.ready])

    def _publish(self, pods: list[Pod]) -> None:
        recording, first, newcomer = self._recording, self._cluster.pods[0], self._cluster.pods[-1]
        now = time.time()
        if not self._cluster.publish(pods, newcomer.apply_cpu_limit if newcomer in pods else lambda: None):
            return
        if first not in pods and recording.withdrawn is None:
            recording.withdrawn = now
        if recording.started and newcomer in pods and recording.published is None:
            recording.published = now

    def _sample(self, now: float) -> None:
        connections = conntrack.node_connections(self._scenario.transport)
        self._recording.samples.append(
            Sample(
                now,
                {pod.name: pod.cpu_seconds() for pod in self._cluster.pods},
                {pod.name: connections[pod.ip] for pod in self._cluster.pods},
                self._cluster.balancer_cpu_seconds(),
            )
        )
