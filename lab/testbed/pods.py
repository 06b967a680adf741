"""Pods: the article's application on a host of its own, with a CPU quota, and the probe that says when it is ready."""

from __future__ import annotations

import http.client
import threading
from dataclasses import dataclass
from pathlib import Path

from lab.article.crowd import hypercorn
from lab.child import Child
from lab.paths import REPOSITORY
from lab.testbed.hosts import Host

PORT = 5080


@dataclass(frozen=True)
class Probe:
    """A readiness probe, with Kubernetes' words for its numbers."""

    period_seconds: float
    timeout_seconds: float
    failure_threshold: int


class Pod:
    """One replica. Its CPU is limited from the start, or only once it is ready."""

    def __init__(self, host: Host, folder: Path, *, millicores: int, startup_millicores: int, probe: Probe) -> None:
        self.name = host.name
        self.address = f"{host.address}:{PORT}"
        self._host = host
        self._millicores = millicores
        self._arrivals = folder / f"{self.name}-arrivals.txt"
        self._arrivals.touch()
        host.group.limit(startup_millicores)
        env = {"REPLICA": self.name, "ARRIVALS": str(self._arrivals), "PYTHONPATH": str(REPOSITORY)}
        self.child: Child = host.start(hypercorn(self.address), folder / f"{self.name}.log", env=env)
        self._prober = Prober(self.address, probe)

    @property
    def ready(self) -> bool:
        return self._prober.ready

    def settle(self) -> None:
        """From here on it has the CPU that its limit says."""
        self._host.group.limit(self._millicores)

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

    def __init__(self, address: str, probe: Probe) -> None:
        self.ready = False
        self._address = address
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
            if answers(self._address, self._probe.timeout_seconds):
                self.ready, failures = True, 0
            else:
                failures += 1
                # One that was never ready is asked again at once: when it is there matters to the experiment.
                self.ready = self.ready and failures < self._probe.failure_threshold
            self._stopped.wait(self._probe.period_seconds if self.ready or failures == 0 else 0.1)


def answers(address: str, timeout_seconds: float) -> bool:
    """What a probe with httpGet on / finds out."""
    client = http.client.HTTPConnection(address, timeout=timeout_seconds)
    try:
        client.request("GET", "/", headers={"User-Agent": "kube-probe/1.31", "Connection": "close"})
        return 200 <= client.getresponse().status < 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        client.close()
