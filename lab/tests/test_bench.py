"""Files of a run, also of an interrupted one."""

import contextlib
import csv
import io
import json
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from lab import results
from lab.bench import Bench
from lab.claim import Expectation
from lab.experiment import Experiment
from lab.figure import Figure
from lab.run import _run_and_report_interruption


class BenchTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        found = Experiment("test", self.folder, {"title": "A test", "rounds": 13, "quick_rounds": 3}, ())
        self.bench = Bench(found, "quick", self.folder, self.folder)

    def test_interrupted_run_keeps_its_rows(self) -> None:
        def run(bench: Bench) -> dict[str, Figure]:
            bench.record({"round": 0, "cost": 1.5})
            bench.record({"round": 1, "cost": 2.5})
            raise KeyboardInterrupt

        output = io.StringIO()
        with self.assertRaises(KeyboardInterrupt), contextlib.redirect_stderr(output):
            _run_and_report_interruption(run, self.bench)
        self.assertIn("the 2 measurements so far are in", output.getvalue())
        with (self.folder / "raw.csv").open() as lines:
            self.assertEqual([row["cost"] for row in csv.DictReader(lines)], ["1.5", "2.5"])

    def test_quick_run_takes_the_quick_setting(self) -> None:
        self.assertEqual(self.bench.setting("rounds"), 3)

    def test_setting_without_a_quick_one_is_the_usual_one(self) -> None:
        found = Experiment("test", self.folder, {"title": "A test", "users": 300}, ())
        self.assertEqual(Bench(found, "quick", self.folder, self.folder).setting("users"), 300)

    def test_rows_are_read_as_they_were_recorded(self) -> None:
        row = {"variant": "sheave", "repetition": 1, "share": 0.5, "withdrawn_second": None}
        self.bench.record(row)
        self.assertEqual(results.read_rows(self.folder / "raw.csv"), [row])

    def test_json_holds_claims_environment_and_rows(self) -> None:
        self.bench.record({"round": 0, "cost": 1.5})
        figures = {"cost": Figure.of([1.5], "ratio")}
        claims = [Expectation("cheap", "It is cheap", "cost", at_most=1.0).check(figures)]
        results.write_json(self.folder / "out.json", self.bench, {"cpu": "some"}, figures, claims)
        document = SimpleNamespace(**json.loads((self.folder / "out.json").read_text()))
        claim = {"id": "cheap", "text": "It is cheap", "value": 1.5, "bound": "<= 1", "holds": False}
        self.assertEqual(document.claims, [claim])
        self.assertEqual((document.environment, document.raw), ({"cpu": "some"}, [{"round": 0, "cost": 1.5}]))
