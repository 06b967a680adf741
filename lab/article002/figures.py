"""Figures by variant; `worst`, `lowest`, `highest` and `all` are over every repetition."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lab.article002 import calls as reading
from lab.article002.rows import REPLICAS
from lab.bench import Row
from lab.figure import Figure, paired_ratio

UNITS = {"p50_ms": "ms", "p99_ms": "ms", "failed": "calls"}


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Returns the figures of the variants that have rows."""
    found: dict[str, Figure] = {}
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        found |= OF_KIND[own[0]["kind"]](variant, own)
    direct = _largest_by_repetition(rows, "single")
    for variant in dict.fromkeys(row["variant"] for row in rows if row["largest"] is not None):
        if direct and variant != "single":
            ratio = paired_ratio(_largest_by_repetition(rows, variant), direct)
            found[f"{variant}.largest / single.largest"] = ratio
    by_proxy = _cpu_by_repetition(rows, "sheave")
    for variant in dict.fromkeys(row["variant"] for row in rows if row["kind"] == "shares"):
        own = _cpu_by_repetition(rows, variant)
        if own and by_proxy and variant != "sheave":
            found[f"{variant}.cpu / sheave.cpu"] = paired_ratio(own, by_proxy)
    return found


def _largest_by_repetition(rows: Sequence[Row], variant: str) -> dict[int, float]:
    own = (row for row in rows if row["variant"] == variant)
    return {row["repetition"]: row["largest"] for row in own if row["largest"] is not None}


def _cpu_by_repetition(rows: Sequence[Row], variant: str) -> dict[int, float]:
    """Returns the CPU time of a steady call in microseconds: client, servers, and what is between them."""
    own = (row for row in rows if row["variant"] == variant)
    return {row["repetition"]: 1e6 * row["cpu_seconds"] / row["calls"] for row in own if row["cpu_seconds"] is not None}


def _burst_figures(variant: str, rows: list[Row]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for size in dict.fromkeys(row["calls_at_once"] for row in rows if row["calls_at_once"]):
        own = [row for row in rows if row["calls_at_once"] == size]
        shares = [100 * row["failed"] / row["calls"] for row in own]
        found[f"{variant}.failed at {size}"] = Figure.of(shares, "% of calls")
        found[f"{variant}.p50 at {size}"] = Figure.of([row["p50_ms"] for row in own], "ms")
    if largest := list(_largest_by_repetition(rows, variant).values()):
        found[f"{variant}.largest"] = Figure.of(largest, "calls at once")
    return found


def _share_figures(variant: str, rows: list[Row]) -> dict[str, Figure]:
    shares = [max(_counts(row)) / max(1, sum(_counts(row))) for row in rows]
    cpu = list(_cpu_by_repetition(rows, variant).values())
    return {
        **_steady_figures(variant, rows),
        **({f"{variant}.cpu": Figure.of(cpu, "µs of a call")} if cpu else {}),
        f"{variant}.spread.worst": Figure.of([max(reading.spread(_counts(row)) for row in rows)], "of the mean"),
        f"{variant}.share": Figure.of(shares, "share of the busiest"),
        f"{variant}.share.lowest": Figure.of([min(shares)], "share of the busiest"),
        f"{variant}.share.highest": Figure.of([max(shares)], "share of the busiest"),
    }


def _newcomer_figures(variant: str, rows: list[Row]) -> dict[str, Figure]:
    found = _steady_figures(variant, rows)
    firsts = [row["first_call_ms"] for row in rows]
    # A server without calls has no median.
    if all(map(math.isfinite, firsts)):
        found[f"{variant}.first_call_ms"] = Figure.of(firsts, "ms")
    found[f"{variant}.first_call_ms.worst"] = Figure.of([max(firsts)], "ms")
    if None not in (row["share_lowest"] for row in rows):
        worst = max(abs(row[edge] * len(REPLICAS) - 1) for row in rows for edge in ("share_lowest", "share_highest"))
        found[f"{variant}.unfairness.worst"] = Figure.of([worst], "share of a fair share")
        highest = max(row["share_highest"] for row in rows)
        found[f"{variant}.new_share.highest"] = Figure.of([highest], "share of a new server")
    return found


def _steady_figures(variant: str, rows: list[Row]) -> dict[str, Figure]:
    found = {f"{variant}.{name}": Figure.of([row[name] for row in rows], unit) for name, unit in UNITS.items()}
    busiest = [row["busiest"] for row in rows]
    if all(map(math.isfinite, busiest)):
        found[f"{variant}.busiest"] = Figure.of(busiest, "share of a second's calls")
    found[f"{variant}.failures.all"] = Figure.of([sum(row["failed"] for row in rows)], "calls")
    if questions := [row["dns_questions"] for row in rows if row["dns_questions"] is not None]:
        found[f"{variant}.dns_questions"] = Figure.of(questions, "questions")
    return found


def _counts(row: Row) -> list[int]:
    return [row[f"calls.{name}"] for name in REPLICAS]


OF_KIND = {
    "bursts": _burst_figures,
    "shares": _share_figures,
    "newcomer": _newcomer_figures,
    "scaled": _newcomer_figures,
    "adopted": _newcomer_figures,
}
