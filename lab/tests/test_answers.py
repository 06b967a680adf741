"""Verdicts over answers: immediate use, fair share, failures."""

import unittest

from lab.article.answers import Answer, judge, summarize


def answers(count: int, *, newcomer_from: float, every: int = 2) -> list[Answer]:
    """Returns a request every 10 ms; after a time, every `every`th goes to the new replica."""
    return [
        Answer(
            sent=number / 100,
            seconds=1.0,
            replica="new" if number / 100 >= newcomer_from and number % every == 0 else "old",
            failure=None,
        )
        for number in range(count)
    ]


class VerdictTest(unittest.TestCase):
    def test_share_at_once_holds(self) -> None:
        verdict = judge(answers(2000, newcomer_from=5.0), "new", joined=5.0)
        self.assertTrue(verdict.holds)
        self.assertAlmostEqual(verdict.share, 0.5, places=2)

    def test_late_first_request_falls_short(self) -> None:
        verdict = judge(answers(2000, newcomer_from=5.2), "new", joined=5.0)
        self.assertAlmostEqual(verdict.first_request_seconds or 0, 0.2, places=2)
        self.assertFalse(verdict.holds)

    def test_less_than_a_fair_share_falls_short(self) -> None:
        self.assertFalse(judge(answers(2000, newcomer_from=5.0, every=3), "new", joined=5.0).holds)

    def test_replica_that_gets_nothing_falls_short(self) -> None:
        verdict = judge(answers(2000, newcomer_from=99.0), "new", joined=5.0)
        self.assertEqual((verdict.first_request_seconds, verdict.holds), (None, False))

    def test_one_failure_falls_short(self) -> None:
        failed = Answer(sent=6.0, seconds=0.0, replica=None, failure="502")
        verdict = judge([*answers(2000, newcomer_from=5.0), failed], "new", joined=5.0)
        self.assertEqual((verdict.failures, verdict.holds), (1, False))


class SecondTest(unittest.TestCase):
    def test_failures_have_no_latency_and_no_replica(self) -> None:
        second = summarize([Answer(0, 1.0, "a", None), Answer(0, 9.0, None, "502")])
        self.assertEqual((second.answers, second.failures, second.median_seconds), (2, 1, 1.0))
        self.assertEqual(second.by_replica, {"a": 1})
