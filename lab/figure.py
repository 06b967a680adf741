"""Numbers with their spread, and ratios of paired measurements."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A median with its quartiles."""

    value: float
    low: float
    high: float
    count: int
    unit: str

    @classmethod
    def of(cls, samples: Sequence[float], unit: str) -> Figure:
        if not samples:
            raise ValueError("no samples")
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0], 1, unit)
        low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(middle, low, high, len(samples), unit)

    def __str__(self) -> str:
        return f"{_short(self.value)} ({_short(self.low)}–{_short(self.high)})"


def paired_ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Figure:
    """Returns the median of the rounds' ratios; a disturbance of a whole round cancels out."""
    rounds = sorted(ours.keys() & theirs.keys())
    return Figure.of([ours[number] / theirs[number] for number in rounds], "ratio")


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
