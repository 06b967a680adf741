"""Runs the demo: as root with kube-proxy's rules beside Sheave, otherwise Sheave alone on loopback.

Exit codes: 0 the new replica got its share, 1 the demo cannot run here, 2 it did not, 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from lab import experiment, report
from lab.child import ChildFailed
from lab.demo.loopback import Demo
from lab.paths import MissingRequirement, build
from lab.run import run
from lab.testbed import cluster, ownership
from lab.testbed.ownership import TestbedBusy

ARTICLE = "»Fixing Kubernetes Load Balancing with HTTP/3« (April 2026)"


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"As in {ARTICLE}: FastAPI on Hypercorn, a second per request, Locust users who keep their connections.")
    try:
        ownership.remove_leftovers()
        if obstacle := cluster.obstacle():
            print(f"Without kube-proxy's half: {obstacle}.")
            return _on_loopback()
        return _on_testbed()
    except (MissingRequirement, ChildFailed, TestbedBusy) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; everything it started has been stopped", file=sys.stderr)
        return 130


def _on_loopback() -> int:
    build("sheave")
    with ExitStack() as running, tempfile.TemporaryDirectory(prefix="sheave-demo-") as folder:
        return 0 if Demo(running, Path(folder)).run() else 2


def _on_testbed() -> int:
    found = experiment.find("article-000")
    users, millicores = found.settings["users"], found.settings["millicores"]
    print(
        f"{users} users; replicas with {millicores} millicores, a second one in the middle. First as Kubernetes does"
        " it, by iptables rules and conntrack; then through Sheave.",
        flush=True,
    )
    outcome = run(found, extent="quick")
    print()
    for claim in outcome.claims:
        print(claim)
    print(f"\nThe report, with pictures: {report.write(outcome.folder)}")
    return 0 if outcome.holds else 2


if __name__ == "__main__":
    sys.exit(main())
