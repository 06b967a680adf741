"""CPU use of programs outside the lab, which a disturbed run reports."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Protocol

from lab.bench import Bench, Row

# CPUs used by other programs, above which a run counts as disturbed.
DISTURBING_CPUS = 0.25


class LabCpuTime(Protocol):
    """Provider of the CPU time of the lab's own programs."""

    def cpu_seconds(self) -> float: ...


class OtherCpuTime:
    """CPU time of other programs since construction."""

    def __init__(self, node: LabCpuTime) -> None:
        self._node = node
        self._before = (time.monotonic(), _machine_cpu_seconds() - node.cpu_seconds())

    def cpus(self) -> float:
        """Returns the mean number of CPUs."""
        began, before = self._before
        used = _machine_cpu_seconds() - self._node.cpu_seconds() - before
        return max(0.0, used / (time.monotonic() - began))


def note(bench: Bench, rows: Sequence[Row]) -> None:
    """Adds a note with the number of disturbed runs."""
    disturbed = [row for row in rows if row["other_work_cpus"] > DISTURBING_CPUS]
    if disturbed:
        most = max(row["other_work_cpus"] for row in disturbed)
        bench.note(
            f"The machine was loaded: in {len(disturbed)} of {len(rows)} runs other programs took more than"
            f" {DISTURBING_CPUS:g} CPUs (most: {most:.2f})."
        )


def _machine_cpu_seconds() -> float:
    """Returns the CPU time without idle and I/O wait."""
    with open("/proc/stat") as lines:
        ticks = [int(word) for word in lines.readline().split()[1:]]
    return (sum(ticks[:3]) + sum(ticks[5:7])) / os.sysconf("SC_CLK_TCK")
