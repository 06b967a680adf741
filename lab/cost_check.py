"""Instructions that Sheave executes for a request, against the committed figure: what CI can measure on any machine.

Callgrind counts them. Each case runs twice with different numbers of requests; the difference, divided, is the cost of
one request, and start-up cancels out. What seems too much is measured again, and the least counts. Exit codes: 0 within
the tolerance, 1 above it, 2 the check could not be made.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from lab.balancers import BalancerTask, Placement, sheave
from lab.child import Child, ChildFailed
from lab.experiment import EXPERIMENTS
from lab.load import LoadGenerator, Request
from lab.paths import MissingRequirement, build

FIGURES = EXPERIMENTS / "proxy-cost" / "instructions.toml"
# Callgrind is about fifty times slower than the machine, and writes its counts as it ends.
GRACE_SECONDS = 60
WARMUP_REQUESTS = 200
LEARNING_SECONDS = 4
# What disturbs a measurement, as a connection more where the machine is slow, only adds: the least of so many counts.
MOST_MEASUREMENTS = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cost-check", description="Instructions per request, by callgrind.")
    parser.add_argument("--update", action="store_true", help=f"write what is measured to {FIGURES.name}")
    arguments = parser.parse_args()
    try:
        return check(update=arguments.update)
    except (MissingRequirement, ChildFailed) as error:
        print(f"cost-check: {error}", file=sys.stderr)
        return 2


def check(*, update: bool) -> int:
    if not shutil.which("valgrind"):
        raise MissingRequirement("valgrind is not there. Run: sudo apt-get install valgrind")
    build("sheave", "loadgen")
    settings = tomllib.loads(FIGURES.read_text())
    measured = {name: least(name, case, settings["tolerance"]) for name, case in settings["cases"].items()}
    if update:
        FIGURES.write_text(_updated(FIGURES.read_text(), measured))
    within = [_report(name, measured[name], case, settings) for name, case in settings["cases"].items()]
    return 0 if update or all(within) else 1


def least(name: str, case: dict[str, Any], tolerance: float) -> int:
    """Instructions for one request of a case, measured again as long as they are too many."""
    measured = measure(case)
    for _ in range(1, MOST_MEASUREMENTS):
        if measured <= _most(case, tolerance):
            break
        print(f"{name:12} {measured:>8} instructions per request: measured again", flush=True)
        measured = min(measured, measure(case))
    return measured


def measure(case: dict[str, Any]) -> int:
    """Instructions for one request of a case."""
    few, many = case["requests"]
    return round((_instructions(case, many) - _instructions(case, few)) / (many - few))


def _instructions(case: dict[str, Any], requests: int) -> int:
    """Instructions of a whole life of Sheave in which it serves so many requests."""
    with tempfile.TemporaryDirectory(prefix="sheave-cost-") as name:
        folder = Path(name)
        counts = folder / "callgrind.out"
        wrapper = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts}"]
        with LoadGenerator(folder / "loadgen.log", cpus=(), endpoints=4) as load:
            site = Placement(folder, lambda argv, log: Child([*wrapper, *argv], log))
            running = sheave.start(BalancerTask(endpoints=load.endpoints), site)
            try:
                # A POST uses no connection older than half of what Sheave has seen endpoints keep. Let it see seconds,
                # else the count depends on how quick this machine is.
                load.load_exactly(running.address, Request(), connections=1, requests=WARMUP_REQUESTS)
                time.sleep(LEARNING_SECONDS)
                report = load.load_exactly(
                    running.address,
                    Request(**case.get("request", {})),
                    connections=case["connections"],
                    requests=requests,
                )
            finally:
                running.child.stop(GRACE_SECONDS)
        if report.errors:
            raise ChildFailed(f"{report.errors} of {requests} requests failed, the first one: {report.first_error}")
        found = re.search(r"^(?:summary|totals): (\d+)", counts.read_text(), re.MULTILINE) if counts.is_file() else None
        if not found:
            raise ChildFailed(f"callgrind wrote no count{running.child.log_end()}")
        return int(found.group(1))


def _most(case: dict[str, Any], tolerance: float) -> float:
    return case["instructions"] * (1 + tolerance)


def _report(name: str, measured: int, case: dict[str, Any], settings: dict[str, Any]) -> bool:
    committed, tolerance = case["instructions"], settings["tolerance"]
    change = measured / committed - 1
    is_within = measured <= _most(case, tolerance)
    verdict = "ok"
    if not is_within:
        verdict = f"TOO MANY: at most {tolerance:.0%} more is let through"
    elif change < -tolerance:
        verdict = "fewer: commit the new figure (make cost-check ARGS=--update)"
    print(f"{name:12} {measured:>8} instructions per request, committed {committed}: {change:+.1%} {verdict}")
    return is_within


def _updated(text: str, measured: dict[str, int]) -> str:
    """The file with new figures and everything else as it was."""
    lines, case = [], ""
    for line in text.splitlines():
        if header := re.fullmatch(r"\[cases\.(.+)\]", line):
            case = header.group(1)
        if line.startswith("instructions = "):
            line = f"instructions = {measured[case]}"
        lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
