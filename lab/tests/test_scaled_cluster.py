"""Figures of article 001's scaled deployment in the test cluster."""

import unittest
from typing import Any

from lab import experiment
from lab.article001 import answers, figures, variants
from lab.article001.rows import EMPTY
from lab.kubernetes import autoscaler, keda
from lab.kubernetes.deployment import APP


def answer(sent: float, seconds: float, status: int) -> dict[str, Any]:
    return {"sent": sent, "seconds": seconds, "status": status}


def row(variant: str, repetition: int, refused: int, pod_seconds: float) -> dict[str, Any]:
    counts = dict.fromkeys(("status_500", "status_502", "status_other", "broken", "failed"), 0)
    own = {"kind": "scaling", "variant": variant, "repetition": repetition, "clients": 40, "workers": 4}
    values = {"last_refusal_second": 20.0, "pods_steady": 10.0, "pods_most": 12, "p99_ms": 900.0, "node_seconds": 400.0}
    return EMPTY | own | counts | values | {"refused": refused, "pod_seconds": pod_seconds}


class AnswersTest(unittest.TestCase):
    def test_refusals_and_failures_are_counted_apart(self) -> None:
        given = [answer(100, 0.2, 200), answer(101, 0.4, 200), answer(102, 0.1, 429), answer(103, 1, 503)]
        found = answers.summarize([*given, answer(104, 1, 0)], 100, 10)
        self.assertEqual((found["requests"], found["rps"], found["mean_ms"]), (2, 0.2, 300.0))
        self.assertEqual((found["refused"], found["last_refusal_second"]), (1, 2.1))
        self.assertEqual((found["status_other"], found["broken"], found["failed"]), (1, 1, 2))


class FiguresTest(unittest.TestCase):
    def test_lower_ratio_is_that_of_the_worst_repetition(self) -> None:
        script = [row("cluster-refusals", 1, 100, 1000), row("cluster-refusals", 2, 100, 1000)]
        # Fewer refusals for more pods, then more of both.
        ours = [row("cluster-demand", 1, 50, 1200), row("cluster-demand", 2, 110, 1050)]
        found = figures.figures([*script, *ours])
        self.assertAlmostEqual(found["cluster-demand.lower ratio to cluster-refusals.worst"].value, 1.05)
        self.assertAlmostEqual(found["cluster-demand.refused / cluster-refusals.refused"].value, 0.8)
        self.assertEqual(found["cluster-demand.node_seconds"].value, 400.0)

    def test_run_without_the_script_has_no_comparison(self) -> None:
        found = figures.figures([row("cluster-demand", 1, 50, 1200)])
        self.assertFalse([name for name in found if "cluster-refusals" in name])


    def test_keda_is_compared_with_the_script(self) -> None:
        found = figures.figures([row("cluster-refusals", 1, 100, 1000), row("cluster-keda", 1, 50, 800)])
        self.assertAlmostEqual(found["cluster-keda.lower ratio to cluster-refusals.worst"].value, 0.5)
        self.assertEqual(found["cluster-keda.excess.worst"].value, 0.0)


class ObjectsTest(unittest.TestCase):
    def test_autoscaler_of_keda_has_the_bounds_of_the_others(self) -> None:
        spec = keda.scaled_object(1, 20, 60)["spec"]
        self.assertEqual((spec["minReplicaCount"], spec["maxReplicaCount"]), (1, 20))
        config = spec["advanced"]["horizontalPodAutoscalerConfig"]
        self.assertEqual(config["behavior"]["scaleDown"]["stabilizationWindowSeconds"], 60)
        (trigger,) = spec["triggers"]
        self.assertEqual((trigger["type"], trigger["metadata"]["service"]), ("external-push", APP))

    def test_demand_is_the_same_metric_of_the_object(self) -> None:
        external, of_object = autoscaler.by_demand(4)["external"], autoscaler.by_demand_on_object(4)["object"]
        self.assertEqual(external["metric"]["name"], of_object["metric"]["name"])
        self.assertEqual(external["target"], of_object["target"])
        self.assertEqual(of_object["describedObject"]["name"], APP)


class ExperimentTest(unittest.TestCase):
    def test_each_variant_has_a_scaler(self) -> None:
        settings = experiment.find("article-001").with_cluster().settings["variants"]
        found = variants.read(settings, tuple(one["id"] for one in settings))
        self.assertEqual({variant.scaler for variant in found}, {"cpu", "demand", "keda", "refusals"})
        self.assertEqual({variant.kind for variant in found}, {"scaling"})


if __name__ == "__main__":
    unittest.main()
