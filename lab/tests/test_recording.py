"""Results of a run: shares by send time, the first request of a new replica, one row for each second."""

import unittest

from lab.article.answers import Answer
from lab.testbed.recording import Recording, Sample, seconds, summary, version_share, window_shares
from lab.timeline import moving_average


def make_recording(newcomer_from: float, every: int = 2) -> Recording:
    """Returns ten seconds of one replica and fifteen of two, with a request every 10 ms that takes a second."""
    answers = [
        Answer(
            sent=100 + number / 100,
            seconds=1.0,
            replica="app-2" if number / 100 >= newcomer_from and number % every == 0 else "app-1",
            failure=None,
        )
        for number in range(2500)
    ]
    return Recording(
        ("app-1", "app-2"),
        began=100.0,
        ended=125.0,
        started=109.0,
        published=110.0,
        answers=answers,
        users=[100.0, 100.5, 101.5],
        arrivals={"app-1": [], "app-2": [answer.sent + 0.002 for answer in answers if answer.replica == "app-2"]},
        samples=[Sample(100.0 + n, {"app-1": 0.1 * n}, {"app-1": 3}) for n in range(26)],
    )


class SummaryTest(unittest.TestCase):
    def test_share_counts_by_when_requests_were_sent(self) -> None:
        row = summary(make_recording(newcomer_from=10.0))
        self.assertEqual((row["share"], row["share_lowest"], row["failures"]), (0.5, 0.5, 0))
        self.assertEqual((row["first_request_ms"], row["first_arrival_ms"]), (0.0, 2.0))

    def test_delay_is_to_the_last_request_that_went_elsewhere(self) -> None:
        row = summary(make_recording(newcomer_from=10.3))
        self.assertEqual((row["first_request_ms"], row["first_request_delay_ms"]), (300.0, 290.0))

    def test_pause_of_the_clients_is_no_delay(self) -> None:
        recording = make_recording(newcomer_from=10.0)
        self.assertEqual(summary(recording)["first_request_delay_ms"], 0.0)
        early = Answer(sent=109.999, seconds=1.0, replica="app-1", failure=None)
        later = [answer for answer in recording.answers if not 109.5 <= answer.sent < 112.0]
        recording.answers = [*later, early, Answer(sent=110.005, seconds=1.0, replica="app-1", failure=None)]
        row = summary(recording)
        self.assertEqual((row["first_request_ms"], row["first_request_delay_ms"]), (2000.0, 5.0))

    def test_replica_that_gets_nothing_has_no_first_request(self) -> None:
        row = summary(make_recording(newcomer_from=99.0))
        self.assertEqual((row["share"], row["first_request_ms"], row["newcomer_requests"]), (0.0, None, 0))

    def test_window_that_is_cut_short_is_left_out(self) -> None:
        self.assertEqual(len(window_shares(make_recording(10.0).answers, "app-2", 105.0, 124.0)), 1)


class RequestsTest(unittest.TestCase):
    def test_versions_count_where_clients_know_them(self) -> None:
        answers = [Answer(0, 1, "a", None, version) for version in ("2", "3", "3", "3", None)]
        self.assertEqual(version_share(answers, "3"), 0.75)
        self.assertEqual(version_share([Answer(0, 1, "a", None)], "3"), 0.0)

    def test_cpu_is_of_the_old_replica_and_of_the_balancer_by_their_own_requests(self) -> None:
        recording = make_recording(newcomer_from=10.0)
        recording.samples = [
            Sample(100.0, {"app-1": 1.0}, {}, 2.0),
            Sample(110.0, {"app-1": 3.0, "app-2": 9.0}, {}, 2.9),
        ]
        row = summary(recording)
        # 900 answers of the old replica arrived within that time.
        self.assertEqual((row["replica_cpu_ms"], row["balancer_cpu_ms"]), (2.222, 1.0))


class SecondsTest(unittest.TestCase):
    def test_row_has_users_answers_and_cpu_of_its_second(self) -> None:
        rows = seconds(make_recording(newcomer_from=10.0))
        self.assertEqual(len(rows), 25)
        self.assertEqual((rows[0]["users"], rows[1]["users"], rows[0]["answers"]), (2, 3, 0))
        self.assertEqual((rows[5]["answers"], rows[5]["sent.app-1"], rows[5]["cpu.app-1"]), (100, 100, 0.1))

    def test_moving_average_skips_missing_values(self) -> None:
        self.assertEqual(moving_average([1.0, float("nan"), 3.0]), [1.0, 2.0, 3.0])
