"""What counts as the cost of a request where measurements differ."""

import unittest
from unittest import mock

from lab import cost_check

CASE = {"instructions": 1000}


def least_of(*measured: int) -> tuple[int, int]:
    """Which figure counts, and how many measurements that took."""
    with mock.patch.object(cost_check, "measure", side_effect=measured) as measure:
        return cost_check.least("get", CASE, 0.03), measure.call_count


class LeastTest(unittest.TestCase):
    def test_what_is_within_the_tolerance_is_measured_once(self) -> None:
        self.assertEqual(least_of(1030, 900), (1030, 1))

    def test_what_seems_too_much_is_measured_again(self) -> None:
        self.assertEqual(least_of(1100, 1010), (1010, 2))

    def test_what_is_too_much_stays_so(self) -> None:
        self.assertEqual(least_of(1100, 1090, 1095), (1090, 3))


if __name__ == "__main__":
    unittest.main()
