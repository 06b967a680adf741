"""Measures the long-distance link like `make lab EXP=long-line ARGS=--quick`, without the pictures. Root only.

It is a separate process, because it moves into a network namespace.
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
