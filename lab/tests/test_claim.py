"""Bounds of claims, and missing figures."""

import unittest

from lab.claim import Expectation
from lab.figure import Figure


def figures(value: float) -> dict[str, Figure]:
    return {"cost": Figure.of([value], "ratio")}


class ClaimTest(unittest.TestCase):
    def test_bound_itself_still_holds(self) -> None:
        claim = Expectation("a", "a", "cost", at_most=0.8)
        self.assertTrue(claim.check(figures(0.8)).holds)
        self.assertFalse(claim.check(figures(0.81)).holds)

    def test_lower_bound(self) -> None:
        claim = Expectation("a", "a", "cost", at_least=1.0)
        self.assertTrue(claim.check(figures(1.0)).holds)
        self.assertEqual(claim.check(figures(0.9)).to_json()["bound"], ">= 1")

    def test_figure_that_was_not_measured_refutes(self) -> None:
        claim = Expectation("a", "a", "other", at_most=1).check(figures(0.5))
        self.assertEqual((claim.holds, claim.value), (False, None))

    def test_claim_without_a_bound_is_no_claim(self) -> None:
        with self.assertRaises(ValueError):
            Expectation("a", "a", "cost")
