"""The first part: the article's six pods of four workers, and `ab -k -c 24` by every way to them."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.article001 import ab, listing, sheave_admin
from lab.article001.deployment import Deployment, Sample, watch
from lab.article001.entries import Entries
from lab.article001.rows import record
from lab.article001.variants import Variant
from lab.article001.work import Service
from lab.bench import Bench, Row
from lab.testbed.cluster import Node
from lab.testbed.other_work import OtherWork

PERIOD_SECONDS = 0.25
CONCURRENCY = "concurrency.csv"
# Samples are shown of this repetition.
SHOWN_REPETITION = 1


@dataclass(frozen=True)
class Phase:
    """All repetitions with one distribution of service times."""

    service: Service
    repetitions: int
    pods: int
    workers: int
    clients: int
    seconds: float
    warm_seconds: float


def play(bench: Bench, node: Node, variants: Sequence[Variant], phase: Phase, told: Callable[[str], None]) -> None:
    """Every variant in each repetition, in an order drawn anew, before the same pods."""
    folder = bench.logs / phase.service.distribution
    folder.mkdir()
    with ExitStack() as ending:
        cluster = ending.enter_context(node.cluster(folder))
        cluster.add_second_node()
        deployment = Deployment(cluster, "app", phase.workers, folder)
        ending.callback(deployment.close)
        for number in range(phase.pods):
            deployment.start(on_second_node=number >= phase.pods // 2)
        deployment.wait_until_ready()
        cluster.publish(cluster.pods)
        player = _Player(bench, phase, deployment, Entries(cluster, deployment, variants), folder)
        for variant in variants:
            if variant.learns:
                player.warm(variant)
                told(f"{variant.id} has had {phase.warm_seconds:g} s of this load before")
        order = random.Random(f"{bench.settings['seed']}-{phase.service.distribution}")
        for repetition in range(1, phase.repetitions + 1):
            for variant in order.sample(variants, len(variants)):
                others = OtherWork(node)
                row = player.measure(variant, repetition)
                cluster.check()
                record(bench, **row, other_work_cpus=round(others.cpus(), 3))
                told(f"{phase.service.distribution}, repetition {repetition}, {variant.id}")


class _Player:
    def __init__(self, bench: Bench, phase: Phase, deployment: Deployment, entries: Entries, folder: Path) -> None:
        self._bench = bench
        self._phase = phase
        self._deployment = deployment
        self._entries = entries
        self._posted = listing.write(folder / "listing.json")

    def warm(self, variant: Variant) -> None:
        self._run(variant, self._phase.warm_seconds, "warm")

    def measure(self, variant: Variant, repetition: int) -> Row:
        """The same work for every variant of a repetition."""
        report, samples = self._run(variant, self._phase.seconds, str(repetition))
        where = {
            "kind": variant.kind,
            "variant": variant.id,
            "distribution": self._phase.service.distribution,
            "repetition": repetition,
        }
        if repetition == SHOWN_REPETITION:
            self._bench.append(CONCURRENCY, _in_columns(where, samples))
        limits = self._limits(variant)
        return where | measured(report, samples, self._phase.workers) | {"limits": limits}

    def _run(self, variant: Variant, seconds: float, run: str) -> tuple[ab.Report, list[Sample]]:
        self._deployment.restart(self._phase.service.times(f"{self._bench.settings['seed']}-{run}"))
        samples: list[Sample] = []
        with self._entries.start_ab(variant, self._phase.clients, seconds, self._posted, run) as child:
            watch(lambda: not child.alive(), PERIOD_SECONDS, lambda: samples.append(self._deployment.sample()))
            return ab.read(child.log.read_text()), samples

    def _limits(self, variant: Variant) -> str:
        """What was learned, pod by pod."""
        admin = self._entries.admin(variant)
        if not variant.learns or admin is None:
            return ""
        return " ".join(f"{limit:g}" for limit in sheave_admin.limits(sheave_admin.ask(admin)).values())


def measured(report: ab.Report, samples: Sequence[Sample], workers: int) -> dict[str, Any]:
    """What a run of ab comes to, and what its pods looked like meanwhile."""
    # The first and the last second are the beginning and the end of the load.
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


def _in_columns(where: Row, samples: Sequence[Sample]) -> list[Row]:
    begin = samples[0].time
    return [
        where
        | {"second": round(sample.time - begin, 3)}
        | {f"app-{number}": load.requests for number, load in enumerate(sample.pods, 1)}
        for sample in samples
    ]
