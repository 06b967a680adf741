"""Sends an open load to endpoints of which some turn bad, and counts what the clients see of it."""

from __future__ import annotations

import random
from typing import Any

from lab.balancers import Guard, Running, Site, Task, balancer
from lab.bench import Bench, Progress, Row
from lab.figure import Figure, paired_ratio
from lab.load import LoadGenerator, LoadReport, Request, Service

FAILED, P99 = "failed requests, %", "p99 of the others, ms"


def run(bench: Bench) -> dict[str, Figure]:
    settings, rounds = bench.settings, bench.setting("rounds")
    scenarios, arms = settings["scenarios"], list(settings["arms"])
    order = random.Random(settings["seed"])
    progress = Progress(rounds * len(scenarios) * len(arms))
    for number in range(rounds):
        for scenario in order.sample(scenarios, len(scenarios)):
            # The same moments and the same service times for every arm.
            seed = order.getrandbits(32)
            for arm in order.sample(arms, len(arms)):
                report = _measure(bench, number, scenario, arm, seed)
                for row in _rows(number, scenario["id"], arm, report):
                    bench.record(row)
                progress.step(f"round {number + 1}, {scenario['id']}, {arm}")
    return _figures(bench)


def _measure(bench: Bench, number: int, scenario: dict[str, Any], arm: str, seed: int) -> LoadReport:
    settings = bench.settings
    folder = bench.logs / f"{number}-{scenario['id']}-{arm}"
    folder.mkdir()
    defects = {int(endpoint): kind for endpoint, kind in scenario["defects"].items()}
    service = Service(**settings["service"], seed=seed, defects=defects)
    cpus, count = settings["load_cpus"], settings["endpoints"]
    with LoadGenerator(folder / "loadgen.log", cpus=cpus, endpoints=count, service=service) as load:
        with _start(settings, arm, load, Site.pinned(folder, settings["proxy_cpus"])) as running:
            return load.pace(
                running.address,
                Request(),
                rate=scenario.get("rate", settings["rate"]),
                seed=seed,
                connections=settings["connections"],
                warmup_seconds=settings["warmup_seconds"],
                seconds=bench.setting("seconds"),
                processes=running.child.processes(),
            )


def _start(settings: dict[str, Any], arm: str, load: LoadGenerator, site: Site) -> Running:
    options = dict(settings["arms"][arm])
    peer = balancer(options.pop("balancer"))
    return peer.start(Task(endpoints=load.endpoints, guard=Guard(**settings["guard"]), **options), site)


def _rows(number: int, scenario: str, arm: str, report: LoadReport) -> list[Row]:
    """Two for each measurement, each with its own cost; the counts are the same."""
    sent = report.requests + report.errors
    costs = {FAILED: 100 * report.errors / sent, P99: report.latency_p99_us / 1000}
    return [
        {
            "round": number,
            "case": f"{scenario}: {'failed' if unit == FAILED else 'p99'}",
            "arm": arm,
            "cost": round(cost, 4),
            "unit": unit,
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
        for unit, cost in costs.items()
    ]


def _figures(bench: Bench) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    ours, against = next(iter(bench.settings["arms"])), bench.settings["against"]["arms"]
    for scenario in (scenario["id"] for scenario in bench.settings["scenarios"]):
        shares = {arm: _failed_share(bench, scenario, arm) for arm in bench.settings["arms"]}
        fewest = min(shares[arm] for arm in against)
        figures[f"{scenario}: failed"] = Figure.of([shares[ours] - fewest], "% of requests")
        figures |= {f"{scenario}: failed.{arm}": Figure.of([share], FAILED) for arm, share in shares.items()}

        latencies = {arm: _by_round(bench, f"{scenario}: p99", arm) for arm in bench.settings["arms"]}
        medians = {arm: Figure.of(list(each.values()), P99) for arm, each in latencies.items()}
        best = min(against, key=lambda arm: medians[arm].value)
        figures[f"{scenario}: p99"] = paired_ratio(latencies[ours], latencies[best])
        figures |= {f"{scenario}: p99.{arm}": median for arm, median in medians.items()}
    return figures


def _failed_share(bench: Bench, scenario: str, arm: str) -> float:
    """Of all rounds together: a median would hide what fails in few of them."""
    rows = [row for row in bench.rows if row["case"] == f"{scenario}: failed" and row["arm"] == arm]
    errors = sum(row["errors"] for row in rows)
    return 100 * errors / (errors + sum(row["requests"] for row in rows))


def _by_round(bench: Bench, case: str, arm: str) -> dict[int, float]:
    return {row["round"]: row["cost"] for row in bench.rows if row["case"] == case and row["arm"] == arm}
