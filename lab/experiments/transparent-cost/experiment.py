"""Measures one Service in the test cluster as it is, taken by Sheave, and behind HAProxy on the client's node; then new
connections to a Service that Sheave does not take.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lab.balancers import BalancerTask, Placement, RunningBalancer, balancer
from lab.bench import Bench, Progress, Row, print_status
from lab.child import Child, ChildFailed, raise_priority
from lab.figure import Figure, paired_ratio
from lab.kubernetes import session
from lab.kubernetes.agents import ANNOTATION, Agents
from lab.kubernetes.client_pod import ClientPod
from lab.kubernetes.containers import pod_spec
from lab.kubernetes.deployment import Deployment, deployed
from lab.kubernetes.session import ClusterSession
from lab.load import LoadGenerator, LoadReport, Request
from lab.paths import binary
from lab.testbed import other_work
from lab.testbed.cgroups import ControlGroup
from lab.testbed.other_work import OtherCpuTime
from tests.cluster.layout import NODES
from tests.cluster.network import netns_prefix
from tests.cluster.processes import top_group

CLIENT_NODE, SERVER_NODE = NODES[0], NODES[1]
SERVER_PORT, HAPROXY_PORT = 8080, 8081
# The load generator ends with its standard input.
SERVER = 'sleep infinity | exec "$@"'
# Service that is taken during everything, so that the rules are never empty.
TAKEN = "taken"
ARMS = ("clusterip", "sheave", "haproxy")
RULES = ("without rules", "with rules")

cluster_obstacle = session.obstacle


def run(bench: Bench) -> dict[str, Figure]:
    with session.open_session(bench.logs) as opened:
        template = server_template(bench.logs)
        with deployed(opened, template, SERVER_PORT, bench.settings["replicas"]) as deployment:
            _run_in(bench, opened, deployment)
    other_work.note(bench, bench.rows)
    return figures(bench.rows)


def server_template(folder: Path) -> dict[str, object]:
    """Returns the specification of a pod that answers at once, on the second node."""
    argv = ["sh", "-c", SERVER, "server", binary("loadgen"), "--listen", f"0.0.0.0:{SERVER_PORT}"]
    probe = {"tcpSocket": {"port": SERVER_PORT}, "periodSeconds": 1}
    return pod_spec(argv, folder, grace_seconds=1, readinessProbe=probe) | {"nodeName": SERVER_NODE.name}


def _run_in(bench: Bench, opened: ClusterSession, deployment: Deployment) -> None:
    opened.apply(_taken_service(opened))
    with ClientPod(opened, CLIENT_NODE.name, bench.logs) as client, _load(bench, client) as load:
        setup = _Setup(bench, opened, deployment, load)
        setup.measure_requests()
        setup.measure_other_address()


def _taken_service(opened: ClusterSession) -> dict[str, object]:
    """Returns a Service of the same pods that has the annotation from the start."""
    service = opened.api.get("/api/v1/namespaces/default/services/app")
    name, _, value = ANNOTATION.partition("=")
    metadata = {"name": TAKEN, "namespace": "default", "annotations": {name: value}}
    spec = {key: service["spec"][key] for key in ("selector", "ports")}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


@contextmanager
def _load(bench: Bench, client: ClientPod) -> Iterator[LoadGenerator]:
    prefix = _group().enter_command(client.enter_command())
    cpus = bench.settings["client_cpus"]
    with LoadGenerator(bench.logs / "loadgen.log", cpus=cpus, endpoints=1, prefix=prefix) as load:
        yield load


class _Way(NamedTuple):
    """Address that clients use, and the processes that forward."""

    address: str
    processes: Sequence[int]


class _Setup:
    """The cluster with its load generator."""

    def __init__(self, bench: Bench, opened: ClusterSession, deployment: Deployment, load: LoadGenerator) -> None:
        self._bench, self._session, self._deployment, self._load = bench, opened, deployment, load
        self._order = random.Random(bench.settings["seed"])
        self._rounds = bench.setting("rounds")

    def measure_requests(self) -> None:
        """Measures kept-alive requests by each way, with the agents on all nodes."""
        agents = Agents(self._session, self._new_folder("agents"))
        # The client and HAProxy have it as children of the lab.
        raise_priority(agents.pid(CLIENT_NODE))
        with self._haproxy() as haproxy:
            ways = {
                "clusterip": lambda: _Way(self._deployment.address, ()),
                "sheave": lambda: self._take(agents),
                "haproxy": lambda: _Way(haproxy.address, haproxy.child.processes()),
            }
            progress = Progress(self._rounds * len(ARMS))
            for number in range(self._rounds):
                for arm in self._order.sample(ARMS, len(ARMS)):
                    self._measure_way(number, arm, ways[arm])
                    if arm == "sheave":
                        agents.release(self._deployment)
                    progress.step(f"round {number + 1}, {arm}")
        agents.kill()

    def _take(self, agents: Agents) -> _Way:
        agents.balance(self._deployment)
        return _Way(self._deployment.address, [agents.pid(CLIENT_NODE)])

    def _measure_way(self, number: int, arm: str, open_way: Callable[[], _Way]) -> None:
        way, settings, others = open_way(), self._bench.settings, OtherCpuTime(self._session)
        report = self._load.open_loop(
            way.address,
            Request(),
            rate=settings["rate"],
            seed=number,
            connections=settings["connections"],
            warmup_seconds=settings["warmup_seconds"],
            seconds=self._bench.setting("seconds"),
            processes=way.processes,
        )
        _check(arm, report)
        costs = {"p50": (report.latency_p50_us, "µs"), "p99": (report.latency_p99_us, "µs")}
        if way.processes:
            costs["proxy CPU"] = (report.cpu_ns / 1e3 / report.requests, "CPU µs per request")
        for case, (cost, unit) in costs.items():
            self._record(number, case, arm, cost, unit, report, others)

    def measure_other_address(self) -> None:
        """Measures new connections to a Service that is not taken, with the agents on all nodes and without."""
        progress = Progress(self._rounds * len(RULES))
        for number in range(self._rounds):
            for arm in self._order.sample(RULES, len(RULES)):
                agents = Agents(self._session, self._new_folder(f"agents-{number}")) if arm == RULES[1] else None
                self._measure_connections(number, arm)
                if agents:
                    agents.kill()
                progress.step(f"round {number + 1}, new connections {arm}")

    def _measure_connections(self, number: int, arm: str) -> None:
        settings, others = self._bench.settings, OtherCpuTime(self._session)
        report = self._load.load(
            self._deployment.address,
            Request(close=True),
            connections=settings["new_connections"],
            warmup_seconds=settings["new_connections_warmup_seconds"],
            seconds=self._bench.setting("seconds"),
        )
        _check(arm, report)
        cost = report.seconds * 1e6 / report.requests
        self._record(number, "other address", arm, cost, "µs per connection", report, others)

    def _record(
        self, number: int, case: str, arm: str, cost: float, unit: str, report: LoadReport, others: OtherCpuTime
    ) -> None:
        row = {"round": number, "case": case, "arm": arm, "cost": round(cost, 3), "unit": unit}
        counts = {"requests": report.requests, "seconds": round(report.seconds, 4)}
        self._bench.record({**row, **counts, "other_work_cpus": round(others.cpus(), 3)})

    @contextmanager
    def _haproxy(self) -> Iterator[RunningBalancer]:
        """Runs HAProxy on the client's node, as a DaemonSet on the host's network would."""
        print_status("starting HAProxy")
        task = BalancerTask(endpoints=tuple(self._server_addresses()), workers=2)
        placement = Placement(self._new_folder("haproxy"), _start_on_node, CLIENT_NODE.addresses[0], HAPROXY_PORT)
        with balancer("haproxy").start(task, placement) as running:
            yield running

    def _server_addresses(self) -> list[str]:
        return [f"{pod['status']['podIP']}:{SERVER_PORT}" for pod in self._session.pods("app")]

    def _new_folder(self, name: str) -> Path:
        folder = self._bench.logs / name
        folder.mkdir()
        return folder


def _start_on_node(argv: Sequence[object], log: Path) -> Child:
    return Child(_group().enter_command([*netns_prefix(CLIENT_NODE.namespace), *argv]), log)


def _group() -> ControlGroup:
    """Returns the control group of the client and of HAProxy, whose CPU time is the cluster's."""
    return top_group().child(CLIENT_NODE.name).child("measured").create()


def _check(arm: str, report: LoadReport) -> None:
    if report.errors:
        raise ChildFailed(f"{arm}: {report.errors} of {report.requests} requests failed: {report.first_error}")


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Returns medians, the latency that each proxy adds in the same round, and ratios."""
    found: dict[str, Figure] = {}
    for quantile in ("p50", "p99"):
        plain = _costs(rows, quantile, "clusterip")
        for arm in ARMS:
            costs = _costs(rows, quantile, arm)
            found[f"{quantile}.{arm}"] = Figure.of(list(costs.values()), "µs")
            if arm != "clusterip":
                added = [costs[number] - plain[number] for number in sorted(costs)]
                found[f"added {quantile}.{arm}"] = Figure.of(added, "µs")
    ours, theirs = (_costs(rows, "proxy CPU", arm) for arm in ("sheave", "haproxy"))
    for arm, costs in (("sheave", ours), ("haproxy", theirs)):
        found[f"proxy CPU.{arm}"] = Figure.of(list(costs.values()), "CPU µs per request")
    found["proxy CPU: sheave / haproxy"] = paired_ratio(ours, theirs)
    without, with_rules = (_costs(rows, "other address", arm) for arm in RULES)
    found["other address: with rules / without rules"] = paired_ratio(with_rules, without)
    return found


def _costs(rows: Sequence[Row], case: str, arm: str) -> Mapping[int, float]:
    """Returns the costs by round."""
    return {row["round"]: row["cost"] for row in rows if row["case"] == case and row["arm"] == arm}
