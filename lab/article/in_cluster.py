"""Article 000 in the test cluster: its users in pods, its application as a Deployment that kubectl or an autoscaler
scales.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lab.article.answers import Answer
from lab.article.locust_run import STOP_SECONDS, hypercorn, locust, parse
from lab.child import ChildFailed
from lab.kubernetes import containers
from lab.kubernetes.agents import Agents
from lab.kubernetes.autoscaler import Autoscaler, by_cpu
from lab.kubernetes.client_pods import ClientPods
from lab.kubernetes.deployment import READY_SECONDS, Deployment, deployed
from lab.kubernetes.session import ClusterSession
from lab.testbed.other_work import OtherCpuTime
from lab.testbed.pods import PORT
from lab.testbed.recording import Recording, Sample
from lab.testbed.scenario import REPLICAS, Load, Watcher
from tests.cluster.api import Object
from tests.cluster.layout import NODES

# As on the testbed, even a saturated replica passes.
PROBE = {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 3}
POLL_SECONDS = 0.05
GRACE_SECONDS = 5
# Of the CPU that a replica requests, which is all that it may use.
TARGET_PERCENT = 70


@dataclass(frozen=True)
class ClusterVariant:
    """A way to the replicas: the ClusterIP as it is, or the same with the annotation of its Service."""

    id: str
    entry: Literal["clusterip", "sheave"]
    # kubectl, or a HorizontalPodAutoscaler on CPU.
    scaler: Literal["kubectl", "hpa"] = "kubectl"


class ClusterPlayer:
    """Plays variants in a cluster. Sheave runs on each node in all of them, or in none."""

    def __init__(self, session: ClusterSession, agents: Agents | None) -> None:
        self.session = session
        self.agents = agents

    def play(self, variant: ClusterVariant, load: Load, folder: Path, watch: Watcher) -> Recording:
        """Runs a variant with a new Deployment and Service; returns its recording."""
        template = replica_template(load.millicores, folder)
        with deployed(self.session, template, PORT, replicas=1) as deployment:
            if variant.entry == "sheave":
                assert self.agents is not None, "start the agents for an annotated Service"
                self.agents.balance(deployment)
            users = Users(self.session, deployment, load.users, folder)
            run = _ClusterRun(self, deployment, users, load, watch)
            if variant.scaler == "kubectl":
                return run.run(folder, lambda: deployment.scale(len(REPLICAS)))
            scalers: list[Autoscaler] = []
            recording = run.run(folder, lambda: scalers.append(self._autoscaler()))
            scalers[0].remove()
            return recording

    def _autoscaler(self) -> Autoscaler:
        return Autoscaler(self.session, by_cpu(TARGET_PERCENT), least=1, most=len(REPLICAS), down_seconds=300)


def replica_template(millicores: int, folder: Path) -> Object:
    """Returns the specification of the article's pods, which write the arrivals of requests to a folder."""
    return containers.pod_spec(
        hypercorn(f"0.0.0.0:{PORT}"),
        folder,
        grace_seconds=GRACE_SECONDS,
        env=containers.environment(ARRIVALS=f"{containers.SHARED}/$(REPLICA)-arrivals"),
        readinessProbe=PROBE,
        resources={"limits": {"cpu": f"{millicores}m"}},
    )


class Users:
    """The article's users, in a pod on each node."""

    def __init__(self, session: ClusterSession, deployment: Deployment, count: int, folder: Path) -> None:
        self.answers: list[Answer] = []
        self.joined: list[float] = []
        self._deployment = deployment
        argv = locust(f"http://{deployment.address}", count // len(NODES), "KeepAliveUser")
        self._pods = ClientPods(session, argv, folder, grace_seconds=STOP_SECONDS + GRACE_SECONDS)
        self._pods.wait_for_output()

    def collect(self) -> None:
        """Reads what users have received, with the replicas' names of the results."""
        names = self._deployment.names
        for line in itertools.chain.from_iterable(self._pods.lines()):
            parsed = parse(line)
            if isinstance(parsed, float):
                self.joined.append(parsed)
            elif parsed is not None:
                self.answers.append(renamed(parsed, names))

    def check(self) -> None:
        self._pods.check()

    def stop(self) -> None:
        """Stops new requests, and collects the answers to those in flight."""
        self._pods.stop()
        self.collect()


def renamed(answer: Answer, names: dict[str, str]) -> Answer:
    """Returns the answer with the name of its replica in the results."""
    if answer.replica is None:
        return answer
    return replace(answer, replica=names.get(answer.replica, answer.replica))


class _ClusterRun:
    """The run from the first user to the last answer."""

    def __init__(self, player: ClusterPlayer, deployment: Deployment, users: Users, load: Load, watch: Watcher) -> None:
        self._player = player
        self._deployment, self._users, self._load, self._watch = deployment, users, load, watch
        users.collect()
        self._recording = Recording(REPLICAS, began=min(users.joined, default=time.time()))
        self._recording.answers, self._recording.users = users.answers, users.joined

    def run(self, folder: Path, scale: Callable[[], None]) -> Recording:
        recording, others = self._recording, OtherCpuTime(self._player.session)
        self._run_until(recording.began + self._load.seconds_before)
        recording.started = time.time()
        scale()
        self._wait_until_published()
        self._run_until((recording.published or 0) + self._load.seconds_after)
        recording.ended = time.time()
        recording.other_work = others.cpus()
        self._users.stop()
        recording.arrivals = {name: _arrivals(folder / f"{pod}-arrivals") for pod, name in self._names()}
        return recording

    def _names(self) -> Sequence[tuple[str, str]]:
        return list(self._deployment.names.items())

    def _wait_until_published(self) -> None:
        recording, deadline = self._recording, time.time() + READY_SECONDS
        while recording.published is None:
            if time.time() > deadline:
                raise ChildFailed(f"the second replica was not ready after {READY_SECONDS} s")
            self._run_until(time.time() + POLL_SECONDS)
            recording.published = next(
                (it.published.at for it in self._deployment.replicas if it.name == REPLICAS[-1]), None
            )

    def _run_until(self, end: float) -> None:
        """Collects answers; takes a sample and calls the watcher every second."""
        recording = self._recording
        while (now := time.time()) < end:
            second = len(recording.samples)
            if now >= recording.began + second:
                self._sample(now)
                if second:
                    self._watch(second, recording)
            time.sleep(POLL_SECONDS)
            self._users.collect()

    def _sample(self, now: float) -> None:
        self._users.check()
        replicas, agents = self._deployment.replicas, self._player.agents
        self._recording.samples.append(
            Sample(
                now,
                {replica.name: replica.cpu_seconds() for replica in replicas},
                {replica.name: replica.connections(PORT) for replica in replicas},
                agents.cpu_seconds() if agents else 0.0,
            )
        )


def _arrivals(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().split()] if path.exists() else []
