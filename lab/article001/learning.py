"""The learning part: the limit that Sheave learns from nothing, by number of workers and of clients.

Each number of clients has two arms with separate pods, the learned limit and the true one. Both run at the same time
with the same work, so a disturbance affects both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from lab.article001 import ab, listing, sheave_admin
from lab.article001.deployment import Deployment, DeploymentSample, count_served, poll_until
from lab.article001.entries import FIRST_PORT
from lab.article001.rows import record
from lab.article001.variants import Variant
from lab.article001.work import ServiceTimes
from lab.balancers import BalancerTask, RunningBalancer
from lab.bench import Bench, Row
from lab.child import Child
from lab.testbed.cluster import Cluster, Node
from lab.testbed.other_work import OtherCpuTime

PERIOD_SECONDS = 0.5
ARMS = ("auto", "fixed")
LEARNED = "learned.csv"


@dataclass(frozen=True)
class LearningSettings:
    """Settings: the numbers of clients, the pods and the duration."""

    repetitions: int
    service: ServiceTimes
    clients: Sequence[int]
    pods: int
    seconds: float
    # The comparison starts here; the limits are those of the last seconds.
    compared_from: float
    last_seconds: float


def run(
    bench: Bench,
    node: Node,
    variants: Sequence[Variant],
    settings: LearningSettings,
    report_step: Callable[[str], None],
) -> None:
    """Runs the variants one after the other; each has its number of workers."""
    for repetition in range(1, settings.repetitions + 1):
        for variant in variants:
            folder = bench.logs / f"{variant.id}-{repetition}"
            folder.mkdir()
            with ExitStack() as exit_stack:
                _run_arms(bench, node, variant, settings, repetition, folder, exit_stack)
            report_step(f"learning, repetition {repetition}, {variant.workers} workers")


def _run_arms(
    bench: Bench,
    node: Node,
    variant: Variant,
    settings: LearningSettings,
    repetition: int,
    folder: Path,
    exit_stack: ExitStack,
) -> None:
    cluster = exit_stack.enter_context(node.cluster(folder))
    pairs = [(clients, arm) for clients in settings.clients for arm in ARMS]
    arms = [_LearningArm(cluster, variant, settings, clients, arm, folder) for clients, arm in pairs]
    for number, arm in enumerate(arms):
        exit_stack.callback(arm.deployment.close)
        arm.open(FIRST_PORT + number)
    others, post_file = OtherCpuTime(node), listing.write(folder / "listing.json")
    for arm in arms:
        arm.begin(f"{bench.settings['seed']}-{variant.workers}-{repetition}", post_file)
        exit_stack.enter_context(arm.load)
    poll_until(
        lambda: not any(arm.load.alive() for arm in arms), PERIOD_SECONDS, lambda: [arm.sample() for arm in arms]
    )
    cluster.check()
    other_work = round(others.cpus(), 3)
    for arm in arms:
        where = {"variant": variant.id, "repetition": repetition, "workers": variant.workers, "clients": arm.clients}
        record(bench, kind=variant.kind, **where, arm=arm.name, other_work_cpus=other_work, **arm.summary())
        bench.append(LEARNED, arm.sample_rows(where | {"arm": arm.name}))


class _LearningArm:
    """Pods, a Sheave that knows or learns their limit, and a load."""

    load: Child

    def __init__(
        self, cluster: Cluster, variant: Variant, settings: LearningSettings, clients: int, name: str, folder: Path
    ) -> None:
        self.name = name
        self.clients = clients
        self.deployment = Deployment(cluster, f"{name}-{clients}", variant.workers, folder)
        self._cluster = cluster
        self._settings = settings
        self._variant = variant
        self._samples: list[DeploymentSample] = []
        self._limits: list[tuple[float, list[float]]] = []
        for _ in range(settings.pods):
            self.deployment.start()

    def open(self, port: int) -> None:
        self.deployment.wait_until_ready()
        task = replace(
            BalancerTask(self.deployment.addresses()), cap="auto" if self.name == "auto" else self._variant.workers
        )
        label = f"{self.name}-{self.clients}"
        self._running: RunningBalancer = self._cluster.start_extra_balancer(label, self._variant.entry, task, port)

    def begin(self, seed: str, post_file: Path) -> None:
        self.deployment.restart(self._settings.service.times(seed))
        argv = ab.command(self._running.address, self.clients, self._settings.seconds, post_file)
        self.load = self._cluster.start_client(argv, f"ab-{self.name}-{self.clients}.log", piped=False)
        self._began = time.time()

    def sample(self) -> None:
        self._samples.append(self.deployment.sample())
        if self.name == "auto" and self._running.admin:
            learned = sheave_admin.limits(sheave_admin.fetch(self._running.admin))
            self._limits.append((time.time(), _ordered_limits(learned, self.deployment.addresses())))

    def summary(self) -> Row:
        report = ab.read(self.load.log.read_text())
        begin, end = self._began + self._settings.compared_from, self._began + self._settings.seconds
        inside = [sample for sample in self._samples if begin <= sample.time <= end]
        slots = self.deployment.workers * self._settings.pods
        serving = [sum(load.serving for load in sample.pods) / slots for sample in inside]
        length = inside[-1].time - inside[0].time
        return {
            "requests": report.requests,
            "seconds": round(length, 3),
            "rps": round(count_served(self._samples, begin, end) / length, 3),
            "mean_ms": report.mean_ms,
            "p99_ms": report.p99_ms,
            **report.statuses(),
            "busy_share": round(statistics.fmean(serving), 4),
            **self._limit_columns(),
        }

    def _limit_columns(self) -> Row:
        """Returns the limits of the last seconds and their largest error."""
        if not self._limits:
            return {}
        begin = self._began + self._settings.seconds - self._settings.last_seconds
        last = [limits for moment, limits in self._limits if moment >= begin]
        means = [statistics.fmean(of_pod) for of_pod in zip(*last, strict=True)]
        return {
            "limits": " ".join(f"{mean:.2f}" for mean in means),
            "limit_error": round(max(abs(mean - self.deployment.workers) for mean in means), 3),
        }

    def sample_rows(self, where: Row) -> list[Row]:
        """Returns answers and limits, one row for each sample."""
        limits = dict(enumerate(values for _, values in self._limits))
        rows = []
        for number, (before, after) in enumerate(zip(self._samples, self._samples[1:], strict=False), 1):
            answered = sum(load.served for load in after.pods) - sum(load.served for load in before.pods)
            allowed = limits.get(number, [None] * self._settings.pods)
            rows.append(
                where
                | {
                    "second": round(after.time - self._began, 2),
                    "rps": round(answered / (after.time - before.time), 2),
                    "requests": sum(load.requests for load in after.pods),
                }
                | {f"limit.app-{pod}": limit for pod, limit in enumerate(allowed, 1)}
            )
        return rows


def _ordered_limits(learned: Mapping[str, float], addresses: Sequence[str]) -> list[float]:
    missing = [address for address in addresses if address not in learned]
    # An endpoint without a limit yet counts as not a number.
    return [learned[address] if address not in missing else float("nan") for address in addresses]
