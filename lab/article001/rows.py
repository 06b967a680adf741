"""Columns of raw.csv. Each kind of variant fills its own columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.bench import Bench, Row
from lab.results import read_rows

EMPTY: Row = dict.fromkeys(
    (
        "kind",
        "variant",
        "distribution",
        "repetition",
        "workers",
        "clients",
        "arm",
        "requests",
        "seconds",
        "rps",
        "mean_ms",
        "p99_ms",
        "status_500",
        "status_502",
        "status_other",
        "broken",
        "busy_share",
        "most_at_a_pod",
        "limits",
        "limit_error",
        "refused",
        "last_refusal_second",
        "syncs",
        "pods_steady",
        "pods_most",
        "pod_seconds",
        "node_seconds",
        "failed",
        "other_work_cpus",
    )
)


def record(bench: Bench, **values: Any) -> None:
    """Records one measurement."""
    unknown = values.keys() - EMPTY.keys()
    assert not unknown, f"raw.csv has no columns {unknown}"
    bench.record(EMPTY | values)


def has_format(path: Path) -> bool:
    """Returns true if the file has rows of this experiment."""
    rows = read_rows(path)
    # Older runs lack the newest columns.
    return bool(rows) and {"kind", "limit_error"} <= rows[0].keys() <= EMPTY.keys()
