"""Costs of a run, as a table."""

import unittest

from lab import costs


def row(case: str, arm: str, cost: object) -> dict[str, object]:
    return {"case": case, "arm": arm, "cost": cost, "unit": "µs"}


class CostsTest(unittest.TestCase):
    def test_table_has_a_row_for_each_case_and_a_column_for_each_arm(self) -> None:
        rows = [row("get", "theirs", 4.0), row("get", "ours", 1.0), row("get", "ours", "3.0"), row("post", "ours", 5.0)]
        self.assertEqual(
            costs.table(costs.read(rows)),
            [
                "| case | unit | ours | theirs |",
                "| --- | --- | --- | --- |",
                "| get | µs | 2 (1.5–2.5) | 4 (4–4) |",
                "| post | µs | 5 (5–5) |  |",
            ],
        )
