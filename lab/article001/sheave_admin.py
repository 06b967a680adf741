"""Sheave's metrics: learned limits, refusals, and the demand for a backend."""

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
# Common prefix of the reasons for requests without a slot, such as a full queue.
QUEUE = "queue_"
TIMEOUT_SECONDS = 5


@dataclass(frozen=True)
class MetricSample:
    """One line of the exposition format."""

    name: str
    labels: dict[str, str]
    value: float


def read(text: str) -> Iterator[MetricSample]:
    """Parses all series."""
    for found in LINE.finditer(text):
        yield MetricSample(found["name"], dict(LABEL.findall(found["labels"] or "")), float(found["value"]))


def fetch(admin: str) -> list[MetricSample]:
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=TIMEOUT_SECONDS) as answer:
        return list(read(answer.read().decode()))


def limits(samples: list[MetricSample]) -> dict[str, float]:
    """Returns the learned limit of each endpoint by address."""
    return {one.labels["endpoint"]: one.value for one in samples if one.name == LIMIT}


def demand(samples: list[MetricSample]) -> float:
    """Returns the demand for the only backend, in concurrent requests."""
    found = [one.value for one in samples if one.name == DEMAND]
    if not found:
        raise ChildFailed(f"this Sheave has no metric {DEMAND}, the scaler's signal")
    return sum(found)


def refused(samples: list[MetricSample]) -> float:
    """Returns the number of requests answered 429 since the start."""
    own = (one for one in samples if one.name == FAILURES and one.labels.get("reason", "").startswith(QUEUE))
    return sum(one.value for one in own)
