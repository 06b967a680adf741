"""Parser and figures of the simulator's days."""

import unittest
from typing import Any

from lab import experiment
from lab.autoscale import days, pictures

TEXT = """minute,burst,needed,pods,ready,demand,arrived,refused,lost,wait_p99_ms
0,0.00,8.00,12.00,12.00,32.0,100,3,0,0.0

arrived,served,lost,refused,pod_hours
100,100,0,3,0.2
"""


def minute(burst: float = 0, pods: float = 10) -> dict[str, Any]:
    return {"burst": burst, "needed": 8, "pods": pods, "refused": 1}


def point(scaler: str, setting: str, pod_hours: float, refused: int) -> dict[str, Any]:
    counts = {"arrived": 100, "lost": 0, "needed_pod_hours": 10, "pod_hours": pod_hours, "refused": refused}
    return {"part": days.TRADE, "scaler": scaler, "setting": setting, **counts}


class ReadingTest(unittest.TestCase):
    def test_day_is_a_table_of_minutes_and_one_of_totals(self) -> None:
        self.assertTrue(days.is_complete(TEXT))
        minutes, day = days.read(TEXT)
        self.assertEqual((len(minutes), minutes[0]["pods"], day["refused"]), (1, 12.0, 3))

    def test_incomplete_day_or_message_is_rejected(self) -> None:
        for text in ("", "there is no ours\n", TEXT[:90], TEXT[:-1]):
            self.assertFalse(days.is_complete(text), text)


class SteadyTest(unittest.TestCase):
    def test_bursts_and_the_minutes_after_them_are_left_out(self) -> None:
        after = [minute(pods=90)] * days.SETTLING_MINUTES
        steady = days.steady([minute(), minute(burst=0.1, pods=50), *after, minute(pods=12)], target=0.8)
        self.assertEqual(steady, {"steady_minutes": 2, "steady_excess": 0.1, "steady_refused": 2})

    def test_permanent_burst_has_no_steady_minutes(self) -> None:
        self.assertIsNone(days.steady([minute(burst=1)], target=0.8)["steady_excess"])


class TradeTest(unittest.TestCase):
    def test_points_of_equal_cost_are_compared(self) -> None:
        ours = [point("demand", "a", 10, 100), point("demand", "b", 20, 1)]
        rows = [*ours, point("other", "a", 15, 20), point("other", "b", 10, 400), point("other", "c", 30, 1)]
        figures = days.figures(rows)
        # The middle between 100 and 1 on a logarithmic axis is 10; a cost above all of ours is omitted.
        self.assertAlmostEqual(figures["refused at the same cost, worst: demand / other"].value, 0.5)
        self.assertEqual(figures["refused at the same cost: demand / other"].count, 2)


class SignalsTest(unittest.TestCase):
    def row(self, setting: str, node_hours: float, refused: int) -> dict[str, Any]:
        counts = {"arrived": 200, "lost": 2, "needed_pod_hours": 40, "pod_hours": 60, "wait_p99_ms": 1500}
        more = {"part": days.SIGNALS, "setting": setting, "node_pods": 4, "node_hours": node_hours}
        return {"scaler": "x", **counts, **more, "refused": refused}

    def test_signals_of_a_world_are_compared_day_by_day(self) -> None:
        rows = [self.row("nodes.cpu", 20, 20), self.row("nodes.demand", 15, 5), self.row("calm.demand", 20, 0)]
        found = days.figures(rows)
        self.assertEqual(found["nodes.cpu.node_hours"].value, 2.0)
        self.assertEqual(found["nodes.cpu.refused"].value, 10.0)
        self.assertEqual(found["nodes.refused: demand / cpu"].value, 0.25)
        self.assertFalse([name for name in found if name.startswith("calm") and "/" in name])
        self.assertEqual(days.signal_points(rows)["nodes"]["demand"]["wait_p99"], 1.5)

    def test_time_without_load_has_no_steady_excess(self) -> None:
        idle = [{"burst": 0, "needed": 0, "pods": 1, "refused": 0}] * (2 * days.SETTLING_MINUTES)
        self.assertIsNone(days.steady(idle, target=0.8)["steady_excess"])


class ExperimentTest(unittest.TestCase):
    def test_ours_is_the_first_one(self) -> None:
        settings = experiment.find("autoscale-sim").settings
        self.assertEqual(settings["variants"][0]["id"], days.OURS)
        self.assertEqual(next(iter(settings["trade"])), days.OURS)

    def test_each_signal_of_a_world_is_described(self) -> None:
        settings = experiment.find("autoscale-signals").settings
        for world in settings["worlds"]:
            self.assertLessEqual(set(world["signals"]), settings["signals"].keys())
        self.assertLessEqual(settings["signals"].keys(), pictures.SIGNAL_COLOURS.keys())


if __name__ == "__main__":
    unittest.main()
