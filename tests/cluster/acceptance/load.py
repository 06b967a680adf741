"""Clients with persistent connections, and their results."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_SECONDS = 15.0
# From linux/sched.h.
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Answer:
    """One answer: time, status, pod, duration, and the error if it is not as expected."""

    at: float
    status: int
    pod: str
    seconds: float
    error: str = ""


class Load:
    """Closed-loop clients that wait for a pause after each answer, on one connection each; in another network namespace
    if one is named.
    """

    def __init__(
        self, address: str, host: str, clients: int, pause_seconds: float, network: Path | None = None
    ) -> None:
        self.answers: list[Answer] = []
        self.failures: list[str] = []
        self._place = (address, host, pause_seconds)
        self._network = network
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def between(self, start: float, end: float) -> Counter[str]:
        """Returns the number of answers of each pod."""
        return Counter(answer.pod for answer in self.answers if start <= answer.at < end)

    def first(self, pod: str) -> float | None:
        """Returns the time of a pod's first answer."""
        return min((answer.at for answer in self.answers if answer.pod == pod), default=None)

    def longest(self) -> float:
        """Returns the duration of the slowest answered request in seconds."""
        return max((answer.seconds for answer in self.answers), default=0.0)

    def problems(self) -> list[str]:
        """Returns failed connections and unexpected statuses."""
        bad = [answer for answer in list(self.answers) if answer.status != http.HTTPStatus.OK]
        return self.failures + [f"{it.seconds:.3f} s: status {it.status}: {it.error}" for it in bad]

    def _ask(self) -> None:
        address, host, pause_seconds = self._place
        if self._network:
            enter_network(self._network)
        connection = http.client.HTTPConnection(address, 80, timeout=TIMEOUT_SECONDS)
        while not self._over.is_set():
            begun = time.monotonic()
            try:
                connection.request("GET", "/", headers={"Host": host})
                response = connection.getresponse()
                body = response.read()
                now = time.monotonic()
                error = response.getheader("Proxy-Status", "")
                self.answers.append(Answer(now, response.status, _pod(body), now - begun, error))
            except (OSError, http.client.HTTPException) as error:
                seconds = time.monotonic() - begun
                self.failures.append(f"{clock(time.time())} {seconds:.3f} s: {type(error).__name__}: {error}")
                connection.close()
            time.sleep(pause_seconds)
        connection.close()


def clock(seconds: float) -> str:
    """Returns the time of day in UTC, as logs of the cluster have it."""
    return time.strftime("%H:%M:%S", time.gmtime(seconds))


class LoadGroup:
    """Several loads, as one."""

    def __init__(self, loads: Sequence[Load]) -> None:
        self.loads = loads

    def between(self, start: float, end: float) -> Counter[str]:
        return sum((load.between(start, end) for load in self.loads), Counter())

    def problems(self) -> list[str]:
        return [problem for load in self.loads for problem in load.problems()]

    def count(self) -> int:
        return sum(len(load.answers) for load in self.loads)


def enter_network(namespace: Path) -> None:
    """Moves this thread to a network namespace; its sockets stay there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with namespace.open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


def _pod(body: bytes) -> str:
    try:
        return str(json.loads(body).get("pod", ""))
    except ValueError:
        return ""
