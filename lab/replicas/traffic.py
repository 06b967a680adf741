"""Clients and endpoints in one process on one CPU, controlled by lines of JSON.

The first line of output has the addresses of the endpoints. Each line of input is a load; one line of output says when
it has begun, the next has its report.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import select
import selectors
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.child import raise_open_files
from lab.replicas import pods
from lab.replicas.clients import Clients
from lab.replicas.plan import PlannedRequest

POLL_SECONDS = 0.05


class PreciseSelector(selectors.EpollSelector):
    """Epoll with timeouts in microseconds: its own are rounded up to milliseconds, which would delay requests."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


async def serve(endpoints: int, cap: int) -> None:
    served = [pods.Pod(number, cap) for number in range(endpoints)]
    service = pods.Service()
    _print({"endpoints": await pods.listen(served, service)})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        _print(await _run(json.loads(line), served, service))


async def _run(job: dict[str, Any], served: Sequence[pods.Pod], service: pods.Service) -> dict[str, Any]:
    """Runs a load; the report's times are in seconds after its start."""
    planned = [PlannedRequest(*each) for each in job["planned"]]
    clients = Clients(job["targets"], planned, job["connections"])
    await clients.connect()
    service.begin(planned)
    for pod in served:
        pod.reset()
    # A collection would delay requests.
    gc.collect()
    gc.disable()
    clients.begin()
    _print({"began": clients.began})
    await asyncio.sleep(job["warmup_seconds"])
    before = _cpu_seconds(job["processes"])
    await asyncio.sleep(job["seconds"])
    cpu_seconds = _cpu_seconds(job["processes"]) - before
    await _drain(clients, served, job["drain_seconds"])
    clients.close()
    gc.enable()
    counts = dict(pods.counts(served))
    counts["over"] = [[at - clients.began, *rest] for at, *rest in counts["over"]]
    while any(pod.in_flight for pod in served):
        await asyncio.sleep(POLL_SECONDS)
    return {
        "sent": clients.sent,
        "took": clients.took,
        "served_seconds": [service.took_seconds.get(number, 0.0) for number in range(len(planned))],
        "outcomes": clients.outcomes,
        "cpu_seconds": cpu_seconds,
        "counts": counts,
    }


async def _drain(clients: Clients, served: Sequence[pods.Pod], seconds: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while clients.unfinished and loop.time() < deadline:
        await asyncio.sleep(POLL_SECONDS)


def _cpu_seconds(processes: Sequence[int]) -> float:
    """Returns the CPU time of all threads of the processes; one that has ended counts as none."""
    total = 0
    for pid in processes:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(task.read_text().split()[0])
    return total / 1e9


def _print(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoints", type=int, required=True)
    parser.add_argument("--cap", type=int, required=True)
    arguments = parser.parse_args()
    raise_open_files()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(PreciseSelector())) as runner:
        runner.run(serve(arguments.endpoints, arguments.cap))


if __name__ == "__main__":
    main()
