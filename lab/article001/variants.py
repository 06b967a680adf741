"""What is compared, as experiment.toml has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from lab.balancers import BalancerTask

Kind = Literal["throughput", "learning", "errors", "scaling"]
# What leads to pods without a balancer.
CLUSTER_ENTRIES = ("clusterip", "nodeport-local", "nodeport-cluster")
DESCRIPTION_KEYS = ("title", "article")


@dataclass(frozen=True)
class Variant:
    """One of them."""

    id: str
    kind: Kind
    # One of WAYS, or the name of a balancer.
    entry: str
    # What a balancer is asked for beside its endpoints: fields of its Task.
    options: dict[str, Any] = field(default_factory=dict)
    # Of the kind `learning`.
    workers: int = 4
    # Of the kind `scaling`.
    scaler: Literal["demand", "refusals"] = "demand"
    # Seconds until a client that was refused asks again; nothing is as long as the answer says.
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
    """Those that are wanted, in the order in which they stand."""
    known = ({name: value for name, value in one.items() if name not in DESCRIPTION_KEYS} for one in settings)
    return [Variant(**one) for one in known if one["id"] in wanted]
