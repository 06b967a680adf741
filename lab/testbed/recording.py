"""Data of a scenario (answers, arrivals, and a sample every second), and its results, without I/O.

A request counts for the replica that answered, in the window in which the client sent it, because the balancer chooses
then. A saturated replica answers its backlog later, which is correct and no choice.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lab.article.answers import Answer, summarize
from lab.bench import Row

# Time for a new replica's start; shares count afterwards, in windows.
SETTLING_SECONDS = 5
# A saturated replica answers in bursts of up to all waiting users, so a window must hold several bursts.
WINDOW_SECONDS = 10
# Time from the first user until all users have started and received their first answers.
RAMP_SECONDS = 5


@dataclass(frozen=True)
class Sample:
    """State of the node at one moment, by replica."""

    time: float
    cpu_seconds: Mapping[str, float]
    connections: Mapping[str, int]
    balancer_cpu_seconds: float = 0.0


@dataclass
class Recording:
    """One run (wall clock)."""

    replicas: tuple[str, ...]
    began: float
    ended: float = 0.0
    # Start of the second replica, and publication of its address.
    started: float | None = None
    published: float | None = None
    # Removal of the first replica from the endpoints, if any.
    withdrawn: float | None = None
    answers: list[Answer] = field(default_factory=list)
    users: list[float] = field(default_factory=list)
    arrivals: dict[str, list[float]] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    # Address of Sheave's admin API, if Sheave is the balancer.
    admin: str | None = None
    # CPUs used by programs outside the lab.
    other_work: float = 0.0


def seconds(recording: Recording) -> list[Row]:
    """Returns one row for each second of the load."""
    return [_second(recording, number) for number in range(int(recording.ended - recording.began))]


def _second(recording: Recording, number: int) -> Row:
    begin = recording.began + number
    received = summarize([answer for answer in recording.answers if begin <= answer.received_at < begin + 1])
    latencies = [a.seconds for a in recording.answers if begin <= a.received_at < begin + 1 and a.replica is not None]
    sent = Counter(a.replica for a in recording.answers if begin <= a.sent < begin + 1)
    row: Row = {
        "second": number + 1,
        "users": sum(user < begin + 1 for user in recording.users),
        "answers": received.answers - received.failures,
        "failures": received.failures,
        "p50_ms": _milliseconds(_quantile(latencies, 0.5)),
        "p95_ms": _milliseconds(_quantile(latencies, 0.95)),
    }
    before, after = _samples_around(recording.samples, begin)
    for replica in recording.replicas:
        row |= {
            f"answered.{replica}": received.by_replica.get(replica, 0),
            f"sent.{replica}": sent[replica],
            f"cpu.{replica}": round(_cpus(before, after, replica), 4),
            f"connections.{replica}": after.connections.get(replica, 0) if after else 0,
        }
    return row


def summary(recording: Recording) -> Row:
    """Returns one row with the results of a run."""
    before_scaling = (recording.began + RAMP_SECONDS, recording.started or recording.ended)
    row: Row = {
        "requests": len(recording.answers),
        "failures": sum(answer.replica is None for answer in recording.answers),
        **_window(recording.answers, before_scaling, "before"),
        "started_second": _seconds_since(recording.began, recording.started),
        "published_second": _seconds_since(recording.began, recording.published),
        "withdrawn_second": _seconds_since(recording.began, recording.withdrawn),
        "other_work_cpus": round(recording.other_work, 3),
        **_cpu_of_requests(recording),
        "http3_share": round(version_share(recording.answers, "3"), 4),
    }
    if recording.published is None:
        return row
    after_scaling = (recording.published + SETTLING_SECONDS, recording.ended)
    newcomer = recording.replicas[-1]
    shares = window_shares(recording.answers, newcomer, *after_scaling)
    return {
        **row,
        **_window(recording.answers, after_scaling, "after"),
        "share": round(share(recording.answers, newcomer, *after_scaling), 4),
        "share_lowest": round(min(shares), 4) if shares else None,
        "share_highest": round(max(shares), 4) if shares else None,
        **_first_request(recording, recording.published),
        "newcomer_requests": sum(time >= recording.published for time in recording.arrivals[newcomer]),
    }


def _cpu_of_requests(recording: Recording) -> Row:
    """Returns the CPU time per answer of the replicas and the balancer, between the first and the last sample."""
    if len(recording.samples) < 2:
        return {"replica_cpu_ms": None, "balancer_cpu_ms": None}
    first, last = recording.samples[0], recording.samples[-1]
    answers = sum(
        first.time <= answer.received_at < last.time and answer.replica is not None for answer in recording.answers
    )
    # Only the first replica counts, because the second one's start is no cost of a request.
    old = recording.replicas[0]
    own = sum(first.time <= a.received_at < last.time and a.replica == old for a in recording.answers)
    balancer = last.balancer_cpu_seconds - first.balancer_cpu_seconds
    replica = last.cpu_seconds.get(old, 0.0) - first.cpu_seconds.get(old, 0.0)
    return {
        "replica_cpu_ms": round(1000 * replica / own, 3) if own else None,
        "balancer_cpu_ms": round(1000 * balancer / answers, 4) if answers else None,
    }


def version_share(answers: Sequence[Answer], version: str) -> float:
    """Returns the share of this HTTP version in the answers with a known version."""
    known = [answer.version for answer in answers if answer.version is not None]
    return known.count(version) / len(known) if known else 0.0


def _first_request(recording: Recording, published: float) -> Row:
    """Returns the times from publication of the new replica to the next request of any client, to its own first request
    (both by the client's clock), and to its own first arrival.

    A saturated replica answers in bursts, and waiting users send nothing meanwhile. So the balancer's delay is the time
    to the last request that it still sent to another replica: 0 if the next request goes to the new one.
    """
    sent = [answer for answer in recording.answers if answer.sent >= published]
    newcomer = recording.replicas[-1]
    next_sent = min((answer.sent for answer in sent), default=None)
    first_sent = min((answer.sent for answer in sent if answer.replica == newcomer), default=None)
    arrived = min((time for time in recording.arrivals[newcomer] if time >= published), default=None)
    delay = None
    if first_sent is not None:
        delay = max((answer.sent - published for answer in sent if answer.sent < first_sent), default=0.0)
    return {
        "next_request_ms": _milliseconds(_interval(published, next_sent)),
        "first_request_ms": _milliseconds(_interval(published, first_sent)),
        "first_arrival_ms": _milliseconds(_interval(published, arrived)),
        "first_request_delay_ms": _milliseconds(delay),
    }


def _interval(begin: float, moment: float | None) -> float | None:
    return None if moment is None else moment - begin


def share(answers: Sequence[Answer], replica: str, begin: float, end: float) -> float:
    """Returns the replica's share of the answered requests that were sent in this time."""
    sent = [answer.replica for answer in answers if begin <= answer.sent < end and answer.replica is not None]
    return sent.count(replica) / len(sent) if sent else 0.0


def window_shares(answers: Sequence[Answer], replica: str, begin: float, end: float) -> list[float]:
    """Returns the share in each window; an incomplete last window is omitted."""
    count = int((end - begin) / WINDOW_SECONDS)
    edges = [begin + number * WINDOW_SECONDS for number in range(count + 1)]
    return [share(answers, replica, left, right) for left, right in zip(edges, edges[1:], strict=False)]


def _window(answers: Sequence[Answer], window: tuple[float, float], name: str) -> Row:
    begin, end = window
    latencies = [
        answer.seconds for answer in answers if begin <= answer.received_at < end and answer.replica is not None
    ]
    return {
        f"rps_{name}": round(len(latencies) / (end - begin), 2) if end > begin else None,
        f"p50_{name}_ms": _milliseconds(_quantile(latencies, 0.5)),
        f"p95_{name}_ms": _milliseconds(_quantile(latencies, 0.95)),
    }


def _samples_around(samples: Sequence[Sample], begin: float) -> tuple[Sample | None, Sample | None]:
    """Returns the last samples before this second and before its end."""
    before = max((s for s in samples if s.time <= begin), key=lambda s: s.time, default=None)
    after = max((s for s in samples if s.time <= begin + 1), key=lambda s: s.time, default=None)
    return before, after


def _cpus(before: Sample | None, after: Sample | None, replica: str) -> float:
    if before is None or after is None or after.time <= before.time:
        return 0.0
    used = after.cpu_seconds.get(replica, 0.0) - before.cpu_seconds.get(replica, 0.0)
    return used / (after.time - before.time)


def _quantile(values: Sequence[float], part: float) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[round(part * 100) - 1]


def _milliseconds(value: float | None) -> float | None:
    return None if value is None else round(value * 1000, 1)


def _seconds_since(began: float, moment: float | None) -> float | None:
    return None if moment is None else round(moment - began, 2)
