"""Sends the same requests to one balancer and to several that share the endpoints, and disturbs one of several."""

from __future__ import annotations

import random
import shutil

from lab.bench import Bench, Progress
from lab.figure import Figure
from lab.replicas import cases
from lab.replicas.figures import figures


def obstacle() -> str | None:
    if not shutil.which("iptables-restore"):
        return "iptables-restore is not installed; it drops the packets of a replica that is cut off"
    return None


def run(bench: Bench) -> dict[str, Figure]:
    measured, rounds = cases.read(bench), bench.setting("rounds")
    order = random.Random(bench.settings["seed"])
    progress = Progress(rounds * sum(len(case.arms) for case in measured))
    for number in range(rounds):
        for case in order.sample(measured, len(measured)):
            # Every arm has the same send times and service times.
            seed = order.getrandbits(32)
            for arm in order.sample(case.arms, len(case.arms)):
                for row in cases.measure(bench, case, arm, number=number, seed=seed):
                    bench.record(row)
                progress.step(f"round {number + 1}, {case.id}, {arm}")
    return figures(bench, measured)
