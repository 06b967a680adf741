"""How long each request takes: drawn before a run, and handed to whichever worker begins the next request.

So whatever balances has the same work to do, in the same order: what two variants of a repetition differ by is not what
they were given. Workers read from a pipe, eight bytes for each request.
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
# A pipe takes 4096 bytes as a whole or not at all: so many times.
CHUNK = 4096 // TIME.size


@dataclass(frozen=True)
class ServiceTimes:
    """How long requests take, in seconds."""

    distribution: Literal["exponential", "uniform", "fixed"]
    mean: float

    def times(self, seed: str) -> Iterator[float]:
        """One after the other, always the same for the same seed.

        ab sends one request alone before it begins with the others, and waits for the answer: the first takes no time.
        """
        yield 0.0
        draw = random.Random(seed)
        while True:
            match self.distribution:
                case "exponential":
                    yield draw.expovariate(1 / self.mean)
                case "uniform":
                    # Half of the mean to either side.
                    yield draw.uniform(0.5 * self.mean, 1.5 * self.mean)
                case "fixed":
                    yield self.mean


class WorkPipe:
    """The pipe, which the lab keeps full."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        # With a writer of its own it is never at its end.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._chunks: Iterator[bytes] = iter(())
        self._next = b""

    def restart(self, times: Iterator[float]) -> None:
        """Other times from here on, while no worker has anything to do."""
        try:
            while os.read(self._pipe, PIPE_BYTES):
                pass
        except BlockingIOError:
            pass
        self._chunks = _chunks(times)
        self._next = next(self._chunks)
        self.fill()

    def fill(self) -> None:
        """Fills the pipe; to be called before it can be empty, which takes some minutes of the article's load."""
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
