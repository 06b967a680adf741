"""Committed runs: which are kept, their pictures, and `lab plot`, which draws them."""

import re
import subprocess
import unittest
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from lab import experiment, plot
from lab.experiment import Experiment
from lab.paths import REPOSITORY

# Targets of links and images in Markdown, inline and by reference.
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
RAW_DATA = {"raw.csv", "environment.txt", "summary.md"}
DATE = len("2026-11-20")


@cache
def committed() -> tuple[Path, ...]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return tuple(REPOSITORY / name for name in done.stdout.split("\0")[:-1])


def run_folder(path: Path) -> Path | None:
    """Returns the folder of the run that the path belongs to, `experiments/NAME/runs/RUN`."""
    if not path.is_relative_to(experiment.EXPERIMENTS):
        return None
    parts = path.relative_to(experiment.EXPERIMENTS).parts
    return experiment.EXPERIMENTS.joinpath(*parts[:3]) if len(parts) > 2 and parts[1] == "runs" else None


def run_files() -> list[Path]:
    return [path for path in committed() if run_folder(path)]


def linked() -> dict[Path, list[str]]:
    """Returns the files and folders of runs to which pages link, with the pages."""
    found: dict[Path, list[str]] = {}
    for page in committed():
        if page.suffix != ".md" or run_folder(page) or not page.is_file():
            continue
        for match in LINK.finditer(page.read_text()):
            target = (page.parent / (match[1] or match[2]).partition("#")[0]).resolve()
            if run_folder(target):
                found.setdefault(target, []).append(str(page.relative_to(REPOSITORY)))
    return found


def claims(found: Experiment, summary: str) -> set[str]:
    """Returns the claims that a run has measured. A comparison of two builds measures none."""
    lines = summary.splitlines()
    table = lines[next(at for at, line in enumerate(lines) if line.startswith("| claim |")) :]
    if len(table) < 3 or not table[2]:
        return set()
    figures = {line.split(" | ")[0].removeprefix("| ") for line in table if line.startswith("| ")}
    return {claim.id for claim in found.expectations if claim.figure in figures}


def newest(folders: Iterable[Path]) -> set[Path]:
    """Returns the runs that are the newest of a claim. Names tell the day, so that there may be several."""
    kept: set[Path] = set()
    for name in experiment.names():
        found = experiment.find(name)
        own = [folder for folder in folders if folder.parent.parent == found.folder]
        runs = {folder: claims(found, (folder / "summary.md").read_text()) for folder in own}
        for claim in found.expectations:
            measured = [folder for folder, ids in runs.items() if claim.id in ids]
            last = max((folder.name[:DATE] for folder in measured), default="")
            kept |= {folder for folder in measured if folder.name.startswith(last)}
    return kept


@unittest.skipUnless((REPOSITORY / ".git").exists(), "not a checkout")
class CommittedRunsTest(unittest.TestCase):
    def test_raw_data_are_complete(self) -> None:
        files: dict[Path, set[str]] = {}
        for path in run_files():
            files.setdefault(run_folder(path) or path, set()).add(path.name)
        self.assertEqual({}, {folder: names for folder, names in files.items() if not names >= RAW_DATA})

    def test_each_run_is_the_newest_of_a_claim_or_cited_by_a_page(self) -> None:
        folders = {folder for path in run_files() if (folder := run_folder(path))}
        cited = {run_folder(path) for path in linked()}
        superseded = sorted(map(str, folders - cited - newest(folders)))
        self.assertEqual([], superseded, "delete these runs: newer ones have the same claims, and no page cites them")

    def test_each_picture_is_shown_by_a_page(self) -> None:
        pictures = {path for path in run_files() if path.suffix in (".svg", ".png")}
        unseen = sorted(map(str, pictures - linked().keys()))
        self.assertEqual([], unseen, "delete these pictures: no page shows them, and `lab plot` draws them")

    def test_each_link_into_a_run_leads_to_a_committed_file(self) -> None:
        files = {*run_files(), *map(run_folder, run_files())}
        self.assertEqual({}, {str(path): pages for path, pages in linked().items() if path not in files})

    def test_comparison_of_builds_measures_no_claim(self) -> None:
        found = experiment.find("proxy-cost")
        head = ["# proxy-cost: costs", "", "| claim | value | bound | holds |", "| --- | --- | --- | --- |"]
        figures = ["", "| figure | median |", "| --- | --- |", "| get-64 | 0.7 |", "| get-64.sheave | 18 |"]
        self.assertEqual(claims(found, "\n".join([*head, *figures])), set())
        self.assertEqual(claims(found, "\n".join([*head, "| GET | 0.7 | <= 0.8 | yes |", *figures])), {"get-64"})


class PlotTest(unittest.TestCase):
    def test_plot_takes_all_experiments_one_or_one_run(self) -> None:
        folders = [folder for _, folder in plot.runs(None)]
        self.assertEqual(len(folders), len(set(folders)))
        of_one = list(plot.runs("article-000"))
        self.assertLess(len(of_one), len(folders))
        found, folder = of_one[0]
        self.assertEqual((found.name, folder.parent), ("article-000", found.folder / "runs"))
        self.assertEqual([(run.name, path) for run, path in plot.runs(f"{folder}/")], [("article-000", folder)])

    def test_plot_refuses_a_folder_that_is_not_a_run(self) -> None:
        with self.assertRaisesRegex(experiment.UnknownName, "runs is not a run folder: it has no raw.csv"):
            list(plot.runs(str(experiment.EXPERIMENTS / "article-000" / "runs")))
        with self.assertRaisesRegex(experiment.UnknownName, "there is no experiment 'nonsense'"):
            list(plot.runs("nonsense"))
