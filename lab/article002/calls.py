"""Statistics of calls by replica, duration and failure, without I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

WINDOW_SECONDS = 5
# Start of the windows in which a new server's share counts.
SETTLED_SECONDS = 5


@dataclass(frozen=True)
class Call:
    """One call, as the client saw it."""

    # Scheduled send time (wall clock).
    sent: float
    seconds: float
    # Replica that answered; empty if there was no answer.
    replica: str
    # gRPC status code.
    code: str

    @property
    def failed(self) -> bool:
        return self.code != "OK"


def read(lines: Iterable[str]) -> list[Call]:
    """Parses the lines that the client writes."""
    fields = (line.rstrip("\n").split(",") for line in lines)
    return [Call(float(sent), float(seconds), replica, code) for sent, seconds, replica, code in fields]


def quantile_ms(calls: Sequence[Call], share: float) -> float | None:
    """Returns a quantile over all calls; a failed call counts with the time that the client waited."""
    if not calls:
        return None
    ordered = sorted(call.seconds for call in calls)
    return 1000 * ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def by_replica(calls: Iterable[Call], replicas: Sequence[str]) -> dict[str, int]:
    """Returns the number of answered calls of each replica, including replicas without any."""
    counted = Counter(call.replica for call in calls if not call.failed)
    return {replica: counted[replica] for replica in replicas}


def spread(counts: Iterable[int]) -> float:
    """Returns the difference between the busiest and the idlest server as a share of the mean; 0 is even."""
    known = list(counts)
    mean = sum(known) / len(known)
    return (max(known) - min(known)) / mean if mean else math.inf


def busiest(calls: Sequence[Call]) -> float:
    """Returns the mean share of the busiest server within a second; 1 means one server at a time."""
    seconds: dict[int, Counter[str]] = {}
    for call in calls:
        if not call.failed:
            seconds.setdefault(int(call.sent - calls[0].sent), Counter())[call.replica] += 1
    shares = [max(counts.values()) / counts.total() for counts in seconds.values()]
    return sum(shares) / len(shares) if shares else math.inf


@dataclass(frozen=True)
class NewServerResult:
    """Calls of a server that was published during the load."""

    # Time from publication to the server's first call; infinite if it got none.
    first_call_ms: float
    # Lowest and highest share in the windows from `SETTLED_SECONDS` on; None if the run was too short.
    lowest_share: float | None
    highest_share: float | None


def new_server_result(calls: Iterable[Call], newcomer: str, published: float) -> NewServerResult:
    """Returns the result of the new server; a call counts at its send time, because the balancer chooses then."""
    after = sorted((call for call in calls if call.sent >= published), key=lambda call: call.sent)
    first = min((call.sent - published for call in after if call.replica == newcomer), default=math.inf)
    windows: dict[int, list[Call]] = {}
    for call in after:
        if call.sent >= published + SETTLED_SECONDS:
            windows.setdefault(int((call.sent - published - SETTLED_SECONDS) / WINDOW_SECONDS), []).append(call)
    # The end of the load cuts the last window off.
    whole = [windows[number] for number in sorted(windows)][:-1]
    shares = [sum(call.replica == newcomer for call in window) / len(window) for window in whole]
    return NewServerResult(1000 * first, min(shares, default=None), max(shares, default=None))


def scaled_result(calls: Sequence[Call], published: Mapping[str, float]) -> NewServerResult:
    """Returns the worst result of several new servers: the latest first call, and the shares from the last one's
    publication on.
    """
    last = max(published.values())
    firsts = [new_server_result(calls, server, at).first_call_ms for server, at in published.items()]
    shares = [new_server_result(calls, server, last) for server in published]
    lowest = [result.lowest_share for result in shares if result.lowest_share is not None]
    highest = [result.highest_share for result in shares if result.highest_share is not None]
    return NewServerResult(max(firsts), min(lowest, default=None), max(highest, default=None))


def common_time(clients: Sequence[Sequence[Call]]) -> list[Call]:
    """Returns the calls that were sent while every client was sending, in the order of their send times."""
    begin = max(min(call.sent for call in calls) for calls in clients)
    end = min(max(call.sent for call in calls) for calls in clients)
    merged = (call for calls in clients for call in calls if begin <= call.sent <= end)
    return sorted(merged, key=lambda call: call.sent)


def largest_clean(clean: Callable[[int], bool], *, lowest: int, highest: int, factor: float, steps: int) -> int:
    """Returns the largest number of concurrent calls without failures; 0 if even the lowest number fails.

    There is no sharp limit: near it, the same number succeeds at one time and fails at another, and a binary search
    would follow one unlucky answer. So after doubling until the first failure, the search multiplies by the factor
    after each success and divides by it after each failure (the up-and-down method, Dixon and Mood 1948). At the mean
    of the visited levels, one in two succeeds.
    """
    good, bad = 0, lowest
    while bad <= highest and clean(bad):
        good, bad = bad, 2 * bad
    if good == 0:
        return 0
    level, before = math.sqrt(good * bad), None
    has_turned = False
    visited: list[float] = []
    while len(visited) < steps:
        level = min(max(level, lowest), highest)
        is_clean = clean(round(level))
        # The levels before the first turn depend on the start and do not count.
        has_turned |= before not in (None, is_clean) or level in (lowest, highest)
        if has_turned:
            visited.append(math.log(level))
        level, before = (level * factor if is_clean else level / factor), is_clean
    return round(math.exp(sum(visited) / len(visited)))
