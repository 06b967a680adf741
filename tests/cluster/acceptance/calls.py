"""A gRPC client with one connection, and its results."""

from __future__ import annotations

import signal
import subprocess
import time
from http import HTTPStatus
from pathlib import Path

from lab import golang
from lab.article002 import calls
from lab.article002.setup import MODULE
from tests.cluster.acceptance.load import TIMEOUT_SECONDS, Answer, Load, clock


class Calls(Load):
    """Calls at a fixed rate over the one connection of gRPC for Go; results are available after the load."""

    RATE = 500
    # Longer than any test; the client is stopped earlier.
    SECONDS = 600

    def __init__(
        self, address: str, host: str, clients: int, pause_seconds: float, network: Path | None = None
    ) -> None:
        super().__init__(address, host, clients, pause_seconds)
        how = {"rate": self.RATE, "seconds": self.SECONDS, "deadline": f"{TIMEOUT_SECONDS}s", "authority": host}
        flags = [word for name, value in how.items() for word in (f"-{name}", str(value))]
        within = [] if network is None else ["nsenter", f"--net={network}", "--"]
        self._argv = [*within, str(golang.build(MODULE)), "call", f"passthrough:///{address}:80", *flags]

    def __enter__(self) -> Calls:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        told, _ = self._process.communicate(timeout=2 * TIMEOUT_SECONDS)
        since = time.time() - time.monotonic()
        for call in calls.read(told.splitlines()[1:]):
            if call.failed:
                self.failures.append(f"{clock(call.sent)} {call.seconds:.3f} s: {call.code}")
            else:
                self.answers.append(Answer(call.sent + call.seconds - since, HTTPStatus.OK, call.replica, call.seconds))
