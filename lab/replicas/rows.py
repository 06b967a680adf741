"""Rows of a measurement: one for each measure, all with the same counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lab.bench import Row
from lab.replicas.faults import Recovery
from lab.replicas.report import ServedRequest, TrafficReport

if TYPE_CHECKING:
    from lab.replicas.cases import Case

MEAN, P99 = "mean wait, ms", "p99 wait, ms"
FAILED, OVER, HELD = "failed requests of the other replicas", "requests over the cap", "s until all slots are held"

EMPTY: Row = dict.fromkeys(
    (
        *("round", "case", "arm", "cost", "unit", "requests", "failed", "failures", "throughput", "mean_wait_ms"),
        *("p99_wait_ms", "over", "over_beyond_abandoned", "over_seconds", "max_in_flight", "cpu_us_per_request"),
        "messages_per_request",
        # Columns of faults, with times in seconds after the onset.
        *("failed_at_others", "max_wait_others_ms", "last_over", "fewest_held", "fault_end", "all_held"),
    ),
    "",
)


def has_format(path: Path) -> bool:
    """Returns true if the CSV file has rows of this experiment."""
    with path.open() as lines:
        return lines.readline().strip().split(",") == list(EMPTY)


def wait_rows(number: int, case: str, arm: str, report: TrafficReport, messages: float) -> list[Row]:
    """Returns two rows: the mean and the 99th percentile of the wait."""
    sent = len(report.requests)
    counts = _counts(report) | {
        "cpu_us_per_request": round(report.cpu_seconds * 1e6 / max(report.throughput() * report.seconds, 1), 2),
        "messages_per_request": round(messages / sent, 4),
    }
    return [
        _row(number, f"{case}: mean", arm, report.mean_wait_ms(), MEAN, counts),
        _row(number, f"{case}: p99", arm, report.p99_wait_ms(), P99, counts),
    ]


def fault_rows(number: int, case: Case, arm: str, report: TrafficReport, recovery: Recovery) -> list[Row]:
    """Returns rows for failures at other replicas, requests over the cap, and the time until all slots are held."""
    others: Callable[[ServedRequest], bool] = lambda request: request.replica != case.victim
    onset = recovery.onset - report.began
    counts = _counts(report) | {
        "over_beyond_abandoned": report.over_beyond_abandoned(case.cap),
        "failed_at_others": report.failed(others),
        "max_wait_others_ms": round(1000 * max(each.wait for each in report.requests if others(each)), 2),
        "last_over": round(report.over[-1].at - onset, 3) if report.over else "",
        "fewest_held": recovery.fewest_held,
        "fault_end": round(recovery.end - recovery.onset, 3),
        "all_held": round(recovery.all_held - recovery.onset, 3),
    }
    return [
        _row(number, f"{case.id}: failed", arm, report.failed(others), FAILED, counts),
        _row(number, f"{case.id}: over", arm, len(report.over), OVER, counts),
        _row(number, f"{case.id}: held", arm, recovery.all_held - recovery.end, HELD, counts),
    ]


def _counts(report: TrafficReport) -> Row:
    return {
        "requests": len(report.requests),
        "failed": report.failed(),
        "failures": report.failures(),
        "throughput": round(report.throughput(), 3),
        "mean_wait_ms": round(report.mean_wait_ms(), 4),
        "p99_wait_ms": round(report.p99_wait_ms(), 3),
        "over": len(report.over),
        "over_seconds": round(report.over_seconds, 4),
        "max_in_flight": report.max_in_flight,
    }


def _row(number: int, case: str, arm: str, cost: float, unit: str, counts: Row) -> Row:
    return EMPTY | counts | {"round": number, "case": case, "arm": arm, "cost": round(cost, 4), "unit": unit}
