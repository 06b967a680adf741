"""Measurements inside user-mode Linux: `python -m lab.article003.in_uml JOB`, as the only program of its kernel."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lab import experiment
from lab.article003.whole_kernel import WholeKernel
from lab.bench import Bench


def main(job_file: Path) -> None:
    job = json.loads(job_file.read_text())
    found, case, folder = experiment.find("article-003"), job["case"], Path(job["folder"])
    # One CPU: a client that spins would keep the server from it.
    found.settings.update(case["settings"], spin=False, whole_machine=True)
    bench = Bench(found, job["extent"], folder, folder)
    cases = [{**each, "arms": case["arms"]} for each in found.settings["cases"] if each["id"] in case["cases"]]
    found.module().measure(bench, WholeKernel(), cases, prefix="uml ")
    (folder / "done").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
