"""Arms: one balancer or several in front of the same endpoints, and the traffic that both ends of them have."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from lab import network
from lab.balancers import BalancerTask, Placement, ReplicaSet, RunningBalancer, balancer
from lab.child import Child, ChildFailed, wait_until
from lab.paths import REPOSITORY
from lab.replicas.plan import PlannedRequest
from lab.replicas.report import TrafficReport

ADMIN_TIMEOUT_SECONDS = 2.0


class Traffic:
    """The process with clients and endpoints."""

    def __init__(self, log: Path, *, cpus: Sequence[int], endpoints: int, cap: int) -> None:
        argv = [sys.executable, "-m", "lab.replicas.traffic", "--endpoints", endpoints, "--cap", cap]
        self._child = Child(argv, log, cpus=cpus, piped=True, env={"PYTHONPATH": str(REPOSITORY)})
        self.endpoints: tuple[str, ...] = tuple(self._answer()["endpoints"])

    def begin(
        self,
        targets: Sequence[str],
        planned: Sequence[PlannedRequest],
        extent: Mapping[str, float],
        *,
        connections: int,
        processes: Sequence[int],
    ) -> RunningLoad:
        """Starts a load: each request goes to the target of its replica."""
        requests = [list(asdict(each).values()) for each in planned]
        job = {"targets": list(targets), "planned": requests, "connections": connections, "processes": list(processes)}
        self._child.stdin.write(json.dumps({**job, **extent}) + "\n")
        self._child.stdin.flush()
        return RunningLoad(self, planned, extent, self._answer()["began"])

    def _answer(self) -> dict[str, Any]:
        line = self._child.stdout.readline()
        if not line:
            raise ChildFailed(f"the traffic process exited{self._child.log_end()}")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()


@dataclass(frozen=True)
class RunningLoad:
    """A load that has begun."""

    traffic: Traffic
    planned: Sequence[PlannedRequest]
    extent: Mapping[str, float]
    # Monotonic time of its start.
    began: float

    def report(self) -> TrafficReport:
        """Waits for its end."""
        return TrafficReport.of(self.traffic._answer(), self.planned, self.extent, self.began)


@dataclass(frozen=True)
class ArmSetup:
    """What an arm starts, and where."""

    settings: Mapping[str, Any]
    cap: int
    endpoints: tuple[str, ...]
    folder: Path
    cpus: Sequence[int]
    # Loopback addresses of replicas, for the connections between them.
    members: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any], cap: int, endpoints: tuple[str, ...], folder: Path, cpus: Any) -> Self:
        count = settings["replicas"] if settings["balancer"] == "sheave" and settings["replicas"] > 1 else 0
        members = tuple(f"127.0.2.{number + 1}:{network.free_port()}" for number in range(count))
        return cls(settings, cap, endpoints, folder, cpus, members)

    def start(self, number: int, *, port: int = 0, attempt: int = 0) -> RunningBalancer:
        """Starts one replica; `attempt` distinguishes it from an earlier one with the same number."""
        folder = self.folder / f"replica-{number}-{attempt}"
        folder.mkdir()
        placement = Placement(folder, lambda argv, log: Child(argv, log, cpus=self.cpus), port=port)
        return balancer(self.settings["balancer"]).start(self._task(number), placement)

    def _task(self, number: int) -> BalancerTask:
        if self.members:
            lease_slots = self.settings["lease_slots"]
            replicas = ReplicaSet(self.members, self.members[number], lease_slots=lease_slots)
            return BalancerTask(self.endpoints, cap=self.cap, replicas=replicas)
        if self.settings.get("divided"):
            caps = shares(self.endpoints, self.cap, self.settings["replicas"], number)
            return BalancerTask(tuple(caps), caps=caps)
        return BalancerTask(self.endpoints, cap=self.cap)


def shares(endpoints: Sequence[str], cap: int, replicas: int, number: int) -> dict[str, int]:
    """Divides the cap of each endpoint; returns those of one replica, without endpoints of which it has none.

    What is left over goes to another replica at each endpoint, so that all have about equally many slots.
    """
    divided = {}
    for index, endpoint in enumerate(endpoints):
        share = cap // replicas + ((number - index) % replicas < cap % replicas)
        if share:
            divided[endpoint] = share
    return divided


@dataclass
class RunningArm:
    """The balancers of an arm."""

    setup: ArmSetup
    members: list[RunningBalancer] = field(default_factory=list)

    @property
    def targets(self) -> list[str]:
        return [member.address for member in self.members]

    def target_of(self, replicas: int) -> list[str]:
        """Returns the target of each replica of a plan; one balancer alone gets the requests of all."""
        return self.targets if len(self.members) == replicas else self.targets * replicas

    def processes(self) -> list[int]:
        return [pid for member in self.members for pid in member.child.processes()]

    def metric(self, name: str, label: str = "") -> float:
        """Returns the sum of a metric over all replicas; one that does not answer counts as none."""
        return sum(_metric(member.admin, name, label) for member in self.members if member.admin)

    def wait_until_settled(self) -> None:
        """Waits until every slot is held by a replica, if slots are leased."""
        if self.setup.members and self.setup.settings["lease_slots"]:
            slots = self.setup.cap * len(self.setup.endpoints)
            wait_until(
                lambda: self.metric("sheave_replica_slots", 'state="held"') == slots,
                self.members[0].child,
                "slots of all replicas",
            )


@contextmanager
def running(setup: ArmSetup) -> Iterator[RunningArm]:
    """Starts all balancers of an arm."""
    arm = RunningArm(setup)
    try:
        for number in range(setup.settings["replicas"]):
            arm.members.append(setup.start(number))
        yield arm
    finally:
        with ExitStack() as stack:
            for member in arm.members:
                stack.callback(member.child.stop)


def _metric(admin: str, name: str, label: str) -> float:
    try:
        with urllib.request.urlopen(f"http://{admin}/metrics", timeout=ADMIN_TIMEOUT_SECONDS) as answer:
            text = answer.read().decode()
    except OSError:
        return 0.0
    values = re.findall(rf"^{name}(?:{{([^}}]*)}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for labels, value in values if label in labels)
