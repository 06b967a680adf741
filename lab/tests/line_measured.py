"""Measures the long line as `make lab EXP=long-line ARGS=--quick` does, without the pictures. Root only.

A process of its own, for it moves into a network namespace.
"""

import sys
from pathlib import Path

from lab import experiment, network
from lab.bench import Bench
from lab.paths import build
from lab.testbed.ownership import TestbedBusy


def main(folder: Path) -> None:
    found = experiment.find("long-line")
    build(*found.settings["programs"])
    network.isolate()
    figures = found.module().run(Bench(found, "quick", folder, folder))
    for claim in found.expectations:
        if claim.quick:
            print(claim.check(figures))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except TestbedBusy as error:
        sys.exit(str(error))
