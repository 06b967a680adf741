"""The scaling part: one pod, forty clients, a scaler. All variants run at the same time, with separate pods."""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.article001 import listing, sheave_admin
from lab.article001.answers import REFUSED, summarize
from lab.article001.deployment import Deployment, DeploymentMember, poll_until
from lab.article001.entries import FIRST_PORT
from lab.article001.rows import record
from lab.article001.scalers import DemandScaler, RefusalScaler, ReplicaBounds
from lab.article001.variants import Variant
from lab.article001.work import ServiceTimes
from lab.bench import Bench, Row
from lab.child import Child, ChildFailed
from lab.testbed.cluster import Cluster, Node
from lab.testbed.other_work import OtherCpuTime

CLIENTS = Path(__file__).with_name("clients.py")
PERIOD_SECONDS = 0.25
SCALED = "scaled.csv"


@dataclass(frozen=True)
class ScalingSettings:
    """Settings that all variants of this kind share."""

    repetitions: int
    service: ServiceTimes
    workers: int
    clients: int
    seconds: float
    sync_seconds: float
    # Delay before a pod starts to become ready.
    start_seconds: float
    least: int
    most: int
    stabilization_seconds: float
    # Steady state at the end of the run.
    steady_seconds: float

    @property
    def needed(self) -> float:
        """Number of pods that have a worker for every client."""
        return self.clients / self.workers


def run(
    bench: Bench, node: Node, variants: Sequence[Variant], settings: ScalingSettings, report_step: Callable[[str], None]
) -> None:
    for repetition in range(1, settings.repetitions + 1):
        folder = bench.logs / f"scaling-{repetition}"
        folder.mkdir()
        with ExitStack() as exit_stack:
            _run_arms(bench, node, variants, settings, repetition, folder, exit_stack)
        report_step(f"scaling, repetition {repetition}")


def _run_arms(
    bench: Bench,
    node: Node,
    variants: Sequence[Variant],
    settings: ScalingSettings,
    repetition: int,
    folder: Path,
    exit_stack: ExitStack,
) -> None:
    cluster = exit_stack.enter_context(node.cluster(folder))
    arms = [_ScalingArm(cluster, variant, settings, folder) for variant in variants]
    for number, arm in enumerate(arms):
        exit_stack.callback(arm.deployment.close)
        arm.open(FIRST_PORT + number)
    others, post_file = OtherCpuTime(node), listing.write(folder / "listing.json")
    for arm in arms:
        exit_stack.enter_context(arm.begin(f"{bench.settings['seed']}-scaling-{repetition}", post_file))

    def step() -> None:
        for arm in arms:
            arm.step()
        cluster.check()

    poll_until(lambda: not any(arm.load.alive() for arm in arms), PERIOD_SECONDS, step)
    other_work = round(others.cpus(), 3)
    for arm in arms:
        where = {"variant": arm.variant.id, "repetition": repetition}
        record(bench, kind=arm.variant.kind, **where, other_work_cpus=other_work, **arm.summary())
        bench.append(SCALED, arm.rows(where))


@dataclass(frozen=True)
class _Observation:
    """State at one moment (wall clock)."""

    time: float
    started: int
    ready: int
    demand: float | None


class _ScalingArm:
    """A growing deployment with its Sheave, its scaler and its clients."""

    load: Child

    def __init__(self, cluster: Cluster, variant: Variant, settings: ScalingSettings, folder: Path) -> None:
        self.variant = variant
        self.deployment = Deployment(cluster, variant.id, settings.workers, folder, settings.start_seconds)
        self._cluster = cluster
        self._settings = settings
        bounds = ReplicaBounds(settings.least, settings.most)
        self._by_demand = DemandScaler(settings.workers, bounds, settings.stabilization_seconds)
        self._by_refusals = RefusalScaler(settings.workers, settings.service.mean, bounds)
        self._observations: list[_Observation] = []
        self._answers: list[dict[str, Any]] = []
        self._published: tuple[str, ...] = ()
        self._terminating: list[tuple[float, DeploymentMember]] = []
        self._syncs = 0
        self._refused_before = 0.0
        for _ in range(settings.least):
            self.deployment.start()

    def open(self, port: int) -> None:
        self.deployment.wait_until_ready()
        self._published = self.deployment.addresses()
        task = self.variant.task(self._published)
        self._running = self._cluster.start_extra_balancer(self.variant.id, self.variant.entry, task, port)
        if self._running.admin is None:
            raise ChildFailed(f"{self.variant.entry} has no admin address with metrics for the scaler")
        self._admin = self._running.admin

    def begin(self, seed: str, post_file: Path) -> Child:
        self.deployment.restart(self._settings.service.times(seed))
        argv: list[object] = [sys.executable, CLIENTS, self._running.address, post_file]
        argv += ["--clients", self._settings.clients, "--seconds", self._settings.seconds]
        argv += [] if self.variant.pause_seconds is None else ["--pause", self.variant.pause_seconds]
        self.load = self._cluster.start_client(argv, f"clients-{self.variant.id}.log")
        self._began = time.time()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self.load

    def _read(self) -> None:
        for line in self.load.stdout:
            self._answers.append(json.loads(line))

    def step(self) -> None:
        """Publishes ready pods, removes terminated ones, and runs the scaler when it is due."""
        now = time.time()
        self.deployment.work.fill()
        self._publish()
        for entry in [entry for entry in self._terminating if entry[0] <= now]:
            self._terminating.remove(entry)
            self.deployment.remove(entry[1])
        demand = None
        if now >= self._began + (self._syncs + 1) * self._settings.sync_seconds:
            self._syncs += 1
            demand = self._sync(now)
        self._observations.append(_Observation(now, len(self._active_members()), len(self._published), demand))

    def _active_members(self) -> list[DeploymentMember]:
        terminating = [member for _, member in self._terminating]
        return [member for member in self.deployment.members if member not in terminating]

    def _publish(self) -> None:
        ready = [member for member in self._active_members() if member.pod.ready]
        addresses = tuple(address for address in self.deployment.addresses() if address in _addresses(ready))
        if addresses != self._published:
            self._published = addresses
            self._running.set_endpoints(addresses)

    def _sync(self, now: float) -> float:
        """Runs the scaler once; returns its signal, in concurrent requests."""
        samples, pods = sheave_admin.fetch(self._admin), len(self._active_members())
        if self.variant.scaler == "demand":
            followed = sheave_admin.demand(samples)
            desired = self._by_demand.desired(now, pods, followed)
        else:
            refused = sheave_admin.refused(samples)
            rate = (refused - self._refused_before) / self._settings.sync_seconds
            self._refused_before = refused
            followed = rate * self._settings.service.mean
            desired = self._by_refusals.desired(pods, rate)
        for _ in range(pods, desired):
            self.deployment.start()
        for member in self._active_members()[desired:]:
            # Requests in flight end within 5 s; Kubernetes grants a pod 30 s.
            self._terminating.append((now + 5, member))
        return followed

    def summary(self) -> Row:
        self._reader.join(30)
        end = self._began + self._settings.seconds
        steady = [
            observation.started
            for observation in self._observations
            if observation.time >= end - self._settings.steady_seconds
        ]
        answers = summarize(self._answers, self._began, self._settings.seconds)
        return {
            "clients": self._settings.clients,
            "workers": self._settings.workers,
            "seconds": self._settings.seconds,
            **answers,
            # Syncs until the last refusal; the next sync found none.
            "syncs": int(answers["last_refusal_second"] / self._settings.sync_seconds),
            "pods_steady": round(statistics.fmean(steady), 3),
            "pods_most": max(observation.started for observation in self._observations),
            "pod_seconds": round(self._pod_seconds(), 1),
        }

    def _pod_seconds(self) -> float:
        """Returns the pod-seconds from each pod's start, as billed."""
        pairs = zip(self._observations, self._observations[1:], strict=False)
        return sum(before.started * (after.time - before.time) for before, after in pairs)

    def rows(self, where: Row) -> list[Row]:
        """Returns one row for each second."""
        rows = []
        for second in range(int(self._settings.seconds)):
            begin = self._began + second
            statuses = [a["status"] for a in self._answers if begin <= a["sent"] + a["seconds"] < begin + 1]
            observations = [observation for observation in self._observations if begin <= observation.time < begin + 1]
            followed = [observation.demand for observation in observations if observation.demand is not None]
            rows.append(
                where
                | {
                    "second": second + 1,
                    "answered": statuses.count(200),
                    "refused": statuses.count(REFUSED),
                    "started": observations[-1].started if observations else None,
                    "ready": observations[-1].ready if observations else None,
                    "followed": round(followed[-1], 3) if followed else None,
                }
            )
        return rows


def _addresses(members: Sequence[DeploymentMember]) -> set[str]:
    return {member.pod.address for member in members}
