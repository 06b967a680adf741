"""Plays the variants of experiment.toml one after the other, in an order drawn anew in each repetition."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lab import golang
from lab.article002 import calls as reading
from lab.article002 import rows
from lab.article002.calls import Call
from lab.article002.figures import figures
from lab.article002.stage import Stage, Times, Variant, sleep_until, stage
from lab.bench import Bench, Progress
from lab.figure import Figure
from lab.testbed import cluster, other_work
from lab.testbed.cluster import Node
from lab.testbed.other_work import OtherWork

# Beside the time for which calls are made: a server starts meanwhile.
START_SECONDS = 2


def obstacle() -> str | None:
    return cluster.obstacle() or golang.obstacle()


def run(bench: Bench) -> dict[str, Figure]:
    variants = _variants(bench)
    order = random.Random(bench.settings["seed"])
    repetitions = bench.setting("repetitions")
    progress = Progress(repetitions * len(variants))
    kinds = {"bursts": _bursts, "shares": _shares, "newcomer": _newcomer}
    with Node.occupied() as node:
        for repetition in range(repetitions):
            for variant in order.sample(variants, len(variants)) if not bench.quick else variants:
                player = _Player(bench, node, variant, repetition)
                kinds[variant.kind](player)
                progress.step(f"repetition {repetition + 1}, {variant.id}")
    other_work.note(bench, bench.rows)
    return figures(bench.rows)


def _variants(bench: Bench) -> list[Variant]:
    everything = bench.settings["variants"]
    wanted = bench.only or bench.settings.get(f"{bench.extent}_variants") or [variant["id"] for variant in everything]
    words = ("title", "article")
    return [
        Variant(**{name: value for name, value in variant.items() if name not in words})
        for variant in everything
        if variant["id"] in wanted
    ]


class _Player:
    """One repetition of one variant: its settings, and where its rows go."""

    def __init__(self, bench: Bench, node: Node, variant: Variant, repetition: int) -> None:
        self.bench = bench
        self.node = node
        self.variant = variant
        self.repetition = repetition + 1
        self.folder: Path = bench.logs / f"{variant.id}-{repetition + 1}"
        self.folder.mkdir()
        self._others = OtherWork(node)

    def stage(self, servers: int) -> AbstractContextManager[Stage]:
        return stage(self.node, self.variant, servers, Times(**self.bench.settings["times"]), self.folder)

    def record(self, calls: Sequence[Call], **more: Any) -> None:
        where = {"variant": self.variant.id, "kind": self.variant.kind, "repetition": self.repetition}
        others = {"other_work_cpus": round(self._others.cpus(), 3)}
        self.bench.record(rows.EMPTY | where | rows.summary(calls) | others | more)
        self._others = OtherWork(self.node)

    def record_seconds(self, calls: Sequence[Call]) -> None:
        """Of whole seconds."""
        where = {"variant": self.variant.id, "repetition": self.repetition}
        rate = round(self.bench.settings["rate"])
        whole = calls[: len(calls) // rate * rate]
        self.bench.append(rows.PER_SECOND, [{**where, **second} for second in rows.seconds(whole)])


def _bursts(player: _Player) -> None:
    bench = player.bench
    sizes = "sizes_per_connection" if player.variant.connection_per_call else "sizes"
    with player.stage(servers=1) as made:
        for size in bench.setting(sizes):
            player.record(made.burst(size), calls_at_once=size)
        if not bench.quick:
            player.record((), largest=_largest(made, **bench.settings["largest"]))


def _largest(made: Stage, tries: int, **search: Any) -> int:
    def clean(calls: int) -> bool:
        return any(not any(call.failed for call in made.burst(calls)) for _ in range(tries))

    return reading.largest(clean, **search)


def _shares(player: _Player) -> None:
    bench = player.bench
    with player.stage(len(rows.REPLICAS)) as made:
        client = made.start_calls("-rate", bench.settings["rate"], "-seconds", bench.setting("seconds"))
        calls = made.finish(client)
        player.record(calls, busiest=round(reading.busiest(calls), 4), dns_questions=made.dns_questions())
    player.record_seconds(calls)


def _newcomer(player: _Player) -> None:
    bench, newcomer = player.bench, rows.REPLICAS[-1]
    before, after = bench.setting("seconds_before"), bench.setting("seconds_after")
    with player.stage(len(rows.REPLICAS) - 1) as made:
        seconds = before + START_SECONDS + after
        client = made.start_calls("-rate", bench.settings["rate"], "-seconds", seconds)
        sleep_until(time.time() + before)
        made.start_server()
        published = time.time()
        made.publish()
        calls = [call for call in made.finish(client) if call.sent < published + after]
        arrival = reading.arrival(calls, newcomer, published)
        player.record(
            calls,
            busiest=round(reading.busiest(calls), 4),
            dns_questions=made.dns_questions(),
            published_second=round(published - calls[0].sent, 3),
            first_call_ms=round(arrival.first_call_ms, 3),
            share_lowest=arrival.lowest_share,
            share_highest=arrival.highest_share,
        )
    player.record_seconds(calls)
