"""The throughput part: the article's six pods of four workers, and `ab -k -c 24` at every entry point."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.article001 import ab, listing, sheave_admin
from lab.article001.deployment import Deployment, DeploymentSample, poll_until
from lab.article001.entries import EntryPoints
from lab.article001.rows import record
from lab.article001.variants import Variant
from lab.article001.work import ServiceTimes
from lab.bench import Bench, Row
from lab.testbed.cluster import Node
from lab.testbed.other_work import OtherCpuTime

PERIOD_SECONDS = 0.25
CONCURRENCY = "concurrency.csv"
# Repetition whose samples are recorded.
SHOWN_REPETITION = 1


@dataclass(frozen=True)
class ThroughputSettings:
    """Settings of all repetitions with one distribution of service times."""

    service: ServiceTimes
    repetitions: int
    pods: int
    workers: int
    clients: int
    seconds: float
    warm_seconds: float


def run(
    bench: Bench,
    node: Node,
    variants: Sequence[Variant],
    settings: ThroughputSettings,
    report_step: Callable[[str], None],
) -> None:
    """Runs every variant in each repetition, in random order, before the same pods."""
    folder = bench.logs / settings.service.distribution
    folder.mkdir()
    with ExitStack() as exit_stack:
        cluster = exit_stack.enter_context(node.cluster(folder))
        cluster.add_second_node()
        deployment = Deployment(cluster, "app", settings.workers, folder)
        exit_stack.callback(deployment.close)
        for number in range(settings.pods):
            deployment.start(on_second_node=number >= settings.pods // 2)
        deployment.wait_until_ready()
        cluster.publish(cluster.pods)
        throughput_run = _ThroughputRun(bench, settings, deployment, EntryPoints(cluster, deployment, variants), folder)
        for variant in variants:
            if variant.learns:
                throughput_run.warm(variant)
                report_step(f"{variant.id} warmed up for {settings.warm_seconds:g} s")
        order = random.Random(f"{bench.settings['seed']}-{settings.service.distribution}")
        for repetition in range(1, settings.repetitions + 1):
            for variant in order.sample(variants, len(variants)):
                others = OtherCpuTime(node)
                row = throughput_run.measure(variant, repetition)
                cluster.check()
                record(bench, **row, other_work_cpus=round(others.cpus(), 3))
                report_step(f"{settings.service.distribution}, repetition {repetition}, {variant.id}")


class _ThroughputRun:
    def __init__(
        self, bench: Bench, settings: ThroughputSettings, deployment: Deployment, entries: EntryPoints, folder: Path
    ) -> None:
        self._bench = bench
        self._settings = settings
        self._deployment = deployment
        self._entries = entries
        self._post_file = listing.write(folder / "listing.json")

    def warm(self, variant: Variant) -> None:
        self._run(variant, self._settings.warm_seconds, "warm")

    def measure(self, variant: Variant, repetition: int) -> Row:
        """Measures a variant; all variants of a repetition have the same work."""
        report, samples = self._run(variant, self._settings.seconds, str(repetition))
        where = {
            "kind": variant.kind,
            "variant": variant.id,
            "distribution": self._settings.service.distribution,
            "repetition": repetition,
        }
        if repetition == SHOWN_REPETITION:
            self._bench.append(CONCURRENCY, _concurrency_rows(where, samples))
        limits = self._limits(variant)
        return where | summary_columns(report, samples, self._settings.workers) | {"limits": limits}

    def _run(self, variant: Variant, seconds: float, run: str) -> tuple[ab.Report, list[DeploymentSample]]:
        self._deployment.restart(self._settings.service.times(f"{self._bench.settings['seed']}-{run}"))
        samples: list[DeploymentSample] = []
        with self._entries.start_ab(variant, self._settings.clients, seconds, self._post_file, run) as child:
            poll_until(lambda: not child.alive(), PERIOD_SECONDS, lambda: samples.append(self._deployment.sample()))
            return ab.read(child.log.read_text()), samples

    def _limits(self, variant: Variant) -> str:
        """Returns the learned limits, pod by pod."""
        admin = self._entries.admin(variant)
        if not variant.learns or admin is None:
            return ""
        return " ".join(f"{limit:g}" for limit in sheave_admin.limits(sheave_admin.fetch(admin)).values())


def summary_columns(report: ab.Report, samples: Sequence[DeploymentSample], workers: int) -> dict[str, Any]:
    """Returns the columns of a run of ab and of its pods' samples."""
    # The first and the last second are the ramps of the load.
    begin, end = samples[0].time + 1, samples[-1].time - 1
    inside = [sample for sample in samples if begin <= sample.time <= end] or list(samples)
    serving = [sum(load.serving for load in sample.pods) / (workers * len(sample.pods)) for sample in inside]
    return {
        "requests": report.requests,
        "seconds": report.seconds,
        "rps": round(report.rps, 3),
        "mean_ms": report.mean_ms,
        "p99_ms": report.p99_ms,
        **report.statuses(),
        "busy_share": round(statistics.fmean(serving), 4),
        "most_at_a_pod": max(load.requests for sample in inside for load in sample.pods),
    }


def _concurrency_rows(where: Row, samples: Sequence[DeploymentSample]) -> list[Row]:
    begin = samples[0].time
    return [
        where
        | {"second": round(sample.time - begin, 3)}
        | {f"app-{number}": load.requests for number, load in enumerate(sample.pods, 1)}
        for sample in samples
    ]
