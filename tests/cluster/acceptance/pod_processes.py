"""Processes of pods, which tests kill and pause from the machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path


def kill(pod: str) -> None:
    """Kills a pod's processes with SIGKILL."""
    name = f"POD_NAME={pod}".encode()
    pids = [pid for pid, process in processes() if name in words(process / "environ")]
    if not pids:
        raise AssertionError(f"pod {pod} has no process")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def processes() -> Iterator[tuple[int, Path]]:
    return ((int(path.name), path) for path in Path("/proc").iterdir() if path.name.isdigit())


def words(path: Path) -> list[bytes]:
    """Returns the words of a command line or an environment, empty if the process has ended."""
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []
