"""The balancers that are compared, each in one file that turns the same task into its own configuration.

A module here has two functions: `prepare()` fetches what is missing and returns the version; `start(task, folder,
cpus)` returns it running.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, cast

from lab.child import Child


@dataclass(frozen=True)
class Task:
    """What a balancer is asked to do."""

    endpoints: tuple[str, ...]
    workers: int = 1
    # Requests that one endpoint may have in flight; the rest wait in a queue.
    cap: int | None = None
    # Routes by host and path, one of which is asked for; without it one route takes everything.
    routes: int | None = None
    # Bodies are moved inside the kernel.
    splice: bool = False


@dataclass(frozen=True)
class Running:
    """A balancer that serves."""

    address: str
    child: Child

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.stop()


class Balancer(Protocol):
    def prepare(self) -> str: ...

    def start(self, task: Task, folder: Path, cpus: Sequence[int]) -> Running: ...


class Unsupported(Exception):
    """This balancer's file does not know how to do this task."""


def balancer(name: str) -> Balancer:
    """The balancer of this name."""
    return cast(Balancer, importlib.import_module(f"lab.balancers.{name}"))
