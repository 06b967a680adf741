"""Two scalers: Kubernetes' formula on a signal of demand, and the article's script on refusals. Both are pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# kube-controller-manager's --horizontal-pod-autoscaler-tolerance.
TOLERANCE = 0.1
# Its default behaviour for scaling up, in one sync of 15 s: so many pods, or twice as many, whichever is more.
PODS_UP = 4
TIMES_UP = 2


@dataclass(frozen=True)
class ReplicaBounds:
    """Of the number of pods."""

    least: int
    most: int

    def clamp(self, pods: int) -> int:
        return min(max(pods, self.least), self.most)


@dataclass
class DemandScaler:
    """A HorizontalPodAutoscaler on an external metric with an AverageValue."""

    # Demand that a pod is to have, in requests at once: its workers.
    target: float
    bounds: ReplicaBounds
    # How long fewer pods have to be enough before there are fewer.
    stabilization_seconds: float
    _recommended: list[tuple[float, int]] = field(default_factory=list)

    def desired(self, now: float, pods: int, demand: float) -> int:
        """https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/, Algorithm details."""
        ratio = demand / (self.target * pods)
        wanted = pods if abs(ratio - 1) <= TOLERANCE else math.ceil(demand / self.target)
        self._recommended = [(at, n) for at, n in self._recommended if at > now - self.stabilization_seconds]
        self._recommended.append((now, wanted))
        if wanted < pods:
            # The highest of what was recommended lately, and not more than there are.
            wanted = min(pods, max(n for _, n in self._recommended))
        return self.bounds.clamp(min(wanted, max(pods + PODS_UP, pods * TIMES_UP)))


@dataclass
class RefusalScaler:
    """As many more as what is refused would keep busy.

    The article says no more than that its script reads the rate of 429s and determines the number of instances. This
    one is told how long a request takes, which makes a number of workers of a rate, and has no limit to a step.
    """

    workers: int
    service_seconds: float
    bounds: ReplicaBounds

    def desired(self, pods: int, refused_per_second: float) -> int:
        return self.bounds.clamp(pods + math.ceil(refused_per_second * self.service_seconds / self.workers))
