"""Statistics of a load's answers, second by second, without I/O."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """One request: its send time, its duration, and the replica that answered or the failure."""

    sent: float
    seconds: float
    replica: str | None
    failure: str | None
    # HTTP version of the answer, if the client reports it.
    version: str | None = None

    @property
    def received_at(self) -> float:
        return self.sent + self.seconds


@dataclass(frozen=True)
class Second:
    """Answers received within one second."""

    answers: int
    failures: int
    median_seconds: float | None
    by_replica: dict[str, int]


def summarize(answers: Sequence[Answer]) -> Second:
    good = [answer for answer in answers if answer.replica is not None]
    return Second(
        answers=len(answers),
        failures=len(answers) - len(good),
        median_seconds=statistics.median(answer.seconds for answer in good) if good else None,
        by_replica=dict(Counter(answer.replica for answer in good if answer.replica is not None)),
    )


@dataclass(frozen=True)
class Verdict:
    """Result of the claim that a new replica is used at once, gets its share, and no request fails."""

    first_request_seconds: float | None
    share: float
    lowest_share: float
    requests: int
    failures: int

    FIRST_REQUEST_SECONDS = 0.1
    FAIR_SHARE = 0.5
    # Permitted distance below the fair share in a window of five seconds.
    TOLERANCE = 0.05
    WINDOW_SECONDS = 5

    @property
    def holds(self) -> bool:
        return (
            self.first_request_seconds is not None
            and self.first_request_seconds <= self.FIRST_REQUEST_SECONDS
            and self.lowest_share >= self.FAIR_SHARE - self.TOLERANCE
            and self.failures == 0
        )


def judge(answers: Sequence[Answer], newcomer: str, joined: float) -> Verdict:
    """Returns the verdict; a request counts at its send time, because the balancer chooses then."""
    after = sorted((answer for answer in answers if answer.sent >= joined), key=lambda answer: answer.sent)
    first = next((answer.sent - joined for answer in after if answer.replica == newcomer), None)
    windows: dict[int, list[Answer]] = {}
    for answer in after:
        windows.setdefault(int((answer.sent - joined) / Verdict.WINDOW_SECONDS), []).append(answer)
    # The end of the load cuts the last window off.
    whole = [windows[number] for number in sorted(windows)][:-1] or list(windows.values())
    return Verdict(
        first_request_seconds=first,
        share=_share(after, newcomer),
        lowest_share=min((_share(window, newcomer) for window in whole), default=0.0),
        requests=len(answers),
        failures=sum(answer.replica is None for answer in answers),
    )


def _share(answers: Sequence[Answer], replica: str) -> float:
    return sum(answer.replica == replica for answer in answers) / len(answers) if answers else 0.0
