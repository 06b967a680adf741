"""Logs of containers: one file for each run, each line with its timestamp."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

# Limit of a log file; the older half of a larger one is removed.
MOST_BYTES = 32 << 20
CHUNK = 1 << 16
LOOK_EVERY_SECONDS = 0.1


def record(pipe: int, path: Path) -> None:
    """Writes a pipe's output to a log until its end."""
    rest = b""
    with path.open("ab") as log:
        while chunk := os.read(pipe, CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            _write(log, lines)
            if log.tell() > MOST_BYTES:
                _halve(path, log)
        if rest:
            _write(log, [rest])
    os.close(pipe)


def stamp(moment: datetime) -> bytes:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()


def read(path: Path, since: bytes, tail: int | None) -> tuple[list[bytes], int]:
    """Returns the lines with timestamps, and the offset of their end."""
    if not path.is_file():
        return [], 0
    content = path.read_bytes()
    lines = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n") and line >= since]
    kept = lines if tail is None else lines[max(0, len(lines) - tail) :]
    return kept, content.rfind(b"\n") + 1


def follow(path: Path, since: bytes, tail: int | None, goes_on: Callable[[], bool]) -> Iterator[bytes]:
    """Yields lines until the container ends, and empty bytes in between to detect a disconnected client."""
    # Keep the file open, because it may be removed with its pod before its last lines are read.
    with path.open("rb") as log:
        lines, at = read(path, since, tail)
        yield from lines
        while True:
            last = not goes_on()
            if os.fstat(log.fileno()).st_size < at:
                at = 0
            log.seek(at)
            chunk = log.read()
            whole = chunk[: chunk.rfind(b"\n") + 1]
            at += len(whole)
            if whole:
                yield from whole.splitlines(keepends=True)
            elif last:
                return
            else:
                yield b""
                time.sleep(LOOK_EVERY_SECONDS)


def without_stamp(line: bytes) -> bytes:
    return line.partition(b" ")[2]


def _write(log, lines: list[bytes]) -> None:
    if lines:
        prefix = stamp(datetime.now(UTC)) + b" "
        log.write(b"".join(prefix + line + b"\n" for line in lines))
        log.flush()


def _halve(path: Path, log) -> None:
    content = path.read_bytes()
    kept = content[content.find(b"\n", len(content) // 2) + 1 :]
    log.seek(0)
    log.truncate()
    log.write(kept)
    log.flush()
