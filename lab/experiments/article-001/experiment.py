"""Runs the four kinds of variants of experiment.toml, one kind after the other; in the test cluster, the scaled ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab.article001 import ab, errors, in_cluster, learning, scaling, throughput, uwsgi, variants
from lab.article001.entries import SERVICES
from lab.article001.figures import figures
from lab.article001.variants import Kind, Variant
from lab.article001.work import ServiceTimes
from lab.bench import Bench, Progress
from lab.figure import Figure
from lab.kubernetes import session
from lab.testbed import cluster, other_work
from lab.testbed.cluster import Node

obstacle = cluster.obstacle

cluster_obstacle = session.obstacle


def prepare() -> dict[str, str]:
    return {"uwsgi": uwsgi.prepare(), "ab": ab.prepare()}


def run(bench: Bench) -> dict[str, Figure]:
    everything = bench.settings["variants"]
    wanted = bench.only or tuple(
        bench.settings.get(f"{bench.extent}_variants") or [variant["id"] for variant in everything]
    )
    chosen = variants.read(everything, wanted)
    selected = [
        (bench.setting(kind), of_kind, runner)
        for kind, runner in RUNNERS.items()
        if (of_kind := [variant for variant in chosen if variant.kind == kind])
    ]
    if bench.experiment.in_cluster:
        settings = in_cluster.ClusterScalingSettings(**_with_service(bench.setting("scaling")))
        progress = Progress(settings.repetitions * len(chosen))
        in_cluster.run(bench, chosen, settings, progress.step)
        other_work.note(bench, bench.rows)
        return figures(bench.rows)
    progress = Progress(sum(_steps(bench, settings, of_kind) for settings, of_kind, _ in selected))
    with Node.acquire(SERVICES) as node:
        for settings, of_kind, runner in selected:
            runner(bench, node, settings, of_kind, progress.step)
    other_work.note(bench, bench.rows)
    return figures(bench.rows)


Settings = dict[str, Any]
ReportStep = Callable[[str], None]
Runner = Callable[[Bench, Node, Settings, list[Variant], ReportStep], None]


def _throughput(bench: Bench, node: Node, settings: Settings, of_kind: list[Variant], report_step: ReportStep) -> None:
    for distribution, repetitions in settings["repetitions"].items():
        service = ServiceTimes(distribution, settings["service_seconds"])
        rest = {name: value for name, value in settings.items() if name not in ("repetitions", "service_seconds")}
        throughput.run(bench, node, of_kind, throughput.ThroughputSettings(service, repetitions, **rest), report_step)


def _learning(bench: Bench, node: Node, settings: Settings, of_kind: list[Variant], report_step: ReportStep) -> None:
    learning.run(bench, node, of_kind, learning.LearningSettings(**_with_service(settings)), report_step)


def _errors(bench: Bench, node: Node, settings: Settings, of_kind: list[Variant], report_step: ReportStep) -> None:
    errors.run(bench, node, of_kind, errors.ErrorSettings(**settings), report_step)


def _scaling(bench: Bench, node: Node, settings: Settings, of_kind: list[Variant], report_step: ReportStep) -> None:
    scaling.run(bench, node, of_kind, scaling.ScalingSettings(**_with_service(settings)), report_step)


def _with_service(settings: Settings) -> Settings:
    rest = {name: value for name, value in settings.items() if name != "service_seconds"}
    return rest | {"service": ServiceTimes("exponential", settings["service_seconds"])}


RUNNERS: dict[Kind, Runner] = {
    "throughput": _throughput,
    "learning": _learning,
    "errors": _errors,
    "scaling": _scaling,
}


def _steps(bench: Bench, settings: Settings, of_kind: list[Variant]) -> int:
    """Returns the number of steps that a runner reports."""
    match of_kind[0].kind:
        case "throughput":
            learners = sum(variant.learns for variant in of_kind)
            return sum(learners + count * len(of_kind) for count in settings["repetitions"].values())
        case "scaling":
            return settings["repetitions"]
        case _:
            return settings["repetitions"] * len(of_kind)
