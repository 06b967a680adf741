"""Regression check of instructions per request: a measure that CI can take on any machine.

Callgrind counts the instructions. Each case runs twice with different numbers of requests; the quotient of the
differences is the cost of one request, and start-up cancels out. A result above the tolerance is measured again, and
the least one counts. Exit codes: 0 within the tolerance, 1 above it, 2 the check could not run.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab import network
from lab.balancers import BalancerTask, Placement, ReplicaSet, sheave
from lab.child import Child, ChildFailed
from lab.experiment import EXPERIMENTS
from lab.load import LoadGenerator, Request
from lab.paths import MissingRequirement, build

FIGURES = EXPERIMENTS / "proxy-cost" / "instructions.toml"
# Callgrind is about fifty times slower than the machine, and writes its counts at exit.
GRACE_SECONDS = 60
WARMUP_REQUESTS = 200
LEARNING_SECONDS = 4
# Disturbances, such as an extra connection on a slow machine, only add instructions: the least of several counts.
MOST_MEASUREMENTS = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cost-check", description="Instructions per request, by callgrind.")
    parser.add_argument("--update", action="store_true", help=f"write the measured figures to {FIGURES.name}")
    arguments = parser.parse_args()
    try:
        return check(update=arguments.update)
    except (MissingRequirement, ChildFailed) as error:
        print(f"cost-check: {error}", file=sys.stderr)
        return 2


def check(*, update: bool) -> int:
    if not shutil.which("valgrind"):
        raise MissingRequirement("valgrind is not installed. Run: sudo apt-get install valgrind")
    build("sheave", "loadgen")
    settings = tomllib.loads(FIGURES.read_text())
    measured = {name: least(name, case, settings["tolerance"]) for name, case in settings["cases"].items()}
    if update:
        FIGURES.write_text(_updated(FIGURES.read_text(), measured))
    within = [_report(name, measured[name], case, settings) for name, case in settings["cases"].items()]
    within += [_report_ratio(name, measured, case) for name, case in settings["cases"].items() if "compared" in case]
    return 0 if update or all(within) else 1


def least(name: str, case: dict[str, Any], tolerance: float) -> int:
    """Returns the least number of instructions for one request of a case; repeats measurements above the tolerance."""
    measured = measure(case)
    for _ in range(1, MOST_MEASUREMENTS):
        if measured <= _most(case, tolerance):
            break
        print(f"{name:12} {measured:>8} instructions per request: measured again", flush=True)
        measured = min(measured, measure(case))
    return measured


def measure(case: dict[str, Any]) -> int:
    """Measures the instructions for one request of a case."""
    few, many = case["requests"]
    return round((_instructions(case, many) - _instructions(case, few)) / (many - few))


def _instructions(case: dict[str, Any], requests: int) -> int:
    """Returns the instructions of a Sheave process that serves `requests` requests."""
    with tempfile.TemporaryDirectory(prefix="sheave-cost-") as name:
        folder = Path(name)
        counts = folder / "callgrind.out"
        wrapper = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts}"]
        with (
            LoadGenerator(folder / "loadgen.log", cpus=(), endpoints=4) as load,
            _peers(case, load.endpoints, folder) as task,
        ):
            site = Placement(folder, lambda argv, log: Child([*wrapper, *argv], log))
            running = sheave.start(task, site)
            try:
                # A POST uses no connection older than half of the keep-alive time that Sheave has observed. Let it
                # observe seconds, otherwise the count depends on the machine's speed.
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


@contextmanager
def _peers(case: dict[str, Any], endpoints: tuple[str, ...], folder: Path) -> Iterator[BalancerTask]:
    """Runs the other replicas of a case, which get no requests; returns the task of the one that is measured."""
    cap, count = case.get("cap"), case.get("replicas", 1)
    if count == 1:
        yield BalancerTask(endpoints, cap=cap)
        return
    members = tuple(f"127.0.2.{number + 1}:{network.free_port()}" for number in range(count))
    peers = []
    try:
        for member in members[1:]:
            home = folder / member
            home.mkdir()
            task = BalancerTask(endpoints, cap=cap, replicas=ReplicaSet(members, member, lease_slots=True))
            peers.append(sheave.start(task, Placement(home, Child)))
        yield BalancerTask(endpoints, cap=cap, replicas=ReplicaSet(members, members[0], lease_slots=True))
    finally:
        for peer in peers:
            peer.child.stop()


def _most(case: dict[str, Any], tolerance: float) -> float:
    return case["instructions"] * (1 + tolerance)


def _report(name: str, measured: int, case: dict[str, Any], settings: dict[str, Any]) -> bool:
    committed, tolerance = case["instructions"], settings["tolerance"]
    change = measured / committed - 1
    is_within = measured <= _most(case, tolerance)
    verdict = "ok"
    if not is_within:
        verdict = f"TOO MANY: at most {tolerance:.0%} at most"
    elif change < -tolerance:
        verdict = "fewer: commit the new figure (make cost-check ARGS=--update)"
    print(f"{name:12} {measured:>8} instructions per request, committed {committed}: {change:+.1%} {verdict}")
    return is_within


def _report_ratio(name: str, measured: Mapping[str, int], case: Mapping[str, Any]) -> bool:
    """Reports what a case costs more than the case that it is compared with."""
    other, most = case["compared"]["with"], case["compared"]["most"]
    ratio = measured[name] / measured[other]
    print(f"{name:12} {ratio:.3f} of {other}, at most {most}: {'ok' if ratio <= most else 'TOO MANY'}")
    return ratio <= most


def _updated(text: str, measured: dict[str, int]) -> str:
    """Returns the file with new figures and otherwise unchanged."""
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
