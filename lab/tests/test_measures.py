"""What experiments make of their rows: each claim has its figure, and failures are not hidden by a median."""

import unittest
from pathlib import Path

from lab import experiment
from lab.bench import Bench, Row
from lab.load import LoadReport, Service


def bench(name: str) -> Bench:
    """One that records nothing on disk."""
    return Bench(experiment.find(name), "quick", Path(), Path())


def report(requests: int = 1000, errors: int = 0) -> LoadReport:
    first_error = "status 500" if errors else None
    return LoadReport(requests, errors, first_error, 2.0, 100.0, 900.0, 1000.0, [requests], 10_000_000, 0)


class ProxyCostTest(unittest.TestCase):
    def setUp(self) -> None:
        self.bench = bench("proxy-cost")
        self.module = self.bench.experiment.module()

    def rows(self) -> list[Row]:
        cases = self.bench.settings["cases"]
        costs = [self.module._cpu_row(0, case, name, report()) for case in cases for name in case["arms"]]
        idle = {"round": 0, "case": "idle", "cost": 1000.0, "unit": "bytes per idle connection", "errors": 0}
        return costs + [{**idle, "arm": name} for name in self.bench.settings["idle"]["arms"]]

    def test_each_claim_has_its_figure(self) -> None:
        self.bench.rows = self.rows()
        figures = self.module._figures(self.bench)
        for claim in self.bench.experiment.expectations:
            self.assertIn(claim.figure, figures, claim.id)

    def test_open_loop_shows_its_latencies(self) -> None:
        self.bench.rows = self.rows()
        self.assertEqual(self.module._figures(self.bench)["get-10k-per-second: p99.sheave"].value, 900.0)

    def test_arms_and_cases_may_have_fewer_rounds(self) -> None:
        cases = {case["id"]: case for case in self.bench.settings["cases"]}
        rounds = self.module._rounds
        self.assertEqual(rounds(self.bench, cases["get-64"], "sheave"), self.bench.settings["rounds"])
        self.assertLess(rounds(self.bench, cases["get-64"], "envoy"), self.bench.settings["rounds"])
        self.assertLess(rounds(self.bench, cases["get-64-close"], "sheave"), self.bench.settings["rounds"])


class BadEndpointsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.bench = bench("bad-endpoints")
        self.module = self.bench.experiment.module()

    def figures(self, errors_of_ours: list[int]):
        for number, errors in enumerate(errors_of_ours):
            for scenario in self.bench.settings["scenarios"]:
                for arm in self.bench.settings["arms"]:
                    ended = report(1000 - errors, errors) if arm == "sheave" else report()
                    self.bench.rows += self.module._rows(number, scenario["id"], arm, ended)
        return self.module._figures(self.bench)

    def test_each_claim_has_its_figure(self) -> None:
        figures = self.figures([0])
        for claim in self.bench.experiment.expectations:
            self.assertIn(claim.figure, figures, claim.id)

    def test_failures_of_one_round_in_three_are_seen(self) -> None:
        figures = self.figures([0, 30, 0])
        self.assertAlmostEqual(figures["errors: failed"].value, 1.0)
        self.assertAlmostEqual(figures["errors: failed.haproxy"].value, 0.0)


class ServiceTest(unittest.TestCase):
    def test_defects_become_words_of_the_command_line(self) -> None:
        service = Service(delay_us=5, exponential=True, at_once=4, seed=7, defects={0: "slow:10", 2: "errors"})
        words = " ".join(map(str, service.arguments()))
        self.assertIn("--delay-us 5 --seed 7 --exponential --at-once 4", words)
        self.assertIn("--defect 0=slow:10 --defect 2=errors", words)
