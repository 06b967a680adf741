"""Table on the screen: one line a second, in colour on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from lab.article.answers import Second

BAR = 24


class Table:
    def __init__(self, replicas: Sequence[str], gauge: str) -> None:
        self._replicas = replicas
        # Name of the gauge beside the requests of each replica.
        self._gauge = gauge
        self._colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def title(self, text: str) -> None:
        print(f"\n{self._coloured(text, '1')}", flush=True)

    def header(self) -> None:
        names = "".join(f"{name:>19}" for name in self._replicas)
        columns = "".join(f"{'req/s':>9} {self._gauge:>9}" for _ in self._replicas)
        print(f"{'':>35}{names}", flush=True)
        print(f"{'time':>6} {'requests/s':>11} {'p50':>8} {'failed':>7}{columns}", flush=True)

    def line(self, time: int, second: Second, gauge: Mapping[str, int]) -> None:
        median = "-" if second.median_seconds is None else f"{second.median_seconds * 1000:.0f} ms"
        cells = "".join(self._replica(name, second, gauge) for name in self._replicas)
        failed = self._coloured(f"{second.failures:>7}", "31") if second.failures else f"{0:>7}"
        print(f"{time:>5}s {second.answers:>11} {median:>8} {failed}{cells}  {self._bar(second)}", flush=True)

    def event(self, text: str) -> None:
        print(self._coloured(f"       {text}", "1"), flush=True)

    def verdict(self, text: str, holds: bool) -> None:
        print(f"\n{self._coloured(text, '32' if holds else '31')}", flush=True)

    def _replica(self, name: str, second: Second, gauge: Mapping[str, int]) -> str:
        if name not in gauge:
            return f"{'-':>9} {'-':>9}"
        return f"{second.by_replica.get(name, 0):>9} {gauge[name]:>9}"

    def _bar(self, second: Second) -> str:
        """Returns a bar of the second's answers, divided by replica."""
        total = sum(second.by_replica.values())
        if not total:
            return ""
        first = round(BAR * second.by_replica.get(self._replicas[0], 0) / total)
        return self._coloured("█" * first, "34") + self._coloured("▒" * (BAR - first), "33")

    def _coloured(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours else text
