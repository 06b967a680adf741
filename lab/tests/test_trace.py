"""Traces: parser of a report's columns, and requests by their relation to the onset."""

import unittest

from lab.trace import Trace, TracedRequest, failed, longest_ms, outcomes


class TraceTest(unittest.TestCase):
    def test_report_of_columns_becomes_requests(self) -> None:
        trace = Trace.of(
            {
                "began_us": [-50, -5, 7],
                "took_us": [10, 10, 3],
                "outcome": [0, 1, 0],
                "outcomes": ["200", "status 502"],
                "served": [[0, 0], [4, 6]],
                "sample_ms": 100,
                "unanswered": [1, 0],
                "seconds": 1.0,
                "cpu_ns": 0,
                "wait_ns": 0,
            }
        )
        before, in_flight, after = (-50, 10, "200"), (-5, 10, "status 502"), (7, 3, "200")
        self.assertEqual(trace.before(), [before])
        self.assertEqual(trace.in_flight(), [in_flight])
        self.assertEqual(trace.after(), [in_flight, after])
        self.assertEqual(trace.begun_after(0), [after])
        self.assertEqual(trace.served_in_last(0.1), [4, 6])

    def test_outcomes_are_counted_the_most_frequent_first(self) -> None:
        requests = [TracedRequest(0, 5000, outcome) for outcome in ("status 502", "200", "200")]
        self.assertEqual(outcomes(requests), "200: 2, status 502: 1")
        self.assertEqual((failed(requests), longest_ms(requests), longest_ms([])), (1, 5.0, 0))
