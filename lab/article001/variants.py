"""Variants of experiment.toml."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from lab.balancers import BalancerTask

Kind = Literal["throughput", "learning", "errors", "scaling"]
# Entry points without a balancer.
CLUSTER_ENTRIES = ("clusterip", "nodeport-local", "nodeport-cluster")
DESCRIPTION_KEYS = ("title", "article")


@dataclass(frozen=True)
class Variant:
    """One variant."""

    id: str
    kind: Kind
    # One of CLUSTER_ENTRIES, or the name of a balancer.
    entry: str
    # Fields of the balancer's BalancerTask, besides its endpoints.
    options: dict[str, Any] = field(default_factory=dict)
    # Applies to the kind `learning`.
    workers: int = 4
    # Applies to the kind `scaling`. CPU is read, and KEDA runs, in the test cluster only.
    scaler: Literal["demand", "refusals", "cpu", "keda"] = "demand"
    # Delay before a refused client retries; None follows Retry-After.
    pause_seconds: float | None = None

    @property
    def balanced(self) -> bool:
        return self.entry not in CLUSTER_ENTRIES

    @property
    def learns(self) -> bool:
        return self.options.get("cap") == "auto"

    def task(self, endpoints: tuple[str, ...]) -> BalancerTask:
        return BalancerTask(endpoints, **self.options)


def read(settings: list[dict[str, Any]], wanted: tuple[str, ...]) -> list[Variant]:
    """Returns the wanted variants in the order of the file."""
    known = ({name: value for name, value in one.items() if name not in DESCRIPTION_KEYS} for one in settings)
    return [Variant(**one) for one in known if one["id"] in wanted]
