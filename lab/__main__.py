"""Command line of the lab.

Exit codes: 0 every claim holds, 1 the request cannot be fulfilled here, 2 a claim falls short or the lab failed, 130
interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from pathlib import Path

from lab import experiment, plot, report
from lab.bench import print_status
from lab.child import ChildFailed
from lab.paths import MissingRequirement
from lab.run import run
from lab.testbed import ownership
from lab.testbed.ownership import TestbedBusy


def main() -> int:
    arguments = _parser().parse_args()
    # SIGTERM ends all started processes in the same way as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        ownership.remove_leftovers()
        return arguments.command(arguments)
    except (experiment.UnknownName, MissingRequirement, ChildFailed, TestbedBusy) as error:
        print_status(f"lab: {error}")
        return 1
    except KeyboardInterrupt:
        print_status("lab: interrupted")
        return 130
    except Exception:
        # Python's own exit code for an uncaught exception is 1, which means here that the request cannot be fulfilled.
        traceback.print_exc()
        return 2


def _list(_: argparse.Namespace) -> int:
    width = max(map(len, experiment.names()))
    for name in experiment.names():
        print(f"{name:{width}}  {experiment.find(name).title}")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    found = experiment.find(arguments.name)
    if arguments.json and not arguments.json.resolve().parent.is_dir():
        raise MissingRequirement(f"{arguments.json}: no such folder")
    if arguments.cluster:
        found = found.with_cluster()
    found.check_extent(arguments.extent)
    if arguments.arms:
        found = found.with_arms(arguments.arms.split(","))
    only = found.parts(arguments.only.split(",")) if arguments.only else ()
    if arguments.before:
        if not arguments.before.is_file():
            raise MissingRequirement(f"{arguments.before}: no such file")
        found = found.with_before_build(arguments.before.resolve())
    if arguments.resume and not found.resumable:
        raise experiment.UnknownName(f"{found.name} cannot be resumed")
    outcome = run(found, extent=arguments.extent, only=only, json_file=arguments.json, resume=arguments.resume)
    for claim in outcome.claims:
        print(claim)
    print(f"raw data, summary and plot: {outcome.folder}")
    return 0 if outcome.holds else 2


def _plot(arguments: argparse.Namespace) -> int:
    for found, folder in plot.runs(arguments.target):
        print(plot.draw(folder, found))
    return 0


def _report(arguments: argparse.Namespace) -> int:
    folder = arguments.folder or report.newest()
    if not (folder / "seconds.csv").is_file():
        raise MissingRequirement(f"{folder} is not a run folder of {report.SUBJECT}")
    if report.is_in_cluster(experiment.find(report.SUBJECT), folder):
        raise MissingRequirement(f"{folder} is a run in the test cluster, which is a section of every page: omit it")
    print(f"{report.write(folder)} (of {folder})")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab", description="Run experiments, each with claims that a run can refute.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("list", help="list the experiments")
    command.set_defaults(command=_list)

    command = commands.add_parser("run", help="run an experiment; exit code 2 if a claim falls short")
    command.add_argument("name", metavar="NAME")
    extent = command.add_mutually_exclusive_group()
    extent.add_argument(
        "--quick",
        dest="extent",
        action="store_const",
        const="quick",
        help="few rounds: takes minutes, supports no claim",
    )
    extent.add_argument(
        "--full", dest="extent", action="store_const", const="full", help="at the size of the reproduced experiment"
    )
    command.add_argument("--only", metavar="PART,...", help="only these variants or cases")
    command.add_argument("--arms", metavar="ARM,...", help="only these arms, if the experiment compares arms")
    command.add_argument(
        "--cluster", action="store_true", help="run in the test cluster (`make cluster` builds it), if it can"
    )
    command.add_argument("--resume", action="store_true", help="resume the newest interrupted run")
    command.add_argument(
        "--before", metavar="PROGRAM", type=Path, help="compare with this build of Sheave instead of the peers"
    )
    command.add_argument("--json", metavar="FILE", type=Path, help="write claims, environment and raw data to FILE")
    command.set_defaults(command=_run, extent="usual")

    command = commands.add_parser("plot", help="draw the pictures of committed runs from their raw data")
    command.add_argument(
        "target", metavar="EXPERIMENT|RUN", nargs="?", help="an experiment or a run folder; default: all committed runs"
    )
    command.set_defaults(command=_plot)

    command = commands.add_parser("report", help="write the report page of a run of article-000")
    command.add_argument("folder", metavar="FOLDER", type=Path, nargs="?", help="run folder; default: the newest")
    command.set_defaults(command=_report)
    return parser


if __name__ == "__main__":
    sys.exit(main())
