"""Medians, quartiles and paired ratios."""

import unittest

from lab.figure import Figure, paired_ratio


class FigureTest(unittest.TestCase):
    def test_median_and_quartiles_of_samples(self) -> None:
        figure = Figure.of([5.0, 1.0, 3.0, 2.0, 4.0], "s")
        self.assertEqual((figure.low, figure.value, figure.high, figure.count), (2.0, 3.0, 4.0, 5))

    def test_one_sample_is_its_own_spread(self) -> None:
        figure = Figure.of([7.0], "s")
        self.assertEqual((figure.low, figure.value, figure.high), (7.0, 7.0, 7.0))

    def test_disturbance_of_a_round_cancels_out(self) -> None:
        theirs = {0: 10.0, 1: 30.0, 2: 20.0}
        ours = {number: cost * 0.7 for number, cost in theirs.items()}
        self.assertAlmostEqual(paired_ratio(ours, theirs).high, 0.7)

    def test_rounds_that_one_side_lacks_are_left_out(self) -> None:
        self.assertEqual(paired_ratio({0: 1.0, 1: 9.0}, {0: 2.0}).count, 1)
