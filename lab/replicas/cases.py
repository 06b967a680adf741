"""Cases of experiment.toml, and the measurement of one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.bench import Bench, Row
from lab.replicas import faults, plan, rows
from lab.replicas.arms import ArmSetup, RunningArm, RunningLoad, Traffic, running

MESSAGES = "sheave_replica_messages_total"


@dataclass(frozen=True)
class Case:
    """One `[[cases]]` table of experiment.toml."""

    id: str
    cap: int
    split: str
    load: float
    arms: tuple[str, ...]
    # Fault of a replica, if any, and the replica.
    fault: str | None = None
    victim: int = 0
    fault_seconds: float = 0.0


def read(bench: Bench) -> list[Case]:
    """Returns the cases of the run."""
    everything = bench.settings["cases"]
    wanted = bench.only or bench.settings.get(f"{bench.extent}_variants") or [each["id"] for each in everything]
    return [Case(**each) for each in everything if each["id"] in wanted]


def measure(bench: Bench, case: Case, arm: str, *, number: int, seed: int) -> list[Row]:
    """Measures a case with one arm; arms of one seed get the same requests."""
    folder = bench.logs / f"{number}-{case.id}-{arm}"
    folder.mkdir()
    settings, pods = bench.settings, bench.settings["pods"][str(case.cap)]
    with Traffic(folder / "traffic.log", cpus=settings["load_cpus"], endpoints=pods["endpoints"], cap=case.cap) as it:
        setup = ArmSetup.of(settings["arms"][arm], case.cap, it.endpoints, folder, settings["proxy_cpus"])
        with running(setup) as balancers:
            if setup.members:
                time.sleep(settings["traffic"]["settle_seconds"])
            balancers.wait_until_settled()
            if case.fault:
                return _measure_fault(bench, case, arm, number, seed, it, balancers)
            return _measure_waits(bench, case, arm, number, seed, it, balancers)


def _measure_waits(
    bench: Bench, case: Case, arm: str, number: int, seed: int, traffic: Traffic, balancers: RunningArm
) -> list[Row]:
    before = balancers.metric(MESSAGES, "sent")
    load = _begin(bench, case, seed, traffic, balancers)
    report = load.report()
    messages = balancers.metric(MESSAGES, "sent") - before
    return rows.wait_rows(number, case.id, arm, report, messages)


def _measure_fault(
    bench: Bench, case: Case, arm: str, number: int, seed: int, traffic: Traffic, balancers: RunningArm
) -> list[Row]:
    assert case.fault is not None, "a case with a fault"
    extent = traffic_settings(bench, case)
    load = _begin(bench, case, seed, traffic, balancers)
    onset = load.began + extent["onset_seconds"]
    fault = faults.Fault(case.fault, balancers, case.victim)
    recovery = faults.play(fault, onset=onset, seconds=case.fault_seconds)
    return rows.fault_rows(number, case, arm, load.report(), recovery)


def _begin(bench: Bench, case: Case, seed: int, traffic: Traffic, balancers: RunningArm) -> RunningLoad:
    extent = traffic_settings(bench, case)
    pods, split = bench.settings["pods"][str(case.cap)], bench.settings["splits"][case.split]
    rate = plan.rate(load=case.load, cap=case.cap, **pods)
    seconds = extent["warmup_seconds"] + extent["seconds"]
    planned = plan.draw(rate=rate, split=split, service_seconds=pods["service_seconds"], seconds=seconds, seed=seed)
    # A killed replica's process is not there at the end.
    processes = [] if case.fault else balancers.processes()
    return traffic.begin(
        balancers.target_of(len(split)),
        planned,
        {name: extent[name] for name in ("warmup_seconds", "seconds", "drain_seconds")},
        connections=extent["connections"],
        processes=processes,
    )


def traffic_settings(bench: Bench, case: Case) -> Mapping[str, Any]:
    """Returns the settings of a case's load."""
    quick = bench.settings["quick_traffic"] if bench.quick else {}
    return {**bench.settings["traffic"], **quick, **(bench.settings["fault_traffic"] if case.fault else {})}
