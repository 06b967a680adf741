"""Owners of an address over time, with one watcher on each node.

    python -m tests.cluster.acceptance.address_owners NODE ADDRESS

This prints a line at every change on the node, in whose network namespace it runs.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from tests.cluster import network
from tests.cluster.layout import NODES, REPOSITORY, Node

POLL_SECONDS = 0.01
NEVER = float("inf")


@dataclass(frozen=True)
class OwnershipInterval:
    """Interval of ownership by one node, on the common monotonic clock."""

    node: str
    begin: float
    end: float = NEVER


class AddressOwners:
    """Watchers on all nodes, as a context manager."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._intervals: list[OwnershipInterval] = []
        self._processes: list[subprocess.Popen[str]] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> AddressOwners:
        for node in NODES:
            process = _start_watcher(node, self._address)
            assert process.stdout
            self._processes.append(process)
            thread = threading.Thread(target=self._follow, args=(node.name, process.stdout), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.wait()
            assert process.stdout
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            if process.stdout:
                process.stdout.close()

    def _follow(self, node: str, lines: Iterable[str]) -> None:
        for line in lines:
            at, is_local = line.split()
            with self._lock:
                if is_local == "True":
                    self._intervals.append(OwnershipInterval(node, float(at)))
                    continue
                for n, known in enumerate(self._intervals):
                    if known.node == node and known.end == NEVER:
                        self._intervals[n] = OwnershipInterval(node, known.begin, float(at))

    def intervals(self) -> list[OwnershipInterval]:
        """Returns all intervals, the earliest first."""
        with self._lock:
            return sorted(self._intervals, key=lambda it: it.begin)

    def current_owners(self) -> list[str]:
        return [it.node for it in self.intervals() if it.end == NEVER]

    def overlaps(self) -> list[tuple[OwnershipInterval, OwnershipInterval]]:
        """Returns pairs of overlapping intervals on different nodes."""
        intervals = self.intervals()
        return [
            (one, other)
            for n, one in enumerate(intervals)
            for other in intervals[n + 1 :]
            if other.node != one.node and other.begin < one.end - POLL_SECONDS
        ]


def _start_watcher(node: Node, address: str) -> subprocess.Popen[str]:
    argv = [*network.netns_prefix(node.namespace), sys.executable, "-m", __name__, node.name, address]
    return subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def is_local(address: str) -> bool:
    """Returns true if the kernel has the address as a local one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as trying:
        try:
            trying.bind((address, 0))
        except OSError:
            return False
    return True


def watch_address(address: str) -> None:
    before = False
    while True:
        now = is_local(address)
        if now != before:
            print(time.monotonic(), now, flush=True)
        before = now
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    watch_address(sys.argv[2])
