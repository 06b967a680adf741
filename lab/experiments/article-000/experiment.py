"""Runs the variants of experiment.toml one after the other, in random order in each repetition: on the testbed, or in
the test cluster.
"""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.article.in_cluster import ClusterPlayer, ClusterVariant
from lab.bench import Bench, Progress, Row
from lab.demo.table import Table
from lab.figure import Figure, paired_ratio
from lab.kubernetes import autoscaler, session
from lab.kubernetes.agents import Agents
from lab.testbed import cluster, other_work, recording
from lab.testbed.cluster import Node
from lab.testbed.pods import Probe
from lab.testbed.recording import Recording
from lab.testbed.scenario import REPLICAS, Load, Scenario, Watcher, run_scenario

FAIR_SHARE = 0.5
SHOWN_ENTRIES = 20
THROUGH_SHEAVE = ("sheave-h3-h1", "sheave-alt-svc", "sheave-h3-h3", "sheave-h1-h3", "sheave-h2-h3")
# Until the second replica starts, these have the same work for the same replica: their differences show the machine's
# noise.
ALIKE = ("one", "clusterip", "nodeport", "haproxy", "nginx", "envoy", "sheave")
UNITS = {
    "rps_before": "requests per second",
    "rps_after": "requests per second",
    "p50_before_ms": "ms",
    "p50_after_ms": "ms",
    "p95_before_ms": "ms",
    "p95_after_ms": "ms",
    "share": "share of requests",
    "next_request_ms": "ms",
    "first_request_ms": "ms",
    "first_arrival_ms": "ms",
    "first_request_delay_ms": "ms",
    "failures": "requests",
    "withdrawn_second": "s",
    "http3_share": "share of requests",
    "replica_cpu_ms": "CPU ms per request",
    "balancer_cpu_ms": "CPU ms per request",
}

Variant = dict[str, Any]
# Plays a variant, with the folder of its logs and configuration.
Player = Callable[[Variant, Load, Path, Watcher], Recording]

obstacle = cluster.obstacle
cluster_obstacle = session.obstacle


def run(bench: Bench) -> dict[str, Figure]:
    variants = _variants(bench)
    order = random.Random(bench.settings["seed"])
    repetitions = bench.setting("repetitions")
    progress = Progress(repetitions * len(variants))
    with _cluster(bench, variants) if bench.experiment.in_cluster else _testbed() as play:
        for repetition in range(repetitions):
            for variant in order.sample(variants, len(variants)) if not bench.quick else variants:
                _run_repetition(bench, play, variant, repetition)
                progress.step(f"repetition {repetition + 1}, {variant['id']}")
    other_work.note(bench, bench.rows)
    return figures(bench.rows)


@contextmanager
def _testbed() -> Iterator[Player]:
    """Yields a player of variants on the lab's testbed."""
    with Node.acquire() as node:

        def play(variant: Variant, load: Load, folder: Path, watch: Watcher) -> Recording:
            return run_scenario(node, _scenario(variant), load, folder, watch)

        yield play


@contextmanager
def _cluster(bench: Bench, variants: Sequence[Variant]) -> Iterator[Player]:
    """Yields a player of variants in the test cluster."""
    scales_by_cpu = any(variant.get("scaler") == "hpa" for variant in variants)
    if scales_by_cpu:
        autoscaler.require_metrics_server()
    with session.open_session(bench.logs) as opened:
        # Sheave runs during all variants, which then differ by the annotation alone.
        if scales_by_cpu:
            autoscaler.start_metrics_server(opened)
        is_needed = any(variant["entry"] == "sheave" for variant in variants)
        player = ClusterPlayer(opened, Agents(opened, bench.logs) if is_needed else None)

        def play(variant: Variant, load: Load, folder: Path, watch: Watcher) -> Recording:
            scaler = variant.get("scaler", "kubectl")
            return player.play(ClusterVariant(variant["id"], variant["entry"], scaler), load, folder, watch)

        yield play


def _variants(bench: Bench) -> list[Variant]:
    everything = bench.settings["variants"]
    wanted = bench.only or bench.settings.get(f"{bench.extent}_variants") or [variant["id"] for variant in everything]
    return [variant for variant in everything if variant["id"] in wanted]


def _run_repetition(bench: Bench, play: Player, variant: Variant, repetition: int) -> None:
    folder = bench.logs / f"{variant['id']}-{repetition + 1}"
    folder.mkdir()
    load = Load(
        users=round(bench.setting("users") * variant.get("user_multiplier", 1.0)),
        millicores=round(bench.setting("millicores") * variant.get("cpu_multiplier", 1.0)),
        startup_millicores=bench.setting("startup_millicores"),
        seconds_before=bench.setting("seconds_before"),
        seconds_after=bench.setting("seconds_after"),
    )
    run_recording = play(variant, load, folder, _watcher(bench, variant))
    _keep_requests(run_recording, folder)
    _show_conntrack(bench, variant["id"], folder)
    where = {"variant": variant["id"], "repetition": repetition + 1}
    bench.append("seconds.csv", [{**where, **_with_replica_columns(row)} for row in recording.seconds(run_recording)])
    bench.record(
        {
            **where,
            "users": load.users,
            "millicores": load.millicores,
            **_with_scaling_columns(recording.summary(run_recording)),
        }
    )


def _keep_requests(run_recording: Recording, folder: Path) -> None:
    """Writes every request to the folder of the logs, because there are too many lines to commit."""
    with gzip.open(folder / "requests.csv.gz", "wt", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["sent", "seconds", "replica", "failure"])
        writer.writerows((f"{a.sent:.4f}", f"{a.seconds:.4f}", a.replica, a.failure) for a in run_recording.answers)


def _show_conntrack(bench: Bench, variant: str, folder: Path) -> None:
    """Copies some conntrack entries of the run's end to its folder."""
    shown = bench.folder / f"conntrack-{variant}.txt"
    if variant in bench.settings["conntrack_variants"] and not shown.exists():
        entries = (folder / "conntrack.txt").read_text().splitlines()
        head = f"{len(entries)} entries; the first {min(len(entries), SHOWN_ENTRIES)} of them:"
        shown.write_text("\n".join([head, *entries[:SHOWN_ENTRIES]]) + "\n")


def _scenario(variant: Variant) -> Scenario:
    settings = {name: value for name, value in variant.items() if name not in ("title", "article")}
    if "probe" in settings:
        settings["probe"] = Probe(**settings["probe"])
    return Scenario(**settings)


def _with_replica_columns(row: Row) -> Row:
    """Returns the row with the columns of both replicas."""
    kinds = ("answered", "sent", "cpu", "connections")
    return row | {f"{kind}.{name}": row.get(f"{kind}.{name}", 0) for name in REPLICAS for kind in kinds}


def _with_scaling_columns(row: Row) -> Row:
    """Returns the row with the columns of a scaled run."""
    after = ("rps_after", "p50_after_ms", "p95_after_ms", "share", "share_lowest", "share_highest")
    first = ("next_request_ms", "first_request_ms", "first_arrival_ms", "first_request_delay_ms", "newcomer_requests")
    return row | {name: row.get(name) for name in (*after, *first)}


def _watcher(bench: Bench, variant: Variant) -> Watcher:
    """Returns a watcher that prints a line every second of a quick run."""
    if not bench.quick:
        return lambda second, run_recording: None
    table = Table(REPLICAS, "sockets" if bench.experiment.in_cluster else "conntrack")
    table.title(variant["title"])
    table.header()
    return _Narrator(table).render


class _Narrator:
    """Live table of one run."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._shown: set[str] = set()

    def render(self, second: int, run_recording: Recording) -> None:
        begin = run_recording.began + second - 1
        latest = [answer for answer in run_recording.answers if begin <= answer.received_at < begin + 1]
        self._table.line(second, recording.summarize(latest), run_recording.samples[-1].connections)
        if run_recording.admin:
            url = f"http://{run_recording.admin}/dashboard/#/flow"
            self._event_once(run_recording.began, f"dashboard while it runs: {url}")
        self._event_once(run_recording.started, f"{REPLICAS[1]} starts")
        self._event_once(run_recording.published, f"{REPLICAS[1]} is ready and published")
        self._event_once(run_recording.withdrawn, f"{REPLICAS[0]} fails its probe and is withdrawn")

    def _event_once(self, moment: float | None, text: str) -> None:
        if moment is not None and text not in self._shown:
            self._shown.add(text)
            self._table.event(text)


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Returns the figures of the variants that have rows."""
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    found: dict[str, Figure] = {}
    for variant in variants:
        for name, unit in UNITS.items():
            if values := _by_repetition(rows, variant, name):
                found[f"{variant}.{name}"] = Figure.of(list(values.values()), unit)
        if f"{variant}.rps_after" in found:
            found |= _newcomer_figures(rows, variant)
    for peer in ("haproxy", "nginx", "envoy"):
        if {"sheave", peer} <= set(variants):
            found[f"sheave.gain / {peer}.gain"] = paired_ratio(_gains(rows, "sheave"), _gains(rows, peer))
    before = [row["rps_before"] for row in rows if row["variant"] in ALIKE]
    if len(before) > 1:
        found["machine.rps_before.spread"] = _spread(before)
    found |= _http3_figures(found)
    if {"one", "two"} <= set(variants):
        one, two = (_by_repetition(rows, variant, "rps_before") for variant in ("one", "two"))
        found["two / one"] = paired_ratio(two, one)
    return found


def _newcomer_figures(rows: Sequence[Row], variant: str) -> dict[str, Figure]:
    """Returns the figures of the second replica; `worst` and `all` are over every repetition."""
    own = [row for row in rows if row["variant"] == variant]
    delays = [row["first_request_delay_ms"] for row in own]
    found = {
        f"{variant}.gain": Figure.of(list(_gains(rows, variant).values()), "ratio"),
        f"{variant}.rps_after.spread": _spread([row["rps_after"] for row in own]),
        f"{variant}.share.spread": _spread([row["share"] for row in own]),
        f"{variant}.share.worst": Figure.of([max(row["share"] for row in own)], "share"),
        f"{variant}.failures.all": Figure.of([sum(row["failures"] for row in own)], "requests"),
    }
    # A run may be shorter than a window.
    if None not in (row["share_lowest"] for row in own):
        found[f"{variant}.unfairness.worst"] = Figure.of([max(map(_unfairness, own))], "share of a fair share")
    # A replica without requests has no first request, and so no figure.
    if None not in delays:
        found[f"{variant}.first_request_delay_ms.worst"] = Figure.of([max(delays)], "ms")
    return found


def _http3_figures(found: dict[str, Figure]) -> dict[str, Figure]:
    """Returns the worst figures of all variants that use HTTP/3 on one side of Sheave."""
    worst: dict[str, Figure] = {}
    for name in ("first_request_delay_ms.worst", "unfairness.worst", "failures.all"):
        own = [found[key] for variant in THROUGH_SHEAVE if (key := f"{variant}.{name}") in found]
        if own:
            worst[f"sheave-http3.{name}"] = Figure.of([max(figure.value for figure in own)], own[0].unit)
    return worst


def _spread(values: Sequence[float]) -> Figure:
    """Returns the ratio of the highest to the lowest value less 1; 0 if all are 0."""
    return Figure.of([max(values) / min(values) - 1 if min(values) else 0.0], "highest / lowest - 1")


def _unfairness(row: Row) -> float:
    """Returns the largest distance of the new replica's share from one half in any window."""
    return max(abs(row[edge] - FAIR_SHARE) for edge in ("share_lowest", "share_highest")) / FAIR_SHARE


def _gains(rows: Sequence[Row], variant: str) -> dict[int, float]:
    before, after = (_by_repetition(rows, variant, name) for name in ("rps_before", "rps_after"))
    return {repetition: after[repetition] / before[repetition] for repetition in after}


def _by_repetition(rows: Sequence[Row], variant: str, name: str) -> dict[int, float]:
    """Returns the column by repetition; older committed runs may lack it."""
    own = (row for row in rows if row["variant"] == variant)
    return {row["repetition"]: row[name] for row in own if row.get(name) is not None}
