"""Rows of a run's data: one for each measurement, and one for each of its seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.article002 import calls as reading
from lab.article002.calls import Call
from lab.bench import Row

PER_SECOND = "calls.csv"
# In the order of their start.
REPLICAS = ("app-1", "app-2", "app-3")
# Columns of every row.
EMPTY: Row = dict.fromkeys(
    (
        "variant", "kind", "repetition", "calls_at_once", "calls", "failed", "deadline_exceeded", "first_failure",
        "p50_ms", "p95_ms", "p99_ms", "calls.app-1", "calls.app-2", "calls.app-3", "busiest", "dns_questions",
        "published_second", "first_call_ms", "share_lowest", "share_highest", "largest", "other_work_cpus",
        "cpu_seconds",
    )
)  # fmt: skip


def has_format(path: Path) -> bool:
    """Returns true if the file has these columns. Older ones lack the last."""
    columns = list(EMPTY)
    with path.open() as lines:
        return lines.readline().strip().split(",") in (columns, columns[:-1])


def summary(calls: Sequence[Call]) -> Row:
    """Returns the columns of a set of calls."""
    failed = [call for call in calls if call.failed]
    counts = reading.by_replica(calls, REPLICAS)
    return {
        "calls": len(calls),
        "failed": len(failed),
        "deadline_exceeded": sum(call.code == "DeadlineExceeded" for call in failed),
        "first_failure": failed[0].code if failed else "",
        **{f"p{share}_ms": _rounded(reading.quantile_ms(calls, share / 100)) for share in (50, 95, 99)},
        **{f"calls.{name}": count for name, count in counts.items()},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def seconds(calls: Sequence[Call]) -> list[Row]:
    """Returns one row for each second: answered calls of each server, and failed calls."""
    began = calls[0].sent
    by_second: dict[int, list[Call]] = {}
    for call in calls:
        by_second.setdefault(int(call.sent - began), []).append(call)
    return [
        {
            "second": second + 1,
            **reading.by_replica(those, REPLICAS),
            "failed": sum(call.failed for call in those),
        }
        for second, those in by_second.items()
    ]
