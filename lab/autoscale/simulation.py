"""Simulation of the jobs of an experiment, one day for each CPU at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from lab.autoscale import days
from lab.autoscale.jobs import Job, jobs
from lab.bench import Bench, Progress
from lab.child import Child, ChildFailed
from lab.figure import Figure
from lab.paths import binary


def run(bench: Bench) -> dict[str, Figure]:
    wanted = jobs(bench)
    progress = Progress(len(wanted))
    printed: dict[Job, str] = {}
    for job, text in _pass_days(wanted, bench.logs):
        printed[job] = text
        progress.step(f"{job.part}, {job.scaler}, {job.setting}")
    # In the order of the jobs, not of their completion, so that the files are reproducible.
    for job in wanted:
        minutes, day = days.read(printed[job])
        if job.part == days.DAY:
            bench.append(days.MINUTES, [{"scaler": job.scaler, **minute} for minute in minutes])
        where = {"part": job.part, "scaler": job.scaler, "setting": job.setting, "seed": job.options["seed"]}
        where["node_pods"] = job.options.get("node_pods", 0)
        bench.record({**where, **day, **days.steady(minutes, job.target)})
    return days.figures(bench.rows)


def _pass_days(wanted: Sequence[Job], folder: Path) -> Iterator[tuple[Job, str]]:
    """Simulates one day for each CPU at a time. Nothing is timed, so the simulations may disturb each other."""
    waiting = list(enumerate(wanted))
    running: dict[Child, Job] = {}
    with ExitStack() as stack:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                number, job = waiting.pop(0)
                argv = [binary("sim"), "--autoscale", *job.arguments]
                child = Child(argv, folder / f"{number}.csv", high_priority=False)
                running[stack.enter_context(child)] = job
            time.sleep(0.05)
            for child in [child for child in running if not child.alive()]:
                text = child.log.read_text()
                if not days.is_complete(text):
                    raise ChildFailed(f"{' '.join(child.argv)} failed{child.log_end()}")
                yield running.pop(child), text
