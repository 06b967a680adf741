"""New connections at a steady rate from a network namespace, and their results."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lab import golang
from tests.cluster.acceptance.gateway import CONNECTIONS

# conntrack keeps a connection that a reset ended for 10 s; a client that uses its port again meets the old decision.
CLOSED_ENTRY_SECONDS = 10.0
END_SECONDS = 30.0


@dataclass(frozen=True)
class Connection:
    """One connection: its begin on the monotonic clock, its source port, its duration and its result."""

    begun: float
    port: int
    seconds: float
    outcome: str

    @property
    def failed(self) -> bool:
        return not self.outcome.startswith("ok ")

    @property
    def ended(self) -> float:
        return self.begun + self.seconds


class ConnectionLoad:
    """Open-loop connections with one request each; results are available after the load."""

    def __init__(self, network: Path, target: str, rate: float, timeout_seconds: float) -> None:
        flags = ["-rate", str(rate), "-timeout", f"{timeout_seconds}s"]
        program = golang.build(CONNECTIONS)
        self._argv = ["nsenter", f"--net={network}", "--", str(program), "load", *flags, target]
        self.connections: list[Connection] = []

    def __enter__(self) -> ConnectionLoad:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        told, _ = self._process.communicate(timeout=END_SECONDS)
        since = time.time() - time.monotonic()
        for line in told.splitlines():
            begun, port, seconds, outcome = line.split(" ", 3)
            self.connections.append(Connection(float(begun) - since, int(port), float(seconds), outcome))

    def between(self, start: float, end: float = float("inf")) -> list[Connection]:
        """Returns the connections that began in this time."""
        return [it for it in self.connections if start <= it.begun < end]

    def failures(self, start: float, end: float = float("inf")) -> list[Connection]:
        return [it for it in self.between(start, end) if it.failed]

    def reuses_port(self, connection: Connection) -> bool:
        """Returns true if an earlier connection from the same port failed shortly before."""
        return any(
            it.failed and it.port == connection.port and 0 <= connection.begun - it.ended <= CLOSED_ENTRY_SECONDS
            for it in self.connections
        )
