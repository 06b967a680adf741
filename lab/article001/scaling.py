"""The third part: one pod, forty clients, a scaler. All variants run at the same time, each with pods of its own."""

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
from lab.article001.deployment import Deployment, Member, watch
from lab.article001.entries import FIRST_PORT
from lab.article001.rows import record
from lab.article001.scalers import Bounds, DemandScaler, RefusalScaler
from lab.article001.variants import Variant
from lab.article001.work import Service
from lab.bench import Bench, Row
from lab.child import Child, ChildFailed
from lab.testbed.cluster import Cluster, Node
from lab.testbed.other_work import OtherWork

CLIENTS = Path(__file__).with_name("clients.py")
PERIOD_SECONDS = 0.25
SCALED = "scaled.csv"
REFUSED = 429


@dataclass(frozen=True)
class Play:
    """What every variant of this kind has to cope with."""

    repetitions: int
    service: Service
    workers: int
    clients: int
    seconds: float
    sync_seconds: float
    # What a pod takes until it starts to be ready.
    start_seconds: float
    least: int
    most: int
    stabilization_seconds: float
    # At the end, when what was to be done has been done.
    steady_seconds: float

    @property
    def needed(self) -> float:
        """Pods that have a worker for every client."""
        return self.clients / self.workers


def play(bench: Bench, node: Node, variants: Sequence[Variant], wanted: Play, told: Callable[[str], None]) -> None:
    for repetition in range(1, wanted.repetitions + 1):
        folder = bench.logs / f"scaling-{repetition}"
        folder.mkdir()
        with ExitStack() as ending:
            _play(bench, node, variants, wanted, repetition, folder, ending)
        told(f"scaling, repetition {repetition}")


def _play(
    bench: Bench,
    node: Node,
    variants: Sequence[Variant],
    wanted: Play,
    repetition: int,
    folder: Path,
    ending: ExitStack,
) -> None:
    cluster = ending.enter_context(node.cluster(folder))
    arms = [_Arm(cluster, variant, wanted, folder) for variant in variants]
    for number, arm in enumerate(arms):
        ending.callback(arm.deployment.close)
        arm.open(FIRST_PORT + number)
    others, posted = OtherWork(node), listing.write(folder / "listing.json")
    for arm in arms:
        ending.enter_context(arm.begin(f"{bench.settings['seed']}-scaling-{repetition}", posted))

    def step() -> None:
        for arm in arms:
            arm.step()
        cluster.check()

    watch(lambda: not any(arm.load.alive() for arm in arms), PERIOD_SECONDS, step)
    other_work = round(others.cpus(), 3)
    for arm in arms:
        where = {"variant": arm.variant.id, "repetition": repetition}
        record(bench, kind=arm.variant.kind, **where, other_work_cpus=other_work, **arm.summary())
        bench.append(SCALED, arm.rows(where))


@dataclass(frozen=True)
class _Look:
    """What there was at one moment of the wall clock."""

    time: float
    started: int
    ready: int
    demand: float | None


class _Arm:
    """A deployment that grows, its Sheave, its scaler, its clients."""

    load: Child

    def __init__(self, cluster: Cluster, variant: Variant, wanted: Play, folder: Path) -> None:
        self.variant = variant
        self.deployment = Deployment(cluster, variant.id, wanted.workers, folder, wanted.start_seconds)
        self._cluster = cluster
        self._wanted = wanted
        bounds = Bounds(wanted.least, wanted.most)
        self._by_demand = DemandScaler(wanted.workers, bounds, wanted.stabilization_seconds)
        self._by_refusals = RefusalScaler(wanted.workers, wanted.service.mean, bounds)
        self._looks: list[_Look] = []
        self._answers: list[dict[str, Any]] = []
        self._published: tuple[str, ...] = ()
        self._leaving: list[tuple[float, Member]] = []
        self._syncs = 0
        self._refused_before = 0.0
        for _ in range(wanted.least):
            self.deployment.start()

    def open(self, port: int) -> None:
        self.deployment.wait_until_ready()
        self._published = self.deployment.addresses()
        task = self.variant.task(self._published)
        self._running = self._cluster.start_further_balancer(self.variant.id, self.variant.entry, task, port)
        if self._running.admin is None:
            raise ChildFailed(f"{self.variant.entry} says nothing that a scaler could follow")
        self._admin = self._running.admin

    def begin(self, seed: str, posted: Path) -> Child:
        self.deployment.restart(self._wanted.service.times(seed))
        argv: list[object] = [sys.executable, CLIENTS, self._running.address, posted]
        argv += ["--clients", self._wanted.clients, "--seconds", self._wanted.seconds]
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
        """Publishes who is ready, ends who has left, and asks the scaler when it is time."""
        now = time.time()
        self.deployment.work.top_up()
        self._publish()
        for entry in [entry for entry in self._leaving if entry[0] <= now]:
            self._leaving.remove(entry)
            self.deployment.remove(entry[1])
        demand = None
        if now >= self._began + (self._syncs + 1) * self._wanted.sync_seconds:
            self._syncs += 1
            demand = self._sync(now)
        self._looks.append(_Look(now, len(self._staying()), len(self._published), demand))

    def _staying(self) -> list[Member]:
        leaving = [member for _, member in self._leaving]
        return [member for member in self.deployment.members if member not in leaving]

    def _publish(self) -> None:
        ready = [member for member in self._staying() if member.pod.ready]
        addresses = tuple(address for address in self.deployment.addresses() if address in _addresses(ready))
        if addresses != self._published:
            self._published = addresses
            self._running.set_endpoints(addresses)

    def _sync(self, now: float) -> float:
        """One round of the scaler; returns what it followed, in requests at once."""
        measures, pods = sheave_admin.ask(self._admin), len(self._staying())
        if self.variant.scaler == "demand":
            followed = sheave_admin.demand(measures)
            desired = self._by_demand.desired(now, pods, followed)
        else:
            refused = sheave_admin.refused(measures)
            rate = (refused - self._refused_before) / self._wanted.sync_seconds
            self._refused_before = refused
            followed = rate * self._wanted.service.mean
            desired = self._by_refusals.desired(pods, rate)
        for _ in range(pods, desired):
            self.deployment.start()
        for member in self._staying()[desired:]:
            # What it serves is served; a pod has 30 s for that in Kubernetes.
            self._leaving.append((now + 5, member))
        return followed

    def summary(self) -> Row:
        self._reader.join(30)
        refused = [answer for answer in self._answers if answer["status"] == REFUSED]
        good = sorted(answer["seconds"] for answer in self._answers if answer["status"] == 200)
        last = max((answer["sent"] + answer["seconds"] for answer in refused), default=self._began) - self._began
        end = self._began + self._wanted.seconds
        steady = [look.started for look in self._looks if look.time >= end - self._wanted.steady_seconds]
        statuses = [answer["status"] for answer in self._answers]
        return {
            "clients": self._wanted.clients,
            "workers": self._wanted.workers,
            "requests": len(good),
            "seconds": self._wanted.seconds,
            "rps": round(len(good) / self._wanted.seconds, 3),
            "mean_ms": round(1000 * statistics.fmean(good), 1),
            "p99_ms": round(1000 * good[int(0.99 * (len(good) - 1))], 1),
            "status_500": statuses.count(500),
            "status_502": statuses.count(502),
            "status_other": sum(status not in (0, 200, REFUSED, 500, 502) for status in statuses),
            "broken": statuses.count(0),
            "refused": len(refused),
            "last_refusal_second": round(last, 2),
            # Those that had been by then; the next one found nothing refused.
            "syncs": int(last / self._wanted.sync_seconds),
            "pods_steady": round(statistics.fmean(steady), 3),
            "pods_most": max(look.started for look in self._looks),
            "pod_seconds": round(self._pod_seconds(), 1),
        }

    def _pod_seconds(self) -> float:
        """From when each was started, as a bill has it."""
        pairs = zip(self._looks, self._looks[1:], strict=False)
        return sum(before.started * (after.time - before.time) for before, after in pairs)

    def rows(self, where: Row) -> list[Row]:
        """A row for each second."""
        rows = []
        for second in range(int(self._wanted.seconds)):
            begin = self._began + second
            came = [a["status"] for a in self._answers if begin <= a["sent"] + a["seconds"] < begin + 1]
            looks = [look for look in self._looks if begin <= look.time < begin + 1]
            followed = [look.demand for look in looks if look.demand is not None]
            rows.append(
                where
                | {
                    "second": second + 1,
                    "answered": came.count(200),
                    "refused": came.count(REFUSED),
                    "started": looks[-1].started if looks else None,
                    "ready": looks[-1].ready if looks else None,
                    "followed": round(followed[-1], 3) if followed else None,
                }
            )
        return rows


def _addresses(members: Sequence[Member]) -> set[str]:
    return {member.pod.address for member in members}
