"""Trace of a closed loop around the onset of defects: each request with its start and outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

SUCCESS = "200"


class TracedRequest(NamedTuple):
    """One request; times are relative to the onset, negative before it."""

    began_us: int
    took_us: int
    # `200` if the answer is correct, else the failure as the load generator reports it.
    outcome: str

    @property
    def ended_us(self) -> int:
        return self.began_us + self.took_us

    @property
    def failed(self) -> bool:
        return self.outcome != SUCCESS


@dataclass(frozen=True)
class Trace:
    """All requests of a trace, and counts of the endpoints."""

    # In the order of completion.
    requests: tuple[TracedRequest, ...]
    # Requests answered by each endpoint since the onset, one sample every `sample_ms`.
    served: tuple[tuple[int, ...], ...]
    sample_ms: int
    # Requests that each endpoint had received, but not answered, when it died.
    unanswered: tuple[int, ...]
    # Duration and CPU of the whole trace without its warm-up.
    seconds: float
    cpu_ns: int
    wait_ns: int

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Self:
        """Parses a report of the load generator."""
        columns = zip(report["began_us"], report["took_us"], report["outcome"], strict=True)
        words = report["outcomes"]
        return cls(
            requests=tuple(TracedRequest(began, took, words[outcome]) for began, took, outcome in columns),
            served=tuple(map(tuple, report["served"])),
            sample_ms=report["sample_ms"],
            unanswered=tuple(report["unanswered"]),
            seconds=report["seconds"],
            cpu_ns=report["cpu_ns"],
            wait_ns=report["wait_ns"],
        )

    def before(self) -> list[TracedRequest]:
        """Returns the requests that ended before the onset."""
        return self._select(lambda request: request.ended_us < 0)

    def after(self) -> list[TracedRequest]:
        """Returns the requests that ended after the onset, or not at all."""
        return self._select(lambda request: request.ended_us >= 0)

    def in_flight(self) -> list[TracedRequest]:
        """Returns the requests that were in flight at the onset."""
        return self._select(lambda request: request.began_us < 0 <= request.ended_us)

    def begun_after(self, seconds: float) -> list[TracedRequest]:
        """Returns the requests that began at least `seconds` after the onset."""
        return self._select(lambda request: request.began_us >= seconds * 1e6)

    def served_in_last(self, seconds: float) -> list[int]:
        """Returns the requests that each endpoint answered in the last `seconds`."""
        first, last = self.served[-1 - round(seconds * 1000 / self.sample_ms)], self.served[-1]
        return [now - then for now, then in zip(last, first, strict=True)]

    def _select(self, wanted: Callable[[TracedRequest], bool]) -> list[TracedRequest]:
        return [request for request in self.requests if wanted(request)]


def failed(requests: Iterable[TracedRequest]) -> int:
    """Returns the number of failed requests."""
    return sum(request.failed for request in requests)


def longest_ms(requests: Iterable[TracedRequest]) -> float:
    """Returns the longest duration of the requests, 0 if there are none."""
    return max((request.took_us for request in requests), default=0) / 1000


def outcomes(requests: Iterable[TracedRequest]) -> str:
    """Returns the number of requests of each outcome, the most frequent first."""
    counts = Counter(request.outcome for request in requests)
    return ", ".join(f"{outcome}: {count}" for outcome, count in counts.most_common())
