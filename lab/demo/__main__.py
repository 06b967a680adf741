"""Runs the demo: as root with kube-proxy's rules beside Sheave, and in the test cluster if that is built; otherwise
Sheave alone on loopback.

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
from lab.experiment import Experiment
from lab.kubernetes import session
from lab.kubernetes.agents import ANNOTATION
from lab.paths import MissingRequirement, build_for_demo
from lab.run import RunOutcome, run
from lab.testbed import cluster, ownership
from lab.testbed.ownership import TestbedBusy

ARTICLE = "»Fixing Kubernetes Load Balancing with HTTP/3« (April 2026)"


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"As in {ARTICLE}: FastAPI on Hypercorn, a second per request, Locust users who keep their connections.")
    try:
        ownership.remove_leftovers()
        build_for_demo()
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
    _show(outcome, report_of=outcome)
    # The demo must show something soon, so it does not build the cluster.
    if obstacle := session.obstacle():
        print(f"\nWithout Kubernetes itself: {obstacle}.")
        return 0 if outcome.holds else 2
    in_cluster = _run_in_cluster(found)
    _show(in_cluster, report_of=outcome)
    return 0 if outcome.holds and in_cluster.holds else 2


def _show(outcome: RunOutcome, *, report_of: RunOutcome) -> None:
    """Prints the claims of a run. The report of the other run has a section for that in the cluster."""
    print()
    for claim in outcome.claims:
        print(claim)
    print(f"\nThe report, with pictures: {report.write(report_of.folder)}", flush=True)


def _run_in_cluster(found: Experiment) -> RunOutcome:
    print(
        "\nThe same in Kubernetes, three nodes on this machine: a Service as it is, then after"
        f" `kubectl annotate service app {ANNOTATION}`. Two minutes more.",
        flush=True,
    )
    return run(found.with_cluster(), extent="quick")


if __name__ == "__main__":
    sys.exit(main())
