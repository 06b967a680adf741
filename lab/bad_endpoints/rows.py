"""Rows of a measurement: one for each measure, all with the same counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab.bad_endpoints.scenario import Scenario
from lab.bench import Row
from lab.load import LoadReport
from lab.trace import Trace, TracedRequest, failed, longest_ms, outcomes

FAILED, P99 = "failed requests, %", "p99 of the others, ms"
# Time after which a returned endpoint must have its share, and a new request must not be delayed.
SETTLED_SECONDS = 1.0

EMPTY: Row = dict.fromkeys(
    (
        *("round", "case", "arm", "cost", "unit", "requests", "errors", "first_error", "seconds", "cpu_ns", "wait_ns"),
        *("latency_p50_us", "latency_p99_us", "latency_max_us"),
        # Columns of closed loads: longest request before the onset, requests in flight at the onset, failed ones of
        # those, requests received by a dying endpoint, and the outcomes after the onset.
        *("latency_max_before_us", "in_flight", "in_flight_failed", "received", "outcomes"),
    ),
    "",
)


@dataclass(frozen=True)
class Measure:
    """A number that summarizes a trace."""

    unit: str
    of: Callable[[Trace], float]
    # Selects the round that counts if a claim is about every round.
    worst: Callable[[Sequence[float]], float] = max


MEASURES = {
    "failed": Measure("failed requests", lambda trace: failed(trace.after())),
    "failed-later": Measure("failed requests begun after the onset", lambda trace: failed(trace.begun_after(0))),
    # Below 0 if a request that an endpoint had received was retried elsewhere.
    "failed-beyond-received": Measure(
        "failed requests beyond those received by dead endpoints",
        lambda trace: failed(trace.after()) - sum(trace.unanswered),
    ),
    "longest": Measure("longest request, ms", lambda trace: longest_ms(trace.after())),
    "added": Measure("longest request after less before the onset, ms", lambda trace: _added(trace, trace.after())),
    "added-later": Measure(
        "longest request begun 1 s after the onset less longest before, ms",
        lambda trace: _added(trace, trace.begun_after(SETTLED_SECONDS)),
    ),
    "errors": Measure("answers that are 500, %", lambda trace: _share_of_500(trace.after())),
    # Endpoint 0 returns, one second before the last one does.
    "share": Measure("share of its fair share", lambda trace: _share_of_first(trace), worst=min),
}


def trace_rows(number: int, scenario: Scenario, arm: str, trace: Trace) -> list[Row]:
    """Returns a row for each measure of a closed load."""
    after, in_flight = trace.after(), trace.in_flight()
    took = sorted(request.took_us for request in after if not request.failed) or [0]
    faults = [request.outcome for request in after if request.failed]
    counts = {
        "requests": len(after) - len(faults),
        "errors": len(faults),
        "first_error": faults[0] if faults else "",
        "seconds": round(trace.seconds, 4),
        "cpu_ns": trace.cpu_ns,
        "wait_ns": trace.wait_ns,
        "latency_p50_us": took[len(took) // 2],
        "latency_p99_us": took[len(took) * 99 // 100],
        "latency_max_us": round(longest_ms(after) * 1000),
        "latency_max_before_us": round(longest_ms(trace.before()) * 1000),
        "in_flight": len(in_flight),
        "in_flight_failed": failed(in_flight),
        "received": sum(trace.unanswered),
        "outcomes": outcomes(after),
    }
    measures = {f"{scenario.id}: {name}": MEASURES[name] for name in scenario.measures}
    return [_row(number, case, arm, each.of(trace), each.unit, counts) for case, each in measures.items()]


def report_rows(number: int, scenario: Scenario, arm: str, report: LoadReport) -> list[Row]:
    """Returns two rows of an open load: failures, and the latency of successful requests."""
    sent = report.requests + report.errors
    counts = {
        "requests": report.requests,
        "errors": report.errors,
        "first_error": report.first_error or "",
        "seconds": round(report.seconds, 4),
        "cpu_ns": report.cpu_ns,
        "wait_ns": report.wait_ns,
        "latency_p50_us": report.latency_p50_us,
        "latency_p99_us": report.latency_p99_us,
        "latency_max_us": report.latency_max_us,
    }
    return [
        _row(number, f"{scenario.id}: failed", arm, 100 * report.errors / sent, FAILED, counts),
        _row(number, f"{scenario.id}: p99", arm, report.latency_p99_us / 1000, P99, counts),
    ]


def _row(number: int, case: str, arm: str, cost: float, unit: str, counts: Row) -> Row:
    return EMPTY | counts | {"round": number, "case": case, "arm": arm, "cost": round(cost, 4), "unit": unit}


def _added(trace: Trace, requests: Sequence[TracedRequest]) -> float:
    return longest_ms(requests) - longest_ms(trace.before())


def _share_of_500(requests: Sequence[TracedRequest]) -> float:
    return 100 * sum(request.outcome == "status 500" for request in requests) / len(requests)


def _share_of_first(trace: Trace) -> float:
    served = trace.served_in_last(SETTLED_SECONDS)
    return served[0] / max(sum(served), 1) * len(served)
