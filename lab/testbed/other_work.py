"""What the machine does beside the lab: a run that others disturbed says so."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Protocol

from lab.bench import Bench, Row

# Other programs that take more than this, in CPUs, may have disturbed a run.
DISTURBING_CPUS = 0.25


class LabCpuTime(Protocol):
    """What knows how much CPU the lab's own programs have taken."""

    def cpu_seconds(self) -> float: ...


class OtherCpuTime:
    """What other programs take, from when this is made."""

    def __init__(self, node: LabCpuTime) -> None:
        self._node = node
        self._before = (time.monotonic(), _machine_cpu_seconds() - node.cpu_seconds())

    def cpus(self) -> float:
        """In CPUs, on average."""
        began, before = self._before
        used = _machine_cpu_seconds() - self._node.cpu_seconds() - before
        return max(0.0, used / (time.monotonic() - began))


def note(bench: Bench, rows: Sequence[Row]) -> None:
    """Tells the reader of a result how many of its runs were disturbed."""
    disturbed = [row for row in rows if row["other_work_cpus"] > DISTURBING_CPUS]
    if disturbed:
        most = max(row["other_work_cpus"] for row in disturbed)
        bench.note(
            f"The machine was loaded: in {len(disturbed)} of {len(rows)} runs other programs took more than"
            f" {DISTURBING_CPUS:g} CPUs (most: {most:.2f})."
        )


def _machine_cpu_seconds() -> float:
    """User, nice, system, interrupts: everything but idle and waiting."""
    with open("/proc/stat") as lines:
        ticks = [int(word) for word in lines.readline().split()[1:]]
    return (sum(ticks[:3]) + sum(ticks[5:7])) / os.sysconf("SC_CLK_TCK")
