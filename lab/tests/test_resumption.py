"""Resumption of an interrupted run with the same identity."""

import os
import tempfile
import unittest
from pathlib import Path

from lab import experiment, resumption
from lab.bench import Bench
from lab.paths import MissingRequirement
from lab.results import read_rows

TERMS = {"extent": "usual", "only": [], "commit": "abc", "versions": {"nginx": "1.30.6"}}


class ResumptionTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.place = Path(folder.name)

    def run_of(self, name: str, age: int, **changed: object) -> Path:
        folder = self.place / name
        folder.mkdir()
        resumption.begin(folder, TERMS | changed)
        os.utime(folder / resumption.MARKER, (2_000_000_000 - age, 2_000_000_000 - age))
        return folder

    def find(self) -> Path:
        return resumption.find(self.place.iterdir(), TERMS)

    def test_newest_run_that_was_cut_off_goes_on(self) -> None:
        self.run_of("first", age=2)
        second = self.run_of("second", age=1)
        resumption.end(self.run_of("whole", age=0))
        self.assertEqual(self.find(), second)

    def test_nothing_to_resume_is_a_sentence(self) -> None:
        with self.assertRaisesRegex(MissingRequirement, "no interrupted run to resume"):
            self.find()

    def test_another_commit_or_version_is_another_run(self) -> None:
        self.run_of("before", age=1, commit="def")
        with self.assertRaisesRegex(MissingRequirement, "before was a run with commit 'def', not 'abc'"):
            self.find()

    def test_line_that_was_cut_off_is_written_again(self) -> None:
        path = self.place / "raw.csv"
        bench = Bench(experiment.find("proxy-cost"), "quick", self.place, self.place)
        bench.record({"sample": 1, "ms": 2.5})
        with path.open("a") as out:
            out.write("2,")
        resumption.drop_partial_line(path)
        bench.record({"sample": 2, "ms": 3.5})
        self.assertEqual(read_rows(path), [{"sample": 1, "ms": 2.5}, {"sample": 2, "ms": 3.5}])
