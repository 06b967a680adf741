"""Deployments: pods that take their service times from one pipe, and samples of their load."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.article001 import uwsgi
from lab.article001.work import WorkPipe
from lab.child import ChildFailed, wait_until
from lab.testbed.backlog import Backlog
from lab.testbed.cluster import Cluster
from lab.testbed.pods import CpuLimits, Pod, Probe

# Probes wait in the same queue as requests and are not measured, so one success is enough.
ONCE = Probe(period_seconds=3600, timeout_seconds=10, failure_threshold=3)
READY_SECONDS = 60
IDLE_SECONDS = 30


@dataclass(frozen=True)
class PodLoad:
    """Load of one pod at one moment."""

    serving: int
    waiting: int
    served: int

    @property
    def requests(self) -> int:
        """Requests at the pod, which the article's HAProxy chart calls sessions."""
        return self.serving + self.waiting


@dataclass(frozen=True)
class DeploymentSample:
    """Load of all pods at one moment (wall clock)."""

    time: float
    pods: tuple[PodLoad, ...]


class DeploymentMember:
    """One pod of a deployment."""

    def __init__(self, pod: Pod, busy: Path) -> None:
        self.pod = pod
        self._busy = os.open(busy, os.O_RDONLY)
        self._backlog = Backlog(pod.pid)

    def load(self) -> PodLoad:
        workers = uwsgi.read_busy(self._busy)
        return PodLoad(workers.serving, self._backlog.length(), workers.served)

    def close(self) -> None:
        os.close(self._busy)
        self._backlog.close()


class Deployment:
    """Any number of pods with a fixed number of workers each."""

    def __init__(self, cluster: Cluster, name: str, workers: int, folder: Path, start_seconds: float = 0) -> None:
        self.members: list[DeploymentMember] = []
        self.workers = workers
        self.work = WorkPipe(folder / f"{name}-work")
        self._cluster = cluster
        self._name = name
        self._folder = folder
        self._start_seconds = start_seconds
        self._started = 0

    def start(self, on_second_node: bool = False) -> DeploymentMember:
        """Starts one more pod; it becomes ready later."""
        self._started += 1
        busy = self._folder / f"{self._name}-{self._started}-busy"
        application = uwsgi.application(self.workers, self.work.path, busy, self._start_seconds)
        pod = self._cluster.start_pod(application, CpuLimits(), ONCE, 2 if on_second_node else 1)
        member = DeploymentMember(pod, busy)
        self.members.append(member)
        return member

    def remove(self, member: DeploymentMember) -> None:
        self.members.remove(member)
        member.close()
        self._cluster.remove_pod(member.pod)

    def wait_until_ready(self) -> None:
        for member in self.members:
            pod = member.pod
            wait_until(lambda pod=pod: pod.ready, pod.child, pod.name, READY_SECONDS)

    def addresses(self) -> tuple[str, ...]:
        return tuple(member.pod.address for member in self.members)

    def sample(self) -> DeploymentSample:
        self.work.fill()
        return DeploymentSample(time.time(), tuple(member.load() for member in self.members))

    def restart(self, times: Iterator[float]) -> None:
        """Waits until all requests have ended, then starts new work."""
        deadline = time.monotonic() + IDLE_SECONDS
        while any(load.requests for load in self.sample().pods):
            if time.monotonic() > deadline:
                raise ChildFailed(f"the pods of {self._name} still have requests after {IDLE_SECONDS} s")
            time.sleep(0.05)
        self.work.restart(times)

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.work.close()


def poll_until(finished: Callable[[], bool], period: float, action: Callable[[], None]) -> None:
    """Calls `action` once a period until `finished()`."""
    next_time = time.monotonic()
    while not finished():
        action()
        next_time = max(next_time + period, time.monotonic())
        while time.monotonic() < next_time and not finished():
            time.sleep(min(0.05, max(0.0, next_time - time.monotonic())))


def count_served(samples: Sequence[DeploymentSample], begin: float, end: float) -> int:
    """Returns the number of requests answered between two moments."""
    inside = [sample for sample in samples if begin <= sample.time <= end]
    if len(inside) < 2:
        return 0
    return sum(load.served for load in inside[-1].pods) - sum(load.served for load in inside[0].pods)
