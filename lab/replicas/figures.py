"""Figures of a run: one for each case and arm, and the comparisons that claims need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lab.bench import Bench, Row
from lab.figure import Figure, paired_ratio

if TYPE_CHECKING:
    from lab.replicas.cases import Case

# Columns of raw.csv with the names and units of their figures.
OF_ARMS = {
    "mean_wait_ms": ("mean", "ms"),
    "p99_wait_ms": ("p99", "ms"),
    "throughput": ("throughput", "requests per second"),
    "cpu_us_per_request": ("CPU", "µs per request"),
    "messages_per_request": ("messages", "per request"),
}
OF_FAULTS = {
    "over_seconds": ("over.seconds", "s"),
    "last_over": ("over.last", "s after the onset"),
    "max_wait_others_ms": ("others.longest-wait", "ms"),
    "fewest_held": ("held.fewest", "slots"),
}


def figures(bench: Bench, cases: Sequence[Case]) -> dict[str, Figure]:
    """Returns all figures of the measured cases."""
    found: dict[str, Figure] = {}
    for case in cases:
        found |= _fault_figures(bench, case) if case.fault else _wait_figures(bench, case)
    return found


def _wait_figures(bench: Bench, case: Case) -> dict[str, Figure]:
    by_arm = {arm: _rows(bench, f"{case.id}: mean", arm) for arm in case.arms}
    found = {}
    for column, (name, unit) in OF_ARMS.items():
        for arm, rows in by_arm.items():
            found[f"{case.id}: {name}.{arm}"] = Figure.of([row[column] for row in rows], unit)
    for arm, rows in by_arm.items():
        found[f"{case.id}: over.{arm}"] = _total(rows, "over", "requests over the cap")
        found[f"{case.id}: failed.{arm}"] = _total(rows, "failed", "requests")
    ours, central = (by_arm.get(bench.settings["compared"][name]) for name in ("ours", "central"))
    if ours and central:
        for column, name in (("mean_wait_ms", "mean"), ("p99_wait_ms", "p99"), ("throughput", "throughput")):
            found[f"{case.id}: {name}"] = paired_ratio(_by_round(ours, column), _by_round(central, column))
        found[f"{case.id}: over"] = _total(ours, "over", "requests over the cap")
    return found


def _fault_figures(bench: Bench, case: Case) -> dict[str, Figure]:
    """Returns the sum of counts over all rounds, and the median and the worst of times."""
    (arm,) = case.arms
    rows = _rows(bench, f"{case.id}: held", arm)
    found = {
        f"{case.id}: failed-at-others": _total(rows, "failed_at_others", "requests"),
        f"{case.id}: failed": _total(rows, "failed", "requests"),
        f"{case.id}: over": _total(rows, "over", "requests over the cap"),
        f"{case.id}: over-beyond-abandoned": _total(rows, "over_beyond_abandoned", "requests over the cap"),
        f"{case.id}: held": Figure.of([row["cost"] for row in rows], rows[0]["unit"]),
        f"{case.id}: held.worst": Figure.of([max(row["cost"] for row in rows)], rows[0]["unit"]),
    }
    for column, (name, unit) in OF_FAULTS.items():
        if values := [row[column] for row in rows if row[column] not in ("", None)]:
            found[f"{case.id}: {name}"] = Figure.of(values, unit)
    return found


def _rows(bench: Bench, case: str, arm: str) -> list[Row]:
    return [row for row in bench.rows if row["case"] == case and row["arm"] == arm]


def _by_round(rows: Sequence[Row], column: str) -> dict[int, float]:
    return {row["round"]: row[column] for row in rows}


def _total(rows: Sequence[Row], column: str, unit: str) -> Figure:
    """Returns the sum over all rounds; a median would hide what is rare."""
    return Figure.of([sum(row[column] for row in rows)], unit)
