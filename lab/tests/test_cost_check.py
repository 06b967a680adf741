"""Repeated measurements of the cost of a request."""

import unittest
from unittest import mock

from lab import cost_check

CASE = {"instructions": 1000}


def least_of(*measured: int) -> tuple[int, int]:
    """Returns the resulting figure and the number of measurements."""
    with mock.patch.object(cost_check, "measure", side_effect=measured) as measure:
        return cost_check.least("get", CASE, 0.03), measure.call_count


class LeastTest(unittest.TestCase):
    def test_result_within_the_tolerance_is_measured_once(self) -> None:
        self.assertEqual(least_of(1030, 900), (1030, 1))

    def test_result_above_the_tolerance_is_measured_again(self) -> None:
        self.assertEqual(least_of(1100, 1010), (1010, 2))

    def test_permanently_high_result_remains(self) -> None:
        self.assertEqual(least_of(1100, 1090, 1095), (1090, 3))


if __name__ == "__main__":
    unittest.main()
