"""Service times, drawn before a run; each worker takes the next one when it begins a request.

So every balancer has the same work in the same order, and two variants of a repetition do not differ by their work.
Workers read from a pipe, eight bytes for each request.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TIME = struct.Struct("=d")
PIPE_BYTES = 1 << 20
# Number of times in 4096 bytes, which a pipe accepts atomically.
CHUNK = 4096 // TIME.size


@dataclass(frozen=True)
class ServiceTimes:
    """Distribution of service times, in seconds."""

    distribution: Literal["exponential", "uniform", "fixed"]
    mean: float

    def times(self, seed: str) -> Iterator[float]:
        """Yields service times, the same for the same seed.

        ab sends one request alone and waits for its answer before it starts the others, so the first time is 0.
        """
        yield 0.0
        draw = random.Random(seed)
        while True:
            match self.distribution:
                case "exponential":
                    yield draw.expovariate(1 / self.mean)
                case "uniform":
                    # ±50 % of the mean.
                    yield draw.uniform(0.5 * self.mean, 1.5 * self.mean)
                case "fixed":
                    yield self.mean


class WorkPipe:
    """Pipe of service times that the lab keeps full."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        # A writer of its own keeps the pipe from end-of-file.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._chunks: Iterator[bytes] = iter(())
        self._next = b""

    def restart(self, times: Iterator[float]) -> None:
        """Replaces the times; no worker may have work."""
        try:
            while os.read(self._pipe, PIPE_BYTES):
                pass
        except BlockingIOError:
            pass
        self._chunks = _chunks(times)
        self._next = next(self._chunks)
        self.fill()

    def fill(self) -> None:
        """Fills the pipe. Call this before it is empty, which takes some minutes of the article's load."""
        try:
            while self._next:
                os.write(self._pipe, self._next)
                self._next = next(self._chunks)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self._pipe)


def _chunks(times: Iterator[float]) -> Iterator[bytes]:
    while True:
        yield b"".join(map(TIME.pack, itertools.islice(times, CHUNK)))
