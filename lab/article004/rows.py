"""Rows of a run's data: one for each page load."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lab.article004.browser import PageLoad
from lab.bench import Row

# Columns of every row. The `ms` of a failed load is the timeout, whenever the failure occurred.
EMPTY: Row = dict.fromkeys(
    (
        "variant", "edge", "site", "protocol", "page", "sample", "ms", "failure", "by", "tls", "round_trips",
        "udp_dropped", "other_work_cpus",
    )
)  # fmt: skip
# Pages of a visit with several pages.
FIRST, NEXT = "first", "next"
# Columns that identify a load.
Key = tuple[str, str, str, str, int]


def has_format(path: Path) -> bool:
    """Returns true if the file has these columns."""
    with path.open() as lines:
        return lines.readline().strip() == ",".join(EMPTY)


def load_columns(load: PageLoad, timeout_seconds: float) -> Row:
    """Returns the columns of a load."""
    return {
        "ms": 1000 * timeout_seconds if load.ms is None else load.ms,
        "failure": load.failure,
        "by": "+".join(load.by),
        "tls": load.tls,
        "round_trips": load.round_trips,
    }


def done(rows: Iterable[Row]) -> set[Key]:
    """Returns the keys of completed loads. A visit of several pages is complete with its last page."""
    last = (row for row in rows if row["page"] in (None, NEXT))
    return {(row["variant"], row["edge"], row["site"], row["protocol"], row["sample"]) for row in last}
