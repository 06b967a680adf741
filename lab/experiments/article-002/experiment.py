"""Runs the variants of experiment.toml one after the other, in random order in each repetition: on the testbed, or in
the test cluster.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from lab import golang
from lab.article002 import calls as reading
from lab.article002 import pictures, rows
from lab.article002.calls import Call
from lab.article002.figures import figures
from lab.article002.in_cluster import CallRate, ClusterPlayer
from lab.article002.setup import CallTimes, GrpcSetup, Variant, open_setup, sleep_until
from lab.bench import Bench, Progress
from lab.figure import Figure
from lab.kubernetes import session
from lab.kubernetes.agents import Agents
from lab.testbed import cluster, other_work
from lab.testbed.cluster import Node
from lab.testbed.other_work import LabCpuTime, OtherCpuTime

# Additional duration of the load, in which a server starts.
START_SECONDS = 2


def obstacle() -> str | None:
    return cluster.obstacle() or golang.obstacle()


def cluster_obstacle() -> str | None:
    return session.obstacle() or golang.obstacle()


def run(bench: Bench) -> dict[str, Figure]:
    variants = _variants(bench)
    if bench.experiment.in_cluster:
        with session.open_session(bench.logs) as opened:
            # Sheave runs during all variants, which then differ by the annotation alone.
            is_needed = any(variant.entry == "sheave" for variant in variants)
            player = ClusterPlayer(opened, Agents(opened, bench.logs) if is_needed else None)
            _run_all(bench, variants, opened, {name: partial(_scaled, player) for name in pictures.IN_CLUSTER})
    else:
        with Node.acquire() as node:
            kinds = {"bursts": _bursts, "shares": _shares, "newcomer": _newcomer}
            _run_all(bench, variants, node, {name: partial(kind, node) for name, kind in kinds.items()})
    other_work.note(bench, bench.rows)
    return figures(bench.rows)


def _run_all(
    bench: Bench,
    variants: Sequence[Variant],
    lab_cpu: LabCpuTime,
    kinds: Mapping[str, Callable[[_VariantRun], None]],
) -> None:
    order = random.Random(bench.settings["seed"])
    repetitions = bench.setting("repetitions")
    progress = Progress(repetitions * len(variants))
    for repetition in range(repetitions):
        for variant in order.sample(variants, len(variants)) if not bench.quick else variants:
            kinds[variant.kind](_VariantRun(bench, lab_cpu, variant, repetition))
            progress.step(f"repetition {repetition + 1}, {variant.id}")


def _variants(bench: Bench) -> list[Variant]:
    everything = bench.settings["variants"]
    wanted = bench.only or bench.settings.get(f"{bench.extent}_variants") or [variant["id"] for variant in everything]
    descriptive = ("title", "article")
    return [
        Variant(**{name: value for name, value in variant.items() if name not in descriptive})
        for variant in everything
        if variant["id"] in wanted
    ]


class _VariantRun:
    """One repetition of one variant, with its settings and output."""

    def __init__(self, bench: Bench, lab_cpu: LabCpuTime, variant: Variant, repetition: int) -> None:
        self.bench = bench
        self.variant = variant
        self.repetition = repetition + 1
        self.folder: Path = bench.logs / f"{variant.id}-{repetition + 1}"
        self.folder.mkdir()
        self.times = CallTimes(**bench.settings["times"])
        self._lab_cpu = lab_cpu
        self._other_cpu = OtherCpuTime(lab_cpu)

    def open_setup(self, node: Node, servers: int) -> AbstractContextManager[GrpcSetup]:
        return open_setup(node, self.variant, servers, self.times, self.folder)

    def record(self, calls: Sequence[Call], **more: Any) -> None:
        where = {"variant": self.variant.id, "kind": self.variant.kind, "repetition": self.repetition}
        others = {"other_work_cpus": round(self._other_cpu.cpus(), 3)}
        self.bench.record(rows.EMPTY | where | rows.summary(calls) | others | more)
        self._other_cpu = OtherCpuTime(self._lab_cpu)

    def record_seconds(self, calls: Sequence[Call]) -> None:
        """Records whole seconds."""
        where = {"variant": self.variant.id, "repetition": self.repetition}
        count = len(calls) // round(self.bench.settings["rate"])
        whole = [call for call in calls if call.sent < calls[0].sent + count]
        self.bench.append(rows.PER_SECOND, [{**where, **second} for second in rows.seconds(whole)])


def _bursts(node: Node, variant_run: _VariantRun) -> None:
    bench = variant_run.bench
    sizes = "sizes_per_connection" if variant_run.variant.connection_per_call else "sizes"
    with variant_run.open_setup(node, servers=1) as setup:
        for size in bench.setting(sizes):
            calls = setup.burst(size)
            variant_run.record(calls, calls_at_once=size, cpu_seconds=round(setup.cpu_seconds, 6))
        if not bench.quick:
            variant_run.record((), largest=_largest_burst(setup, **bench.settings["largest"]))


def _largest_burst(setup: GrpcSetup, tries: int, **search: Any) -> int:
    def clean(calls: int) -> bool:
        return any(not any(call.failed for call in setup.burst(calls)) for _ in range(tries))

    return reading.largest_clean(clean, **search)


def _shares(node: Node, variant_run: _VariantRun) -> None:
    bench = variant_run.bench
    with variant_run.open_setup(node, len(rows.REPLICAS)) as setup:
        client = setup.start_calls("-rate", bench.settings["rate"], "-seconds", bench.setting("seconds"))
        calls = setup.finish(client)
        variant_run.record(
            calls,
            busiest=round(reading.busiest(calls), 4),
            dns_questions=setup.dns_questions(),
            cpu_seconds=round(setup.cpu_seconds, 6),
        )
    variant_run.record_seconds(calls)


def _newcomer(node: Node, variant_run: _VariantRun) -> None:
    bench, newcomer = variant_run.bench, rows.REPLICAS[-1]
    before, after = bench.setting("seconds_before"), bench.setting("seconds_after")
    with variant_run.open_setup(node, len(rows.REPLICAS) - 1) as setup:
        seconds = before + START_SECONDS + after
        client = setup.start_calls("-rate", bench.settings["rate"], "-seconds", seconds)
        sleep_until(time.time() + before)
        setup.start_server()
        published = time.time()
        setup.publish()
        calls = [call for call in setup.finish(client) if call.sent < published + after]
        new_server_result = reading.new_server_result(calls, newcomer, published)
        variant_run.record(
            calls,
            busiest=round(reading.busiest(calls), 4),
            dns_questions=setup.dns_questions(),
            published_second=round(published - calls[0].sent, 3),
            first_call_ms=round(new_server_result.first_call_ms, 3),
            share_lowest=new_server_result.lowest_share,
            share_highest=new_server_result.highest_share,
        )
    variant_run.record_seconds(calls)


def _scaled(player: ClusterPlayer, variant_run: _VariantRun) -> None:
    bench = variant_run.bench
    durations = (bench.setting(f"seconds_{name}") for name in ("before", "after", "to_annotation"))
    rate = CallRate(bench.settings["rate"], *durations)
    calls, begin = player.play(variant_run.variant, variant_run.times, rate, variant_run.folder)
    result = reading.scaled_result(calls, {name: begin[name] for name in rows.REPLICAS[1:]})
    variant_run.record(
        calls,
        busiest=round(reading.busiest(calls), 4),
        published_second=round(max(begin.values()) - calls[0].sent, 3),
        first_call_ms=round(result.first_call_ms, 3),
        share_lowest=result.lowest_share,
        share_highest=result.highest_share,
    )
    variant_run.record_seconds(calls)
