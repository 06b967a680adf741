"""Costs of a run as a table."""

import unittest

from lab import costs


def row(case: str, arm: str, cost: object) -> dict[str, object]:
    return {"case": case, "arm": arm, "cost": cost, "unit": "µs"}


class CostsTest(unittest.TestCase):
    def test_table_has_a_column_for_each_arm_of_several_cases(self) -> None:
        rows = [row("get", "theirs", 4.0), row("get", "ours", 1.0), row("get", "ours", "3.0"), row("post", "ours", 5.0)]
        rows += [row("get", "special", 7.0), row("put", "theirs", 6.0), row("cap", "ours-capped", 8.0)]
        self.assertEqual(
            costs.table(costs.read(rows)),
            [
                "| case | unit | ours | theirs |",
                "| --- | --- | --- | --- |",
                "| get | µs | 2 (1.5–2.5) | 4 (4–4) |",
                "| post | µs | 5 (5–5) |  |",
                "| put | µs |  | 6 (6–6) |",
            ],
        )
