"""Statistics of gRPC calls: shares, windows, and the search for the largest burst."""

import math
import random
import tempfile
import unittest
from pathlib import Path
from typing import Any

from lab import experiment
from lab.article002 import calls, rows
from lab.article002.calls import Call
from lab.article002.figures import figures
from lab.bench import Row

SEARCH: dict[str, Any] = {"lowest": 50, "highest": 20_000, "factor": 1.08, "steps": 16}


def call(sent: float, replica: str = "app-1", code: str = "OK", seconds: float = 0.1) -> Call:
    return Call(sent, seconds, replica if code == "OK" else "", code)


class CallsTest(unittest.TestCase):
    def test_lines_of_the_client_are_read(self) -> None:
        lines = ["12.500000,0.100800,app-2,OK\n", "12.600000,0.300000,,DeadlineExceeded\n"]
        self.assertEqual(
            calls.read(lines), [Call(12.5, 0.1008, "app-2", "OK"), Call(12.6, 0.3, "", "DeadlineExceeded")]
        )

    def test_server_without_a_call_counts_in_the_spread(self) -> None:
        pinned = [call(at) for at in range(9)]
        counts = calls.by_replica(pinned, rows.REPLICAS)
        self.assertEqual(counts, {"app-1": 9, "app-2": 0, "app-3": 0})
        self.assertEqual(calls.spread(counts.values()), 3.0)
        self.assertEqual(calls.spread([0, 0]), math.inf)

    def test_servers_that_take_turns_are_busy_one_at_a_time(self) -> None:
        turns = [call(at / 10, rows.REPLICAS[at // 10 % 3]) for at in range(60)]
        self.assertEqual(calls.busiest(turns), 1.0)
        together = [call(at / 10, rows.REPLICAS[at % 3]) for at in range(60)]
        self.assertLess(calls.busiest(together), 0.45)

    def test_newcomer_has_its_first_call_and_its_share_of_each_window(self) -> None:
        balanced = [call(at / 10, rows.REPLICAS[at % 3]) for at in range(300)]
        new_server_result = calls.new_server_result(balanced, "app-3", published=9.95)
        self.assertAlmostEqual(new_server_result.first_call_ms, 150)
        self.assertAlmostEqual(new_server_result.lowest_share or 0, 1 / 3, delta=0.02)
        self.assertEqual(calls.new_server_result(balanced, "app-4", published=9.95).first_call_ms, math.inf)

    def test_run_too_short_for_a_window_has_no_share(self) -> None:
        self.assertIsNone(
            calls.new_server_result([call(at / 10) for at in range(80)], "app-1", published=1).lowest_share
        )

    def test_search_finds_the_largest_clean_burst(self) -> None:
        for limit in (50, 99, 777, 4321, 20_000):
            with self.subTest(limit):
                found = calls.largest_clean(limit.__ge__, **SEARCH)
                self.assertTrue(limit / 1.06 <= found <= limit * 1.06, found)
        self.assertEqual(calls.largest_clean(lambda _: False, **SEARCH), 0)

    def test_search_is_not_led_astray_by_a_limit_that_is_not_sharp(self) -> None:
        for seed in range(50):
            chance = random.Random(seed)
            found = calls.largest_clean(lambda size: size < 4000 * chance.lognormvariate(0, 0.1), **SEARCH)
            self.assertTrue(4000 / 1.15 <= found <= 4000 * 1.15, found)


class FiguresTest(unittest.TestCase):
    def setUp(self) -> None:
        self.found = experiment.find("article-002")

    def rows(self) -> list[Row]:
        balanced = [call(at / 10, rows.REPLICAS[at % 3]) for at in range(200)]
        numbers = {"largest": 1000, "busiest": 0.9, "first_call_ms": 10.0, "share_lowest": 0.33, "share_highest": 0.34}
        cpu = {"cpu_seconds": 0.1}
        return [
            rows.EMPTY
            | {"variant": variant["id"], "kind": variant["kind"], "repetition": 1, "calls_at_once": 200}
            | rows.summary(balanced)
            | (
                numbers
                if variant["kind"] in ("newcomer", "scaled", "adopted") or name == "largest"
                else {"busiest": 0.9} | cpu
            )
            for variant in (*self.found.settings["variants"], *self.found.settings["cluster"]["variants"])
            for name in (("size", "largest") if variant["kind"] == "bursts" else ("all",))
        ]

    def test_each_claim_has_its_figure(self) -> None:
        known = figures(self.rows())
        for claim in self.found.expectations:
            self.assertIn(claim.figure, known, claim.id)

    def test_cpu_is_of_a_call_and_compared_within_a_repetition(self) -> None:
        seconds = {("sheave", 1): 0.2, ("xds", 1): 0.1, ("sheave", 2): 0.8, ("xds", 2): 0.4}
        template = next(row for row in self.rows() if row["variant"] == "xds")
        measured = [
            template | {"variant": variant, "repetition": repetition, "cpu_seconds": cpu}
            for (variant, repetition), cpu in seconds.items()
        ]
        known = figures(measured)
        self.assertEqual(known["xds.cpu"].value, 1250)
        self.assertEqual(known["xds.cpu / sheave.cpu"].high, 0.5)
        self.assertNotIn("sheave.cpu / sheave.cpu", known)

    def test_files_with_and_without_cpu_time_are_known(self) -> None:
        columns = ",".join(rows.EMPTY)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "raw.csv"
            for header, known in (
                (columns, True),
                (columns.removesuffix(",cpu_seconds"), True),
                (f"{columns},more", False),
                (columns.removeprefix("variant,"), False),
            ):
                path.write_text(f"{header}\n")
                self.assertEqual(rows.has_format(path), known, header)

    def test_server_that_got_no_call_refutes_the_claim(self) -> None:
        pinned = [row | {"first_call_ms": math.inf} for row in self.rows()]
        known = figures(pinned)
        claim = next(claim for claim in self.found.expectations if claim.id == "first-call")
        self.assertFalse(claim.check(known).holds)
