"""Sends open and closed loads to endpoints, some of which fail, and records the effect on the clients."""

from __future__ import annotations

import random
import shutil
from contextlib import ExitStack

from lab import network
from lab.bad_endpoints import rows, scenario
from lab.bad_endpoints.figures import figures
from lab.bad_endpoints.scenario import Scenario, staged
from lab.bench import Bench, Progress, Row
from lab.figure import Figure
from lab.load import Request


def obstacle() -> str | None:
    if not shutil.which("iptables-restore"):
        return "iptables-restore is not installed; it drops the packets of an unreachable endpoint"
    return None


def run(bench: Bench) -> dict[str, Figure]:
    scenarios, rounds = scenario.read(bench), bench.setting("rounds")
    order = random.Random(bench.settings["seed"])
    progress = Progress(sum(_rounds(each, rounds) * len(each.arms) for each in scenarios))
    for number in range(rounds):
        for each in order.sample(scenarios, len(scenarios)):
            # Every arm has the same send times and service times.
            seed = order.getrandbits(32)
            for arm in order.sample(each.arms, len(each.arms)) if number < _rounds(each, rounds) else ():
                for row in MEASUREMENTS[each.load](bench, each, arm, number, seed):
                    bench.record(row)
                progress.step(f"round {number + 1}, {each.id}, {arm}")
    return figures(bench, scenarios)


def _rounds(each: Scenario, everyone: int) -> int:
    return min(each.rounds or everyone, everyone)


def _measure_open_load(bench: Bench, each: Scenario, arm: str, number: int, seed: int) -> list[Row]:
    settings = scenario.load_settings(bench, each)
    with staged(bench, each, arm, number=number, seed=seed) as (load, running):
        report = load.open_loop(
            running.address,
            Request(),
            rate=settings["rate"],
            seed=seed,
            connections=settings["connections"],
            warmup_seconds=settings["warmup_seconds"],
            seconds=settings["seconds"],
            processes=running.child.processes(),
        )
    return rows.report_rows(number, each, arm, report)


def _measure_closed_load(bench: Bench, each: Scenario, arm: str, number: int, seed: int) -> list[Row]:
    settings = scenario.load_settings(bench, each)
    with staged(bench, each, arm, number=number, seed=seed) as (load, running), ExitStack() as rules:

        def drop_packets() -> None:
            for endpoint in each.unreachable:
                host, _, _ = load.endpoints[endpoint].rpartition(":")
                rules.enter_context(network.packets_dropped(host))

        trace = load.trace(
            running.address,
            Request(**settings["request"]),
            connections=settings["connections"],
            warmup_seconds=settings["warmup_seconds"],
            seconds_before=settings["seconds_before"],
            seconds_after=settings["seconds_after"],
            drain_seconds=settings["drain_seconds"],
            processes=running.child.processes(),
            at_onset=drop_packets,
        )
    return rows.trace_rows(number, each, arm, trace)


MEASUREMENTS = {"open": _measure_open_load, "closed": _measure_closed_load}
