"""Scenarios of experiment.toml, and the setup of one: endpoints and a balancer."""

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
    """One `[[scenarios]]` table of experiment.toml."""

    id: str
    load: Literal["open", "closed"]
    arms: tuple[str, ...]
    # Defect of each endpoint at the onset.
    defects: Mapping[str, str] = field(default_factory=dict)
    # Endpoints whose packets are dropped from the onset on.
    unreachable: tuple[int, ...] = ()
    # Measures of a closed load; an open load has fixed ones.
    measures: tuple[str, ...] = ()
    # Number of rounds, if lower than the run's.
    rounds: int | None = None
    # Settings that override those of the load kind.
    settings: Mapping[str, Any] = field(default_factory=dict)


def read(bench: Bench) -> list[Scenario]:
    """Returns the scenarios of the run."""
    everything = bench.settings["scenarios"]
    wanted = bench.only or bench.settings.get(f"{bench.extent}_variants") or [each["id"] for each in everything]
    return [Scenario(**each) for each in everything if each["id"] in wanted]


def load_settings(bench: Bench, scenario: Scenario) -> dict[str, Any]:
    """Returns the settings of a scenario's load: its own, else those of the load kind."""
    common = bench.settings[f"{scenario.load}_load"]
    quick = bench.settings.get(f"quick_{scenario.load}_load", {}) if bench.quick else {}
    return {**common, **scenario.settings, **quick}


@contextmanager
def staged(
    bench: Bench, scenario: Scenario, arm: str, *, number: int, seed: int
) -> Iterator[tuple[LoadGenerator, RunningBalancer]]:
    """Yields the load generator with its endpoints, and an arm's balancer."""
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
