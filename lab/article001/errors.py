"""The errors part: pods that close connections without notice, POST requests, and proxies with connection pools."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from lab.article001 import ab, listing
from lab.article001.deployment import Deployment, poll_until
from lab.article001.entries import EntryPoints
from lab.article001.rows import record
from lab.article001.throughput import PERIOD_SECONDS
from lab.article001.variants import Variant
from lab.article001.work import ServiceTimes
from lab.bench import Bench
from lab.testbed.cluster import Node
from lab.testbed.other_work import OtherCpuTime


@dataclass(frozen=True)
class ErrorSettings:
    """Settings of short requests, so that an answer, the end of its connection and the next request are close together."""

    repetitions: int
    pods: int
    workers: int
    clients: int
    seconds: float
    service_seconds: float


def run(
    bench: Bench, node: Node, variants: Sequence[Variant], settings: ErrorSettings, report_step: Callable[[str], None]
) -> None:
    folder = bench.logs / "errors"
    folder.mkdir()
    service = ServiceTimes("fixed", settings.service_seconds)
    with ExitStack() as exit_stack:
        cluster = exit_stack.enter_context(node.cluster(folder))
        deployment = Deployment(cluster, "app", settings.workers, folder)
        exit_stack.callback(deployment.close)
        for _ in range(settings.pods):
            deployment.start()
        deployment.wait_until_ready()
        entries = EntryPoints(cluster, deployment, variants)
        post_file = listing.write(folder / "listing.json")
        order = random.Random(f"{bench.settings['seed']}-errors")
        for repetition in range(1, settings.repetitions + 1):
            for variant in order.sample(variants, len(variants)):
                others = OtherCpuTime(node)
                deployment.restart(service.times(""))
                with entries.start_ab(variant, settings.clients, settings.seconds, post_file, str(repetition)) as child:
                    poll_until(lambda child=child: not child.alive(), PERIOD_SECONDS, deployment.work.fill)
                    report = ab.read(child.log.read_text())
                cluster.check()
                where = {"kind": variant.kind, "variant": variant.id, "repetition": repetition}
                record(bench, **where, **_summary_columns(report), other_work_cpus=round(others.cpus(), 3))
                report_step(f"502s, repetition {repetition}, {variant.id}")


def _summary_columns(report: ab.Report) -> dict[str, Any]:
    return {
        "requests": report.requests,
        "seconds": report.seconds,
        "rps": round(report.rps, 3),
        **report.statuses(),
    }
