"""The lab's command line.

Exit codes: 0 every claim holds, 1 one falls short, 2 the run could not be made, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

from lab import experiment, plot
from lab.bench import say
from lab.child import ChildFailed
from lab.paths import Missing
from lab.run import run


def main() -> int:
    arguments = _parser().parse_args()
    try:
        return arguments.command(arguments)
    except (experiment.Unknown, Missing, ChildFailed) as error:
        say(f"lab: {error}")
        return 2
    except KeyboardInterrupt:
        say("lab: interrupted")
        return 130
    except Exception:
        # Python's own exit code for this is 1, which says that a claim falls short.
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
        raise Missing(f"{arguments.json}: there is no such folder to write to")
    outcome = run(found, quick=arguments.quick, json_file=arguments.json)
    for claim in outcome.claims:
        print(claim)
    print(f"raw data, summary and plot: {outcome.folder}")
    return 0 if outcome.holds else 1


def _plot(arguments: argparse.Namespace) -> int:
    found = experiment.find(arguments.name)
    for folder in sorted(path.parent for path in found.folder.glob("runs/*/raw.csv")):
        print(plot.draw(folder, found.title))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab", description="Experiments: claims that a run can refute.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("list", help="list the experiments")
    command.set_defaults(command=_list)

    command = commands.add_parser("run", help="run one; exit code 1 if a claim falls short")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--quick", action="store_true", help="few rounds: minutes, and no claim")
    command.add_argument("--json", metavar="FILE", type=Path, help="write claims, environment and raw data here")
    command.set_defaults(command=_run)

    command = commands.add_parser("plot", help="draw the plots of the committed runs anew")
    command.add_argument("name", metavar="NAME")
    command.set_defaults(command=_plot)
    return parser


if __name__ == "__main__":
    sys.exit(main())
