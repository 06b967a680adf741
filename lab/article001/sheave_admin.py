"""What Sheave says of itself in its metrics: learned limits, what it refused, the demand for a backend."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from lab.child import ChildFailed

LINE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
LIMIT = "sheave_endpoint_limit"
DEMAND = "sheave_backend_demand"
FAILURES = "sheave_failures_total"
# What all reasons begin with for which a request gets no slot: the queue is full, the wait too long.
QUEUE = "queue_"
TIMEOUT_SECONDS = 5


@dataclass(frozen=True)
class MetricSample:
    """One line of the exposition."""

    name: str
    labels: dict[str, str]
    value: float


def read(text: str) -> Iterator[MetricSample]:
    """Every series, whatever its name."""
    for found in LINE.finditer(text):
        yield MetricSample(found["name"], dict(LABEL.findall(found["labels"] or "")), float(found["value"]))


def fetch(admin: str) -> list[MetricSample]:
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=TIMEOUT_SECONDS) as answer:
        return list(read(answer.read().decode()))


def limits(samples: list[MetricSample]) -> dict[str, float]:
    """What each endpoint is allowed to have in flight, by its address; nothing where none is learned."""
    return {one.labels["endpoint"]: one.value for one in samples if one.name == LIMIT}


def demand(samples: list[MetricSample]) -> float:
    """Of the one backend that there is, in requests at once."""
    found = [one.value for one in samples if one.name == DEMAND]
    if not found:
        raise ChildFailed(f"this Sheave has no metric {DEMAND}, which the scaler follows")
    return sum(found)


def refused(samples: list[MetricSample]) -> float:
    """Requests that were answered 429 since the start."""
    own = (one for one in samples if one.name == FAILURES and one.labels.get("reason", "").startswith(QUEUE))
    return sum(one.value for one in own)
