"""The scaling part in the test cluster: one pod, forty clients, and a scaler that is real.

One variant runs after the other, each with a new Deployment behind the same Sheave.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.article001 import listing, sheave_admin, uwsgi
from lab.article001.answers import REFUSED, summarize
from lab.article001.rows import record
from lab.article001.scalers import RefusalScaler, ReplicaBounds
from lab.article001.scaling import CLIENTS, SCALED, ScalingSettings
from lab.article001.variants import Variant
from lab.article001.work import WorkPipe
from lab.bench import Bench, Row
from lab.child import Child
from lab.kubernetes import containers
from lab.kubernetes.autoscaler import (
    Autoscaler,
    by_cpu,
    by_demand,
    by_demand_on_object,
    require_metrics_server,
    start_metrics_server,
)
from lab.kubernetes.deployment import APP, Deployment, deployed
from lab.kubernetes.gateway import Gateway
from lab.kubernetes.keda import PushAutoscaler, install_keda
from lab.kubernetes.session import ClusterSession, open_session, wait
from lab.testbed.other_work import OtherCpuTime
from tests.cluster import keda_operator
from tests.cluster.api import Object

PORT = 5080
PERIOD_SECONDS = 0.5
ACTIVE_SECONDS = 120
ANSWER_SECONDS = 30
PROBE_SECONDS = 5
# A pod that is to end is still asked, until Sheave knows of it; then requests in flight end.
END_SECONDS = 4
GRACE_SECONDS = 15
CHART = ("metricsApi.enabled=true", "replicas=1", "podDisruptionBudget.enabled=false")
# KEDA has the API of external metrics then.
CHART_BESIDE_KEDA = (*CHART, "metricsApi.groups={custom}")


@dataclass(frozen=True)
class ClusterScalingSettings(ScalingSettings):
    """Settings that all variants share. `sync_seconds` is that of the script; autoscalers have the controller's."""

    # CPU time of a request, and the CPU that a pod requests.
    cpu_seconds: float
    millicores: int
    # Targets: per cent of the requested CPU, and concurrent requests of a pod.
    target_percent: int
    target_requests: int


def run(
    bench: Bench, variants: Sequence[Variant], settings: ClusterScalingSettings, report_step: Callable[[str], None]
) -> None:
    reads_cpu = any(variant.scaler == "cpu" for variant in variants)
    has_keda = any(variant.scaler == "keda" for variant in variants)
    if reads_cpu:
        require_metrics_server()
    if has_keda:
        keda_operator.require()
    with open_session(bench.logs) as session:
        gateway = Gateway(session, CHART_BESIDE_KEDA if has_keda else CHART)
        if reads_cpu:
            start_metrics_server(session)
        if has_keda:
            install_keda(session)
        for repetition in range(1, settings.repetitions + 1):
            for variant in variants:
                folder = bench.logs / f"{variant.id}-{repetition}"
                folder.mkdir()
                place = _Place(bench, session, gateway, settings, folder, has_keda)
                _run_variant(place, variant, repetition)
                report_step(f"{variant.id}, repetition {repetition}")


@dataclass(frozen=True)
class _Place:
    bench: Bench
    session: ClusterSession
    gateway: Gateway
    settings: ClusterScalingSettings
    folder: Path
    has_keda: bool


def _run_variant(place: _Place, variant: Variant, repetition: int) -> None:
    place.gateway.route(_policy(variant))
    work = WorkPipe(place.folder / "work")
    work.restart(place.settings.service.times(f"{place.bench.settings['seed']}-cluster-{repetition}"))
    with deployed(place.session, _template(place.settings, place.folder), PORT, place.settings.least) as deployment:
        wait(lambda: uwsgi.responds(place.gateway.address, PROBE_SECONDS), "an answer", ANSWER_SECONDS)
        scaler = _scaler(place, variant, deployment)
        try:
            load = _Load(place, work, scaler)
            others = OtherCpuTime(place.session)
            load.run()
            where = {"variant": variant.id, "repetition": repetition}
            summary = load.summary()
            record(place.bench, kind=variant.kind, **where, other_work_cpus=round(others.cpus(), 3), **summary)
            place.bench.append(SCALED, load.rows(where))
        finally:
            scaler.remove()
    work.close()


def _policy(variant: Variant) -> Object:
    """Returns the policy of the Service; without a limit of the queue it has Sheave's default."""
    cap, queue = variant.options["cap"], variant.options.get("queue")
    return {"maxInFlightPerEndpoint": cap} | ({} if queue is None else {"queue": {"maxRequests": queue}})


def _template(settings: ClusterScalingSettings, folder: Path) -> Object:
    """Returns the specification of the article's pods, which take their work from the pipe in a folder."""
    env = containers.environment(
        WORK=f"{containers.SHARED}/work",
        BUSY=f"{containers.SHARED}/$(REPLICA)-busy",
        BURN=str(settings.cpu_seconds),
    )
    return containers.pod_spec(
        uwsgi.start_command(f"0.0.0.0:{PORT}", settings.workers, settings.start_seconds),
        folder,
        grace_seconds=GRACE_SECONDS,
        env=env,
        readinessProbe={"httpGet": {"path": "/ready", "port": PORT}, "periodSeconds": 2, "timeoutSeconds": 20},
        resources={"requests": {"cpu": f"{settings.millicores}m"}},
        lifecycle={"preStop": {"sleep": {"seconds": END_SECONDS}}},
    )


class _Script:
    """The article's script: reads the number of 429s, and scales as kubectl does."""

    def __init__(self, place: _Place, deployment: Deployment) -> None:
        settings = place.settings
        self._gateway, self._deployment, self._seconds = place.gateway, deployment, settings.sync_seconds
        bounds = ReplicaBounds(settings.least, settings.most)
        self._scaler = RefusalScaler(settings.workers, settings.service.mean, bounds)
        self._pods = settings.least
        self._refused = self._count()
        self._at = time.monotonic()

    def step(self) -> None:
        """Scales if a period is over."""
        if (now := time.monotonic()) < self._at + self._seconds:
            return
        refused = self._count()
        desired = self._scaler.desired(self._pods, (refused - self._refused) / (now - self._at))
        self._refused, self._at = refused, now
        if desired != self._pods:
            self._pods = desired
            self._deployment.scale(desired)

    def _count(self) -> float:
        return sum(sheave_admin.refused(sheave_admin.fetch(admin)) for admin in self._gateway.admins)

    def remove(self) -> None:
        """Leaves nothing behind."""


class _Hpa:
    """An autoscaler, which needs no step of ours."""

    def __init__(self, autoscaler: Autoscaler | PushAutoscaler) -> None:
        self._autoscaler = autoscaler
        # The load begins when the autoscaler reads its metric.
        wait(self._autoscaler.is_active, "a metric for the autoscaler", ACTIVE_SECONDS)

    def step(self) -> None:
        """Does nothing."""

    def remove(self) -> None:
        self._autoscaler.remove()


def _scaler(place: _Place, variant: Variant, deployment: Deployment) -> _Script | _Hpa:
    settings = place.settings
    limits = (settings.least, settings.most, settings.stabilization_seconds)
    match variant.scaler:
        case "cpu":
            _warm_up(place)
            return _Hpa(Autoscaler(place.session, by_cpu(settings.target_percent), *limits))
        case "demand":
            by = by_demand_on_object if place.has_keda else by_demand
            return _Hpa(Autoscaler(place.session, by(settings.target_requests), *limits))
        case "keda":
            return _Hpa(PushAutoscaler(place.session, *limits))
        case _:
            return _Script(place, deployment)


@dataclass(frozen=True)
class _Observation:
    """Pods and nodes at one moment (wall clock)."""

    time: float
    started: int
    ready: int
    nodes: int


class _Load:
    """The clients and what they cause."""

    def __init__(self, place: _Place, work: WorkPipe, scaler: _Script | _Hpa) -> None:
        self._place, self._work, self._scaler = place, work, scaler
        self._observations: list[_Observation] = []
        self._answers: list[dict[str, Any]] = []

    def run(self) -> None:
        """Runs the clients to their end."""
        with _start_clients(self._place, self._place.settings.clients, self._place.settings.seconds, "clients") as load:
            self._began = time.time()
            reader = threading.Thread(target=self._read, args=(load,), daemon=True)
            reader.start()
            while load.alive():
                self._work.fill()
                self._observe()
                self._scaler.step()
                time.sleep(PERIOD_SECONDS)
            reader.join(ANSWER_SECONDS)

    def _read(self, load: Child) -> None:
        for line in load.stdout:
            self._answers.append(json.loads(line))

    def _observe(self) -> None:
        pods = [pod for pod in self._place.session.pods(APP) if "deletionTimestamp" not in pod["metadata"]]
        ready = sum(_is_ready(pod) for pod in pods)
        nodes = {pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}
        self._observations.append(_Observation(time.time(), len(pods), ready, len(nodes)))

    def summary(self) -> Row:
        settings = self._place.settings
        end = self._began + settings.seconds
        steady = [it.started for it in self._observations if end - settings.steady_seconds <= it.time <= end]
        return {
            "clients": settings.clients,
            "workers": settings.workers,
            "seconds": settings.seconds,
            **summarize(self._answers, self._began, settings.seconds),
            "pods_steady": round(sum(steady) / len(steady), 3),
            "pods_most": max(it.started for it in self._observations),
            "pod_seconds": round(self._integral(lambda it: it.started), 1),
            "node_seconds": round(self._integral(lambda it: it.nodes), 1),
        }

    def _integral(self, count: Callable[[_Observation], int]) -> float:
        """Returns the sum over time, up to the end of the load."""
        end = self._began + self._place.settings.seconds
        found = 0.0
        for before, after in zip(self._observations, self._observations[1:], strict=False):
            found += count(before) * max(0.0, min(after.time, end) - min(before.time, end))
        return found

    def rows(self, where: Row) -> list[Row]:
        """Returns one row for each second."""
        rows = []
        for second in range(int(self._place.settings.seconds)):
            begin = self._began + second
            statuses = [a["status"] for a in self._answers if begin <= a["sent"] + a["seconds"] < begin + 1]
            known = [it for it in self._observations if it.time < begin + 1]
            rows.append(
                where
                | {
                    "second": second + 1,
                    "answered": statuses.count(200),
                    "refused": statuses.count(REFUSED),
                    "started": known[-1].started if known else None,
                    "ready": known[-1].ready if known else None,
                    "nodes": known[-1].nodes if known else None,
                }
            )
        return rows


def _start_clients(place: _Place, clients: int, seconds: float, name: str) -> Child:
    post_file = listing.write(place.folder / "listing.json")
    argv = [sys.executable, CLIENTS, place.gateway.address, post_file, "--clients", clients, "--seconds", seconds]
    return Child(argv, place.folder / f"{name}.log", piped=True)


def _warm_up(place: _Place) -> None:
    """Sends some requests: metrics-server leaves out a pod that has used no CPU."""
    with _start_clients(place, 1, 1.0, "warm-up") as load:
        for _ in load.stdout:
            pass


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)
