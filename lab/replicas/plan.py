"""Requests of a load, drawn before it: the same ones for every arm."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PlannedRequest:
    """One request of an open loop."""

    # Send time after the start of the load.
    at_seconds: float
    # Replica that gets it, by its number.
    replica: int
    service_seconds: float


def draw(
    *, rate: float, split: Sequence[float], service_seconds: float, seconds: float, seed: int
) -> list[PlannedRequest]:
    """Draws Poisson arrivals with exponential service times. Plans of one seed differ only in their replicas if only
    the split differs.
    """
    arrivals, services, replicas = (random.Random(seed * 3 + stream) for stream in range(3))
    planned = []
    at_seconds = arrivals.expovariate(rate)
    while at_seconds < seconds:
        (replica,) = replicas.choices(range(len(split)), weights=split)
        planned.append(PlannedRequest(at_seconds, replica, services.expovariate(1 / service_seconds)))
        at_seconds += arrivals.expovariate(rate)
    return planned


def rate(*, load: float, cap: int, endpoints: int, service_seconds: float) -> float:
    """Returns the requests per second that use this part of all slots."""
    return load * cap * endpoints / service_seconds
