"""Pods: an application on a separate host, its CPU quota and its readiness probe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.child import Child
from lab.paths import REPOSITORY
from lab.testbed.hosts import Host

PORT = 5080
# Port for TLS over TCP and QUIC over UDP, if the application has them.
SECURE_PORT = 5443


@dataclass(frozen=True)
class Application:
    """Application of pods."""

    # Returns the command that serves at an address.
    command: Callable[[str], Sequence[object]]
    # Returns true if the application at an address passes its probe within the timeout.
    responds: Callable[[str, float], bool]


@dataclass(frozen=True)
class Probe:
    """A readiness probe, with Kubernetes' names."""

    period_seconds: float
    timeout_seconds: float
    failure_threshold: int


@dataclass(frozen=True)
class CpuLimits:
    """CPU quotas of a pod in thousandths of a CPU; None is unlimited."""

    # Quota during the start, which may be higher if the start is not measured.
    startup_millicores: int | None = None
    millicores: int | None = None


class Pod:
    """One replica. Its CPU quota applies from the start, or from readiness on."""

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
        """Returns a process that exists as long as the pod's namespace."""
        return self._host.pid

    def apply_cpu_limit(self) -> None:
        """Applies the final CPU quota."""
        self._host.group.limit(self._limits.millicores)

    def cpu_seconds(self) -> float:
        return self._host.group.cpu_seconds()

    def arrivals(self) -> list[float]:
        """Returns the arrival time of each request, as the application recorded it, without probes."""
        return [float(line) for line in self._arrivals.read_text().split()]

    def remove(self) -> None:
        self._prober.stop()
        self._host.remove()


class Prober:
    """Prober on the node, like the kubelet's."""

    def __init__(self, responds: Callable[[], bool], probe: Probe) -> None:
        self.ready = False
        self._responds = responds
        self._probe = probe
        self._stopped = threading.Event()
        # A thread inherits the network namespace of its creator.
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
                # Probes a pod that was never ready more often, because the experiment measures its readiness.
                self.ready = self.ready and failures < self._probe.failure_threshold
            self._stopped.wait(self._probe.period_seconds if self.ready or failures == 0 else 0.1)
