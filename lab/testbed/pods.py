"""Pods: an application on a host of its own, a quota for its CPU if it has one, and the probe that finds it ready."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.child import Child
from lab.paths import REPOSITORY
from lab.testbed.hosts import Host

PORT = 5080
# By TLS over TCP and by QUIC over UDP, of applications that have them.
SECURE_PORT = 5443


@dataclass(frozen=True)
class Application:
    """What pods run."""

    # The command that serves at an address.
    command: Callable[[str], Sequence[object]]
    # Whether it answers at an address, within so many seconds: what a probe asks.
    responds: Callable[[str, float], bool]


@dataclass(frozen=True)
class Probe:
    """A readiness probe, with Kubernetes' words for its numbers."""

    period_seconds: float
    timeout_seconds: float
    failure_threshold: int


@dataclass(frozen=True)
class CpuLimits:
    """How much CPU a pod may have, in thousandths of one; None is as much as there is."""

    # A replica may start with more than its limit, where its start is not the subject.
    startup_millicores: int | None = None
    millicores: int | None = None


class Pod:
    """One replica. Its CPU is limited from the start, or only once it is ready."""

    def __init__(self, host: Host, folder: Path, application: Application, limits: CpuLimits, probe: Probe) -> None:
        self.name = host.name
        self.ip = host.address
        self.address = f"{host.address}:{PORT}"
        self._host = host
        self._limits = limits
        self._arrivals = folder / f"{self.name}-arrivals.txt"
        self._arrivals.touch()
        host.group.limit(limits.startup_millicores)
        env = {"REPLICA": self.name, "ARRIVALS": str(self._arrivals), "PYTHONPATH": str(REPOSITORY)}
        self.child: Child = host.start(application.command(self.address), folder / f"{self.name}.log", env=env)
        self._prober = Prober(lambda: application.responds(self.address, probe.timeout_seconds), probe)

    @property
    def ready(self) -> bool:
        return self._prober.ready

    @property
    def pid(self) -> int:
        """A process that is in its namespace from before the application to after it."""
        return self._host.pid

    def apply_cpu_limit(self) -> None:
        """From here on it has the CPU that its limit says."""
        self._host.group.limit(self._limits.millicores)

    def cpu_seconds(self) -> float:
        return self._host.group.cpu_seconds()

    def arrivals(self) -> list[float]:
        """When each request came in, as the pod has it, without probes."""
        return [float(line) for line in self._arrivals.read_text().split()]

    def remove(self) -> None:
        self._prober.stop()
        self._host.remove()


class Prober:
    """Asks from the node, as the kubelet does, until it is stopped."""

    def __init__(self, responds: Callable[[], bool], probe: Probe) -> None:
        self.ready = False
        self._responds = responds
        self._probe = probe
        self._stopped = threading.Event()
        # A thread inherits the namespace of the one that makes it.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            if self._responds():
                self.ready, failures = True, 0
            else:
                failures += 1
                # One that was never ready is asked again at once: when it is there matters to the experiment.
                self.ready = self.ready and failures < self._probe.failure_threshold
            self._stopped.wait(self._probe.period_seconds if self.ready or failures == 0 else 0.1)
