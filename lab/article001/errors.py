"""The second part: pods that close connections unannounced, POST, and proxies that keep connections for later."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from lab.article001 import ab, listing
from lab.article001.deployment import Deployment, watch
from lab.article001.entries import Entries
from lab.article001.rows import record
from lab.article001.throughput import PERIOD_SECONDS
from lab.article001.variants import Variant
from lab.article001.work import Service
from lab.bench import Bench
from lab.testbed.cluster import Node
from lab.testbed.other_work import OtherWork


@dataclass(frozen=True)
class Race:
    """Short requests: an answer, the end of its connection, and the next request are close together."""

    repetitions: int
    pods: int
    workers: int
    clients: int
    seconds: float
    service_seconds: float


def play(bench: Bench, node: Node, variants: Sequence[Variant], race: Race, told: Callable[[str], None]) -> None:
    folder = bench.logs / "errors"
    folder.mkdir()
    service = Service("fixed", race.service_seconds)
    with ExitStack() as ending:
        cluster = ending.enter_context(node.cluster(folder))
        deployment = Deployment(cluster, "app", race.workers, folder)
        ending.callback(deployment.close)
        for _ in range(race.pods):
            deployment.start()
        deployment.wait_until_ready()
        entries = Entries(cluster, deployment, variants)
        posted = listing.write(folder / "listing.json")
        order = random.Random(f"{bench.settings['seed']}-errors")
        for repetition in range(1, race.repetitions + 1):
            for variant in order.sample(variants, len(variants)):
                others = OtherWork(node)
                deployment.restart(service.times(""))
                with entries.start_ab(variant, race.clients, race.seconds, posted, str(repetition)) as child:
                    watch(lambda child=child: not child.alive(), PERIOD_SECONDS, deployment.work.top_up)
                    report = ab.read(child.log.read_text())
                cluster.check()
                where = {"kind": variant.kind, "variant": variant.id, "repetition": repetition}
                record(bench, **where, **_summary(report), other_work_cpus=round(others.cpus(), 3))
                told(f"502s, repetition {repetition}, {variant.id}")


def _summary(report: ab.Report) -> dict[str, Any]:
    return {
        "requests": report.requests,
        "seconds": report.seconds,
        "rps": round(report.rps, 3),
        **report.statuses(),
    }
