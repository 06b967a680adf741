"""Scenarios of experiment.toml, and the staging of one: endpoints and a balancer before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lab.balancers import BalancerTask, FailurePolicy, Placement, RunningBalancer, balancer
from lab.bench import Bench
from lab.load import EndpointBehaviour, LoadGenerator


@dataclass(frozen=True)
class Scenario:
    """One `[[scenarios]]` of experiment.toml."""

    id: str
    load: Literal["open", "closed"]
    arms: tuple[str, ...]
    # By endpoint: what goes wrong there at the onset.
    defects: Mapping[str, str] = field(default_factory=dict)
    # Endpoints whose packets are dropped from the onset on.
    unreachable: tuple[int, ...] = ()
    # Measures of a closed load; an open one has its own.
    measures: tuple[str, ...] = ()
    # Fewer rounds than the run has.
    rounds: int | None = None
    # Numbers that differ from those of all loads of its kind.
    settings: Mapping[str, Any] = field(default_factory=dict)


def read(bench: Bench) -> list[Scenario]:
    """The scenarios that the run is about."""
    everything = bench.settings["scenarios"]
    wanted = bench.only or bench.settings.get(f"{bench.extent}_variants") or [each["id"] for each in everything]
    return [Scenario(**each) for each in everything if each["id"] in wanted]


def load_settings(bench: Bench, scenario: Scenario) -> dict[str, Any]:
    """The numbers of a scenario's load: its own, else those of all loads of its kind."""
    common = bench.settings[f"{scenario.load}_load"]
    quick = bench.settings.get(f"quick_{scenario.load}_load", {}) if bench.quick else {}
    return {**common, **scenario.settings, **quick}


@contextmanager
def staged(
    bench: Bench, scenario: Scenario, arm: str, *, number: int, seed: int
) -> Iterator[tuple[LoadGenerator, RunningBalancer]]:
    """The load generator with its endpoints, and the balancer of an arm before them."""
    folder = bench.logs / f"{number}-{scenario.id}-{arm}"
    folder.mkdir()
    settings = load_settings(bench, scenario)
    defects = {int(endpoint): kind for endpoint, kind in scenario.defects.items()}
    service = EndpointBehaviour(**settings["service"], seed=seed, defects=defects)
    cpus, count = bench.settings["load_cpus"], settings["endpoints"]
    with (
        LoadGenerator(folder / "loadgen.log", cpus=cpus, endpoints=count, service=service) as load,
        _start(bench.settings, arm, load, folder) as running,
    ):
        yield load, running


def _start(settings: Mapping[str, Any], arm: str, load: LoadGenerator, folder: Path) -> RunningBalancer:
    options = dict(settings["arms"][arm])
    peer = balancer(options.pop("balancer"))
    failure_policy = None if options.get("defaults") else FailurePolicy(**settings["failure_policy"])
    task = BalancerTask(endpoints=load.endpoints, failure_policy=failure_policy, **options)
    return peer.start(task, Placement.pinned(folder, settings["proxy_cpus"]))
