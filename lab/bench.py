"""Bench of an experiment: settings, rows, notes and progress output."""

from __future__ import annotations

import csv
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lab.experiment import Experiment

Row = dict[str, Any]
# quick: smoke test with rough results. full: at the size of the reproduced experiment, if that is larger.
Extent = Literal["quick", "usual", "full"]


@dataclass
class Bench:
    """One run of one experiment."""

    experiment: Experiment
    extent: Extent
    folder: Path
    # Folder for logs and configuration of processes. It is separate from the raw data, which is committed.
    logs: Path
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # Selected variants; empty selects all of the extent.
    only: tuple[str, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def quick(self) -> bool:
        return self.extent == "quick"

    @property
    def partial(self) -> bool:
        """True if the run omits parts of the experiment, so that figures are missing."""
        return bool(self.only or self.experiment.arms) or f"{self.extent}_variants" in self.settings

    @property
    def settings(self) -> dict[str, Any]:
        return self.experiment.settings

    def setting(self, name: str) -> Any:
        """Returns `quick_NAME` or `full_NAME` in a run of that extent if it exists, else `NAME`."""
        return self.settings.get(f"{self.extent}_{name}", self.settings[name])

    def record(self, row: Row) -> None:
        """Records a row and writes it at once, so that an interrupted run keeps its data. Thread-safe."""
        with self._lock:
            self.append("raw.csv", [row])
            self.rows.append(row)

    def append(self, name: str, rows: Sequence[Row]) -> None:
        """Appends rows with the same columns to a CSV file of the run."""
        path = self.folder / name
        is_new = not path.exists()
        with path.open("a", newline="") as out:
            writer = csv.DictWriter(out, fieldnames=list(rows[0]))
            if is_new:
                writer.writeheader()
            writer.writerows(rows)

    def note(self, text: str) -> None:
        """Adds a note for the reader of the result."""
        if text not in self.notes:
            self.notes.append(text)


class Progress:
    """Progress line on standard error: completed steps, elapsed and remaining time."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._done = 0
        self._began = time.monotonic()
        self._live = sys.stderr.isatty()
        self._lock = threading.Lock()

    def step(self, what: str) -> None:
        """Completes one step; thread-safe. Rewrites the line on a terminal; elsewhere prints a line for each tenth."""
        with self._lock:
            self._step(what)

    def _step(self, what: str) -> None:
        self._done += 1
        elapsed = time.monotonic() - self._began
        left = elapsed / self._done * (self._steps - self._done)
        line = f"{self._done}/{self._steps} {what}; {_clock(elapsed)} elapsed, {_clock(left)} left"
        if self._live:
            end = "\n" if self._done == self._steps else ""
            print(f"\r\x1b[K{line}", end=end, file=sys.stderr, flush=True)
        elif self._done * 10 // self._steps != (self._done - 1) * 10 // self._steps:
            print(line, file=sys.stderr, flush=True)


def print_status(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
