"""Article 002 in the test cluster: gRPC clients with one connection each on every node, a Deployment of servers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab import golang
from lab.article002.calls import Call, common_time, read
from lab.article002.rows import REPLICAS
from lab.article002.setup import MODULE, CallTimes, Variant, sleep_until
from lab.child import ChildFailed
from lab.kubernetes import containers
from lab.kubernetes.agents import ADOPTION, Agents
from lab.kubernetes.client_pods import ClientPods
from lab.kubernetes.deployment import READY_SECONDS, Deployment, deployed
from lab.kubernetes.session import ClusterSession, wait
from lab.testbed.pods import PORT
from tests.cluster.api import Object
from tests.cluster.layout import NODES

PROBE = {"tcpSocket": {"port": PORT}, "periodSeconds": 1}
GRACE_SECONDS = 5
# Longer than any run; the clients are stopped earlier.
CLIENT_SECONDS = 600


@dataclass(frozen=True)
class CallRate:
    """Calls per second of all clients, and their duration before the scaling, after it, and from it to a late
    annotation.
    """

    per_second: float
    seconds_before: float
    seconds_after: float
    seconds_to_annotation: float


class ClusterPlayer:
    """Plays variants in a cluster. Sheave runs on each node in all of them, or in none."""

    def __init__(self, session: ClusterSession, agents: Agents | None) -> None:
        self._session = session
        self._agents = agents
        self._program = golang.build(MODULE)

    def play(
        self, variant: Variant, times: CallTimes, rate: CallRate, folder: Path
    ) -> tuple[list[Call], Mapping[str, float]]:
        """Runs a variant with one server, to which two are added; returns the calls, and from when on each server
        should have calls: its publication, or a later annotation of the Service.
        """
        with deployed(self._session, self._server_template(times, folder), PORT, replicas=1) as deployment:
            if variant.entry == "sheave" and variant.kind == "scaled":
                self._annotate(deployment)
            clients = ClientPods(self._session, self._client(deployment, times, rate), folder, GRACE_SECONDS)
            clients.wait_for_output()
            sleep_until(time.time() + rate.seconds_before)
            begin = self._scale(deployment)
            if variant.kind == "adopted":
                sleep_until(max(begin.values()) + rate.seconds_to_annotation)
                begin = dict.fromkeys(begin, time.time())
                self._annotate(deployment, ADOPTION)
            sleep_until(max(begin.values()) + rate.seconds_after)
            return _results(clients, deployment), begin

    def _scale(self, deployment: Deployment) -> Mapping[str, float]:
        """Adds the other servers; returns when each was published."""
        deployment.scale(len(REPLICAS))
        wait(lambda: len(deployment.replicas) == len(REPLICAS), "the new servers", READY_SECONDS)
        return {replica.name: replica.published.at for replica in deployment.replicas}

    def _annotate(self, deployment: Deployment, *more: str) -> None:
        assert self._agents is not None, "start the agents for an annotated Service"
        self._agents.balance(deployment, *more)

    def _server_template(self, times: CallTimes, folder: Path) -> Object:
        argv = [self._program, "serve", f"0.0.0.0:{PORT}", "-delay", f"{times.delay_ms}ms"]
        environment = containers.environment()
        return containers.pod_spec(argv, folder, grace_seconds=GRACE_SECONDS, env=environment, readinessProbe=PROBE)

    def _client(self, deployment: Deployment, times: CallTimes, rate: CallRate) -> Sequence[object]:
        argv = [self._program, "call", deployment.address, "-rate", rate.per_second / len(NODES)]
        return [*argv, "-seconds", CLIENT_SECONDS, "-deadline", f"{times.deadline_ms}ms"]


def _results(clients: ClientPods, deployment: Deployment) -> list[Call]:
    """Ends the clients; returns their calls."""
    clients.check()
    clients.stop()
    calls = [read_client(lines, deployment.names) for lines in clients.lines()]
    if not all(calls):
        raise ChildFailed("a client has sent no calls")
    return common_time(calls)


def read_client(lines: Sequence[str], names: Mapping[str, str]) -> list[Call]:
    """Returns the calls of a client, with the servers' names of the results. Its first line is no call."""
    calls = read(line for line in lines if "," in line)
    return [replace(call, replica=names.get(call.replica, call.replica)) for call in calls]
