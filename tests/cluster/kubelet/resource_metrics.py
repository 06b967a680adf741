"""Use of CPU and memory by the containers of a node, as a kubelet exports it under /metrics/resource.

The metrics-server reads it, and makes the API of it that a HorizontalPodAutoscaler reads.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.testbed.cgroups import ControlGroup

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
HELP = {
    "container_cpu_usage_seconds_total": ("counter", "CPU time used by the container"),
    "container_memory_working_set_bytes": ("gauge", "Resident memory of the container's processes"),
    "container_start_time_seconds": ("gauge", "Start time of the container since the epoch"),
    "node_cpu_usage_seconds_total": ("counter", "CPU time used by the node"),
    "node_memory_working_set_bytes": ("gauge", "Resident memory of the node's pods"),
}


@dataclass(frozen=True)
class RunningContainer:
    """A container that runs now."""

    namespace: str
    pod: str
    name: str
    group: ControlGroup
    # Seconds since the epoch.
    began: float

    def labels(self) -> str:
        return f'{{container="{self.name}",namespace="{self.namespace}",pod="{self.pod}"}}'


def text(containers: Iterable[RunningContainer], node: ControlGroup) -> str:
    """Returns the page of all metrics."""
    samples: dict[str, list[str]] = {name: [] for name in HELP}
    memory = 0
    for container in containers:
        # It may just have ended.
        with contextlib.suppress(OSError):
            used, resident = container.group.cpu_seconds(), _resident_bytes(container.group)
            labels, at = container.labels(), _now()
            samples["container_cpu_usage_seconds_total"].append(f"{labels} {used:.6f} {at}")
            samples["container_memory_working_set_bytes"].append(f"{labels} {resident} {at}")
            samples["container_start_time_seconds"].append(f"{labels} {container.began:.3f}")
            memory += resident
    samples["node_cpu_usage_seconds_total"].append(f" {node.cpu_seconds():.6f} {_now()}")
    samples["node_memory_working_set_bytes"].append(f" {memory} {_now()}")
    return "".join(_lines(samples))


def _lines(samples: dict[str, list[str]]) -> Iterator[str]:
    for name, (kind, what) in HELP.items():
        yield f"# HELP {name} {what}\n# TYPE {name} {kind}\n"
        yield from (f"{name}{sample}\n" for sample in samples[name])


def _now() -> int:
    """Returns the time of a sample in milliseconds."""
    return int(time.time() * 1000)


def _resident_bytes(group: ControlGroup) -> int:
    total = 0
    for pid in group.processes():
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return total * PAGE_BYTES
