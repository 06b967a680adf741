"""What calls come to: who answered, how long it took, what failed. Knows no process and no picture."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

WINDOW_SECONDS = 5
# A new server's share is looked at from here on.
SETTLED_SECONDS = 5


@dataclass(frozen=True)
class Call:
    """One call, as the client saw it."""

    # When it was to be sent, by the wall clock.
    sent: float
    seconds: float
    # Who answered; empty if nobody did.
    replica: str
    # gRPC's word.
    code: str

    @property
    def failed(self) -> bool:
        return self.code != "OK"


def read(lines: Iterable[str]) -> list[Call]:
    """Calls from the lines that the client writes."""
    fields = (line.rstrip("\n").split(",") for line in lines)
    return [Call(float(sent), float(seconds), replica, code) for sent, seconds, replica, code in fields]


def quantile_ms(calls: Sequence[Call], share: float) -> float | None:
    """Of all calls: one that failed took as long as the client waited for it."""
    if not calls:
        return None
    ordered = sorted(call.seconds for call in calls)
    return 1000 * ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def by_replica(calls: Iterable[Call], replicas: Sequence[str]) -> dict[str, int]:
    """Answered calls of each replica, of those too that answered none."""
    counted = Counter(call.replica for call in calls if not call.failed)
    return {replica: counted[replica] for replica in replicas}


def spread(counts: Iterable[int]) -> float:
    """How far the busiest and the idlest server are apart, as a share of the mean: 0 is even."""
    known = list(counts)
    mean = sum(known) / len(known)
    return (max(known) - min(known)) / mean if mean else math.inf


def busiest(calls: Sequence[Call]) -> float:
    """The share of the busiest server within a second, on average: 1 is a server at a time."""
    seconds: dict[int, Counter[str]] = {}
    for call in calls:
        if not call.failed:
            seconds.setdefault(int(call.sent - calls[0].sent), Counter())[call.replica] += 1
    shares = [max(counts.values()) / counts.total() for counts in seconds.values()]
    return sum(shares) / len(shares) if shares else math.inf


@dataclass(frozen=True)
class NewServerResult:
    """What became of a server that was published while calls were made."""

    # From publication to the first call that it got; infinite if it got none.
    first_call_ms: float
    # In windows from `SETTLED_SECONDS` on; None where the run was too short for one.
    lowest_share: float | None
    highest_share: float | None


def new_server_result(calls: Iterable[Call], newcomer: str, published: float) -> NewServerResult:
    """Calls count by when they were sent: that is when a balancer chose."""
    after = sorted((call for call in calls if call.sent >= published), key=lambda call: call.sent)
    first = min((call.sent - published for call in after if call.replica == newcomer), default=math.inf)
    windows: dict[int, list[Call]] = {}
    for call in after:
        if call.sent >= published + SETTLED_SECONDS:
            windows.setdefault(int((call.sent - published - SETTLED_SECONDS) / WINDOW_SECONDS), []).append(call)
    # The last one is cut off by the end of the load.
    whole = [windows[number] for number in sorted(windows)][:-1]
    shares = [sum(call.replica == newcomer for call in window) / len(window) for window in whole]
    return NewServerResult(1000 * first, min(shares, default=None), max(shares, default=None))


def largest_clean(clean: Callable[[int], bool], *, lowest: int, highest: int, factor: float, steps: int) -> int:
    """The largest number of calls at once that is clean; 0 if not even the lowest one is.

    There is no sharp limit: near it a number is clean at one time and not at another, and a search that trusts each
    answer ends wherever bad luck has sent it. So after doubling until it is too much, it goes up by the factor after each
    clean one and down by it after each that is not (the up-and-down method, Dixon and Mood 1948). Where it has been in
    so many steps, on average, one in two is clean.
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
        # The way to where it turns tells of where it began.
        has_turned |= before not in (None, is_clean) or level in (lowest, highest)
        if has_turned:
            visited.append(math.log(level))
        level, before = (level * factor if is_clean else level / factor), is_clean
    return round(math.exp(sum(visited) / len(visited)))
