"""Scenarios: users and one or two replicas; a second replica may join in the middle."""

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
# A probe that even a saturated replica passes; the article's probe is unknown and not part of its claim.
PATIENT_PROBE = Probe(period_seconds=5, timeout_seconds=60, failure_threshold=3)
REPLICAS = ("app-1", "app-2")
# Entry points without a balancer.
CLUSTER_ENTRIES = ("clusterip", "nodeport")
QUIC_USERS = ("Http3User", "DiscoveringUser")
# Maximum start time of a replica; with its final CPU quota a start takes ten seconds or more.
READY_SECONDS = 120


@dataclass(frozen=True)
class Scenario:
    """Settings of one variant."""

    id: str
    # One of CLUSTER_ENTRIES, or the name of a balancer.
    entry: str
    users: str = "KeepAliveUser"
    replicas: int = 1
    scale: bool = True
    # If false, a replica is published at its start, before it is ready.
    gate: bool = True
    probe: Probe = PATIENT_PROBE
    # Factors of the usual number of users, and of each replica's CPU.
    user_multiplier: float = 1.0
    cpu_multiplier: float = 1.0
    # Protocol from a balancer to replicas.
    endpoint_protocol: Literal["http1", "http3"] = "http1"
    # UDP port in the Alt-Svc of replicas with HTTP/3; clients may not be able to reach it.
    advertised_port: int = HTTPS.port

    @property
    def secure(self) -> bool:
        """True if clients use TLS."""
        return self.users in http3.KINDS

    @property
    def transport(self) -> conntrack.Transport:
        """Transport protocol of the connections to replicas."""
        by_balancer = self.entry not in CLUSTER_ENTRIES
        quic = self.endpoint_protocol == "http3" if by_balancer else self.users in QUIC_USERS
        return "udp" if quic else "tcp"


@dataclass(frozen=True)
class Load:
    """Users, CPU quotas and duration."""

    users: int
    millicores: int
    # Quota during the start, which may be higher if the start is not measured.
    startup_millicores: int
    seconds_before: float
    seconds_after: float


# Called once a second with the second's number and the recording so far.
Watcher = Callable[[int, Recording], None]


def run_scenario(node: Node, scenario: Scenario, load: Load, folder: Path, watch: Watcher) -> Recording:
    """Runs a scenario in an empty cluster; returns its recording."""
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
    """Replicas, entry point and users of a scenario."""

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
        # The first pods start before the load; only a later one can be published too early.
        boosted = self.scenario.gate or len(self.cluster.pods) < self.scenario.replicas
        startup = self.load.startup_millicores if boosted else self.load.millicores
        limits = CpuLimits(startup, self.load.millicores)
        return self.cluster.start_pod(self._application, limits, self.scenario.probe)

    def entry(self) -> str:
        """Starts the entry point; returns its address for the users."""
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
            # Hypercorn advertises its own port, which clients of the balancer must not use.
            removed_headers=("Alt-Svc",) if self._certificate else (),
        )

    def users(self, address: str) -> list[object]:
        """Returns the command of the load."""
        count, kind = self.load.users, self.scenario.users
        return http3.locust(address, count, kind) if self.scenario.secure else locust(f"http://{address}", count, kind)


class _ScenarioRun:
    """The run from the first user to the last answer."""

    def __init__(self, node: Node, setup: _ScenarioSetup, locust_run: LocustRun, watch: Watcher) -> None:
        self._node = node
        self._setup = setup
        self._cluster, self._scenario, self._load = setup.cluster, setup.scenario, setup.load
        self._locust = locust_run
        self._watch = watch
        count = self._scenario.replicas + self._scenario.scale
        self._recording = Recording(REPLICAS[:count], began=time.time())
        self._recording.answers, self._recording.users = locust_run.answers, locust_run.joined
        self._recording.admin = self._cluster.balancer.admin if self._cluster.balancer else None

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
            # Without a probe, Kubernetes publishes a pod as soon as its container runs.
            newcomer.apply_cpu_limit()
            self._publish([*self._cluster.pods])

    def _wait_until_published(self) -> None:
        deadline, newcomer = time.time() + READY_SECONDS, self._cluster.pods[-1]
        while self._recording.published is None:
            if time.time() > deadline:
                raise ChildFailed(f"{newcomer.name} was not ready after {READY_SECONDS} s{newcomer.child.log_end()}")
            self._run_until(time.time() + 0.02)

    def _run_until(self, end: float) -> None:
        """Collects answers and publishes ready pods; takes a sample and calls the watcher every second."""
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
