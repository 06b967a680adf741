"""What clients and pods saw of one load."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from lab.replicas.clients import NO_ANSWER, SUCCESS
from lab.replicas.plan import PlannedRequest


@dataclass(frozen=True)
class ServedRequest:
    """One request; times are in seconds, the first one after the start of the load."""

    sent: float
    took: float
    # Time at its endpoint, 0 if it has reached none or has not ended there.
    served: float
    outcome: str
    replica: int

    @property
    def succeeded(self) -> bool:
        return self.outcome == SUCCESS

    @property
    def wait(self) -> float:
        """Time that the balancer and the way to it took."""
        return self.took - self.served


@dataclass(frozen=True)
class OverCapRequest:
    """A request that began at an endpoint although the cap was reached."""

    at: float
    endpoint: int
    in_flight: int
    # Requests of those whose connection the balancer had closed.
    abandoned: int


@dataclass(frozen=True)
class TrafficReport:
    """All requests of a load, and the counts of the pods."""

    requests: tuple[ServedRequest, ...]
    # Time between the warm-up and the end of the sending.
    warmup_seconds: float
    seconds: float
    cpu_seconds: float
    # Requests that reached pods.
    served: int
    max_in_flight: int
    over_seconds: float
    over: tuple[OverCapRequest, ...]
    # Monotonic time of the start.
    began: float

    @classmethod
    def of(
        cls, report: Mapping[str, Any], planned: Sequence[PlannedRequest], extent: Mapping[str, float], began: float
    ) -> Self:
        """Parses a report of the traffic process."""
        columns = zip(report["sent"], report["took"], report["served_seconds"], report["outcomes"], strict=True)
        end = extent["warmup_seconds"] + extent["seconds"] + extent["drain_seconds"]
        requests = tuple(
            # A request without an answer has waited until the end, at least.
            ServedRequest(sent, end - sent if outcome == NO_ANSWER else took, served, outcome, each.replica)
            for (sent, took, served, outcome), each in zip(columns, planned, strict=True)
        )
        counts = report["counts"]
        return cls(
            requests=requests,
            warmup_seconds=extent["warmup_seconds"],
            seconds=extent["seconds"],
            cpu_seconds=report["cpu_seconds"],
            served=counts["served"],
            max_in_flight=counts["max_in_flight"],
            over_seconds=counts["over_seconds"],
            over=tuple(OverCapRequest(*each) for each in counts["over"]),
            began=began,
        )

    def counted(self) -> list[ServedRequest]:
        """Returns the requests that were sent after the warm-up."""
        return [request for request in self.requests if request.sent >= self.warmup_seconds]

    def mean_wait_ms(self) -> float:
        return 1000 * statistics.fmean(request.wait for request in self.counted())

    def p99_wait_ms(self) -> float:
        waits = sorted(request.wait for request in self.counted())
        return 1000 * waits[len(waits) * 99 // 100]

    def throughput(self) -> float:
        """Returns the requests per second that ended well between the warm-up and the end of the sending."""
        end = self.warmup_seconds + self.seconds
        ended = sum(each.succeeded and self.warmup_seconds <= each.sent + each.took < end for each in self.requests)
        return ended / self.seconds

    def failed(self, selected: Callable[[ServedRequest], bool] = lambda _: True) -> int:
        """Returns the number of failed requests, those without an answer included."""
        return sum(not request.succeeded and selected(request) for request in self.requests)

    def over_beyond_abandoned(self, cap: int) -> int:
        """Returns the requests over the cap that would be so without those whose balancer had gone, too."""
        return sum(each.in_flight - each.abandoned > cap for each in self.over)

    def failures(self) -> str:
        """Returns the number of requests of each failure, the most frequent first."""
        counts = Counter(request.outcome for request in self.requests if not request.succeeded)
        return ", ".join(f"{outcome}: {count}" for outcome, count in counts.most_common())
