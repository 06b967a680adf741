"""Figures of experiments: each claim has its figure, and medians do not hide failures."""

import unittest
from dataclasses import replace
from pathlib import Path

from lab import experiment
from lab.bad_endpoints import rows, scenario
from lab.bad_endpoints.figures import figures
from lab.bench import Bench, Row
from lab.figure import Figure
from lab.load import EndpointBehaviour, LoadReport
from lab.trace import Trace, TracedRequest


def bench(name: str) -> Bench:
    """Returns a bench that writes nothing to disk."""
    return Bench(experiment.find(name), "quick", Path(), Path())


def report(requests: int = 1000, errors: int = 0) -> LoadReport:
    first_error = "status 500" if errors else None
    return LoadReport(requests, errors, first_error, 2.0, 50.0, 100.0, 900.0, 1000.0, [requests], 10_000_000, 0)


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


def traced(*requests: tuple[int, int, str], served: tuple[tuple[int, ...], ...] = (), unanswered: int = 0) -> Trace:
    """Returns a trace of requests, each with start and duration in ms and its outcome."""
    samples = served or ((0, 0, 0), *((10 * sample,) * 3 for sample in range(1, 11)))
    made = tuple(TracedRequest(1000 * began, 1000 * took, outcome) for began, took, outcome in requests)
    return Trace(made, samples, 100, (unanswered, 0, 0), 2.0, 10_000_000, 0)


GOOD = traced((-20, 10, "200"), (-5, 10, "200"), (5, 10, "200"), (1005, 10, "200"))
BAD = traced(
    (-20, 10, "200"),
    (-5, 6000, "no answer by the end"),
    (5, 1, "status 500"),
    (6, 1, "status 500"),
    (1005, 200, "200"),
)


class BadEndpointsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.bench = Bench(experiment.find("bad-endpoints"), "usual", Path(), Path())
        self.scenarios = scenario.read(self.bench)

    def figures(self, errors_of_ours: list[int], trace_of_ours: Trace = GOOD) -> dict[str, Figure]:
        for number, errors in enumerate(errors_of_ours):
            for each in self.scenarios:
                for arm in each.arms:
                    ended = report(1000 - errors, errors) if arm == "sheave" else report()
                    trace = trace_of_ours if arm == "sheave-defaults" else GOOD
                    if each.load == "open":
                        self.bench.rows += rows.report_rows(number, each, arm, ended)
                    else:
                        self.bench.rows += rows.trace_rows(number, each, arm, trace)
        return figures(self.bench, self.scenarios)

    def test_scenarios_name_arms_measures_and_endpoints_that_exist(self) -> None:
        for each in self.scenarios:
            with self.subTest(each.id):
                self.assertLessEqual(set(each.arms), self.bench.settings["arms"].keys())
                self.assertLessEqual(set(each.measures), rows.MEASURES.keys())
                self.assertEqual(bool(each.measures), each.load == "closed")
                endpoints = scenario.load_settings(self.bench, each)["endpoints"]
                self.assertLess(max([*map(int, each.defects), *each.unreachable], default=0), endpoints)

    def test_scenario_has_its_own_numbers_and_a_quick_run_its_own(self) -> None:
        quick = Bench(self.bench.experiment, "quick", Path(), Path())
        everything = {each.id: each for each in self.scenarios}
        self.assertEqual(scenario.load_settings(quick, everything["all"])["rate"], 800.0)
        self.assertLess(scenario.load_settings(quick, everything["all"])["seconds"], 5.0)
        self.assertLess(len(scenario.read(quick)), len(everything))

    def test_claims_about_defaults_hold_or_fall_short(self) -> None:
        claims = [claim for claim in self.bench.experiment.expectations if "sheave-defaults" in claim.figure]
        known = self.figures([0])
        self.assertTrue(all(claim.check(known).holds for claim in claims))
        self.bench.rows = []
        one_sided = ((0, 0, 0), *((0, 10 * sample, 10 * sample) for sample in range(1, 11)))
        known = self.figures([0], replace(BAD, served=one_sided))
        self.assertEqual([claim.id for claim in claims if claim.check(known).holds], [])

    def test_post_that_a_dead_endpoint_had_received_may_fail(self) -> None:
        received = traced((-20, 10, "200"), (-5, 10, "status 502"), (5, 10, "200"), unanswered=2)
        known = self.figures([0], received)
        self.assertEqual(known["dead-1-of-3-post: failed.sheave-defaults"].value, 1)
        self.assertEqual(known["dead-1-of-3-post: failed-later.sheave-defaults"].value, 0)
        self.assertEqual(known["dead-1-of-3-post: failed-beyond-received.sheave-defaults"].value, -1)

    def test_rows_of_both_kinds_of_load_have_the_same_columns(self) -> None:
        self.figures([0], BAD)
        self.assertEqual({tuple(row) for row in self.bench.rows}, {tuple(rows.EMPTY)})
        row = next(row for row in self.bench.rows if row["case"] == "errors-1-of-3: errors" and row["errors"])
        self.assertEqual((row["cost"], row["in_flight"], row["in_flight_failed"]), (50.0, 1, 1))
        self.assertEqual(row["outcomes"], "status 500: 2, no answer by the end: 1, 200: 1")

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
        service = EndpointBehaviour(
            delay_us=5, exponential=True, at_once=4, seed=7, defects={0: "slow:10", 2: "errors"}
        )
        arguments = " ".join(map(str, service.arguments()))
        self.assertIn("--delay-us 5 --seed 7 --exponential --at-once 4", arguments)
        self.assertIn("--defect 0=slow:10 --defect 2=errors", arguments)
