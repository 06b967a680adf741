"""The lines of a run's data: one for each page load."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lab.article004.browser import PageLoad
from lab.bench import Row

# Every row has all of these. `ms` of a load that failed is as long as it was waited for, whenever that showed.
EMPTY: Row = dict.fromkeys(
    (
        "variant", "edge", "site", "protocol", "page", "sample", "ms", "failure", "by", "tls", "round_trips",
        "udp_dropped", "other_work_cpus",
    )
)  # fmt: skip
# Pages of one visit, where it has several.
FIRST, NEXT = "first", "next"
# What tells a load from all others.
Key = tuple[str, str, str, str, int]


def has_format(path: Path) -> bool:
    """Whether this file of data has these lines."""
    with path.open() as lines:
        return lines.readline().strip() == ",".join(EMPTY)


def load_columns(load: PageLoad, timeout_seconds: float) -> Row:
    """What a load came to."""
    return {
        "ms": 1000 * timeout_seconds if load.ms is None else load.ms,
        "failure": load.failure,
        "by": "+".join(load.by),
        "tls": load.tls,
        "round_trips": load.round_trips,
    }


def done(rows: Iterable[Row]) -> set[Key]:
    """Loads that need not be done again. A visit of several pages is done with its last one."""
    last = (row for row in rows if row["page"] in (None, NEXT))
    return {(row["variant"], row["edge"], row["site"], row["protocol"], row["sample"]) for row in last}
