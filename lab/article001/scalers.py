"""Two pure scalers: Kubernetes' formula on a demand signal, and the article's script on refusals."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# kube-controller-manager's --horizontal-pod-autoscaler-tolerance.
TOLERANCE = 0.1
# Default scale-up behaviour in one sync of 15 s: four more pods or twice as many, whichever is more.
PODS_UP = 4
TIMES_UP = 2


@dataclass(frozen=True)
class ReplicaBounds:
    """Limits of the number of pods."""

    least: int
    most: int

    def clamp(self, pods: int) -> int:
        return min(max(pods, self.least), self.most)


@dataclass
class DemandScaler:
    """A HorizontalPodAutoscaler on an external metric with an AverageValue."""

    # Target demand of a pod, in concurrent requests: its workers.
    target: float
    bounds: ReplicaBounds
    # Stabilization window of scaling down.
    stabilization_seconds: float
    _recommended: list[tuple[float, int]] = field(default_factory=list)

    def desired(self, now: float, pods: int, demand: float) -> int:
        """Implements https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/, Algorithm details."""
        ratio = demand / (self.target * pods)
        wanted = pods if abs(ratio - 1) <= TOLERANCE else math.ceil(demand / self.target)
        self._recommended = [(at, n) for at, n in self._recommended if at > now - self.stabilization_seconds]
        self._recommended.append((now, wanted))
        if wanted < pods:
            # The highest recent recommendation, at most the current number.
            wanted = min(pods, max(n for _, n in self._recommended))
        return self.bounds.clamp(min(wanted, max(pods + PODS_UP, pods * TIMES_UP)))


@dataclass
class RefusalScaler:
    """Scaler that adds as many pods as the refused requests would keep busy.

    The article says only that its script reads the rate of 429s and determines the number of instances. This scaler
    knows the service time, converts the rate to workers, and does not limit a step.
    """

    workers: int
    service_seconds: float
    bounds: ReplicaBounds

    def desired(self, pods: int, refused_per_second: float) -> int:
        return self.bounds.clamp(pods + math.ceil(refused_per_second * self.service_seconds / self.workers))
