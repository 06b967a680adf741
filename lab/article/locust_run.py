"""Locust processes and the reader of their output."""

from __future__ import annotations

import http.client
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.article.answers import Answer
from lab.child import Child, ChildFailed, wait_until

USERS = Path(__file__).with_name("users.py")
# Maximum wait for a saturated replica when the load stops.
STOP_SECONDS = 30
SPAWNED_PER_SECOND = 100

Line = dict[str, Any]


def locust(
    host: str, users: int, kind: str, *, python: str | Path = sys.executable, file: Path = USERS
) -> list[object]:
    """Returns the command that runs `users` users of one kind; `host` is the beginning of a URL."""
    argv: list[object] = [python, "-m", "locust", "--locustfile", file, "--headless", "--only-summary"]
    argv += ["--host", host, "--users", str(users), "--spawn-rate", str(min(users, SPAWNED_PER_SECOND))]
    return [*argv, "--loglevel", "WARNING", "--stop-timeout", str(STOP_SECONDS), kind]


class LocustRun:
    """A running Locust process."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.answers: list[Answer] = []
        # Start time of each user.
        self.joined: list[float] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(lambda: not self._lines.empty(), child, "the first user", seconds=60)

    def collect(self, until: float, on_tick: Callable[[], None] = lambda: None) -> None:
        """Collects answers until `until` (wall clock) and calls `on_tick` about fifty times a second."""
        while (left := until - time.time()) > 0:
            try:
                self._parse(self._lines.get(timeout=min(left, 0.02)))
            except queue.Empty:
                pass
            on_tick()

    def stop(self) -> None:
        """Stops new requests and waits for the answers to those in flight."""
        self.child.terminate()
        self._reader.join(STOP_SECONDS + 15)
        if self._reader.is_alive():
            raise ChildFailed(f"Locust did not exit{self.child.log_end()}")
        while not self._lines.empty():
            self._parse(self._lines.get())

    def _read(self) -> None:
        for line in self.child.stdout:
            # The first line of a user says that the load runs, so those of Locust itself are skipped here.
            if line.startswith("{"):
                self._lines.put(line)

    def _parse(self, line: str) -> None:
        parsed = parse(line)
        if isinstance(parsed, float):
            self.joined.append(parsed)
        elif parsed is not None:
            self.answers.append(parsed)


def parse(line: str) -> Answer | float | None:
    """Parses a line of the users: an answer, or the start time of a user. Lines of Locust itself are None."""
    if not line.startswith("{"):
        return None
    fields: Line = json.loads(line)
    return fields["joined"] if "joined" in fields else Answer(**fields)


def hypercorn(address: str) -> Sequence[object]:
    """Returns the command that serves the article's application at an address."""
    argv = [sys.executable, "-m", "hypercorn", "lab.article.app:app", "--worker-class", "trio", "--workers", "0"]
    # With Hypercorn's default backlog of 100, simultaneous connections would wait for the kernel's retransmission.
    return [*argv, "--bind", address, "--backlog", "1024"]


def responds(address: str, timeout_seconds: float) -> bool:
    """Returns true if the application passes a probe with httpGet on /."""
    client = http.client.HTTPConnection(address, timeout=timeout_seconds)
    try:
        client.request("GET", "/", headers={"User-Agent": "kube-probe/1.31", "Connection": "close"})
        return 200 <= client.getresponse().status < 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        client.close()
